"""From what was measured to the evidence that a bound is named from: for a whole plan, and for one kernel of it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ktune.profile.bound import BUSY_PERCENT, Evidence, name_bound
from ktune.profile.mix import TENSOR
from ktune.profile.model import (
    Bound,
    BoundKind,
    DeviceFacts,
    KernelCounters,
    KernelFacts,
    Missing,
    OperationFacts,
    Peaks,
    Rates,
    StepFacts,
)
from ktune.profile.occupancy import WARP, Occupancy, resident_warps_per_scheduler

DURATION = "gpu__time_duration.sum"
DRAM_BYTES = "dram__bytes.sum"
DRAM_READ = "dram__bytes_read.sum"
TENSOR_CYCLES = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
ISSUE_ACTIVE = "smsp__issue_active.avg.pct_of_peak_sustained_elapsed"
SHARED_WAVEFRONTS = "l1tex__data_pipe_lsu_wavefronts_mem_shared.sum.pct_of_peak_sustained_elapsed"
L2_THROUGHPUT = "lts__throughput.avg.pct_of_peak_sustained_elapsed"
LOAD_STORE_THROUGHPUT = "l1tex__throughput.avg.pct_of_peak_sustained_elapsed"
DRAM_THROUGHPUT = "dram__throughput.avg.pct_of_peak_sustained_elapsed"

# Each counter is in per cent of the unit's peak over the whole time, idle SMs included.
_UNIT_COUNTERS: tuple[tuple[BoundKind, str], ...] = (
    (BoundKind.FP32, "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"),
    (BoundKind.SPECIAL, "sm__inst_executed_pipe_xu.avg.pct_of_peak_sustained_elapsed"),
    (BoundKind.TENSOR, TENSOR_CYCLES),
    (BoundKind.SHARED, SHARED_WAVEFRONTS),
    (BoundKind.L2, L2_THROUGHPUT),
    (BoundKind.LOAD_STORE, LOAD_STORE_THROUGHPUT),
    (BoundKind.INTEGER, "sm__inst_executed_pipe_alu.avg.pct_of_peak_sustained_elapsed"),
    (BoundKind.ISSUE, ISSUE_ACTIVE),
)
COUNTERS: tuple[str, ...] = (
    DURATION,
    DRAM_BYTES,
    DRAM_READ,
    DRAM_THROUGHPUT,
    "sm__cycles_elapsed.avg.per_second",
    "sm__throughput.avg.pct_of_peak_sustained_elapsed",
    "sm__warps_active.avg.pct_of_peak_sustained_active",
    "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "sm__inst_executed_pipe_lsu.avg.pct_of_peak_sustained_elapsed",
    *(metric for _, metric in _UNIT_COUNTERS),
)

# A kernel decides for its plan if it takes this much of the time.
DOMINANT_PERCENT = 75.0
# Traffic with fewer writes than this is compared with the read bandwidth.
READS_ONLY_PERCENT = 90.0


def bandwidth_peak(read_bytes: float, total_bytes: float, peaks: Peaks) -> tuple[float | None, str]:
    """GB/s to compare with, and its name: reading alone where at least 90 % of the traffic is reads, else copying."""
    if total_bytes > 0 and 100.0 * read_bytes >= READS_ONLY_PERCENT * total_bytes:
        return peaks.read_gbps, "read"
    return peaks.copy_gbps, "copy"


def plan_bound(
    steps: Sequence[StepFacts],
    rates: Rates | Missing,
    device: DeviceFacts | Missing,
    peaks: Peaks | Missing,
    counters: Sequence[KernelCounters] | Missing,
) -> Bound:
    """What bounds the plan: by its dominant kernel's counters where there are any, else by the family's cost."""
    by_cost = cost_evidence(steps, rates, device, counters)
    if isinstance(counters, Missing) or not counters:
        return name_bound(by_cost)
    times = [kernel.values.get(DURATION, 0.0) for kernel in counters]
    longest = max(range(len(times)), key=lambda i: times[i])
    share = 100.0 * times[longest] / sum(times) if sum(times) > 0 else 0.0
    kernel = counters[longest]
    if share < DOMINANT_PERCENT:
        whole = name_bound(by_cost)
        if whole.kind is not BoundKind.UNDETERMINED:
            return whole
        reason = f"no kernel takes {DOMINANT_PERCENT:.0f} % of the time, {kernel.kernel} takes {share:.0f}; see each"
        return Bound(BoundKind.UNDETERMINED, reason, whole.percent)
    launch = None if len(steps) > 1 else by_cost.launch_percent
    found = counter_evidence(kernel, peaks)
    bound = name_bound(Evidence(found.busy, launch, _warps_of(kernel.kernel, steps, device), found.lacking))
    if len(counters) == 1:
        return bound
    return Bound(bound.kind, f"{kernel.kernel}, {share:.0f} % of the time: {bound.reason}", bound.percent, bound.near)


def counter_evidence(kernel: KernelCounters, peaks: Peaks | Missing) -> Evidence:
    """What the hardware counted for one kernel; its memory traffic against the bandwidth measured on this GPU."""
    values = kernel.values
    busy = {unit: values[metric] for unit, metric in _UNIT_COUNTERS if metric in values}
    memory = _memory_percent(values, peaks)
    if memory is not None:
        busy[BoundKind.MEMORY] = memory
    return Evidence(busy, lacking="" if len(busy) == len(_UNIT_COUNTERS) + 1 else "ncu gave no such counter")


def cost_evidence(
    steps: Sequence[StepFacts],
    rates: Rates | Missing,
    device: DeviceFacts | Missing,
    counters: Sequence[KernelCounters] | Missing,
) -> Evidence:
    """What the family's cost tells. Its flops are fp32's only where no other unit can have done them."""
    if isinstance(rates, Missing):
        return Evidence({}, lacking=f"no rates: {rates.reason}")
    busy: dict[BoundKind, float] = {}
    if rates.memory.percent is not None:
        busy[BoundKind.MEMORY] = rates.memory.percent
    if rates.special is not None and rates.special.percent is not None:
        busy[BoundKind.SPECIAL] = rates.special.percent
    reasons = [f"hardware counters: {counters.reason}"] if isinstance(counters, Missing) else []
    elsewhere = flops_elsewhere(steps)
    if elsewhere:
        reasons.append(elsewhere)
        # a tensor core may do more than the declared flops, never less, and no other unit is this fast
        if rates.tensor is not None and rates.tensor.percent is not None and rates.tensor.percent >= BUSY_PERCENT:
            busy[BoundKind.TENSOR] = rates.tensor.percent
    elif rates.fp32 is not None and rates.fp32.percent is not None:
        busy[BoundKind.FP32] = rates.fp32.percent
    kernels = [step for step in steps if isinstance(step, KernelFacts)]
    warps = _warps_of(kernels[0].kernel, steps, device) if len(steps) == len(kernels) == 1 else None
    return Evidence(busy, rates.launch_percent, warps, "; ".join(reasons))


def flops_elsewhere(steps: Sequence[StepFacts]) -> str:
    """Why the declared flops may not be the fp32 units'; empty if they are."""
    for step in steps:
        if isinstance(step, OperationFacts):
            return f"{step.function} is a torch operation, whose units are not known"
        if isinstance(step.instructions, Missing):
            return f"whether {step.kernel} uses tensor cores is not known: {step.instructions.reason}"
        if step.instructions.counts.get(TENSOR):
            return f"{step.kernel} computes in tensor cores"
    return ""


def kernel_bounds(counters: Sequence[KernelCounters], peaks: Peaks | Missing) -> dict[str, Bound]:
    """{kernel: what bounds it alone}, by the hardware counters."""
    return {kernel.kernel: name_bound(counter_evidence(kernel, peaks)) for kernel in counters}


def _memory_percent(values: Mapping[str, float], peaks: Peaks | Missing) -> float | None:
    moved, duration = values.get(DRAM_BYTES), values.get(DURATION)
    if moved is None or not duration or isinstance(peaks, Missing):
        return values.get(DRAM_THROUGHPUT)
    peak, _ = bandwidth_peak(values.get(DRAM_READ, 0.0), moved, peaks)
    # bytes per nanosecond are gigabytes per second
    return 100.0 * moved / duration / peak if peak else values.get(DRAM_THROUGHPUT)


def _warps_of(kernel: str, steps: Sequence[StepFacts], device: DeviceFacts | Missing) -> float | None:
    if isinstance(device, Missing) or device.sm_count is None:
        return None
    for step in steps:
        if isinstance(step, KernelFacts) and step.kernel == kernel and isinstance(step.occupancy, Occupancy):
            granted = _granted(kernel, device)
            blocks = step.occupancy.blocks if granted is None else granted
            return resident_warps_per_scheduler(blocks, -(-step.threads // WARP), step.blocks, device.sm_count)
    return None


def _granted(kernel: str, device: DeviceFacts) -> int | None:
    if isinstance(device.steps, Missing):
        return None
    return next((step.blocks_per_sm for step in device.steps if step.name == kernel), None)
