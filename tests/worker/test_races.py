"""Races through a worker: one result per entrant, whatever the entrants do to the process that they run in."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
from fake_backend import WRONG
from fake_builder import FakeBuilder
from fake_gpu import fake_peer_time_us, fake_time_us
from workers import group_is_gone

from ktune.core.errors import EnvironmentFault, KtuneError, UsageError
from ktune.core.model import Request, Status, Value
from ktune.gpu.cuda_evaluator import CudaEvaluator
from ktune.gpu.protocol import Entrant, RaceResult

Ask = Callable[..., Request]
Make = Callable[..., CudaEvaluator]
Enter = Callable[..., Entrant]


@pytest.fixture
def enter(ask: Ask) -> Enter:
    """enter(name, behaviour, block_size=...) -> Entrant"""

    def make(name: str, behaviour: str = "good", **values: Value) -> Entrant:
        return Entrant(name, ask(0, behaviour, **values).variant, "kernel.cubin")

    return make


def peer(name: str) -> Entrant:
    return Entrant(f"peer {name}", peer=name)


def by_name(results: list[RaceResult]) -> dict[str, RaceResult]:
    return {result.name: result for result in results}


def test_variants_and_peers_are_timed_in_one_race_and_answered_in_their_order(
    evaluator: Make, enter: Enter, ask: Ask, problem
) -> None:
    entrants = [enter("a", block_size=64), peer("eager"), enter("b", block_size=96), peer("missing"), peer("wrong")]
    results = evaluator().race(problem, entrants)
    assert [r.name for r in results] == [e.name for e in entrants]
    found = by_name(results)
    assert found["a"].status is found["b"].status is found["peer eager"].status is Status.OK
    assert found["a"].cold.median_us == fake_time_us(ask(0, block_size=64))
    assert len(found["a"].cold.samples_us) == len(found["peer eager"].hot.samples_us) == 30
    assert found["peer eager"].cold.median_us == fake_peer_time_us("eager")
    assert found["peer missing"] == RaceResult(
        "peer missing", Status.LAUNCH_FAILED, "not installed: pip install missing"
    )
    assert found["peer wrong"].status is Status.WRONG and found["peer wrong"].cold is not None


def test_a_wrong_variant_is_timed_and_one_that_is_refused_is_not(evaluator: Make, enter: Enter, problem) -> None:
    entrants = [enter("zeros", "zeros"), enter("refused", "too_much_shared_memory"), enter("good")]
    found = by_name(evaluator().race(problem, entrants))
    assert (found["zeros"].status, found["zeros"].detail) == (Status.WRONG, WRONG["zeros"].detail)
    assert found["zeros"].cold is not None
    assert found["refused"].status is Status.LAUNCH_FAILED and found["refused"].cold is None
    assert found["good"].status is Status.OK


@pytest.mark.parametrize(
    ("behaviour", "status", "reason"),
    [
        ("illegal_address", Status.CRASHED, "CUDA_ERROR_ILLEGAL_ADDRESS in verify"),
        ("abort", Status.CRASHED, "killed by SIGABRT in verify"),
        ("endless_loop", Status.TIMED_OUT, "took longer than 1 s in verify"),
        ("endless_in_time", Status.TIMED_OUT, "took longer than 1 s in time"),
    ],
)
def test_one_that_kills_the_worker_is_blamed_and_the_rest_race_without_it(
    evaluator: Make, enter: Enter, problem, behaviour: str, status: Status, reason: str
) -> None:
    events: list[str] = []
    one = evaluator(on_event=events.append)
    entrants = [enter("a", block_size=64), enter("poison", behaviour), enter("b", block_size=96), peer("eager")]
    found = by_name(one.race(problem, entrants))
    assert found["poison"].status is status and found["poison"].cold is None
    assert reason in found["poison"].detail
    assert [found[e.name].status for e in entrants if e.name != "poison"] == [Status.OK] * 3
    assert len(events) == 1 and events[0].startswith("GPU worker replaced after poison: ")


def test_a_peer_that_kills_or_hangs_the_worker_is_blamed_too(evaluator: Make, enter: Enter, problem) -> None:
    found = by_name(evaluator().race(problem, [peer("hangs"), enter("a"), peer("aborts")]))
    assert found["peer hangs"].status is Status.TIMED_OUT
    assert found["peer aborts"].status is Status.CRASHED
    assert "killed by SIGABRT in compile" in found["peer aborts"].detail
    assert found["a"].status is Status.OK


def test_compiling_has_a_deadline_of_its_own(evaluator: Make, problem) -> None:
    from ktune.gpu.pool import DEADLINES_S

    assert DEADLINES_S["compile"] == 180.0
    (found,) = evaluator(step_deadlines_s={"time": 0.3}).race(problem, [peer("hangs")])
    assert found.detail.startswith("took longer than 0.3 s in time")


def test_a_variant_that_has_killed_two_workers_is_not_entered_again(evaluator: Make, enter: Enter, problem) -> None:
    one = evaluator()
    race = [enter("a"), enter("poison", "abort")]
    for _ in range(2):
        assert "killed by SIGABRT" in by_name(one.race(problem, race))["poison"].detail
    pids = one.worker_pids
    found = by_name(one.race(problem, race))
    assert found["poison"] == RaceResult("poison", Status.CRASHED, "not tried again: it has killed 2 workers")
    assert found["a"].status is Status.OK and one.worker_pids[0] == pids[0]


def test_a_fresh_race_runs_in_a_process_that_has_run_nothing(evaluator: Make, enter: Enter, problem) -> None:
    one = evaluator()
    one.race(problem, [enter("a")], fresh=True)
    first = one.worker_pids[0]
    one.race(problem, [enter("a")])
    assert one.worker_pids[0] == first, "without `fresh` the process stays"
    one.race(problem, [enter("a")], fresh=True)
    assert one.worker_pids[0] != first and group_is_gone(first)


def test_the_first_worker_is_fresh_before_it_has_run_anything(evaluator: Make, enter: Enter, problem) -> None:
    one = evaluator()
    assert one.environment
    started = one.worker_pids[0]
    one.race(problem, [enter("a")], fresh=True)
    assert one.worker_pids[0] == started


def test_requests_are_measured_before_and_after_a_race(evaluator: Make, enter: Enter, ask: Ask, problem) -> None:
    one = evaluator()
    assert [m.status for m in one.evaluate([ask(0)])] == [Status.OK]
    assert [r.status for r in one.race(problem, [enter("a"), enter("poison", "abort")])] == [Status.OK, Status.CRASHED]
    assert [m.status for m in one.evaluate([ask(1, block_size=64)])] == [Status.OK]


def test_the_seed_decides_the_race(evaluator: Make, enter: Enter, problem) -> None:
    one = evaluator()
    entrants = [enter("a", block_size=64), enter("b", block_size=96)]
    assert one.race(problem, entrants, seed=1) == one.race(problem, entrants, seed=1)


def test_what_races_is_on_disk_before_and_gone_after_a_clean_end(
    evaluator: Make, enter: Enter, problem, tmp_path: Path
) -> None:
    path = tmp_path / "logs" / f"in_flight-{os.getpid()}.json"
    one = evaluator()
    one.race(problem, [enter("a", block_size=64), peer("eager")])
    variant, rival = json.loads(path.read_text())["jobs"]
    assert (variant["entrant"], variant["configuration"]["block_size"]) == ("a", "64")
    assert (rival["entrant"], rival["configuration"], rival["problem"]) == ("peer eager", {}, problem.label)
    one.close()
    assert not path.exists()
    path.write_text(json.dumps({"format": 1, "worker_pid": 1, "jobs": [variant]}))
    events: list[str] = []
    evaluator(on_event=events.append)
    assert events == [f"the last run ended without a clean end while a of {problem.label} was being measured"]


def test_a_defect_ends_the_race_with_its_traceback_in_the_log(evaluator: Make, enter: Enter, problem) -> None:
    one = evaluator()
    with pytest.raises(KtuneError, match="ZeroDivisionError in verify: planted; its traceback is in"):
        one.race(problem, [enter("a"), enter("broken", "defect")])
    assert by_name(one.race(problem, [enter("a")]))["a"].status is Status.OK


def test_the_machine_that_fails_before_anyone_ran_is_named(evaluator: Make, enter: Enter, problem) -> None:
    with pytest.raises(EnvironmentFault, match=r"failed 2 times in a row before a variant ran"):
        evaluator(gpu="dies_at_prepare").race(problem, [enter("a")])


def test_two_entrants_of_one_name_are_refused(evaluator: Make, enter: Enter, problem) -> None:
    with pytest.raises(UsageError, match="distinct names, 'a' is there 2 times"):
        evaluator().race(problem, [enter("a"), enter("a", block_size=64)])


def test_a_race_of_nobody_starts_nothing(evaluator: Make, problem) -> None:
    assert evaluator().race(problem, []) == []


def test_the_binary_of_a_variant_is_built_on_demand(evaluator: Make, ask: Ask) -> None:
    builder = FakeBuilder()
    one = evaluator(builder)
    assert one.cubin_of(ask(0).variant) == "kernel.cubin"
    assert one.cubin_of(ask(0, "does_not_compile").variant) is None
    assert builder.pending == 0


def test_a_build_left_over_by_an_evaluation_is_not_taken_for_another(evaluator: Make, ask: Ask) -> None:
    builder = FakeBuilder(seconds=0.05)
    one = evaluator(builder)
    for _ in one.evaluate([ask(0), ask(1, "does_not_compile"), ask(2, block_size=64)]):
        break
    assert one.cubin_of(ask(3, block_size=96).variant) == "kernel.cubin"


def test_the_seconds_of_starting_and_preparing_are_known(evaluator: Make, ask: Ask) -> None:
    one = evaluator()
    assert one.stats["prepare"] == 0.0
    list(one.evaluate([ask(0)]))
    stats = one.stats
    assert 0.05 < stats["worker_start"] < 20.0, "a process has started and imported its modules"
    assert 0.0 < stats["prepare"] < 1.0
