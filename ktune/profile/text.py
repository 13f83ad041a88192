"""A profile as people read it: one section a topic, every figure with its unit, and what is missing with its reason."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ktune.output.rounding import interval, median
from ktune.profile.evidence import COUNTERS, DURATION, kernel_bounds
from ktune.profile.model import (
    NEEDS_A_GPU,
    DeviceFacts,
    KernelFacts,
    Missing,
    OperationFacts,
    Peaks,
    Profile,
    Rate,
    Steady,
    StepOnGpu,
    Timed,
)
from ktune.profile.occupancy import Occupancy

MARK = "ktune profile"
_LABEL = 20


def profile_text(profile: Profile) -> str:
    """The whole profile, plain text, lines of at most about 110 characters."""
    lines = [
        f"{MARK}: {profile.family} at {profile.problem.label}, {profile.target}, {profile.compiler}",
        f"{profile.configuration_id} ({profile.chosen})",
        f"on {profile.gpu}" if profile.gpu else f"without a GPU: {profile.no_gpu}",
    ]
    for index, step in enumerate(profile.steps):
        lines += ["", *_step(step, profile.device, index)]
    lines += ["", *_time(profile.time), *_rates(profile), *_peaks(profile.peaks)]
    lines += ["", *_steady(profile.device), "", *_counters(profile)]
    lines += ["", f"bound: {profile.bound.kind}", f"  {profile.bound.reason}"]
    if profile.notes:
        lines += ["", "notes", *(f"  {note}" for note in profile.notes)]
    return "\n".join(lines)


def _step(step: KernelFacts | OperationFacts, device: DeviceFacts | Missing, index: int) -> list[str]:
    seen = _on_gpu(device, index)
    hot = "" if isinstance(seen, Missing) or seen.hot_us is None else f", {seen.hot_us:,.4g} us hot"
    if isinstance(step, OperationFacts):
        return [f"torch operation {step.function}{hot}", "  its kernels are the library's: see the hardware counters"]
    cluster = "" if step.cluster == (1, 1, 1) else f", clusters of {_shape(step.cluster)}"
    return [
        f"kernel {step.kernel}, grid {_shape(step.grid)}, block {_shape(step.block)}{cluster}{hot}",
        _row("registers", f"{step.registers} a thread; spills {_bytes(step.spill_store_bytes)} stored, "
             f"{_bytes(step.spill_load_bytes)} loaded; stack {_bytes(step.stack_bytes)}"),
        _row("shared memory", f"{_bytes(step.smem_static_bytes)} static, {_bytes(step.smem_dynamic_bytes)} dynamic"),
        *_occupancy(step, seen),
        _row("grid", _waves(step, device, seen)),
        *_mix(step),
    ]  # fmt: skip


def _occupancy(step: KernelFacts, seen: StepOnGpu | Missing) -> list[str]:
    found = step.occupancy
    if isinstance(found, Missing):
        lines = [_row("occupancy", f"n/a: {found.reason}")]
    else:
        limit = f"limited by {found.limiter}" if found.limiter else "full"
        allowed = ", ".join(f"{name} {count}" for name, count in found.allowed.items())
        lines = [
            _row("occupancy", f"{found.percent:.0f} %: {found.warps} of {found.max_warps} warps, {limit}"),
            _row("", f"blocks per SM: {found.blocks}, by {allowed}"),
        ]
    driver = seen.reason if isinstance(seen, Missing) else _granted(step, seen)
    return [*lines, _row("by the driver", driver)]


def _waves(step: KernelFacts, device: DeviceFacts | Missing, seen: StepOnGpu | Missing) -> str:
    """How often the grid fills the GPU."""
    if isinstance(device, Missing) or device.sm_count is None:
        return f"{step.blocks:,} blocks; how many fit at once {NEEDS_A_GPU}"
    granted = None if isinstance(seen, Missing) else seen.blocks_per_sm
    if granted is None and isinstance(step.occupancy, Occupancy):
        granted = step.occupancy.blocks
    if not granted:
        return f"{step.blocks:,} blocks"
    room = granted * device.sm_count
    return f"{step.blocks:,} blocks, {room:,} fit at once: {step.blocks / room:.2f} waves"


def _granted(step: KernelFacts, seen: StepOnGpu) -> str:
    if seen.blocks_per_sm is None:
        return "n/a"
    if isinstance(step.occupancy, Occupancy):
        warps = -(-step.threads // 32)
        share = 100.0 * seen.blocks_per_sm * warps / step.occupancy.max_warps
        return f"{seen.blocks_per_sm} blocks per SM, {share:.0f} %"
    return f"{seen.blocks_per_sm} blocks per SM"


def _mix(step: KernelFacts) -> list[str]:
    whole, loop = step.instructions, step.main_loop
    if isinstance(whole, Missing):
        return [_row("instructions", f"n/a: {whole.reason}")]
    about = f"main loop: {loop.reason}" if isinstance(loop, Missing) else f"{loop.total} in the main loop"
    lines = [
        _row("instructions", f"{whole.total} in the kernel, {about}"),
        f"    {'':22}{'kernel':>14}{'main loop':>18}",
    ]
    for name, count in whole.counts.items():
        inside = f"{'-':>18}" if isinstance(loop, Missing) else _share(loop.counts.get(name, 0), loop.share(name), 12)
        lines.append(f"    {name:22}{_share(count, whole.share(name), 8)}{inside}")
    if whole.unknown:
        lines.append(f"    not classified: {', '.join(whole.unknown)}")
    return lines


def _share(count: int, percent: float, width: int) -> str:
    return f"{count:>{width}}{percent:>4.0f} %"


def _time(timed: Timed | Missing) -> list[str]:
    if isinstance(timed, Missing):
        return [f"time: {timed.reason}"]
    lines = [f"time, {timed.origin}" + (f" on {timed.environment.gpu_name}" if timed.environment else "")]
    if timed.status != "ok":
        lines.append(_row("status", f"{timed.status}: {timed.detail}"))
    for name, timing in (("cold", timed.cold), ("hot", timed.hot)):
        text = f"{median(timing)} us {interval(timing)}" if timing else "n/a"
        lines.append(_row(name, text))
    return lines


def _rates(profile: Profile) -> list[str]:
    rates = profile.rates
    if isinstance(rates, Missing):
        return [f"rates: {rates.reason}"]
    named = f" ({rates.memory_peak} bandwidth)" if rates.memory_peak else ""
    lines = [
        f"rates, by the family's cost over the cold time{'':>6}{'achieved':>12}{'this GPU':>12}",
        _rate(f"memory{named}", rates.memory),
    ]
    for name, rate in (
        ("arithmetic, as fp32", rates.fp32),
        ("arithmetic, as bf16 tensor", rates.tensor),
        ("special functions", rates.special),
    ):
        if rate is not None:
            lines.append(_rate(name, rate))
    if rates.launch_percent is not None:
        lines.append(_row("launching", f"{rates.launch_percent:.2g} % of the cold time"))
    return lines


def _rate(name: str, rate: Rate) -> str:
    peak = f"{rate.peak:>12,.0f}" if rate.peak is not None else f"{'n/a':>12}"
    percent = f"{rate.percent:>7.1f} %" if rate.percent is not None else f"{'n/a':>9}"
    return f"  {name:42}{rate.unit:>8}{rate.achieved:>12,.0f}{peak}{percent}"


def _peaks(peaks: Peaks | Missing) -> list[str]:
    if isinstance(peaks, Missing):
        return [f"peaks of this GPU: {peaks.reason}"]
    clock = f", SM clock {peaks.sm_clock_mhz} MHz" if peaks.sm_clock_mhz is not None else ""
    lines = [f"peaks measured on {peaks.gpu_name} {peaks.gpu_uuid}, driver {peaks.driver}, {peaks.measured_at}{clock}"]
    if peaks.launch_us is not None:
        lines.append(
            _row("empty launch", f"{peaks.launch_us:.2f} us, each further one {_or_na(peaks.gap_us, '.2f')} us")
        )
    if peaks.chain_ns is not None:
        lines.append(_row("dependent fma", f"{peaks.chain_ns:.2f} ns"))
    return lines


def _steady(device: DeviceFacts | Missing) -> list[str]:
    steady = device if isinstance(device, Missing) else device.steady
    if isinstance(steady, Missing):
        return [f"steady state: {steady.reason}"]
    return [
        f"steady state, {steady.executions} executions in {steady.seconds:.1f} s",
        _row("SM clock", f"{_or_na(steady.sm_clock_mhz)} MHz, memory {_or_na(steady.memory_clock_mhz)} MHz"),
        _row("power", f"{_or_na(steady.power_w, '.0f')} W of {_or_na(steady.power_limit_w, '.0f')} W"),
        _row("clock held down by", ", ".join(steady.throttle) or "nothing"),
        _row("energy", _energy(steady)),
    ]


def _energy(steady: Steady) -> str:
    if steady.energy_per_launch_mj is not None:
        return f"{steady.energy_per_launch_mj:,.4g} mJ an execution"
    return "n/a: others compute on this GPU" if steady.foreign_processes else "n/a: the counter did not move"


def _counters(profile: Profile) -> list[str]:
    counters = profile.counters
    if isinstance(counters, Missing):
        return [f"hardware counters: n/a: {counters.reason}"]
    lines = []
    bounds = kernel_bounds(counters, profile.peaks)
    for kernel in counters:
        time_us = kernel.values.get(DURATION, math.nan) / 1e3
        lines.append(f"hardware counters of {kernel.kernel}, {kernel.launches} launches, median {time_us:,.4g} us")
        lines += [_counter(metric, kernel.values.get(metric)) for metric in COUNTERS if metric != DURATION]
        if len(counters) > 1:
            bound = bounds[kernel.kernel]
            lines.append(_row("bound", f"{bound.kind}: {bound.reason}"))
    return lines


def _counter(metric: str, value: float | None) -> str:
    unit = " %" if ".pct" in metric else " B" if "bytes" in metric else " Hz" if "per_second" in metric else ""
    return f"    {metric:82}" + (f"{'n/a':>18}" if value is None else f"{value:>16,.{1 if value < 1e6 else 0}f}{unit}")


def _on_gpu(device: DeviceFacts | Missing, index: int) -> StepOnGpu | Missing:
    if isinstance(device, Missing):
        return device
    return device.steps if isinstance(device.steps, Missing) else device.steps[index]


def _row(label: str, text: str) -> str:
    return f"  {label:{_LABEL}}{text}"


def _shape(shape: Sequence[int]) -> str:
    """`512` for (512, 1, 1), `16x8` for (16, 8, 1)."""
    sizes = list(shape)
    while len(sizes) > 1 and sizes[-1] == 1:
        sizes.pop()
    return "x".join(f"{size:,}" if len(sizes) == 1 else str(size) for size in sizes)


def _bytes(count: int) -> str:
    return f"{count:,} B"


def _or_na(value: float | None, form: str = "") -> str:
    return "n/a" if value is None else format(value, form)
