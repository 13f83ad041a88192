"""The process that looks at a variant may crash or hang: what it found before is kept, and the rest has its reason."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import pytest

from ktune.core.model import Configuration, Problem
from ktune.core.settings import read_settings
from ktune.gpu.lock import GpuLock
from ktune.profile import device as device_module
from ktune.profile.device import Device
from ktune.profile.isolated import run_isolated
from ktune.profile.messages import Order, read_facts, read_order, write_order
from ktune.profile.model import Missing, Peaks, Steady

PROBLEM = Problem("toy", (("N", 1000),))
CONFIGURATION = Configuration((("algorithm", "simple"), ("block_size", 128), ("fast_math", False)))


def order(deed: str, calibration: str | None = None) -> Order:
    return Order(f"/families/{deed}", "GPU-fake", PROBLEM, CONFIGURATION, "/a/kernel.cubin", calibration)


@pytest.fixture
def device(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Device:
    monkeypatch.setattr(sys, "path", [str(Path(__file__).parent), *sys.path])
    return Device(
        "GPU-fake",
        tmp_path / "logs" / "profile.log",
        read_settings(),
        lock_folder=tmp_path,
        worker="fake_profile_worker",
        worker_limit_s=10.0,
    )


def test_an_order_comes_back_as_it_was_written(tmp_path: Path) -> None:
    given = order("toy", "/a/calibration.cubin")
    write_order(given, tmp_path / "order.json")
    assert read_order(tmp_path / "order.json") == given


def test_an_answer_that_is_not_there_or_damaged_is_none(tmp_path: Path) -> None:
    assert read_facts(tmp_path / "answer.json") is None
    (tmp_path / "answer.json").write_text('{"sm_count": 1')
    assert read_facts(tmp_path / "answer.json") is None


def test_all_parts_are_there_when_all_goes_well(device: Device) -> None:
    found = device.look(order("good", "/a/calibration.cubin"))
    assert found.sm_count == 132
    assert not isinstance(found.steps, Missing)
    assert [(step.name, step.blocks_per_sm) for step in found.steps] == [("toy", 16), ("gemm", None)]
    assert isinstance(found.steady, Steady)
    assert found.steady.throttle == ("sw_power_cap",)
    assert isinstance(found.peaks, Peaks)
    assert found.peaks.copy_gbps == 4000.0
    assert not device.log.exists()


def test_what_a_crashed_process_found_is_kept(device: Device) -> None:
    found = device.look(order("crash", "/a/calibration.cubin"))
    assert isinstance(found.peaks, Peaks)
    assert not isinstance(found.steps, Missing)
    assert isinstance(found.steady, Missing)
    assert "killed by SIGSEGV: cuda error: an illegal memory access" in found.steady.reason
    assert str(device.log) in found.steady.reason
    assert "illegal memory access" in device.log.read_text()


def test_a_process_that_hangs_is_ended_at_its_limit(device: Device) -> None:
    began = time.monotonic()
    found = Device(**{**device.__dict__, "worker_limit_s": 3.0}).look(order("hang"))
    assert time.monotonic() - began < 10.0
    assert isinstance(found.steady, Missing)
    assert "did not end within 3 s" in found.steady.reason
    assert not isinstance(found.steps, Missing)


def test_a_process_without_an_answer_leaves_every_part_missing(device: Device) -> None:
    found = device.look(order("silent"))
    assert found.sm_count is None
    for part in (found.steps, found.steady, found.peaks):
        assert part == Missing("the worker left no answer")


def test_the_gpu_is_locked_while_its_process_runs_and_free_afterwards(device: Device, tmp_path: Path) -> None:
    device.look(order("good"))
    lock = GpuLock("GPU-fake", tmp_path)
    lock.acquire(timeout_s=0.0)
    lock.release()


def test_without_ncu_there_are_no_counters_and_how_to_get_them(device: Device, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_module, "find_ncu", lambda settings: None)
    found = device.count(order("good"))
    assert isinstance(found, Missing)
    assert "ncu is not installed" in found.reason


def test_an_ncu_that_refuses_is_quoted(device: Device, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM - The user does not have permission'\nexit 1\n")
    ncu.chmod(0o755)
    monkeypatch.setattr(device_module, "find_ncu", lambda settings: ncu)
    found = device.count(order("good"))
    assert isinstance(found, Missing)
    assert "ERR_NVGPUCTRPERM" in found.reason


def test_a_program_that_does_not_exist_is_a_reason(tmp_path: Path) -> None:
    ended = run_isolated([str(tmp_path / "nowhere")], 1.0)
    assert "does not run: No such file or directory" in ended.reason


def test_children_of_a_program_that_hangs_end_with_it(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    ended = run_isolated(["/bin/sh", "-c", f"sleep 60 & echo $! > {told}; wait"], 1.0)
    assert ended.reason == "did not end within 1 s"
    pid = int(told.read_text())
    deadline = time.monotonic() + 5.0
    while time.monotonic() < deadline and alive(pid):
        time.sleep(0.05)
    assert not alive(pid)


def test_a_program_notices_the_end_of_its_parent_by_its_standard_input() -> None:
    ended = run_isolated([sys.executable, "-c", "import select, sys; print(select.select([0], [], [], 0.2)[0])"], 10.0)
    assert ended.output.strip() == "[]"


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
