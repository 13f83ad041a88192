"""One holder per GPU on the whole machine, whoever they are and however they end."""

from __future__ import annotations

import contextlib
import os
import signal
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from fake_gpu import ENVIRONMENT

from ktune.core.errors import EnvironmentFault
from ktune.gpu.lock import GpuLock

HOLD = """
import sys, time
from pathlib import Path
from ktune.gpu.lock import GpuLock
lock = GpuLock("GPU-1", Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
time.sleep(60)
"""


@pytest.fixture
def holder(tmp_path: Path):
    root = str(Path(__file__).parents[2])
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, cwd=root)
    assert process.stdout.readline() == b"held\n"
    yield process
    process.kill()
    process.communicate()


def test_a_held_gpu_is_waited_for_and_its_holder_is_named(holder, tmp_path: Path) -> None:
    told: list[str] = []
    with pytest.raises(EnvironmentFault, match=f"GPU-1 is held by pid {holder.pid} .* within 0.3 s; wait"):
        GpuLock("GPU-1", tmp_path).acquire(timeout_s=0.3, on_wait=told.append)
    assert told == [f"pid {holder.pid}"]


def test_kill_9_of_the_holder_frees_the_gpu(holder, tmp_path: Path) -> None:
    def kill(who: str) -> None:
        holder.send_signal(signal.SIGKILL)

    lock = GpuLock("GPU-1", tmp_path)
    lock.acquire(timeout_s=10, on_wait=kill)
    assert lock.held
    lock.release()


def test_other_gpus_are_free(holder, tmp_path: Path) -> None:
    with GpuLock("GPU-2", tmp_path) as other:
        assert other.held
    assert not other.held


def test_the_lock_file_is_open_to_every_user_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o077)
    try:
        with GpuLock("GPU-1", tmp_path) as lock:
            assert stat.S_IMODE(lock.path.stat().st_mode) == 0o666
    finally:
        os.umask(before)


def test_a_lock_file_left_behind_locks_nobody_out(tmp_path: Path) -> None:
    with GpuLock("GPU-1", tmp_path) as lock:
        path = lock.path
    assert path.exists()
    GpuLock("GPU-1", tmp_path).acquire(timeout_s=0)
    with pytest.raises(EnvironmentFault, match="already in use by this process"):
        GpuLock("GPU-1", tmp_path).acquire()


def test_a_symbolic_link_in_place_of_the_lock_is_refused(tmp_path: Path) -> None:
    lock = GpuLock("GPU-1", tmp_path)
    (tmp_path / "other").touch()
    lock.path.symlink_to(tmp_path / "other")
    with pytest.raises(EnvironmentFault, match="cannot be opened"):
        lock.acquire()


def test_the_evaluator_waits_for_the_gpu_says_so_and_then_measures(evaluator, ask, holder, tmp_path: Path) -> None:
    events: list[str] = []

    def free(sentence: str) -> None:
        events.append(sentence)
        holder.kill()

    # The holder's file under the fake GPU's name too: it is one lock.
    os.link(GpuLock("GPU-1", tmp_path).path, GpuLock(ENVIRONMENT.gpu_uuid, tmp_path).path)
    (measurement,) = evaluator(on_event=free).evaluate([ask(0)])
    assert events == [f"waiting for Fake H200, held by pid {holder.pid}"]
    assert measurement.eligible


def test_a_gpu_that_stays_in_use_ends_the_evaluation_in_time(evaluator, ask, holder, tmp_path: Path) -> None:
    os.link(GpuLock("GPU-1", tmp_path).path, GpuLock(ENVIRONMENT.gpu_uuid, tmp_path).path)
    with pytest.raises(EnvironmentFault, match=f"held by pid {holder.pid}"):
        list(evaluator(lock_timeout_s=0.2).evaluate([ask(0)]))


def open_files(pid: int) -> set[str]:
    """What a process has open; it may still be opening and closing others."""
    found = set()
    for descriptor in Path(f"/proc/{pid}/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found.add(str(descriptor.readlink()))
    return found


def test_a_worker_does_not_inherit_the_lock_and_close_releases_it(evaluator, ask, tmp_path: Path) -> None:
    one = evaluator()
    list(one.evaluate([ask(0)]))
    path = str(GpuLock(ENVIRONMENT.gpu_uuid, tmp_path).path)
    assert len(one.worker_pids) == 2
    for pid in one.worker_pids:
        assert path not in open_files(pid)
    second = evaluator()
    with pytest.raises(EnvironmentFault, match="already in use by this process"):
        list(second.evaluate([ask(1)]))
    one.close()
    assert [m.trial for m in second.evaluate([ask(1)])] == [1]
