"""Whatever a variant does to its worker, it is one record, and the next variant is measured."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from workers import GOOD_BLOCKS, group_is_gone, is_alive

from ktune.core.errors import EnvironmentFault, KtuneError
from ktune.core.model import Effort, Measurement, Request, Status
from ktune.gpu.cuda_evaluator import CudaEvaluator

Ask = Callable[..., Request]
Make = Callable[..., CudaEvaluator]


def by_trial(measurements: list[Measurement]) -> dict[int, Measurement]:
    trials = {m.trial: m for m in measurements}
    assert len(trials) == len(measurements), "a request was answered twice"
    return trials


def poison_then_ten_good(ask: Ask, poison: str) -> list[Request]:
    return [ask(0, poison), *(ask(i + 1, block_size=block) for i, block in enumerate(GOOD_BLOCKS))]


@pytest.mark.parametrize(
    ("poison", "status", "reason"),
    [
        ("illegal_address", Status.CRASHED, "CUDA_ERROR_ILLEGAL_ADDRESS in verify"),
        ("abort", Status.CRASHED, "killed by SIGABRT in verify"),
        ("exits", Status.CRASHED, "exited with code 3 in verify"),
        ("endless_loop", Status.TIMED_OUT, "took longer than 1 s in verify"),
        ("endless_in_time", Status.TIMED_OUT, "took longer than 1 s in time"),
        ("spoils_unload", Status.CRASHED, "CUDA_ERROR_ILLEGAL_ADDRESS in recheck"),
        ("too_much_shared_memory", Status.LAUNCH_FAILED, "307200 bytes of shared memory"),
    ],
)
def test_one_poisonous_variant_then_ten_good_ones_are_one_failure_and_ten_results(
    evaluator: Make, ask: Ask, poison: str, status: Status, reason: str
) -> None:
    measured = by_trial(list(evaluator().evaluate(poison_then_ten_good(ask, poison))))
    assert measured[0].status is status
    assert reason in measured[0].detail
    assert measured[0].cold is None
    assert [measured[i].status for i in range(1, 11)] == [Status.OK] * 10


def test_a_killed_worker_is_gone_with_its_group_and_another_took_its_place(evaluator: Make, ask: Ask) -> None:
    events: list[str] = []
    one = evaluator(on_event=events.append)
    list(one.evaluate([ask(6, block_size=64)]))
    before = one.worker_pids
    list(one.evaluate([ask(7, "endless_loop"), ask(8)]))
    assert group_is_gone(before[0])
    assert before[0] not in one.worker_pids
    assert before[1] == one.worker_pids[0], "the spare was not used"
    assert [e for e in events if "replaced after #7" in e and "verify" in e]


def test_a_launch_failure_keeps_the_worker(evaluator: Make, ask: Ask) -> None:
    one = evaluator()
    list(one.evaluate([ask(2, block_size=64)]))
    before = one.worker_pids
    list(one.evaluate([ask(0, "too_much_shared_memory"), ask(1)]))
    assert one.worker_pids == before


def test_the_spare_worker_waits_for_the_first_measurement(evaluator: Make, ask: Ask) -> None:
    one = evaluator()
    assert one.environment
    assert len(one.worker_pids) == 1, "it would take a core from the first builds"
    list(one.evaluate([ask(0)]))
    assert len(one.worker_pids) == 2


def test_the_log_of_an_aborted_worker_is_named_and_says_where_it_was(evaluator: Make, ask: Ask) -> None:
    (crashed,) = evaluator().evaluate([ask(0, "abort")])
    log = Path(crashed.detail.rpartition("worker log: ")[2])
    assert "Fatal Python error: Aborted" in log.read_text()
    assert "in verify" in log.read_text()


def test_a_variant_that_killed_two_workers_is_not_launched_again(evaluator: Make, ask: Ask, bad) -> None:
    one = evaluator()
    small, large = bad.named_problems["small"], bad.named_problems["default"]
    requests = [ask(0, "abort", on=small), ask(1, "abort", on=large), ask(2, "abort", effort=Effort.FULL), ask(3)]
    measured = by_trial(list(one.evaluate(requests)))
    assert [measured[i].status for i in range(4)] == [Status.CRASHED] * 3 + [Status.OK]
    assert "killed by SIGABRT" in measured[1].detail
    assert measured[2].detail == "not tried again: it has killed 2 workers"


def test_a_deadline_is_longer_for_the_full_protocol(evaluator: Make, ask: Ask) -> None:
    one = evaluator(step_deadlines_s={"start": 20.0, "time": 0.05})
    # `slow` takes 0.1 s to time: more than the deadline, less than four times it.
    search, full = by_trial(list(one.evaluate([ask(0, "slow"), ask(1, "slow", effort=Effort.FULL)]))).values()
    assert (search.status, full.status) == (Status.TIMED_OUT, Status.OK)


def test_a_defect_ends_the_search_after_what_was_finished_and_leaves_its_traceback_in_the_log(
    evaluator: Make, ask: Ask, tmp_path: Path
) -> None:
    seen = []
    with pytest.raises(KtuneError, match="ZeroDivisionError in verify: planted; its traceback is in") as fault:
        for measurement in evaluator().evaluate([ask(0), ask(1, "defect"), ask(2)]):
            seen.append(measurement.trial)
    assert seen == [0]
    assert "Traceback" in Path(str(fault.value).rpartition(" is in ")[2]).read_text()


def test_the_workers_own_sentence_about_the_machine_is_passed_on_at_once(evaluator: Make, ask: Ask) -> None:
    with pytest.raises(EnvironmentFault, match=r"^no GPU was found: the driver is not loaded$"):
        evaluator(gpu="none").environment  # noqa: B018
    with pytest.raises(EnvironmentFault, match=r"^no GPU was found"):
        list(evaluator(gpu="none").evaluate([ask(0)]))


@pytest.mark.parametrize("wish", ["dies_at_start", "raises_at_start", "dies_at_prepare", "raises_at_prepare"])
def test_workers_that_fail_twice_before_a_variant_ran_are_the_machines_fault(
    evaluator: Make, ask: Ask, wish: str
) -> None:
    with pytest.raises(EnvironmentFault, match=r"failed 2 times in a row.*worker log: .*worker-2.log") as fault:
        list(evaluator(gpu=wish).evaluate([ask(0)]))
    reason = "killed by SIGABRT" if wish.startswith("dies") else "RuntimeError: planted: out of memory"
    assert f"{reason} in {wish.rpartition('_')[2]}" in str(fault.value)


@pytest.mark.parametrize("wish", ["dies_at_start", "raises_at_start", "dies_at_prepare", "hangs_at_prepare"])
def test_a_worker_that_fails_once_before_a_variant_ran_is_replaced_and_no_variant_is_blamed(
    evaluator: Make, ask: Ask, tmp_path: Path, wish: str
) -> None:
    events: list[str] = []
    one = evaluator(gpu=f"{wish}_once:{tmp_path / 'happened'}", on_event=events.append)
    measured = list(one.evaluate([ask(i, block_size=b) for i, b in enumerate(GOOD_BLOCKS)]))
    assert [m.status for m in measured] == [Status.OK] * 10
    assert len(events) == 1
    assert events[0].startswith("GPU worker replaced")


def test_what_was_finished_before_the_machine_failed_is_not_lost(evaluator: Make, ask: Ask, bad) -> None:
    large = bad.named_problems["default"]
    one = evaluator(gpu=f"raises_at_prepare_{large.label}")
    requests = [ask(i, block_size=b) for i, b in enumerate(GOOD_BLOCKS[:4])] + [ask(4, on=large)]
    seen = []
    with pytest.raises(EnvironmentFault, match="planted: out of memory in prepare"):
        for measurement in one.evaluate(requests):
            seen.append(measurement)
    assert [m.status for m in seen] == [Status.OK] * 4


def test_a_worker_killed_from_outside_between_variants_is_replaced(evaluator: Make, ask: Ask) -> None:
    one = evaluator()
    assert one.environment
    os.kill(one.worker_pids[0], signal.SIGKILL)
    assert [m.status for m in one.evaluate([ask(0), ask(1, block_size=32)])] == [Status.OK, Status.OK]


def test_what_is_launched_is_on_disk_before_and_gone_after_a_clean_end(
    evaluator: Make, ask: Ask, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / f"in_flight-{os.getpid()}.json"
    one = evaluator()
    records = []
    assert not path.exists()
    for measurement in one.evaluate([ask(4, "slow"), ask(5, block_size=64)]):
        records.append(json.loads(path.read_text()))
        assert measurement.trial in (4, 5)
    assert records[-1]["worker_pid"] == one.worker_pids[0]
    assert records[-1]["jobs"][-1]["configuration"] == {"behaviour": "good", "block_size": "64"}
    one.close()
    assert not path.exists()


def test_a_run_that_was_killed_is_mentioned_by_the_next_one(evaluator: Make, ask: Ask, tmp_path: Path) -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    path = leave_behind(tmp_path, gone.pid)
    events: list[str] = []
    evaluator(on_event=events.append)
    assert events == ["the last run ended without a clean end while #12 of N1000 was being measured"]
    assert not path.exists(), "it is said once"


def test_a_run_that_was_killed_is_mentioned_by_the_next_of_the_same_process_id(evaluator: Make, tmp_path: Path) -> None:
    """As in a container, where ids begin anew."""
    leave_behind(tmp_path, os.getpid())
    events: list[str] = []
    evaluator(on_event=events.append)
    assert len(events) == 1


def test_what_another_process_has_in_flight_is_left_to_it(evaluator: Make, ask: Ask, tmp_path: Path) -> None:
    """Two searches that share a study, each on a GPU of its own."""
    with subprocess.Popen(["sleep", "60"]) as other:
        path = leave_behind(tmp_path, other.pid)
        before = path.read_text()
        events: list[str] = []
        one = evaluator(on_event=events.append)
        assert [m.status for m in one.evaluate([ask(0)])] == [Status.OK]
        one.close()
        assert events == []
        assert path.read_text() == before
        other.kill()


def leave_behind(folder: Path, process: int) -> Path:
    """A note that a process had job 12 in flight."""
    path = folder / "logs" / f"in_flight-{process}.json"
    path.parent.mkdir()
    path.write_text(json.dumps({"format": 1, "worker_pid": 1, "jobs": [{"trial": 12, "problem": "N1000"}]}))
    return path


def open_descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def test_many_replacements_leave_no_process_and_no_file_descriptor_behind(evaluator: Make, ask: Ask) -> None:
    one = evaluator()
    assert one.environment
    list(one.evaluate([ask(0)]))
    descriptors, pids = open_descriptors(), set(one.worker_pids)
    for trial in range(1, 5):
        list(one.evaluate([ask(trial, "illegal_address", block_size=GOOD_BLOCKS[trial])]))
        deadline = time.monotonic() + 5
        while len(one.worker_pids) < 2 and time.monotonic() < deadline:
            list(one.evaluate([ask(trial)]))
        pids |= set(one.worker_pids)
    assert open_descriptors() == descriptors
    assert sorted(pid for pid in pids if is_alive(pid)) == sorted(one.worker_pids)
    one.close()
    assert all(group_is_gone(pid) for pid in pids)
    assert len(pids) > 4
