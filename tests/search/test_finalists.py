"""How a search settles its winner: the races, the noise floor, the tied set, and what stands in their way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.errors import NothingPassed
from ktune.core.model import Configuration, Effort, Measurement, Problem, Request, Status, Timing
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.gpu.timing import Reading, summarise
from ktune.search.final import noise_percent, noise_warnings
from ktune.search.finalists import choose_finalists, fastest_of_gpus, leaders_of_gpus
from ktune.study.ranking import rank
from tests.fake_gpu import FakeEvaluator
from tests.search.toy_search import (
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

Change = Callable[["RacedGpu", Entrant, RaceResult], RaceResult]


class RacedGpu(FakeEvaluator):
    """A fake GPU whose race results pass through `change`; `race_number` counts from 1."""

    def __init__(self, change: Change = lambda gpu, entrant, result: result) -> None:
        super().__init__()
        self.change = change
        self.fresh: list[bool] = []

    @property
    def race_number(self) -> int:
        return len(self.races)

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], *, seed: int = 0, fresh: bool = False
    ) -> list[RaceResult]:
        self.fresh.append(fresh)
        return super().race(problem, entrants, seed=seed, fresh=fresh)

    def raced(self, problem: Problem, entrant: Entrant, seed: int) -> RaceResult:
        return self.change(self, entrant, super().raced(problem, entrant, seed))


def names(gpu: FakeEvaluator, race: int = 0) -> list[str]:
    return [entrant.name for entrant in gpu.races[race][1]]


def short(results: Path) -> list[Measurement]:
    """The search's measurements, the fastest first."""
    with open_toy(results) as study:
        found = [m for m in study.measurements() if m.effort is Effort.SEARCH]
        return rank(found, study.default, study.identify)


def full(results: Path) -> dict[Configuration, Measurement]:
    with open_toy(results) as study:
        return {m.variant.configuration: m for m in study.measurements() if m.effort is Effort.FULL}


def test_finalists_race_twice_the_second_time_in_a_fresh_process_with_a_copy_of_the_leader(tmp_path: Path) -> None:
    gpu = RacedGpu()
    outcome = search_toy(tmp_path, 30, gpu)
    assert gpu.fresh == [False, True]
    assert names(gpu, 0) == names(gpu, 1)
    leader = short(tmp_path)[0].variant
    first, control, *others = gpu.races[0][1]
    assert first.variant == control.variant == leader
    assert (first.cubin, control.name) == (control.cubin, f"{first.name} (control)")
    assert len({e.variant for e in others}) == len(others) >= 4
    assert toy_space().default in [e.variant.configuration for e in others if e.variant]
    assert outcome.final and outcome.winner is not None and outcome.winner.effort is Effort.FULL


def test_what_lies_one_step_from_the_winner_was_measured_and_does_not_count_among_the_trials(tmp_path: Path) -> None:
    gpu, watcher = RacedGpu(), Watcher()
    outcome = search_toy(tmp_path, 40, gpu, sampler="random", progress=watcher)
    measured, space = set(searched(gpu)), toy_space()
    leader = short(tmp_path)[0].variant.configuration
    assert outcome.winner is not None
    for centre in (leader, outcome.winner.variant.configuration):
        assert set(space.neighbours(centre)) <= measured
    assert outcome.trials_done == 40 < len(measured) < len(space)
    assert "neighbours" in [phase for phase, _ in watcher.phases]


def test_a_search_that_nothing_passed_looks_around_nowhere(tmp_path: Path) -> None:
    evaluator = FakeEvaluator(fails(Status.WRONG))
    with pytest.raises(NothingPassed):
        search_toy(tmp_path, 5, evaluator)
    assert len(searched(evaluator)) == 5


def test_a_full_measurement_keeps_the_samples_of_both_races_and_spans_their_difference(tmp_path: Path) -> None:
    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        return replace(result, cold=timing(100.0 if gpu.race_number == 1 else 104.0))

    gpu = RacedGpu(change)
    search_toy(tmp_path, 20, gpu)
    measured = full(tmp_path)
    assert len(measured) == len(gpu.races[0][1]) - 1
    for m in measured.values():
        assert m.cold is not None and m.hot is not None and m.build is not None
        assert sorted(m.cold.samples_us) == sorted(timing(100.0).samples_us + timing(104.0).samples_us)
        assert m.cold.median_us == 102.0
        assert m.cold.ci_low_us <= 100.0 and m.cold.ci_high_us >= 104.0


def test_the_noise_floor_is_told_stored_and_the_races_with_it(tmp_path: Path) -> None:
    """The control is 0.3 % off in one race, the leader 0.8 % from one process to the next."""

    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        leader = names(gpu)[0]
        if entrant.name == leader:
            return replace(result, cold=timing(50.0 if gpu.race_number == 1 else 50.4))
        if entrant.name == f"{leader} (control)":
            return replace(result, cold=timing(50.15 if gpu.race_number == 1 else 50.4))
        return replace(result, cold=timing(80.0))

    gpu = RacedGpu(change)
    outcome = search_toy(tmp_path, 20, gpu, seed=7)
    assert outcome.noise_percent == pytest.approx(0.8)
    assert outcome.warnings == ()
    with open_toy(tmp_path) as study:
        finals = study.finals
    assert finals is not None and finals.noise_percent == outcome.noise_percent
    assert [(race.seed, race.fresh) for race in finals.races] == [(7, False), (8, True)]
    first, control, *others = finals.races[0].laps
    assert (first.time_cold_median_us, control.time_cold_median_us) == (50.0, 50.15)
    assert control.control and not first.control and first.configuration_id == control.configuration_id
    assert {lap.time_cold_median_us for lap in others} == {80.0}
    assert outcome.winner is not None and finals.winner == first.configuration_id
    assert finals.tied == ()


def test_what_differs_by_less_than_the_noise_floor_is_tied_even_if_the_intervals_are_apart(tmp_path: Path) -> None:
    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        times = {name: 50.0 + 0.2 * place for place, name in enumerate(names(gpu)[2:5], 1)}
        times[names(gpu)[0]] = 50.0
        times[names(gpu)[1]] = 50.5
        return replace(result, cold=timing(times.get(entrant.name, 90.0), 0.001))

    gpu = RacedGpu(change)
    outcome = search_toy(tmp_path, 20, gpu)
    assert outcome.noise_percent == pytest.approx(1.0)
    with open_toy(tmp_path) as study:
        assert outcome.winner is not None
        equal = {study.identify(m.variant.configuration) for m in (outcome.winner, *outcome.tied)}
        finals = study.finals
    assert equal == {names(gpu)[0], *names(gpu)[2:4]}
    assert finals is not None and {finals.winner, *finals.tied} == equal


def test_a_default_that_ties_wins(tmp_path: Path) -> None:
    gpu = RacedGpu(lambda gpu, entrant, result: replace(result, cold=timing(50.0)))
    outcome = search_toy(tmp_path, 20, gpu)
    assert outcome.winner is not None and outcome.winner.variant.configuration == toy_space().default
    assert len(outcome.tied) == len(gpu.races[0][1]) - 2


def test_a_noisy_environment_is_warned_of_with_the_reason(tmp_path: Path) -> None:
    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        clock = 1980 if gpu.race_number == 1 else 1500
        return replace(result, cold=replace(timing(50.0 * 1980 / clock), sm_clock_mhz=clock))

    outcome = search_toy(tmp_path, 20, RacedGpu(change))
    (warning,) = outcome.warnings
    assert "32 %, above 1 %" in warning and "between 1500 and 1980 MHz" in warning
    with open_toy(tmp_path) as study:
        assert study.finals is not None and study.finals.warnings == outcome.warnings


@pytest.mark.parametrize(
    ("clocks", "throttle", "foreign", "reason"),
    [
        ((1980, 1970), (), 0, "neither clocks, throttling nor other processes explain it"),
        ((1980, 1400), (), None, "SM clock was between 1400 and 1980 MHz"),
        ((1980, 1980), ("sw_power_cap",), 0, "throttled (sw_power_cap)"),
        ((None, None), (), 2, "other compute processes were on the GPU (2)"),
    ],
)
def test_the_reason_of_noise_is_what_the_timings_show(
    clocks: Sequence[int | None], throttle: tuple[str, ...], foreign: int | None, reason: str
) -> None:
    timings = [replace(timing(50.0), sm_clock_mhz=clock, throttle=throttle) for clock in clocks]
    (warning,) = noise_warnings(2.5, timings, foreign)
    assert reason in warning
    assert noise_warnings(1.0, timings, foreign) == ()


def test_the_noise_floor_is_the_largest_difference_of_one_binary() -> None:
    def times(*values: float) -> list[Timing]:
        return [timing(value) for value in values]

    assert noise_percent(times(100, 100), times(100, 100)) == 0
    assert noise_percent(times(100, 100), times(100, 102)) == pytest.approx(2)
    assert noise_percent(times(100, 103), times(100, 103)) == pytest.approx(3)
    assert noise_percent(times(100, 100), times(104, 100)) == pytest.approx(4)


@pytest.mark.parametrize("status", [Status.WRONG, Status.UNSTABLE, Status.CRASHED, Status.TIMED_OUT])
@pytest.mark.parametrize("race", [1, 2])
def test_a_finalist_that_fails_in_a_race_is_out_and_the_next_one_takes_its_place(
    tmp_path: Path, status: Status, race: int
) -> None:
    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        failing = entrant.name == names(gpu)[2] and gpu.race_number == race
        return RaceResult(entrant.name, status, f"planted: {status}") if failing else result

    gpu = RacedGpu(change)
    outcome = search_toy(tmp_path, 30, gpu, finalists=5)
    failed = names(gpu)[2]
    assert len(gpu.races) == race + 2
    assert failed not in names(gpu, -1) and len(names(gpu, -1)) >= len(names(gpu)) - 1
    assert set(names(gpu, -1)) - set(names(gpu))
    assert outcome.counts[status] == 1 and outcome.final
    with open_toy(tmp_path) as study:
        m = study.find(failed)
        assert (m.status, m.effort, m.detail) == (status, Effort.FULL, f"planted: {status}")
        assert study.finals is not None and len(study.finals.races) == 2


def test_a_control_that_fails_puts_the_leader_out(tmp_path: Path) -> None:
    first: list[str] = []

    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        first[:] = first or names(gpu)
        unstable = entrant.name == f"{first[0]} (control)"
        return replace(result, status=Status.UNSTABLE, detail="differs between two runs") if unstable else result

    outcome = search_toy(tmp_path, 20, RacedGpu(change))
    with open_toy(tmp_path) as study:
        assert study.find(first[0]).status is Status.UNSTABLE
        assert outcome.winner is not None and study.identify(outcome.winner.variant.configuration) != first[0]


def test_a_race_result_without_a_usable_time_is_no_pass(tmp_path: Path) -> None:
    gpu = RacedGpu(lambda gpu, entrant, result: replace(result, cold=None))
    with pytest.raises(NothingPassed, match="no time that is a positive number"):
        search_toy(tmp_path, 8, gpu)


def test_an_interruption_in_a_race_keeps_the_search_and_the_same_command_races_again(tmp_path: Path) -> None:
    def stop(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        if gpu.race_number == 2:
            raise KeyboardInterrupt
        return result

    outcome = search_toy(tmp_path, 20, RacedGpu(stop))
    assert outcome.interrupted and not outcome.final and outcome.trials_done == 20
    gpu = RacedGpu()
    again = search_toy(tmp_path, 20, gpu)
    assert searched(gpu) == [] and len(gpu.races) == 2
    assert again.final and not again.interrupted


def test_a_finished_study_does_not_race_again_and_says_the_same(tmp_path: Path) -> None:
    outcome = search_toy(tmp_path, 20)
    gpu = RacedGpu()
    again = search_toy(tmp_path, 20, gpu)
    assert gpu.races == [] and gpu.evaluated == []
    assert (again.winner, again.tied) == (outcome.winner, outcome.tied)
    assert again.noise_percent == outcome.noise_percent is not None


def test_new_trials_that_change_the_finalists_race_them_all_together(tmp_path: Path) -> None:
    search_toy(tmp_path, 2)
    gpu = RacedGpu()
    search_toy(tmp_path, 60, gpu)
    assert len(gpu.races) == 2
    raced = [e.variant for e in gpu.races[0][1]]
    with open_toy(tmp_path) as study:
        assert study.best() is not None and study.best().variant in raced  # type: ignore[union-attr]
    assert toy_space().default in [v.configuration for v in raced if v]


def test_no_finalists_means_no_races_and_the_searchs_times_decide(tmp_path: Path) -> None:
    gpu = RacedGpu()
    outcome = search_toy(tmp_path, 20, gpu, finalists=0)
    assert gpu.races == [] and len(searched(gpu)) == 20
    assert outcome.winner is not None and not outcome.final
    assert outcome.winner == short(tmp_path)[0]


def test_another_process_that_races_is_left_to_it(tmp_path: Path) -> None:
    """Its claims on the finalists are held while this search comes to its end."""
    gpu = RacedGpu()
    with open_toy(tmp_path) as other:

        def claims(request: Request) -> Status:
            if request.trial == 19:
                for m in other.refresh():
                    other.claim_full(m)
            return Status.OK

        gpu.status_of = claims
        outcome = search_toy(tmp_path, 20, gpu, sampler="random")
    assert gpu.races == [] and not outcome.final


def test_the_watcher_hears_of_every_finalist(tmp_path: Path) -> None:
    watcher = Watcher()
    search_toy(tmp_path, 20, progress=watcher)
    told = [m for m, snapshot in watcher.results if snapshot.phase == "finalists"]
    assert {m.variant.configuration: m for m in told} == full(tmp_path)
    assert watcher.phases[-1] == ("finalists", len(told))


def test_an_interruption_in_the_search_races_nobody(tmp_path: Path) -> None:
    evaluator = InterruptedEvaluator(after=12)
    search_toy(tmp_path, 30, evaluator)
    assert evaluator.races == []


def ranked(*times_us: float) -> list[Measurement]:
    points = toy_space().points
    return [measure(points[i], i, cold=timing(time_us)) for i, time_us in enumerate(times_us)]


@pytest.mark.parametrize(
    ("times_us", "most", "chosen"),
    [
        ([100, 105, 109, 120, 130, 140, 150], 10, 5),
        ([100, 101, 102, 103, 104, 105, 106, 150], 10, 7),
        ([100 + i / 10 for i in range(20)], 10, 10),
        ([100, 101], 10, 2),
        ([100, 101, 102, 103], 3, 3),
        ([], 10, 0),
    ],
    ids=["at-least-5", "near-ones", "at-most-10", "few", "fewer-wanted", "none"],
)
def test_finalists_are_those_near_the_leader_but_not_too_few_nor_too_many(
    times_us: list[float], most: int, chosen: int
) -> None:
    found = ranked(*times_us)
    assert choose_finalists(found, (), most) == found[:chosen]


def test_a_gpu_whose_times_are_all_longer_has_its_fastest_in_the_final() -> None:
    fast, slow = ranked(*range(100, 120)), ranked(*range(110, 130))
    other = [replace(m, environment=replace(FakeEvaluator.environment, gpu_uuid="GPU-slow")) for m in slow]
    mixed = sorted([*fast, *other], key=lambda m: m.cold_us or 0.0)
    assert choose_finalists(mixed, (), 6) == [m for pair in zip(fast[:3], other[:3], strict=True) for m in pair]
    assert leaders_of_gpus(mixed) == [fast[0], other[0]]
    assert fastest_of_gpus(mixed, 1.02) == [fast[0], other[0], fast[1], other[1], fast[2], other[2]]


def test_the_fastest_of_both_gpus_of_a_search_are_in_its_final(tmp_path: Path) -> None:
    """The second GPU is so slow that the first one's times beat all of its."""

    def slow(request: Request, m: Measurement) -> Measurement:
        assert m.cold is not None and m.environment is not None
        elsewhere = replace(m.environment, gpu_uuid="GPU-slow")
        return replace(m, cold=timing(50.0 * m.cold.median_us), environment=elsewhere)

    search_toy(tmp_path, 20, finalists=0)
    gpu, watcher = ScriptedEvaluator(slow), Watcher()
    gpu.environment = replace(FakeEvaluator.environment, gpu_uuid="GPU-slow")
    search_toy(tmp_path, 30, gpu, progress=watcher)
    assert (watcher.started, watcher.elsewhere) == ((30, 20), 20)
    measured_by = {m.variant: m.environment.gpu_uuid for m in short(tmp_path) if m.environment}
    finalists = [measured_by[e.variant] for e in gpu.races[0][1] if e.variant]
    assert finalists.count("GPU-slow") >= 2
    assert finalists.count(FakeEvaluator.environment.gpu_uuid) >= 2


def test_the_default_is_a_finalist_however_slow() -> None:
    found = ranked(*range(100, 130))
    last = found[-1].variant.configuration
    assert choose_finalists(found, [last], 10) == [*found[:10], found[-1]]


def test_rounds_that_differ_hide_no_difference_between_finalists(tmp_path: Path) -> None:
    """Each round is slower or faster for all; one finalist beside the leader is as fast, the others 0.5 % slower."""
    search_toy(tmp_path, 30, finalists=0)
    leader, equal = (m.variant.configuration for m in short(tmp_path)[:2])

    def change(gpu: RacedGpu, entrant: Entrant, result: RaceResult) -> RaceResult:
        rounds = random.Random(gpu.race_number)
        assert entrant.variant is not None
        more = 0.0 if entrant.variant.configuration in (leader, equal) else 0.5
        samples = [100.0 + rounds.uniform(-3.0, 3.0) + more for _ in range(60)]
        return replace(result, cold=summarise("cold", "events", Reading(tuple(samples))))

    outcome = search_toy(tmp_path, 30, RacedGpu(change))
    with open_toy(tmp_path) as study:
        assert study.finals is not None and study.finals.pairs is not None
        told = study.finals.pairs.longer
        assert len(told) == len(full(tmp_path)) >= 5
        assert {study.identify(c) for c in (leader, equal)} == {name for name, d in told.items() if d.percent < 0.4}
    assert outcome.winner is not None
    found = {m.variant.configuration for m in (outcome.winner, *outcome.tied)}
    assert found == {leader, equal}
