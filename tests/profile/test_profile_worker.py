"""What the worker does with a GPU, without one: its buffers, its formulas, and the order in which it tells."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from ktune.core.errors import FamilyError
from ktune.core.loading import load_family
from ktune.core.model import Configuration
from ktune.gpu.timing import Reading
from ktune.profile import peaks, worker
from ktune.profile.isolated import run_isolated
from ktune.profile.messages import Order, read_facts
from ktune.profile.model import Missing, Peaks, Steady
from ktune.profile.subject import Subject
from ktune.profile.worker import ORPHANED

FAMILY = """
from ktune.api import Cost, Family, Parameter, Plan, Size, Tensor, Tolerance, TorchOperation

family = Family(
    name="doubled", summary="y = 2 x", sizes=(Size("N", "elements"),), problems={"default": {"N": 6}},
    parameters=(Parameter("steps", (1, 2), 2, "torch operations"),), rules=(), source=lambda configuration: "",
    inputs=lambda problem: (Tensor("x", (problem["N"],)),), outputs=lambda problem: (Tensor("y", (problem["N"],)),),
    plan=lambda configuration, problem: Plan(
        (TorchOperation("copy", ("x", "part")), TorchOperation("double", ("part", "y"))),
        (Tensor("part", (problem["N"],)),),
    ),
    checks=lambda configuration, problem: (problem,), cost=lambda problem: Cost(1, 1, 1),
    tolerance=Tolerance(0.0, 0.0, 0.0, "exact"),
)
"""
REFERENCE = """
import torch

def inputs(problem, seed, kind="normal", device="cpu"):
    return {NAME: torch.arange(1.0, 1.0 + problem["N"])}
"""
OPERATIONS = """
def copy(x, part):
    part.copy_(x)

def double(part, y):
    y.copy_(2 * part)
"""
CPU = torch.device("cpu")
READ_US = 100.0


@pytest.fixture
def family(tmp_path: Path) -> Path:
    folder = tmp_path / "doubled"
    folder.mkdir()
    for name, text in (("family", FAMILY), ("reference", REFERENCE.replace("NAME", '"x"')), ("operations", OPERATIONS)):
        (folder / f"{name}.py").write_text(text)
    return folder


def order_for(folder: Path, **others: Any) -> Order:
    problem = load_family(folder).named_problems["default"]
    return Order(str(folder), "GPU-fake", problem, Configuration((("steps", 2),)), None, **others)


@pytest.fixture
def still_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.cuda as far as it is needed where there is none."""
    properties = SimpleNamespace(multi_processor_count=132, L2_cache_size=1024)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (1 << 20, 1 << 20))
    for name in ("synchronize", "empty_cache"):
        monkeypatch.setattr(torch.cuda, name, lambda: None)


def test_a_plan_of_torch_operations_runs_on_its_own_buffers(family: Path, still_gpu: None) -> None:
    subject = Subject(load_family(family), order_for(family), CPU)
    subject.run()
    assert subject._regions["y"].tensor.tolist() == [2.0, 4.0, 6.0, 8.0, 10.0, 12.0]
    subject.close()


def test_inputs_that_are_not_as_declared_are_a_fault(family: Path) -> None:
    (family / "reference.py").write_text(REFERENCE.replace("NAME", '"z"'))
    with pytest.raises(FamilyError, match="must return x of shape"):
        Subject(load_family(family), order_for(family), CPU)


@dataclass
class FakeTimer:
    """Every execution of anything takes 100 us, and 1 us where it is one of many."""

    bound: Any = None

    def bind(self, run: Callable[[], None]) -> None:
        self.bound = run

    def cold(self, samples: int) -> Reading:
        return Reading((READ_US,) * samples, 1980, ("sw_power_cap",))

    def hot(self, samples: int, launches: int) -> Reading:
        return Reading((READ_US if launches == 1 else 1.0,) * samples)


@pytest.fixture
def fake_kernels(still_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    module = SimpleNamespace(kernel=lambda name: name, unload=lambda: None)
    monkeypatch.setattr(peaks.driver, "Module", lambda cubin: module)
    monkeypatch.setattr(peaks.driver, "BoundLaunch", lambda kernel, launch, pointers: lambda: None)
    monkeypatch.setattr(peaks, "_MATRIX", 64)


def test_peaks_are_work_over_time(fake_kernels: None) -> None:
    found = peaks.Calibration(Path("a.cubin"), CPU, FakeTimer()).measure("H200", "GPU-1", False)  # type: ignore[arg-type]
    seconds = READ_US * 1e-6
    operations = 132 * 8 * 256 * 1024 * 16 * 8
    assert found.fp32_gflops == pytest.approx(2 * operations / seconds / 1e9)
    assert found.special_gops == pytest.approx(operations / seconds / 1e9)
    assert found.copy_gbps == pytest.approx(2 * (1 << 18) / seconds / 1e9)
    assert found.read_gbps == pytest.approx((1 << 18) / seconds / 1e9)
    assert found.tensor_gflops == pytest.approx(2 * 64**3 / seconds / 1e9)
    assert (found.launch_us, found.gap_us, found.sm_clock_mhz) == (READ_US, 1.0, 1980)
    assert (found.throttle, found.shared_gpu) == (("sw_power_cap",), False)


def test_without_room_for_arrays_larger_than_l2_there_is_no_bandwidth(
    fake_kernels: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (8192, 8192))
    found = peaks.Calibration(Path("a.cubin"), CPU, FakeTimer()).measure("H200", "GPU-1", True)  # type: ignore[arg-type]
    assert (found.copy_gbps, found.read_gbps, found.shared_gpu) == (None, None, True)


@pytest.fixture
def fake_worker(still_gpu: None, monkeypatch: pytest.MonkeyPatch) -> None:
    sensor = SimpleNamespace(foreign_processes=lambda: 0)
    monkeypatch.setattr(worker, "device_of", lambda gpu: CPU)
    monkeypatch.setattr(worker, "uuid_of", lambda device: "GPU-fake")
    monkeypatch.setattr(worker, "start_on", lambda device: None)
    monkeypatch.setattr(worker.nvml, "Sensor", lambda uuid: sensor)
    monkeypatch.setattr(worker, "CudaTimer", lambda device, sensor: FakeTimer())
    monkeypatch.setattr(worker, "_step_times_us", lambda subject: [3.0, 4.0])
    steady = Steady(1.5, 10, 1980, 3201, 500.0, 700.0, (), None, 0)
    monkeypatch.setattr(worker, "run_steadily", lambda *arguments: steady)
    monkeypatch.setattr(worker, "_measure_peaks", lambda *arguments: Peaks("H200", "GPU-fake", "580", "2026"))


def test_the_worker_tells_all_that_it_was_asked(fake_worker: None, family: Path, tmp_path: Path) -> None:
    worker.answer(order_for(family, calibration="a.cubin"), tmp_path / "answer.json")
    found = read_facts(tmp_path / "answer.json")
    assert found is not None
    assert not isinstance(found.steps, Missing)
    assert [(s.name, s.blocks_per_sm, s.hot_us) for s in found.steps] == [("copy", None, 3.0), ("double", None, 4.0)]
    assert isinstance(found.steady, Steady)
    assert isinstance(found.peaks, Peaks)


def test_a_worker_that_fails_on_the_variant_has_told_the_peaks(fake_worker: None, family: Path, tmp_path: Path) -> None:
    (family / "operations.py").write_text("")
    with pytest.raises(FamilyError):
        worker.answer(order_for(family, calibration="a.cubin"), tmp_path / "answer.json")
    found = read_facts(tmp_path / "answer.json")
    assert found is not None
    assert isinstance(found.peaks, Peaks)
    assert found.steady == Missing("the process ended before it came to this")


def test_the_variant_is_left_alone_when_only_peaks_are_wanted(fake_worker: None, family: Path, tmp_path: Path) -> None:
    worker.answer(order_for(family, calibration="a.cubin", steady_s=0.0), tmp_path / "answer.json")
    found = read_facts(tmp_path / "answer.json")
    assert found is not None
    assert isinstance(found.peaks, Peaks)
    assert isinstance(found.steps, Missing)


WATCHED = """
import time
from ktune.profile.worker import end_with_parent

end_with_parent()
time.sleep({seconds})
print("ended")
"""


def test_a_process_that_watches_its_parent_ends_well_by_itself() -> None:
    ended = run_isolated([sys.executable, "-c", WATCHED.format(seconds=0.2)], 60.0)
    assert (ended.reason, ended.output.strip()) == ("", "ended"), ended.errors


def test_a_process_that_watches_its_parent_ends_when_it_is_alone() -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", WATCHED.format(seconds=60)], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    output, _ = process.communicate(timeout=30)
    assert (process.returncode, output) == (ORPHANED, b"")
