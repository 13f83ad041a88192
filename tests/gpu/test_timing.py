"""Statistics, refusals and protocols, with a timer and a clock that do as they are told."""

import math
import random
from collections.abc import Callable, Iterator

import pytest

from ktune.api import Cost
from ktune.core.model import Status
from ktune.gpu import timing
from ktune.gpu.timing import Reading

NAN, INF = math.nan, math.inf


class FakeTimer:
    """Answers with the samples of a function of (regime, number of the sample); counts what was asked."""

    def __init__(self, sample: Callable[[str, int], float], throttles: list[tuple[str, ...]] | None = None) -> None:
        self.sample = sample
        self.throttles = throttles or []
        self.taken = {"cold": 0, "hot": 0}
        self.calls: list[tuple[str, int, int]] = []

    def cold(self, samples: int) -> Reading:
        return self._take("cold", samples, 1)

    def hot(self, samples: int, launches: int) -> Reading:
        return self._take("hot", samples, launches)

    def method(self, regime: str, launches: int) -> str:
        return f"fake {regime} {launches}"

    def _take(self, regime: str, samples: int, launches: int) -> Reading:
        self.calls.append((regime, samples, launches))
        first = self.taken[regime]
        self.taken[regime] += samples
        throttle = self.throttles.pop(0) if self.throttles else ()
        return Reading(tuple(self.sample(regime, first + i) for i in range(samples)), 1980, throttle)


class FakeClock:
    """Advances by a step at each reading."""

    def __init__(self, step: float = 0.0) -> None:
        self.seconds, self.step = 0.0, step

    def __call__(self) -> float:
        self.seconds += self.step
        return self.seconds


def never_pause(seconds: float) -> None:
    raise AssertionError(f"paused for {seconds} s")


def steady(time_us: float) -> FakeTimer:
    return FakeTimer(lambda regime, i: time_us * (0.9 if regime == "hot" else 1.0))


@pytest.mark.parametrize(
    "count, low, high", [(1, 0, 0), (5, 0, 4), (6, 0, 5), (8, 0, 7), (9, 1, 7), (30, 9, 20), (100, 39, 60)]
)
def test_the_interval_of_the_median_is_that_of_the_tables(count: int, low: int, high: int) -> None:
    assert timing.median_interval([float(i) for i in range(count)]) == (float(low), float(high))


def test_the_interval_holds_the_true_median_19_times_in_20() -> None:
    rng = random.Random(1)
    hits = 0
    for _ in range(1000):
        low, high = timing.median_interval(sorted(rng.expovariate(1.0) for _ in range(30)))
        hits += low <= math.log(2) <= high
    assert 940 <= hits <= 985


def test_a_timing_carries_its_samples_and_their_statistics() -> None:
    reading = Reading((5.0, 1.0, 3.0, 2.0, 100.0), 1980, ("sw_power_cap",))
    found = timing.summarise("cold", "fake", reading)
    assert found.samples_us == reading.samples_us
    assert (found.min_us, found.q1_us, found.median_us, found.q3_us, found.mad_us) == (1.0, 2.0, 3.0, 5.0, 2.0)
    assert (found.ci_low_us, found.ci_high_us) == (1.0, 100.0)
    assert found.sm_clock_mhz == 1980 and found.throttle == ("sw_power_cap",)


def test_one_sample_is_its_own_statistics() -> None:
    found = timing.summarise("cold", "fake", Reading((7.0,)))
    assert {found.median_us, found.min_us, found.q1_us, found.q3_us, found.ci_low_us, found.ci_high_us} == {7.0}
    assert found.mad_us == 0.0


@pytest.mark.parametrize("bad", [0.0, -1.0, NAN, INF, -INF])
@pytest.mark.parametrize("regime", ["cold", "hot"])
@pytest.mark.parametrize("effort", ["search", "full"])
def test_an_impossible_time_never_becomes_a_timing(bad: float, regime: str, effort: str) -> None:
    timer = FakeTimer(lambda asked, i: bad if asked == regime and i % 3 == 1 else 50.0)
    found = run(timer, effort)
    assert found.status is Status.UNSTABLE
    assert "positive and finite" in found.detail and str(bad) in found.detail
    assert found.cold is None


def run(timer: FakeTimer, effort: str, floor_us: float = 0.0, cull_above_us: float | None = None) -> timing.Timings:
    if effort == "search":
        return timing.time_search(timer, floor_us, cull_above_us, pause=never_pause)
    return timing.time_full(timer, floor_us, now=FakeClock(), pause=never_pause)


def test_an_impossible_time_once_is_measured_again() -> None:
    timer = FakeTimer(lambda regime, i: NAN if (regime, i) == ("cold", 1) else 50.0)
    found = run(timer, "search")
    assert found.status is Status.OK
    assert found.cold is not None and found.cold.samples_us == (50.0,) * 8


def test_a_cold_time_below_the_floor_is_measured_again_and_then_refused() -> None:
    timer = steady(20.0)
    found = run(timer, "search", floor_us=24.4)
    assert found.status is Status.UNSTABLE
    assert "at least 24.4 us" in found.detail and "20 us" in found.detail
    assert timer.calls == [("cold", 2, 1), ("cold", 2, 1)]


def test_a_hot_time_below_the_memory_floor_is_no_fault() -> None:
    found = timing.time_search(FakeTimer(lambda regime, i: 30.0 if regime == "cold" else 10.0), 24.4, None)
    assert found.status is Status.OK and found.hot is not None and found.hot.median_us == 10.0


def test_a_search_takes_8_cold_samples_and_3_hot_ones() -> None:
    timer = steady(60.0)
    found = run(timer, "search", cull_above_us=50.0)
    assert found.status is Status.OK
    assert found.cold is not None and found.hot is not None
    assert len(found.cold.samples_us) == 8 and len(found.hot.samples_us) == 3
    assert found.cold.regime == "cold" and found.hot.regime == "hot"
    assert found.hot.method == "fake hot 7", "400 us of work in a hot sample"


def test_a_variant_far_slower_than_the_best_is_culled_after_two_samples() -> None:
    timer = steady(76.0)
    found = run(timer, "search", cull_above_us=50.0)
    assert found.status is Status.CULLED and found.bound_us == 76.0 and found.cold is None
    assert timer.taken == {"cold": 2, "hot": 0}


def test_one_slow_sample_of_two_culls_nothing() -> None:
    found = run(FakeTimer(lambda regime, i: 500.0 if i == 0 else 51.0), "search", cull_above_us=50.0)
    assert found.status is Status.OK


@pytest.mark.parametrize("impossible", [NAN, 0.0, -5.0])
def test_an_impossible_time_is_never_a_cull_bound(impossible: float) -> None:
    assert run(steady(impossible), "search", cull_above_us=50.0).status is Status.UNSTABLE


def test_a_steady_kernel_is_done_after_30_samples_of_each_regime() -> None:
    timer = steady(60.0)
    found = run(timer, "full")
    assert found.status is Status.OK and timer.taken == {"cold": 30, "hot": 30}


def test_a_noisy_kernel_is_sampled_until_its_interval_is_half_a_per_cent() -> None:
    rng = random.Random(3)
    timer = FakeTimer(lambda regime, i: 200.0 * rng.gauss(1.0, 0.02))
    found = run(timer, "full")
    assert found.cold is not None and 30 < timer.taken["cold"] < 1000
    assert max(found.cold.ci_high_us - found.cold.median_us, found.cold.median_us - found.cold.ci_low_us) <= 1.0


def test_a_short_kernel_need_not_be_known_better_than_the_timer_resolves() -> None:
    steps: Iterator[float] = iter([5.0, 5.2] * 1000)
    timer = FakeTimer(lambda regime, i: next(steps))
    run(timer, "full")
    assert timer.taken["cold"] == 30, "4 % apart, but within 0.25 us"


def test_a_hopeless_kernel_stops_at_the_time_limit_and_keeps_what_it_has() -> None:
    timer = FakeTimer(lambda regime, i: 100.0 if i % 2 else 300.0)
    found = timing.time_full(timer, 0.0, now=FakeClock(step=0.5), pause=never_pause, limit_s=3.0)
    assert found.status is Status.OK and found.cold is not None
    assert len(found.cold.samples_us) == 60


def test_a_hopeless_kernel_stops_at_1000_samples_on_a_stopped_clock() -> None:
    timer = FakeTimer(lambda regime, i: 100.0 if i % 2 else 300.0)
    timing.time_full(timer, 0.0, now=FakeClock(), pause=never_pause)
    assert timer.taken["cold"] == 1000


@pytest.mark.parametrize("reason", sorted(timing.DISCARDED_REASONS))
def test_samples_under_hardware_throttling_are_taken_again_after_a_pause(reason: str) -> None:
    timer = FakeTimer(lambda regime, i: 90.0 if i < 2 else 60.0, throttles=[(reason,)])
    pauses: list[float] = []
    found = timing.time_search(timer, 0.0, None, pause=pauses.append)
    assert pauses == [0.5]
    assert found.cold is not None and found.cold.samples_us == (60.0,) * 8 and found.cold.throttle == ()


def test_throttling_that_does_not_end_is_kept_and_flagged() -> None:
    timer = FakeTimer(lambda regime, i: 90.0, throttles=[("hw_thermal",)] * 100)
    pauses: list[float] = []
    found = timing.time_search(timer, 0.0, None, pause=pauses.append)
    assert len(pauses) == 3
    assert found.status is Status.OK and found.cold is not None and found.cold.throttle == ("hw_thermal",)


def test_the_power_cap_is_flagged_and_costs_one_short_rest() -> None:
    timer = FakeTimer(lambda regime, i: 90.0, throttles=[("sw_power_cap",)] * 100)
    rests: list[float] = []
    found = timing.time_search(timer, 0.0, None, pause=rests.append)
    assert found.cold is not None and found.cold.throttle == ("sw_power_cap",)
    assert rests == [timing.SHORT_REST_S]


@pytest.mark.parametrize("time_us, launches", [(0.1, 20), (5.0, 20), (60.0, 7), (99.0, 5), (100.0, 1), (5000.0, 1)])
def test_short_kernels_are_launched_many_times_in_a_hot_sample(time_us: float, launches: int) -> None:
    assert timing.launches_per_sample(time_us) == launches


def warm(clocks: Iterator[int | None], step: float, least_s: float = 0.025, limit_s: float = 0.3) -> int:
    """How often `warm_up` did its work, with a clock that advances at each reading."""
    done: list[int] = []
    timing.warm_up(lambda: done.append(1), lambda: next(clocks), least_s, limit_s, now=FakeClock(step))
    return len(done)


def test_warming_up_lasts_until_the_clock_is_steady() -> None:
    assert warm(iter([345, 900, 1500, 1980, 1975]), step=0.03) == 5


def test_warming_up_lasts_its_least_time_even_if_the_clock_is_steady() -> None:
    assert warm(iter([1980] * 100), step=0.001) == 26


def test_warming_up_ends_at_its_limit_or_without_nvml() -> None:
    assert warm(iter(range(100, 100_000, 100)), step=0.1) == 3
    assert warm(iter([None]), step=0.03) == 1


def test_the_floor_is_compulsory_reads_or_arithmetic_and_zero_for_an_unknown_gpu() -> None:
    pytest.importorskip("cuda.bindings")
    from types import SimpleNamespace

    from ktune.gpu.backend import floor_us

    def family(cost: Cost) -> object:
        return SimpleNamespace(cost=lambda problem: cost)

    reads = Cost(bytes_read=480_000_000, bytes_written=10**12, flops=1)
    assert floor_us(family(reads), None, "NVIDIA H200") == pytest.approx(100.0)
    assert floor_us(family(reads), None, "NVIDIA H100 80GB HBM3") > 100.0
    assert floor_us(family(Cost(0, 0, 1_980_000_000_000)), None, "NVIDIA H200") == pytest.approx(1000.0)
    assert floor_us(family(reads), None, "Some GPU") == 0.0


def test_a_short_timing_at_the_power_limit_is_made_of_samples_after_a_rest() -> None:
    timer = FakeTimer(lambda regime, i: 1500.0 if i < timing.PROBE_SAMPLES and regime == "cold" else 1400.0)
    timer.throttles = [(timing.POWER_LIMIT,)]
    rests: list[float] = []
    found = timing.time_search(timer, 0.0, None, pause=rests.append)
    assert found.cold is not None
    assert found.cold.samples_us == (1400.0,) * timing.SEARCH_SAMPLES
    assert rests == [timing.SHORT_REST_S]


def test_a_full_timing_at_the_power_limit_starts_again_and_rests_before_every_portion() -> None:
    timer = FakeTimer(lambda regime, i: 1500.0 if i < 20 and regime == "cold" else 1400.0)
    timer.throttles = [(), (timing.POWER_LIMIT,), (), (timing.POWER_LIMIT,)]
    rests: list[float] = []
    found = timing.time_full(timer, 0.0, now=FakeClock(), pause=rests.append)
    assert found.cold is not None and found.hot is not None
    assert set(found.cold.samples_us) == {1400.0}, "samples from before the rests were kept"
    assert rests == [timing.REST_S] * (len(timer.calls) - 2)
    rest = f"after rests of {1000 * timing.REST_S:.0f} ms"
    assert rest in found.cold.method and rest in found.hot.method
