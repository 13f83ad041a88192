"""However the parent ends, its workers end with it, and what was measured was handed over before."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from workers import is_alive

SCRIPT = """
import sys
sys.path[:0] = {path!r}
from pathlib import Path
from workers import BACKEND
from fake_builder import FakeBuilder
from ktune.core.loading import load_family
from ktune.core.model import Configuration, Request
from ktune.core.variant import make_variant
from ktune.gpu.cuda_evaluator import CudaEvaluator

folder = Path({folder!r})
bad = load_family({family!r})
problem = bad.named_problems["small"]
evaluator = CudaEvaluator(bad, FakeBuilder(), backend=BACKEND, log_dir=folder / "logs", lock_folder=folder)

def request(trial):
    behaviour = "endless_loop" if trial == 10 else "good"
    configuration = Configuration((("behaviour", behaviour), ("block_size", 32 * (trial + 1))))
    return Request(trial, make_variant(bad.family, configuration, problem), problem)

for measurement in evaluator.evaluate(request(trial) for trial in range(20)):
    pids = " ".join(map(str, evaluator.worker_pids))
    print(measurement.trial, measurement.status, pids, flush=True)
"""


@pytest.fixture
def running(tmp_path: Path, families: Path):
    """A process that has measured ten variants and is stuck in the eleventh, and what it has printed."""
    here = Path(__file__).parent
    path = [str(here), str(here.parent), str(here.parent.parent)]
    script = SCRIPT.format(path=path, folder=str(tmp_path), family=str(families / "bad"))
    process = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    lines = [process.stdout.readline().split() for _ in range(10)]
    deadline = time.monotonic() + 5
    while jobs_in_flight(tmp_path, process)[0]["trial"] != 10 and time.monotonic() < deadline:
        time.sleep(0.01)
    yield process, lines
    process.kill()
    process.communicate()


def note_of(folder: Path, process: subprocess.Popen) -> Path:
    return folder / "logs" / f"in_flight-{process.pid}.json"


def jobs_in_flight(folder: Path, process: subprocess.Popen) -> list[dict]:
    return json.loads(note_of(folder, process).read_text())["jobs"]


def workers_of(lines: list[list[str]]) -> list[int]:
    pids = [int(pid) for pid in lines[-1][2:]]
    assert len(pids) == 2
    return pids


def all_end_within(seconds: float, pids: list[int]) -> bool:
    deadline = time.monotonic() + seconds
    while any(map(is_alive, pids)) and time.monotonic() < deadline:
        time.sleep(0.02)
    return not any(map(is_alive, pids))


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_no_worker_outlives_its_parent_even_in_an_endless_loop(running, end: signal.Signals, tmp_path: Path) -> None:
    process, lines = running
    workers = workers_of(lines)
    assert [line[:2] for line in lines] == [[str(trial), "ok"] for trial in range(10)]
    assert all(map(is_alive, workers))
    process.send_signal(end)
    assert process.wait(10) != 0
    assert all_end_within(5, workers)


def test_after_kill_9_the_file_names_what_was_running(running, tmp_path: Path) -> None:
    process, _ = running
    process.kill()
    process.wait(10)
    jobs = jobs_in_flight(tmp_path, process)
    assert jobs[0]["trial"] == 10
    assert jobs[0]["configuration"]["behaviour"] == "endless_loop"


def test_ctrl_c_interrupts_and_removes_the_file_of_what_was_running(running, tmp_path: Path) -> None:
    process, _ = running
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=10)
    assert "KeyboardInterrupt" in said
    assert not note_of(tmp_path, process).exists()


def test_workers_are_in_groups_of_their_own_that_ctrl_c_in_a_terminal_does_not_reach(running) -> None:
    process, lines = running
    for pid in workers_of(lines):
        assert os.getpgid(pid) == pid
        assert os.getsid(pid) != os.getsid(process.pid)


def test_the_parent_imports_no_torch(running, tmp_path: Path) -> None:
    process, _ = running
    assert "torch" not in Path(f"/proc/{process.pid}/maps").read_text()
