"""The bound is named where the evidence shows it, and left undetermined, with the reason, where it does not."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace

import pytest

from ktune.api import Cost
from ktune.core.model import Timing
from ktune.profile.bound import NEEDED_FOR_LATENCY, Evidence, name_bound
from ktune.profile.evidence import (
    COUNTERS,
    DRAM_BYTES,
    DRAM_READ,
    DURATION,
    counter_evidence,
    kernel_bounds,
    plan_bound,
)
from ktune.profile.mix import FP32_FMA, TENSOR, Mix
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
    StepOnGpu,
    Timed,
)
from ktune.profile.occupancy import Footprint, limits_of, occupancy
from ktune.profile.rates import compute_rates

NO_NCU = Missing("ncu is not installed")
NO_COST = Cost(0, 0, 0)
FMA_ONLY = Mix(2, {FP32_FMA: 2})
PEAKS = Peaks(
    "H200", "GPU-1", "580", "2026-01-01", copy_gbps=4000.0, read_gbps=4200.0, fp32_gflops=60_000.0,
    special_gops=4000.0, tensor_gflops=700_000.0, launch_us=2.0, gap_us=1.0, chain_ns=2.0,
)  # fmt: skip


def timed(cold_us: float) -> Timed:
    timing = Timing("cold", "event", (cold_us,), cold_us, cold_us, cold_us, cold_us, cold_us, cold_us, 0.0)
    return Timed(timing, None, "ok", "", "measured now")


def kernel(name: str = "k", blocks: int = 10_000, mix: Mix | Missing = FMA_ONLY) -> KernelFacts:
    limits = limits_of("sm_90a")
    assert limits is not None
    found = occupancy(Footprint(256, 32, 0), limits)
    shape = (blocks, 1, 1)
    return KernelFacts(name, shape, (256, 1, 1), (1, 1, 1), 0, 0, 32, 0, 0, 0, 0, found, mix, Missing("no loop"))


def device(*granted: int | None) -> DeviceFacts:
    steps = tuple(StepOnGpu("k", blocks, 1.0) for blocks in granted or (8,))
    return DeviceFacts(132, steps, Missing("not run"), Missing("kept"))


def rates(cost: Cost, cold_us: float, steps: int = 1) -> Rates:
    found = compute_rates(cost, timed(cold_us), PEAKS, steps)
    assert isinstance(found, Rates)
    return found


def by_cost(cost: Cost, cold_us: float, *steps: StepFacts) -> Bound:
    """What is said of a plan whose counters are not known."""
    plan = steps or (kernel(),)
    return plan_bound(plan, rates(cost, cold_us, len(plan)), device(), PEAKS, NO_NCU)


def counted(kernel_name: str = "k", **percent: float) -> KernelCounters:
    """Counters of a kernel of 100 us whose units are all 10 % busy, save those named."""
    metrics = {metric: 10.0 for metric in COUNTERS}
    named = {next(m for m in COUNTERS if part in m): value for part, value in percent.items()}
    return KernelCounters(kernel_name, 3, {**metrics, DURATION: 1e5, DRAM_BYTES: 4e7, DRAM_READ: 2e7, **named})


def by_counters(*kernels: KernelCounters, cost: Cost = NO_COST, steps: tuple[StepFacts, ...] = ()) -> Bound:
    plan = steps or tuple(kernel(k.kernel) for k in kernels)
    return plan_bound(plan, rates(cost, 100.0, len(plan)), device(), PEAKS, kernels)


def everything(percent: float, **others: float) -> dict[BoundKind, float]:
    return {**dict.fromkeys(NEEDED_FOR_LATENCY, percent), **{BoundKind[k]: v for k, v in others.items()}}


@pytest.mark.parametrize(
    ("busy", "expected"),
    [
        ({"MEMORY": 92.0}, BoundKind.MEMORY),
        ({"FP32": 95.0, "ISSUE": 97.0}, BoundKind.FP32),
        ({"SPECIAL": 88.0, "MEMORY": 40.0}, BoundKind.SPECIAL),
        ({"TENSOR": 80.0, "SHARED": 70.0}, BoundKind.TENSOR),
        ({"SHARED": 90.0, "LOAD_STORE": 95.0}, BoundKind.SHARED),
        ({"L2": 85.0}, BoundKind.L2),
        ({"LOAD_STORE": 85.0}, BoundKind.LOAD_STORE),
        ({"INTEGER": 85.0, "ISSUE": 80.0}, BoundKind.INTEGER),
        ({"ISSUE": 85.0}, BoundKind.ISSUE),
        ({}, BoundKind.LATENCY),
    ],
)
def test_the_busiest_unit_bounds_and_with_none_busy_it_is_latency(
    busy: Mapping[str, float], expected: BoundKind
) -> None:
    found = name_bound(Evidence(everything(20.0, **busy)))
    assert found.kind is expected
    assert found.percent == max(busy.get(expected.name, 0.0), 20.0)


def test_a_unit_as_busy_as_the_first_is_named_beside_it() -> None:
    found = name_bound(Evidence(everything(20.0, MEMORY=90.0, SPECIAL=86.0, FP32=80.0)))
    assert (found.kind, found.near) == (BoundKind.MEMORY, (BoundKind.SPECIAL,))
    assert found.reason == "memory is 90 % busy, special functions 86 %"


def test_several_units_half_busy_are_no_single_bound() -> None:
    found = name_bound(Evidence(everything(20.0, MEMORY=60.0, ISSUE=65.0)))
    assert found.kind is BoundKind.UNDETERMINED
    assert "instruction issue, is 65 % busy" in found.reason


@pytest.mark.parametrize("unit", NEEDED_FOR_LATENCY)
def test_latency_is_not_concluded_from_units_that_nothing_is_known_of(unit: BoundKind) -> None:
    busy = everything(20.0)
    del busy[unit]
    found = name_bound(Evidence(busy, warps_per_scheduler=8.0, lacking="ncu is not permitted"))
    assert found.kind is BoundKind.UNDETERMINED
    assert f"not known: {unit} (ncu is not permitted)" in found.reason


def test_idle_schedulers_are_latency_even_without_counters() -> None:
    few = Evidence({BoundKind.MEMORY: 1.0}, warps_per_scheduler=0.25)
    assert name_bound(few).kind is BoundKind.LATENCY
    assert name_bound(replace(few, busy={BoundKind.MEMORY: 60.0})).kind is BoundKind.UNDETERMINED
    assert name_bound(replace(few, warps_per_scheduler=1.0)).kind is BoundKind.UNDETERMINED


def test_a_time_that_an_empty_launch_takes_too_is_launch_overhead() -> None:
    assert name_bound(Evidence(everything(30.0), launch_percent=60.0)).kind is BoundKind.LAUNCH
    assert name_bound(Evidence(everything(30.0), launch_percent=40.0)).kind is BoundKind.LATENCY


@pytest.mark.parametrize("percent", [130.0, -1.0])
def test_a_percentage_that_cannot_be_is_not_believed(percent: float) -> None:
    found = name_bound(Evidence(everything(20.0, MEMORY=percent)))
    assert found.kind is BoundKind.UNDETERMINED
    assert "cost()" in found.reason


@pytest.mark.parametrize("percent", [math.nan, math.inf])
def test_a_percentage_that_is_no_number_is_not_known(percent: float) -> None:
    found = name_bound(Evidence(everything(20.0, FP32=percent)))
    assert found.kind is BoundKind.UNDETERMINED
    assert "not known: fp32" in found.reason


def test_no_evidence_gives_the_reason_alone() -> None:
    assert name_bound(Evidence({}, lacking="no rates: needs a GPU")) == Bound(
        BoundKind.UNDETERMINED, "no rates: needs a GPU"
    )


def test_the_declared_cost_names_memory_fp32_and_special_functions() -> None:
    assert by_cost(Cost(180_000_000, 180_000_000, 0), 100.0).kind is BoundKind.MEMORY
    assert by_cost(Cost(1000, 1000, 5_500_000_000), 100.0).kind is BoundKind.FP32
    assert by_cost(Cost(1000, 1000, 0, 370_000_000), 100.0).kind is BoundKind.SPECIAL


def test_a_chain_in_few_threads_is_latency_and_in_many_threads_undetermined() -> None:
    chain = Cost(1000, 1000, 300_000_000)
    assert by_cost(chain, 100.0, kernel(blocks=16)).kind is BoundKind.LATENCY
    many = by_cost(chain, 100.0)
    assert many.kind is BoundKind.UNDETERMINED
    assert "ncu is not installed" in many.reason


def test_mostly_read_traffic_is_compared_with_the_read_bandwidth() -> None:
    reads = rates(Cost(95, 5, 0), 1.0)
    assert (reads.memory_peak, reads.memory.peak) == ("read", 4200.0)
    copies = rates(Cost(50, 50, 0), 1.0)
    assert (copies.memory_peak, copies.memory.peak) == ("copy", 4000.0)


def test_flops_are_not_fp32_units_work_where_others_can_have_done_them() -> None:
    cost = Cost(1000, 1000, 5_500_000_000)
    for step, said in (
        (OperationFacts("gemm"), "gemm is a torch operation"),
        (kernel(mix=Mix(1, {TENSOR: 1})), "k computes in tensor cores"),
        (kernel(mix=Missing("no disassembler")), "no disassembler"),
    ):
        found = by_cost(cost, 100.0, step)
        assert found.kind is BoundKind.UNDETERMINED
        assert said in found.reason


def test_more_flops_than_any_other_unit_can_do_are_the_tensor_cores() -> None:
    assert by_cost(Cost(1000, 1000, 60_000_000_000), 100.0, OperationFacts("gemm")).kind is BoundKind.TENSOR


def test_without_a_time_there_are_no_rates_and_no_bound() -> None:
    no_time = Missing("needs a GPU")
    assert compute_rates(Cost(1, 1, 1), no_time, PEAKS, 1) == no_time
    culled = replace(timed(1.0), cold=None, status="crashed", detail="illegal address")
    assert compute_rates(Cost(1, 1, 1), culled, PEAKS, 1) == Missing("illegal address")
    assert plan_bound([kernel()], no_time, Missing(""), PEAKS, NO_NCU).kind is BoundKind.UNDETERMINED


def test_without_peaks_the_rates_stand_alone() -> None:
    found = compute_rates(Cost(100, 100, 50, 0), timed(2.0), Missing("needs a GPU"), 1)
    assert isinstance(found, Rates)
    assert (found.memory.achieved, found.memory.percent, found.launch_percent) == (0.1, None, None)
    assert found.special is None


@pytest.mark.parametrize(
    ("percent", "expected"),
    [
        ({"pipe_fma.": 95.0, "issue_active.avg.pct_of_peak_sustained_elapsed": 97.0}, BoundKind.FP32),
        ({"pipe_xu.": 96.0}, BoundKind.SPECIAL),
        ({"pipe_tensor_cycles": 85.0}, BoundKind.TENSOR),
        ({"wavefronts_mem_shared": 90.0}, BoundKind.SHARED),
        ({"lts__throughput": 90.0}, BoundKind.L2),
        ({"pipe_alu.": 90.0}, BoundKind.INTEGER),
        ({}, BoundKind.LATENCY),
    ],
)
def test_hardware_counters_name_the_unit(percent: Mapping[str, float], expected: BoundKind) -> None:
    assert by_counters(counted(**percent)).kind is expected


def test_counted_traffic_is_compared_with_the_bandwidth_of_this_gpu() -> None:
    """350 MB in 100 us are 3,500 GB/s, 88 % of what copying was measured at, whatever the datasheet's peak is."""
    busy = counted(**{"dram__bytes.sum": 3.5e8, "dram__bytes_read": 1.75e8, "dram__throughput": 73.0})
    found = by_counters(busy)
    assert found.kind is BoundKind.MEMORY
    assert found.percent == pytest.approx(87.5)
    without_peaks = counter_evidence(busy, Missing("needs a GPU"))
    assert without_peaks.busy[BoundKind.MEMORY] == 73.0


def test_a_missing_counter_is_not_taken_for_an_idle_unit() -> None:
    full = counted()
    lacking = replace(full, values={m: v for m, v in full.values.items() if "pipe_tensor" not in m})
    found = by_counters(lacking)
    assert found.kind is BoundKind.UNDETERMINED
    assert "not known: tensor" in found.reason


def test_the_kernel_that_takes_the_time_speaks_for_its_plan() -> None:
    main = counted("main", **{"time_duration": 9e4, "pipe_fma.": 90.0})
    tail = counted("tail", **{"time_duration": 1e4, "dram__bytes.sum": 1e3, "lts__throughput": 90.0})
    found = by_counters(main, tail)
    assert found.kind is BoundKind.FP32
    assert found.reason.startswith("main, 90 % of the time")
    assert {name: bound.kind for name, bound in kernel_bounds([main, tail], PEAKS).items()} == {
        "main": BoundKind.FP32,
        "tail": BoundKind.L2,
    }


def test_kernels_that_share_the_time_have_no_common_bound_unless_the_cost_shows_one() -> None:
    first = counted("first", **{"pipe_fma.": 90.0})
    second = counted("second", **{"lts__throughput": 90.0})
    assert by_counters(first, second).kind is BoundKind.UNDETERMINED
    moved = Cost(180_000_000, 180_000_000, 0)
    assert by_counters(first, second, cost=moved).kind is BoundKind.MEMORY
