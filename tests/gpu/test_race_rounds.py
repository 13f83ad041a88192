"""Who is timed when in a race, for how long, and what is said of each: with a fake timer and a fake clock."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable

import pytest

from ktune.core.model import Accuracy, Status
from ktune.gpu.protocol import LaunchFault, RaceResult, StickyFault, Verdict
from ktune.gpu.race import SLOW_SAMPLES, TURN_SAMPLES, run_race
from ktune.gpu.timing import POWER_LIMIT, Pace, Reading

RIGHT = Verdict(Status.OK, "", Accuracy(1e-7, 1e-7, 1.0, 1e-8, 0.1, 0.0))
WRONG = Verdict(Status.WRONG, "y[0] is off", Accuracy(1.0, 1.0, 1e6, 1.0, 40.0, 1.0))
DAMAGE = Verdict(Status.WRONG, "input x was changed", RIGHT.accuracy, damaged=True)


class Machine:
    """A GPU on which time passes only as samples are taken; keeps what happened in order."""

    def __init__(self) -> None:
        self.seconds = 0.0
        self.happened: list[tuple[str, str]] = []
        self.runner: Runner | None = None
        self.paces: dict[str, Pace] = {}

    def now(self) -> float:
        return self.seconds

    def announce(self, step: str, name: str) -> None:
        self.happened.append((step, name))

    def bind(self, run: Callable[[], None], pace: Pace) -> None:
        self.runner = run.__self__
        assert self.paces.setdefault(self.runner.name, pace) is pace, "what was learnt of its pace was lost"

    def cold(self, samples: int) -> Reading:
        return self._take(samples, 1, 1.0)

    def hot(self, samples: int, launches: int) -> Reading:
        self.runner.launches = launches
        return self._take(samples, launches, 0.5)

    def method(self, regime: str, launches: int) -> str:
        return f"{self.runner.name} {regime}"

    def turns(self) -> list[str]:
        return [name for step, name in self.happened if step == "time"]

    def _take(self, samples: int, launches: int, factor: float) -> Reading:
        taken = []
        for _ in range(samples):
            self.runner.run()
            taken.append(factor * self.runner.time_us())
            self.seconds += launches * max(taken[-1], 0.0) / 1e6
        return Reading(tuple(taken), 1980, host_bound=self.runner.host_bound())


class Runner:
    """Takes `time_us()` a sample. What `rechecks` holds is found in order, then nothing."""

    def __init__(
        self,
        name: str,
        time_us: float | Callable[[], float] = 1000.0,
        verdict: Verdict = RIGHT,
        rechecks: tuple[Verdict, ...] = (),
        compiles: bool = False,
        fails_in: str = "",
    ) -> None:
        self.name, self.compiles, self.verdict, self.fails_in = name, compiles, verdict, fails_in
        self.time_us = time_us if callable(time_us) else lambda: time_us
        self.rechecks = list(rechecks)
        self.poisoned = False
        self.launches = 0
        self.host_bound: Callable[[], bool] = lambda: False

    def warm_up(self) -> None:
        self._maybe_fail("warm_up")

    def verify(self) -> Verdict:
        self._maybe_fail("verify")
        return self.verdict

    def poison(self) -> None:
        self.poisoned = True

    def run(self) -> None:
        self._maybe_fail("run")
        assert self.poisoned, "a turn must not start with the outputs of the last one"

    def recheck(self) -> Verdict:
        self.poisoned = False
        return self.rechecks.pop(0) if self.rechecks else Verdict(Status.OK)

    def _maybe_fail(self, step: str) -> None:
        if step == self.fails_in:
            raise LaunchFault(f"refused in {step}")


def race(*runners: Runner, machine: Machine | None = None, seed: int = 0, floor_us: float = 0.0) -> dict:
    machine = machine or Machine()
    results = run_race(runners, machine, floor_us, seed, machine.announce, now=machine.now, pause=lambda s: None)
    assert [r.name for r in results] == [r.name for r in runners], "results come in the order given"
    return {r.name: r for r in results}


def samples(result: RaceResult) -> tuple[int, int]:
    assert result.cold is not None and result.hot is not None
    return len(result.cold.samples_us), len(result.hot.samples_us)


def test_everyone_is_verified_before_anyone_is_timed() -> None:
    machine = Machine()
    race(Runner("a"), Runner("b"), Runner("c"), machine=machine)
    assert machine.happened[:3] == [("verify", "a"), ("verify", "b"), ("verify", "c")]
    steps = machine.happened[3:]
    assert steps[::2] == [("time", name) for _, name in steps[::2]]
    assert steps[1::2] == [("recheck", name) for _, name in steps[::2]], "each turn ends with its own check"


def test_rounds_have_everyone_once_in_an_order_that_changes_and_that_the_seed_decides() -> None:
    def turns(seed: int) -> list[str]:
        machine = Machine()
        race(*(Runner(name) for name in "abcde"), machine=machine, seed=seed)
        return machine.turns()

    rounds = [turns(0)[i : i + 5] for i in range(0, 30, 5)]
    assert all(sorted(names) == list("abcde") for names in rounds)
    assert len({tuple(names) for names in rounds}) > 3
    assert turns(0) == turns(0) != turns(1)


def test_steady_entrants_are_done_after_30_samples_of_each_regime() -> None:
    machine = Machine()
    found = race(Runner("a", 1000.0), Runner("b", 1010.0), machine=machine)
    assert samples(found["a"]) == samples(found["b"]) == (30, 30)
    assert len(machine.turns()) == 2 * 30 // TURN_SAMPLES
    assert found["a"].cold.median_us == 1000.0 and found["a"].hot.median_us == 500.0
    assert (found["a"].cold.regime, found["a"].cold.method) == ("cold", "a cold")
    assert found["a"].hot.method == "a hot" and found["a"].cold.sm_clock_mhz == 1980


@pytest.mark.parametrize("readings_before", [1, 2, 3, 4, 5, 11])
def test_an_entrant_that_turns_host_bound_starts_anew(readings_before: int) -> None:
    """Of a race with launch gaps in some samples and none in the others, those without are dropped, cold and hot."""
    bound = itertools.chain([False] * readings_before, itertools.repeat(True))
    runner, now_bound = Runner("a"), [False]
    runner.time_us = lambda: 9000.0 if now_bound[0] else 200.0

    class Turning(Machine):
        def _take(self, samples: int, launches: int, factor: float) -> Reading:
            now_bound[0] = next(bound)
            return super()._take(samples, launches, factor)

    runner.host_bound = lambda: now_bound[0]
    found = race(runner, machine=Turning())["a"]
    assert set(found.cold.samples_us) == {9000.0} and set(found.hot.samples_us) == {4500.0}
    assert found.cold.host_bound and found.hot.host_bound
    assert min(samples(found)) >= 30


def test_a_steady_entrant_goes_on_for_as_long_as_a_noisy_one_needs() -> None:
    noise = random.Random(1)
    found = race(Runner("steady"), Runner("noisy", lambda: 1000.0 * noise.gauss(1.0, 0.02)))
    assert samples(found["noisy"])[0] > 30
    assert samples(found["steady"]) == samples(found["noisy"])
    cold = found["noisy"].cold
    assert max(cold.ci_high_us - cold.median_us, cold.median_us - cold.ci_low_us) <= 0.005 * cold.median_us


def test_an_entrant_that_never_settles_stops_at_its_own_time_limit() -> None:
    machine = Machine()
    noise = random.Random(1)
    found = race(Runner("a"), Runner("hopeless", lambda: noise.uniform(500.0, 1500.0)), machine=machine)
    count = samples(found["hopeless"])[0]
    assert 30 < count < 1000
    # a second of samples, cold and hot, and not a turn more
    assert 0.95 <= count * (1000.0 + 500.0) / 1e6 <= 1.05
    assert found["hopeless"].status is Status.OK


@pytest.mark.parametrize("time_us", [60_000.0, 250_000.0, 3_000_000.0])
def test_a_slow_entrant_takes_few_samples_and_says_so(time_us: float) -> None:
    machine = Machine()
    found = race(Runner("fast"), Runner("slow", time_us), machine=machine)
    cold, hot = samples(found["slow"])
    assert cold == hot >= SLOW_SAMPLES
    assert (cold - 1) * 1.5 * time_us < 1e6 or cold == SLOW_SAMPLES
    assert f"only {cold} samples since one takes {time_us / 1000:.3g} ms" in found["slow"].cold.method
    assert "only" not in found["fast"].cold.method and samples(found["fast"])[0] >= 30


def test_a_short_kernel_is_launched_many_times_in_a_hot_sample() -> None:
    short, long = Runner("short", 50.0), Runner("long", 1000.0)
    race(short, long)
    assert (short.launches, long.launches) == (8, 1)


def test_a_wrong_entrant_is_timed_all_the_same_and_says_wrong() -> None:
    found = race(Runner("right"), Runner("wrong", 10.0, WRONG), floor_us=20.0)
    wrong = found["wrong"]
    assert (wrong.status, wrong.detail, wrong.accuracy) == (Status.WRONG, "y[0] is off", WRONG.accuracy)
    assert wrong.cold is not None and wrong.cold.median_us == 10.0, "doing less than all, it may be below the floor"


def test_a_right_entrant_below_the_floor_is_refused_and_the_others_race_on() -> None:
    found = race(Runner("impossible", 10.0), Runner("right", 30.0), floor_us=20.0)
    assert found["impossible"].status is Status.UNSTABLE and found["impossible"].cold is None
    assert "at least 20 us" in found["impossible"].detail
    assert found["right"].status is Status.OK and samples(found["right"]) == (30, 30)


def test_a_wrong_entrant_without_a_usable_time_stays_wrong() -> None:
    found = race(Runner("wrong", float("nan"), WRONG))
    assert found["wrong"].status is Status.WRONG and found["wrong"].cold is None
    assert found["wrong"].detail.startswith("y[0] is off; a time must be positive and finite")


def test_an_entrant_that_damaged_memory_when_verified_is_not_timed() -> None:
    machine = Machine()
    found = race(Runner("a"), Runner("spoiler", verdict=DAMAGE), machine=machine)
    assert found["spoiler"] == RaceResult("spoiler", Status.WRONG, "input x was changed", RIGHT.accuracy)
    assert "spoiler" not in machine.turns() and found["a"].status is Status.OK


@pytest.mark.parametrize("verdict", [RIGHT, WRONG])
def test_one_that_damages_memory_while_timed_leaves_the_race_without_times(verdict: Verdict) -> None:
    machine = Machine()
    found = race(Runner("a"), Runner("late", verdict=verdict, rechecks=(Verdict(Status.OK), DAMAGE)), machine=machine)
    assert found["late"].status is Status.WRONG and found["late"].cold is None
    assert machine.turns().count("late") == 2
    assert found["a"].status is Status.OK


def test_wrong_values_after_timed_launches_make_a_right_entrant_unstable_and_keep_its_times() -> None:
    found = race(Runner("a", rechecks=(Verdict(Status.OK), WRONG)))
    assert found["a"].status is Status.UNSTABLE
    assert found["a"].detail == "right when verified, not after the timed launches: y[0] is off"
    assert found["a"].accuracy == WRONG.accuracy and samples(found["a"]) == (30, 30)


@pytest.mark.parametrize("step", ["warm_up", "verify", "run"])
def test_one_that_cannot_run_has_failed_and_the_others_race_on(step: str) -> None:
    machine = Machine()
    found = race(Runner("broken", compiles=True, fails_in=step), Runner("a"), machine=machine)
    assert found["broken"] == RaceResult(
        "broken", Status.LAUNCH_FAILED, f"refused in {step}", RIGHT.accuracy if step == "run" else None
    )
    assert found["a"].status is Status.OK
    assert machine.happened[0] == ("compile", "broken")


def test_a_spoilt_context_ends_the_race_in_the_step_of_the_one_to_blame() -> None:
    class Poisonous(Runner):
        def run(self) -> None:
            raise StickyFault("CUDA_ERROR_ILLEGAL_ADDRESS")

    machine = Machine()
    with pytest.raises(StickyFault):
        race(Runner("a"), Poisonous("b"), Runner("c"), machine=machine)
    assert machine.happened[-1] == ("time", "b")


def test_throttling_that_does_not_end_is_waited_for_three_times_in_all() -> None:
    class Hot(Machine):
        def _take(self, samples: int, launches: int, factor: float) -> Reading:
            return Reading(super()._take(samples, launches, factor).samples_us, 1200, ("hw_thermal",))

    pauses: list[float] = []
    machine = Hot()
    results = run_race(
        [Runner("a"), Runner("b")], machine, 0.0, 0, machine.announce, now=machine.now, pause=pauses.append
    )
    assert len(pauses) == 3
    assert all(r.cold is not None and r.cold.throttle == ("hw_thermal",) for r in results)


def test_a_race_of_nobody_has_no_results() -> None:
    assert race() == {}


class LimitedMachine(Machine):
    """A GPU whose power limit slows whoever comes within 0.05 s of a turn of "hot", by half."""

    def __init__(self) -> None:
        super().__init__()
        self.hot_until = 0.0

    def pause(self, seconds: float) -> None:
        self.seconds += seconds

    def _take(self, samples: int, launches: int, factor: float) -> Reading:
        slowed = self.seconds < self.hot_until
        if self.runner.name == "hot":
            self.hot_until = self.seconds + 0.05
        taken = super()._take(samples, launches, factor * (1.5 if slowed else 1.0))
        return Reading(taken.samples_us, 1980, (POWER_LIMIT,) if slowed else ())


def test_a_turn_at_the_power_limit_is_forgotten_and_every_later_one_begins_rested() -> None:
    machine = LimitedMachine()
    runners = [Runner("hot", 500.0), Runner("cool", 1000.0)]
    found = run_race(runners, machine, 0.0, 0, machine.announce, now=machine.now, pause=machine.pause)
    cool = found[1]
    assert cool.cold is not None
    assert set(cool.cold.samples_us) == {1000.0}, "a sample that a neighbour slowed was kept"
    assert samples(cool) == (30, 30)
    assert "after rests of 100 ms" in cool.cold.method
    assert len(machine.turns()) == 2 * (1 + 30 // TURN_SAMPLES), "one round in vain, then the full number"


def test_a_race_below_the_power_limit_never_rests() -> None:
    machine = LimitedMachine()
    run_race([Runner("cool"), Runner("mild")], machine, 0.0, 0, machine.announce, now=machine.now, pause=machine.pause)
    busy_s = machine.seconds
    assert busy_s == pytest.approx(2 * 30 * (1000.0 + 500.0) / 1e6)
