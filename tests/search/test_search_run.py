"""What a search does from its first trial to its winner."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.errors import NothingPassed, UsageError
from ktune.core.model import Effort, Measurement, Request, Status
from ktune.study.ranking import rank
from ktune.study.tables import EXTRA_TRIALS
from tests.fake_gpu import FakeEvaluator, fake_timing
from tests.search.toy_search import (
    AnsweringEvaluator,
    InterruptedEvaluator,
    ScriptedEvaluator,
    Watcher,
    fails,
    measure,
    open_toy,
    search_toy,
    searched,
    timing,
    toy_space,
)


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random", "exhaustive"])
@pytest.mark.parametrize("trials", [1, 2, 5])
def test_a_tiny_budget_is_kept_and_begins_with_the_default(tmp_path: Path, sampler: str, trials: int) -> None:
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, trials, evaluator, sampler=sampler)
    assert outcome.trials_done == trials
    assert searched(evaluator)[0] == toy_space().default
    assert outcome.winner is not None
    assert outcome.default is not None


def test_a_budget_of_zero_measures_nothing_and_is_no_failure(tmp_path: Path) -> None:
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, 0, evaluator)
    assert outcome.winner is None
    assert outcome.trials_done == 0
    assert evaluator.evaluated == []


def test_a_negative_budget_and_an_unknown_sampler_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="0 or more, got -1"):
        search_toy(tmp_path, -1)
    with pytest.raises(UsageError, match="no sampler 'annealing'; there are gp, tpe, random, exhaustive"):
        search_toy(tmp_path, 5, sampler="annealing")


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random", "exhaustive"])
def test_a_space_of_one_is_searched(tmp_path: Path, sampler: str) -> None:
    space = toy_space(algorithm=("simple",), block_size=(64,), items=(2,), fast_math=(True,))
    assert len(space) == 1
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, 10, evaluator, space, sampler=sampler)
    assert searched(evaluator) == [space.points[0]]
    assert outcome.winner is not None and outcome.winner.variant.configuration == space.points[0]
    assert outcome.exhausted


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random", "exhaustive"])
def test_an_exhausted_space_is_success_and_holds_every_point_once(tmp_path: Path, sampler: str) -> None:
    space = toy_space()
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, 500, evaluator, space, sampler=sampler)
    assert sorted(map(repr, searched(evaluator))) == sorted(map(repr, space.points))
    assert outcome.exhausted
    assert outcome.trials_done == len(space)
    assert outcome.sampler == "exhaustive"


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_no_configuration_is_measured_twice_in_a_search(tmp_path: Path, sampler: str) -> None:
    evaluator = FakeEvaluator(lambda r: Status.WRONG if r.trial % 3 == 1 else Status.OK)
    search_toy(tmp_path, len(toy_space()) - 2, evaluator, sampler=sampler)
    asked = searched(evaluator)
    assert len(set(asked)) == len(asked) == len(toy_space()) - 2


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_the_same_seed_gives_the_same_search_and_another_seed_another(tmp_path: Path, sampler: str) -> None:
    asked = []
    for place, seed in (("a", 1), ("b", 1), ("c", 2)):
        evaluator = FakeEvaluator()
        search_toy(tmp_path / place, 40, evaluator, sampler=sampler, seed=seed)
        asked.append(searched(evaluator))
    assert asked[0] == asked[1]
    assert asked[0] != asked[2]


def test_seeds_are_tried_right_after_the_default_and_foreign_ones_skipped(tmp_path: Path) -> None:
    space = toy_space(block_size=(64, 128))
    foreign = next(p for p in toy_space().points if p["block_size"] == 256)
    good = space.points[-1]
    evaluator = FakeEvaluator()
    search_toy(tmp_path, 10, evaluator, space, seeds=[foreign, good])
    assert searched(evaluator)[:2] == [space.default, good]


def test_the_default_is_measured_without_a_limit_and_later_variants_against_the_best(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(lookahead=1)
    search_toy(tmp_path, 10, evaluator, sampler="random")
    requests = [r for r in evaluator.evaluated if r.effort is Effort.SEARCH]
    assert requests[0].cull_above_us is None
    limits = [r.cull_above_us for r in requests[1:]]
    assert all(limit is not None for limit in limits)
    assert limits == sorted(limits, reverse=True)


def test_without_races_the_fastest_five_and_the_default_are_measured_in_full(tmp_path: Path) -> None:
    inner = FakeEvaluator()
    outcome = search_toy(tmp_path, 30, AnsweringEvaluator(inner), finalists=5)
    full = {r.variant.configuration for r in inner.evaluated if r.effort is Effort.FULL}
    with open_toy(tmp_path) as study:
        short = rank((m for m in study.measurements() if m.effort is Effort.SEARCH), study.default, study.identify)
        assert sum(m.effort is Effort.FULL for m in study.measurements()) == len(full)
        assert study.finals is None
    assert {m.variant.configuration for m in short[:5]} <= full
    assert toy_space().default in full
    assert outcome.final
    assert outcome.winner is not None and outcome.winner.cold_us == short[0].cold_us
    assert outcome.winner.effort is Effort.FULL
    assert outcome.noise_percent is None


def test_the_winner_is_the_fastest_in_full_not_the_fastest_of_the_search(tmp_path: Path) -> None:
    """A lucky short timing does not win."""
    space = toy_space()
    lucky = space.points[7]

    def change(request: Request, m: Measurement) -> Measurement:
        if request.variant.configuration == lucky:
            return replace(m, cold=timing(10.0 if request.effort is Effort.SEARCH else 500.0))
        return m

    outcome = search_toy(tmp_path, None, ScriptedEvaluator(change), space)
    assert outcome.winner is not None
    assert outcome.winner.variant.configuration != lucky
    assert outcome.winner.cold_us != 500.0


def test_a_winner_that_loses_to_the_default_in_full_gives_way_to_it(tmp_path: Path) -> None:
    default = toy_space().default

    def change(request: Request, m: Measurement) -> Measurement:
        own = request.variant.configuration == default
        if request.effort is Effort.SEARCH:
            return replace(m, cold=timing(300.0 if own else m.cold_us or 0.0))
        return replace(m, cold=timing(60.0 if own else 200.0 + request.trial))

    outcome = search_toy(tmp_path, 30, ScriptedEvaluator(change))
    assert outcome.winner is not None and outcome.winner.variant.configuration == default
    assert outcome.winner.cold_us == 60.0
    with open_toy(tmp_path) as study:
        assert study.best() == outcome.winner


def test_finalists_that_fail_in_full_do_not_win_and_the_next_fastest_are_tried(tmp_path: Path) -> None:
    """All but the default fail; the default, by far the slowest, wins only after all others were tried."""
    default = toy_space().default

    def change(request: Request, m: Measurement) -> Measurement:
        if request.variant.configuration == default:
            return replace(m, cold=timing(900.0))
        if request.effort is Effort.FULL:
            return replace(m, status=Status.UNSTABLE, detail="planted: differs between two runs")
        return m

    outcome = search_toy(tmp_path, 12, ScriptedEvaluator(change))
    assert outcome.winner is not None and outcome.winner.variant.configuration == default
    assert outcome.final
    assert set(outcome.counts) == {Status.OK, Status.UNSTABLE}
    assert outcome.counts[Status.OK] == 1 and outcome.counts[Status.UNSTABLE] >= 11


def test_if_every_finalist_fails_in_full_nothing_passed(tmp_path: Path) -> None:
    evaluator = ScriptedEvaluator(wrong_in_full)
    with pytest.raises(NothingPassed) as caught:
        search_toy(tmp_path, 12, evaluator)
    with open_toy(tmp_path) as study:
        assert study.counts() == {Status.WRONG: study.counts().total()}
        assert f"{study.counts().total()} wrong" in str(caught.value)


def wrong_in_full(request: Request, m: Measurement) -> Measurement:
    return replace(m, status=Status.WRONG) if request.effort is Effort.FULL else m


def test_two_as_fast_ones_are_tied_and_the_same_one_wins_each_time(tmp_path: Path) -> None:
    """Noise reverses their order from run to run; the winner and the tied set stay."""
    space = toy_space()
    twins = [space.points[3], space.points[40]]
    winners = []
    for run in range(3):

        def change(request: Request, m: Measurement, run: int = run) -> Measurement:
            if request.variant.configuration in twins:
                noise = 0.01 * ((run + twins.index(request.variant.configuration)) % 2)
                return replace(m, cold=timing(20.0 + noise, half_interval_us=0.02))
            return m

        outcome = search_toy(tmp_path / str(run), None, ScriptedEvaluator(change), space)
        assert outcome.winner is not None
        assert {outcome.winner.variant.configuration, *(m.variant.configuration for m in outcome.tied)} == set(twins)
        winners.append(outcome.winner.variant.configuration)
    assert len(set(winners)) == 1


@pytest.mark.parametrize("bad_us", [math.nan, 0.0, -1.0, math.inf])
def test_a_time_that_is_no_time_never_wins_even_if_it_comes_first(tmp_path: Path, bad_us: float) -> None:
    def change(request: Request, m: Measurement) -> Measurement:
        return replace(m, cold=fake_timing(bad_us)) if request.trial == 0 else m

    outcome = search_toy(tmp_path, 15, ScriptedEvaluator(change))
    assert outcome.winner is not None
    assert outcome.winner.trial != 0
    with open_toy(tmp_path) as study:
        best = study.best()
        assert best is not None and best.trial == outcome.winner.trial


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random", "exhaustive"])
def test_if_nothing_passes_the_failures_are_counted_by_kind_with_an_example(tmp_path: Path, sampler: str) -> None:
    kinds = [Status.WRONG, Status.BUILD_FAILED, Status.WRONG, Status.LAUNCH_FAILED]
    evaluator = FakeEvaluator(lambda r: kinds[r.trial % 4])
    with pytest.raises(NothingPassed) as caught:
        search_toy(tmp_path, 40, evaluator, sampler=sampler)
    message = str(caught.value)
    assert caught.value.exit_code == 4
    assert "none of 40 variants of toy passed for N1048576" in message
    assert "20 wrong" in message and "10 build_failed" in message and "10 launch_failed" in message
    assert "planted: wrong" in message
    assert "`ktune verify toy`" in message
    with open_toy(tmp_path) as study:
        assert study.best() is None
        assert study.counts()[Status.WRONG] == 20


def test_culled_variants_alone_are_nothing_that_passed(tmp_path: Path) -> None:
    with pytest.raises(NothingPassed, match="8 culled"):
        search_toy(tmp_path, 8, FakeEvaluator(fails(Status.CULLED)))


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT])
def test_what_may_be_the_machines_fault_is_tried_once_more_under_its_number(tmp_path: Path, status: Status) -> None:
    seen: list[int] = []

    def change(request: Request, m: Measurement) -> Measurement:
        seen.append(request.trial)
        return replace(m, status=status, cold=None) if request.trial == 9 and seen.count(9) == 1 else m

    outcome = search_toy(tmp_path, 10, ScriptedEvaluator(change), finalists=0)
    assert seen.count(9) == 2
    assert outcome.counts == {Status.OK: 10}
    assert outcome.trials_done == 10


def test_what_crashes_twice_stays_crashed(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(lambda r: Status.CRASHED if r.trial == 4 else Status.OK)
    outcome = search_toy(tmp_path, 10, evaluator)
    assert [r.trial for r in evaluator.evaluated].count(4) == 2
    assert outcome.counts[Status.CRASHED] == 1


def test_a_wrong_variant_is_not_tried_again(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(lambda r: Status.WRONG if r.trial == 4 else Status.OK)
    search_toy(tmp_path, 10, evaluator)
    assert [r.trial for r in evaluator.evaluated].count(4) == 1


@pytest.mark.parametrize("sampler", ["gp", "tpe", "random"])
def test_an_interrupted_search_says_so_and_goes_on_to_the_same_total(tmp_path: Path, sampler: str) -> None:
    first = InterruptedEvaluator(after=12)
    outcome = search_toy(tmp_path, 30, first, sampler=sampler)
    assert outcome.interrupted
    assert outcome.trials_done == 12
    assert outcome.winner is not None and not outcome.final
    second, watcher = FakeEvaluator(), Watcher()
    outcome = search_toy(tmp_path, 30, second, sampler=sampler, progress=watcher)
    assert watcher.started == (30, 12)
    assert not outcome.interrupted
    assert outcome.trials_done == 30
    with open_toy(tmp_path) as study:
        kept = {m.variant.configuration for m in study.measurements() if m.trial < 12}
        assert len(kept) == 12 and study.trials_done == 30
    assert kept.isdisjoint(searched(second))


def test_an_interruption_before_anything_passed_has_no_winner_and_is_no_failure(tmp_path: Path) -> None:
    outcome = search_toy(tmp_path, 30, InterruptedEvaluator(after=0))
    assert outcome.interrupted and outcome.winner is None


def test_an_interruption_gives_the_claims_back(tmp_path: Path) -> None:
    search_toy(tmp_path, 30, InterruptedEvaluator(after=5))
    with open_toy(tmp_path) as study:
        claimed = [study.claim(point) for point in toy_space().points]
        assert sum(isinstance(trial, int) for trial in claimed) == len(toy_space()) - 5


def test_a_resumed_random_search_measures_what_an_unbroken_one_does(tmp_path: Path) -> None:
    whole = FakeEvaluator()
    search_toy(tmp_path / "whole", 30, whole, sampler="random")
    search_toy(tmp_path / "parts", 30, InterruptedEvaluator(after=12), sampler="random")
    rest = FakeEvaluator()
    search_toy(tmp_path / "parts", 30, rest, sampler="random")
    assert searched(whole)[12:] == searched(rest)


def test_a_finished_search_returns_at_once_with_the_same_winner(tmp_path: Path) -> None:
    outcome = search_toy(tmp_path, 20)
    evaluator = FakeEvaluator()
    again = search_toy(tmp_path, 20, evaluator)
    assert evaluator.evaluated == []
    assert again.winner == outcome.winner
    assert again.trials_done == again.trials_total == 20


def test_a_larger_total_goes_on_from_where_a_finished_search_stopped(tmp_path: Path) -> None:
    search_toy(tmp_path, 20)
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, 25, evaluator)
    assert len(searched(evaluator)) == 5
    assert outcome.trials_done == 25


def test_finalists_measured_on_another_gpu_are_measured_anew_beside_new_ones(tmp_path: Path) -> None:
    def elsewhere(request: Request, m: Measurement) -> Measurement:
        assert m.environment is not None
        return replace(m, environment=replace(m.environment, gpu_uuid="GPU-other"))

    search_toy(tmp_path, 5, ScriptedEvaluator(elsewhere))
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, 40, evaluator)
    (_, entrants), _ = evaluator.races
    assert toy_space().default in [e.variant.configuration for e in entrants if e.variant]
    assert outcome.winner is not None and outcome.winner.environment is not None
    assert outcome.winner.environment.gpu_uuid == FakeEvaluator.environment.gpu_uuid


def test_progress_hears_every_result_with_counts_incumbent_and_time_left(tmp_path: Path) -> None:
    watcher = Watcher()
    evaluator = FakeEvaluator(lambda r: Status.WRONG if r.trial == 3 else Status.OK)
    outcome = search_toy(tmp_path, 20, evaluator, progress=watcher)
    assert watcher.started == (20, 0)
    (first, total), *_, (last, finalists) = watcher.phases
    assert (first, total, last) == ("search", 20, "finalists") and finalists >= 5
    short = [(m, s) for m, s in watcher.results if s.phase == "search"]
    assert [s.done for _, s in short] == list(range(1, 21))
    assert short[-1][1].counts == {Status.OK: 19, Status.WRONG: 1}
    assert short[-1][1].eta_s == 0
    fastest = min(m.cold_us for m, _ in short if m.eligible and m.cold_us is not None)
    incumbent = short[-1][1].incumbent
    assert incumbent is not None and incumbent.cold_us == fastest
    assert watcher.outcome == outcome


def test_a_progress_that_raises_ends_the_search_but_loses_no_result(tmp_path: Path) -> None:
    class Broken(Watcher):
        def on_result(self, m: Measurement, snapshot: object) -> None:
            raise RuntimeError("terminal gone")

    with pytest.raises(RuntimeError, match="terminal gone"):
        search_toy(tmp_path, 20, progress=Broken())
    with open_toy(tmp_path) as study:
        assert study.trials_done == 1


def test_two_searches_of_one_study_share_its_trials(tmp_path: Path) -> None:
    """A second process measures in the middle of the first one's search: together they keep the total."""
    space = toy_space()
    other = FakeEvaluator()

    def change(request: Request, m: Measurement) -> Measurement:
        if request.trial == 5 and not other.evaluated:
            search_toy(tmp_path, 30, other, space, seed=9, sampler="random")
        return m

    first = ScriptedEvaluator(change, lookahead=4)
    outcome = search_toy(tmp_path, 30, first, space)
    asked = searched(first) + searched(other)
    with open_toy(tmp_path) as study:
        extra = study.meta.get(EXTRA_TRIALS, [])
    assert len(asked) == len(set(asked)) == 30 + len(extra)
    assert outcome.trials_done == 30


def test_what_another_process_found_last_takes_part_in_the_final(tmp_path: Path) -> None:
    space = toy_space()
    fast = space.points[-1]

    def change(request: Request, m: Measurement) -> Measurement:
        if request.trial == 9 and request.effort is Effort.SEARCH:
            with open_toy(tmp_path) as other:
                other.record(measure(fast, 50, cold=timing(5.0)))
        return replace(m, cold=timing(5.0)) if request.variant.configuration == fast else m

    outcome = search_toy(tmp_path, 10, ScriptedEvaluator(change, lookahead=1), space, sampler="random")
    assert outcome.winner is not None and outcome.winner.variant.configuration == fast
    assert outcome.final


def test_what_was_measured_before_is_not_asked_again_and_counts_only_if_this_study_did_it(tmp_path: Path) -> None:
    narrow = toy_space(block_size=(64, 128))
    first, evaluator = FakeEvaluator(), FakeEvaluator()
    search_toy(tmp_path, 10, first, space=narrow)
    outcome = search_toy(tmp_path, 20, evaluator)
    assert outcome.trials_done == 20
    before = searched(first)
    assert len(before) >= 10 and set(before).isdisjoint(searched(evaluator))
    with open_toy(tmp_path) as study:
        assert {m.variant.configuration for m in study.measurements()} == {*before, *searched(evaluator)}


def test_a_recorded_failure_of_every_kind_is_learnt_from_on_resumption(tmp_path: Path) -> None:
    space = toy_space()
    with open_toy(tmp_path, space) as study:
        for trial, status in enumerate(Status):
            m = measure(space.points[trial], trial, status=status, bound_us=90.0 if status is Status.CULLED else None)
            study.record(m)
    outcome = search_toy(tmp_path, 40)
    assert outcome.trials_done == 40
