"""Requests in, one measurement each out, with the compilers and the GPU at work at the same time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from fake_backend import CULL_FACTOR
from fake_builder import FakeBuilder
from fake_gpu import ENVIRONMENT, fake_time_us
from workers import GOOD_BLOCKS, group_is_gone

from ktune.core.errors import EnvironmentFault, FamilyError
from ktune.core.model import Effort, Measurement, Request, Source, Status
from ktune.gpu.cuda_evaluator import CudaEvaluator

Ask = Callable[..., Request]
Make = Callable[..., CudaEvaluator]
BAD = {
    "does_not_compile": Status.BUILD_FAILED,
    "too_much_shared_memory": Status.LAUNCH_FAILED,
    "illegal_address": Status.CRASHED,
    "endless_loop": Status.TIMED_OUT,
    "all_nan": Status.WRONG,
    "last_nan": Status.WRONG,
    "zeros": Status.WRONG,
    "writes_nothing": Status.WRONG,
    "writes_past_end": Status.WRONG,
    "writes_before": Status.WRONG,
    "changes_input": Status.WRONG,
    "sometimes_right": Status.UNSTABLE,
    "late_overrun": Status.WRONG,
    "restless": Status.UNSTABLE,
}


def test_every_bad_variant_is_recorded_with_its_kind_and_every_good_one_is_ok(evaluator: Make, ask: Ask) -> None:
    behaviours = [*BAD, *["good"] * len(GOOD_BLOCKS)]
    blocks = [128] * len(BAD) + list(GOOD_BLOCKS)
    requests = [ask(i, b, block_size=block) for i, (b, block) in enumerate(zip(behaviours, blocks, strict=True))]
    measured = {m.trial: m for m in evaluator().evaluate(requests)}
    assert len(measured) == len(requests)
    found = {behaviour: measured[trial].status for trial, behaviour in enumerate(BAD)}
    assert found == BAD
    assert all(measured[trial].detail for trial in range(len(BAD)))
    assert not any(measured[trial].eligible for trial in range(len(BAD)))
    assert all(measured[trial].eligible for trial in range(len(BAD), len(requests)))


def test_a_measurement_says_all_that_is_known(evaluator: Make, ask: Ask) -> None:
    request = ask(3)
    (m,) = evaluator(FakeBuilder(seconds=0.02)).evaluate([request])
    assert (m.trial, m.variant, m.problem, m.effort) == (3, request.variant, request.problem, Effort.SEARCH)
    assert m.source is Source.FAKE
    assert m.cold is not None and m.cold.median_us == fake_time_us(request)
    assert m.hot is not None and m.hot.regime == "hot"
    assert m.build is not None and m.accuracy is not None and m.accuracy.worst_ratio == 0.1
    assert m.environment == ENVIRONMENT
    assert set(m.seconds) == {"build", "load", "verify", "time", "recheck"}
    assert m.seconds["build"] == 0.02
    assert abs((datetime.now(UTC) - datetime.fromisoformat(m.finished_at)).total_seconds()) < 60


def test_output_that_is_wrong_only_after_timing_is_reported_with_the_error_that_was_seen(
    evaluator: Make, ask: Ask
) -> None:
    varying, overrun = evaluator().evaluate([ask(0, "sometimes_right"), ask(1, "late_overrun")])
    assert varying.detail == "right when verified, not after the timed launches: y[0] is off"
    assert varying.accuracy is not None and varying.accuracy.worst_ratio == 40.0
    assert "y[1000] was overwritten" in overrun.detail


def test_a_wrong_variant_is_timed_only_at_full_effort_and_stays_wrong(evaluator: Make, ask: Ask) -> None:
    measured = evaluator().evaluate([ask(0, "zeros"), ask(1, "zeros", effort=Effort.FULL)])
    search, full = sorted(measured, key=lambda m: m.trial)
    assert (search.status, search.cold) == (Status.WRONG, None)
    assert full.status is Status.WRONG and full.cold is not None and not full.eligible


def test_nothing_is_pulled_before_it_is_asked_for_and_no_more_than_the_lookahead(evaluator: Make, ask: Ask) -> None:
    pulled: list[int] = []
    yielded = 0

    def proposals() -> Iterator[Request]:
        for trial, block in enumerate(range(32, 32 + 20)):
            assert len(pulled) - yielded < 4
            pulled.append(trial)
            yield ask(trial, block_size=block)

    answers = evaluator(lookahead=4).evaluate(proposals())
    assert pulled == []
    for _ in answers:
        yielded += 1
    assert yielded == 20


def test_the_worker_prepares_the_problem_as_soon_as_the_first_request_is_pulled(evaluator: Make, ask: Ask) -> None:
    one = evaluator(FakeBuilder(seconds=0.2))
    assert one.environment

    def proposals() -> Iterator[Request]:
        yield ask(0)
        assert one._pool._active is not None and one._pool._active.told == {ask(0).problem}
        yield ask(1, block_size=64)

    assert len(list(one.evaluate(proposals()))) == 2


def test_proposals_see_every_measurement_that_was_yielded_before_them(evaluator: Make, ask: Ask) -> None:
    seen: list[Measurement] = []

    def proposals() -> Iterator[Request]:
        yield ask(0)
        yield ask(1, block_size=64)
        for trial in range(2, 8):
            # With one request open beside this one, all but one of the earlier ones are known.
            assert len(seen) >= trial - 1
            yield ask(trial, block_size=GOOD_BLOCKS[trial])

    for measurement in evaluator(FakeBuilder(jobs=1), lookahead=2).evaluate(proposals()):
        seen.append(measurement)
    assert [m.status for m in seen] == [Status.OK] * 8


def test_the_default_lookahead_feeds_all_compilers(evaluator: Make, bad, tmp_path: Path) -> None:
    assert evaluator(FakeBuilder(jobs=2)).lookahead == 8
    assert evaluator(FakeBuilder(jobs=16)).lookahead == 20


def test_a_variant_is_built_once_for_two_requests_that_wait_for_it(evaluator: Make, ask: Ask, bad) -> None:
    builder = FakeBuilder(seconds=0.05)
    large = bad.named_problems["default"]
    first, second = evaluator(builder).evaluate([ask(0), ask(1, on=large)])
    assert {first.problem, second.problem} == {large, ask(0).problem}
    assert len(builder.submitted) == 1


def test_slow_variants_are_culled_against_the_best_so_far_or_the_best_of_the_study(evaluator: Make, ask: Ask) -> None:
    points = [{"block_size": block, "unroll": unroll} for block in range(32, 64) for unroll in (1, 2, 4, 8)]
    points.sort(key=lambda point: fake_time_us(ask(0, **point)))
    fast, slow = ask(0, **points[0]), ask(1, **points[-1])
    assert fake_time_us(slow) > CULL_FACTOR * fake_time_us(fast), "the fake times lie too close to show it"
    builder = FakeBuilder(seconds=0.2)
    one = evaluator(builder)
    after_fast, culled = one.evaluate([fast, slow])
    assert (after_fast.status, culled.status) == (Status.OK, Status.CULLED)
    assert culled.bound_us == fake_time_us(slow) and culled.cold is None
    builder.seconds = 0.0
    (alone,) = one.evaluate([slow])
    assert alone.status is Status.OK
    (hopeless,) = one.evaluate([ask(2, cull_above_us=1.0)])
    assert hopeless.status is Status.CULLED
    (patient,) = one.evaluate([replace(ask(4, cull_above_us=1.0), patience=1e6)])
    assert patient.status is Status.OK
    (full,) = one.evaluate([ask(3, cull_above_us=1.0, effort=Effort.FULL)])
    assert full.status is Status.OK


def same_code_for_all(variant: object) -> str:
    return "the same instructions"


def test_variants_of_the_same_code_and_launches_are_measured_once(evaluator: Make, ask: Ask) -> None:
    one = evaluator(FakeBuilder(code_of=same_code_for_all))
    # An unroll that the kernel ignores: the same code, launched alike.
    requests = [ask(5, unroll=1), ask(6, unroll=2), ask(7, unroll=4, block_size=64)]
    measured = {m.trial: m for m in one.evaluate(requests)}
    assert measured[6].detail == "same code as #5"
    assert measured[6].cold == measured[5].cold
    assert measured[6].variant == requests[1].variant
    assert set(measured[6].seconds) == {"build"}
    assert measured[7].detail == "", "another block size launches another grid"


def test_a_twin_shares_the_failure_and_kills_no_second_worker(evaluator: Make, ask: Ask) -> None:
    events: list[str] = []
    one = evaluator(FakeBuilder(code_of=same_code_for_all), on_event=events.append)
    measured = {m.trial: m for m in one.evaluate([ask(1, "abort", unroll=1), ask(2, "abort", unroll=2)])}
    assert measured[2].status is Status.CRASHED
    assert measured[2].detail.startswith("same code as #1: killed by SIGABRT")
    assert len(events) == 1


@pytest.mark.parametrize("lookahead", [1, 8])
@pytest.mark.parametrize("effort", [Effort.SEARCH, Effort.FULL])
def test_the_same_variant_asked_for_twice_is_measured_twice(
    evaluator: Make, ask: Ask, effort: Effort, lookahead: int
) -> None:
    measured = list(evaluator(lookahead=lookahead).evaluate([ask(0, effort=effort), ask(0, effort=effort)]))
    assert len(measured) == 2
    assert all(m.detail == "" and "time" in m.seconds for m in measured)


def test_the_gpu_measures_one_variant_while_the_next_compiles(evaluator: Make, ask: Ask) -> None:
    one = evaluator(FakeBuilder(seconds=0.1))
    assert one.environment
    list(one.evaluate([ask(99)]))
    before = one.stats
    began = time.monotonic()
    # Ten builds of 0.1 s and ten timings of 0.1 s: one after the other they would take 2 s.
    list(one.evaluate([ask(i, "slow", block_size=b) for i, b in enumerate(GOOD_BLOCKS)]))
    took = time.monotonic() - began
    busy = one.stats["gpu_busy"] - before["gpu_busy"]
    assert busy >= 1.0
    assert took < busy + 0.6


def test_the_time_that_the_gpu_waits_for_compilers_is_known(evaluator: Make, ask: Ask) -> None:
    builder = FakeBuilder(seconds=0.1)
    slow = evaluator(builder)
    list(slow.evaluate([ask(0)]))
    before = slow.stats
    list(slow.evaluate([ask(i, block_size=b) for i, b in enumerate(GOOD_BLOCKS[:5])]))
    idle, total = (slow.stats[key] - before[key] for key in ("gpu_idle_for_builds", "total"))
    # four of the five builds of 0.1 s are waited for in full, the first may have begun before the clock did
    assert 0.35 < idle <= total
    before = slow.stats
    without_builds = [ask(i, "slow", block_size=b) for i, b in enumerate(GOOD_BLOCKS[:5])]
    builder.seconds = 0.0
    list(slow.evaluate(without_builds))
    idle, total = (slow.stats[key] - before[key] for key in ("gpu_idle_for_builds", "total"))
    assert idle < 0.1 * total


def test_an_evaluation_left_early_does_not_disturb_the_next_one(evaluator: Make, ask: Ask) -> None:
    one = evaluator(FakeBuilder(seconds=0.05))
    for _ in one.evaluate(ask(i, "slow", block_size=b) for i, b in enumerate(GOOD_BLOCKS)):
        break
    measured = list(one.evaluate([ask(100 + i, block_size=b) for i, b in enumerate(GOOD_BLOCKS)]))
    assert sorted(m.trial for m in measured) == list(range(100, 110))
    assert all(m.status is Status.OK and m.problem == ask(0).problem for m in measured)


def test_a_family_whose_plan_fails_is_named_with_the_configuration(evaluator: Make, ask: Ask) -> None:
    with pytest.raises(
        FamilyError, match=r"bad has no plan for behaviour_good.block_0: ZeroDivisionError: .*; `checks`"
    ):
        list(evaluator().evaluate([ask(0, block_size=0)]))


def test_no_requests_are_no_measurements(evaluator: Make) -> None:
    assert list(evaluator().evaluate([])) == []


def test_a_fault_of_the_proposals_passes_through_and_the_evaluator_lives_on(evaluator: Make, ask: Ask) -> None:
    def proposals() -> Iterator[Request]:
        yield ask(0, "slow")
        raise ValueError("planted")

    one = evaluator()
    with pytest.raises(ValueError, match="planted"):
        list(one.evaluate(proposals()))
    assert [m.trial for m in one.evaluate([ask(1)])] == [1]


def test_close_lets_an_idle_worker_release_the_gpu_itself_and_may_be_called_twice(
    evaluator: Make, ask: Ask, tmp_path: Path
) -> None:
    one = evaluator()
    list(one.evaluate([ask(0)]))
    workers = one.worker_pids
    one.close()
    one.close()
    assert all(group_is_gone(pid) for pid in workers)
    assert [log.name for log in (tmp_path / "logs").iterdir()] == ["worker-1.log"], "the spare's empty log stays"
    assert (tmp_path / "logs" / "worker-1.log").read_text() == "closed\n"


def test_a_fresh_process_can_be_asked_for(evaluator: Make, ask: Ask) -> None:
    one = evaluator()
    list(one.evaluate([ask(0)]))
    before = one.worker_pids[0]
    one.renew_worker()
    assert [m.status for m in one.evaluate([ask(0)])] == [Status.OK]
    assert one.worker_pids[0] != before


def test_a_long_pause_of_the_caller_is_nobodys_time_out(evaluator: Make, ask: Ask) -> None:
    one = evaluator(step_deadlines_s={"load": 0.4, "verify": 0.4, "time": 0.4, "recheck": 0.4})
    statuses = []
    for measurement in one.evaluate([ask(i, block_size=b) for i, b in enumerate(GOOD_BLOCKS)]):
        if not statuses:
            time.sleep(0.6)
        statuses.append(measurement.status)
    assert statuses == [Status.OK] * 10


def test_several_problems_go_through_one_worker(evaluator: Make, ask: Ask, bad) -> None:
    problems = list(bad.named_problems.values())
    requests = [ask(i, block_size=block, on=problems[i % 2]) for i, block in enumerate(GOOD_BLOCKS)]
    one = evaluator()
    assert {m.trial: m.problem for m in one.evaluate(requests)} == {r.trial: r.problem for r in requests}


def test_spilled_variants_are_not_launched(evaluator: Make, ask: Ask) -> None:
    (spilled,) = evaluator(FakeBuilder(status_of=lambda variant: Status.SPILLED)).evaluate([ask(0)])
    assert spilled.status is Status.SPILLED
    assert spilled.build is not None and set(spilled.seconds) == {"build"}


def test_a_worst_ratio_that_is_nan_counts_as_wrong(evaluator: Make, ask: Ask) -> None:
    (m,) = evaluator().evaluate([ask(0, "all_nan")])
    assert m.status is Status.WRONG and m.accuracy is not None and math.isnan(m.accuracy.worst_ratio)


def test_a_log_folder_that_cannot_be_made_is_named(evaluator: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(EnvironmentFault, match="file/logs cannot be made: Not a directory"):
        evaluator(log_dir=tmp_path / "file" / "logs")
