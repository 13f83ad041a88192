"""Kernels that misbehave in each known way, on a real GPU: each is recorded with its kind, and the rest is measured."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from workers import GOOD_BLOCKS, group_is_gone

from ktune.build.builder import Builder
from ktune.build.toolchain import find_toolchain
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Measurement, Request, Status
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.cuda_evaluator import CudaEvaluator
from ktune.gpu.nvml import reason_no_gpu

NO_GPU = reason_no_gpu()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.build,
    # The GPU is waited for where other processes test on it too.
    pytest.mark.timeout(600),
    pytest.mark.skipif(bool(NO_GPU), reason=f"needs a CUDA GPU: {NO_GPU}"),
]

KINDS = {
    "illegal_address": {Status.CRASHED},
    "endless_loop": {Status.TIMED_OUT},
    "does_not_compile": {Status.BUILD_FAILED},
    "too_much_shared_memory": {Status.LAUNCH_FAILED},
    "all_nan": {Status.WRONG},
    "last_nan": {Status.WRONG},
    "zeros": {Status.WRONG},
    "writes_nothing": {Status.WRONG},
    "writes_past_end": {Status.WRONG},
    "writes_before": {Status.WRONG},
    "changes_input": {Status.WRONG},
    "sometimes_right": {Status.WRONG, Status.UNSTABLE},
}
DEADLINES_S = {"load": 20.0, "verify": 8.0, "time": 8.0, "recheck": 8.0}


@pytest.fixture(scope="module")
def loaded(families: Path) -> LoadedFamily:
    return load_family(families / "bad")


@pytest.fixture(scope="module")
def builder(loaded: LoadedFamily, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    with Builder(loaded, find_toolchain(read_settings()), tmp_path_factory.mktemp("cache")) as one:
        yield one


def measure(loaded: LoadedFamily, builder: Builder, folder: Path, points: list[Configuration]) -> list[Measurement]:
    """In the order of `points`. Fails if a process is left."""
    problem = loaded.named_problems["default"]
    requests = [Request(i, make_variant(loaded.family, p, problem), problem) for i, p in enumerate(points)]
    evaluator = CudaEvaluator(loaded, builder, log_dir=folder, step_deadlines_s=DEADLINES_S)
    workers: set[int] = set()
    measured: dict[int, Measurement] = {}
    try:
        for measurement in evaluator.evaluate(requests):
            workers |= set(evaluator.worker_pids)
            measured[measurement.trial] = measurement
    finally:
        evaluator.close()
    assert workers and all(group_is_gone(pid) for pid in workers)
    return [measured[i] for i in range(len(points))]


def good_points() -> list[Configuration]:
    return [Configuration((("behaviour", "good"), ("block_size", block))) for block in GOOD_BLOCKS]


def bad_point(behaviour: str) -> Configuration:
    return Configuration((("behaviour", behaviour),))


def assert_good(measured: list[Measurement]) -> None:
    """Right, every one; a block size that is slow beside the best is verified all the same, then culled."""
    assert len(measured) == len(GOOD_BLOCKS)
    assert {m.status for m in measured} <= {Status.OK, Status.CULLED}, measured
    assert Status.OK in {m.status for m in measured}
    assert all(m.accuracy is not None and m.accuracy.worst_ratio <= 1 for m in measured)


def test_the_whole_family_is_measured_with_each_fault_recorded_as_its_kind(loaded, builder, tmp_path: Path) -> None:
    points = Space(loaded.family, [loaded.named_problems["default"]], {}).points
    measured = measure(loaded, builder, tmp_path, points)
    found = {str(m.variant.configuration["behaviour"]): m for m in measured}
    assert set(found) == {"good", *KINDS}
    for behaviour, kinds in KINDS.items():
        assert found[behaviour].status in kinds, f"{behaviour}: {found[behaviour].status} {found[behaviour].detail}"
        assert found[behaviour].detail
    assert_good([m for m in measured if m.variant.configuration["behaviour"] == "good"])


@pytest.mark.parametrize("poison", ["illegal_address", "endless_loop"])
def test_one_poisonous_kernel_then_ten_good_ones_are_one_failure_and_ten_results(
    loaded, builder, tmp_path: Path, poison: str
) -> None:
    first, *others = measure(loaded, builder, tmp_path, [bad_point(poison), *good_points()])
    assert first.status in KINDS[poison]
    assert_good(others)


@pytest.mark.parametrize(("behaviour", "place"), [("writes_past_end", "y[1048576]"), ("writes_before", "y[-1]")])
def test_an_overrun_is_reported_with_its_element(loaded, builder, tmp_path: Path, behaviour: str, place: str) -> None:
    (measurement,) = measure(loaded, builder, tmp_path, [bad_point(behaviour)])
    assert place in measurement.detail
