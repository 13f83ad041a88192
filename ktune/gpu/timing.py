"""From samples to a time that can be trusted: statistics, refusals, and how long to keep sampling. No CUDA here."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ktune.core.model import Status, Timing
from ktune.gpu.protocol import Timings

PROBE_SAMPLES = 2
SEARCH_SAMPLES = 8
SEARCH_HOT_SAMPLES = 3
FULL_SAMPLES = 30
FULL_LIMIT = 1000
CULL_FACTOR = 1.5

# CUDA events resolve about 0.5 us, so an interval of half of that on each side is as good as it gets.
RESOLUTION_US = 0.25
PRECISION = 0.005

# Below this, the gap between launches is not small beside the kernel.
MANY_LAUNCHES_BELOW_US = 100.0
_MANY_LAUNCHES_US = 400.0
_MOST_LAUNCHES = 20

# The driver slows the clock to save the hardware: what is read then says nothing about the kernel.
DISCARDED_REASONS = frozenset({"hw_slowdown", "sw_thermal", "hw_thermal", "hw_power_brake"})
BACK_OFFS_S = (0.5, 1.0, 2.0)


# At the power limit the clock depends on what ran before. So from the first sign of the limit on, samples that are to
# last (finalists, races) are taken in portions that each begin after a rest, from one and the same state.
POWER_LIMIT = "sw_power_cap"
REST_S = 0.1
# Before the short samples of a search, where a rest for each of hundreds of variants is dear.
SHORT_REST_S = 0.05


@dataclass(frozen=True)
class Reading:
    """Samples taken together, microseconds per execution, with what NVML said meanwhile.

    host_bound: all of them hold the gaps between launches; otherwise none does, but for what the method says was late.
    """

    samples_us: tuple[float, ...]
    sm_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    host_bound: bool = False


class Timer(Protocol):
    """Times one bound plan. `method` names how, per regime, for the record."""

    def cold(self, samples: int) -> Reading:
        """Each sample one execution, L2 flushed before it."""
        ...

    def hot(self, samples: int, launches: int) -> Reading:
        """Each sample the mean of `launches` executions in a row on the same buffers."""
        ...

    def method(self, regime: str, launches: int) -> str: ...


@dataclass
class Pace:
    """How fast the host launches one plan, as its timer learns it from sample to sample.

    host_us: what one execution takes the host. delay_factor: how many times that the GPU is kept busy before a sample.
    host_bound: the GPU waits for the host all the same. sometimes_late: it did for some samples that count.
    """

    host_us: float = 0.0
    delay_factor: float = 2.0
    host_bound: bool = False
    sometimes_late: bool = False


def median_interval(ordered: Sequence[float]) -> tuple[float, float]:
    """The 95 % confidence interval of the median by order statistics; the extremes below 6 samples.

    Source: Conover, Practical Nonparametric Statistics, 3rd ed., section 3.2.
    """
    count = len(ordered)
    below, cumulative = 0, 0.0
    while True:
        cumulative += math.comb(count, below) / 2**count
        if cumulative > 0.025:
            break
        below += 1
    rank = max(below, 1)
    return ordered[rank - 1], ordered[count - rank]


def summarise(regime: str, method: str, reading: Reading) -> Timing:
    """The statistics of a reading; at least one sample."""
    ordered = sorted(reading.samples_us)
    median = statistics.median(ordered)
    low, high = median_interval(ordered)
    first, _, third = statistics.quantiles(ordered, n=4, method="inclusive") if len(ordered) > 1 else (median,) * 3
    spread = statistics.median(abs(sample - median) for sample in ordered)
    return Timing(
        regime, method, reading.samples_us, median, low, high, ordered[0], first, third, spread,
        reading.sm_clock_mhz, reading.throttle, reading.host_bound,
    )  # fmt: skip


def refusal(samples_us: Sequence[float], floor_us: float) -> str:
    """Why these samples cannot be times of a kernel that needs `floor_us` at the very least; empty if they can."""
    for sample in samples_us:
        if not (math.isfinite(sample) and sample > 0.0):
            return f"a time must be positive and finite, the timer read {sample} us"
    if not samples_us:
        return "the timer took no sample"
    median = statistics.median(samples_us)
    if median < floor_us:
        return f"a cold time must be at least {floor_us:.3g} us, this GPU's limit; the timer read {median:.3g} us"
    return ""


def precise(samples_us: Sequence[float]) -> bool:
    """At least 30 samples, and the median's interval within 0.5 % or the timer's resolution on each side."""
    if len(samples_us) < FULL_SAMPLES:
        return False
    ordered = sorted(samples_us)
    low, high = median_interval(ordered)
    median = statistics.median(ordered)
    return max(high - median, median - low) <= max(PRECISION * median, RESOLUTION_US)


def launches_per_sample(time_us: float) -> int:
    """How many executions a hot sample needs so that its ends don't show: 1 from 100 us on."""
    if time_us >= MANY_LAUNCHES_BELOW_US:
        return 1
    return min(_MOST_LAUNCHES, math.ceil(_MANY_LAUNCHES_US / max(time_us, 1.0)))


def time_search(
    timer: Timer,
    floor_us: float,
    cull_above_us: float | None,
    pause: Callable[[float], None] = time.sleep,
) -> Timings:
    """8 cold samples and 3 hot ones; CULLED after 2 where even the faster is well above `cull_above_us`.

    The cold samples are taken after a rest where the first 2 show the power limit.
    """
    collector = Collector(timer, floor_us, pause)
    probe = collector.cold(PROBE_SAMPLES)
    if isinstance(probe, Timings):
        return probe
    bound = min(probe.samples_us)
    if cull_above_us is not None and bound > CULL_FACTOR * cull_above_us:
        return Timings(
            Status.CULLED,
            f"{bound:.4g} us at best in {PROBE_SAMPLES} samples, culled above {CULL_FACTOR * cull_above_us:.4g}",
            bound_us=bound,
        )
    if POWER_LIMIT in probe.throttle:
        pause(SHORT_REST_S)
        cold = collector.cold(SEARCH_SAMPLES)
    else:
        cold = collector.cold(SEARCH_SAMPLES - PROBE_SAMPLES)
        cold = cold if isinstance(cold, Timings) else joined(probe, cold)
    if isinstance(cold, Timings):
        return cold
    return collector.finish(cold, lambda taken: len(taken) >= SEARCH_HOT_SAMPLES, SEARCH_HOT_SAMPLES)


def time_full(
    timer: Timer,
    floor_us: float,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
    limit_s: float = 3.0,
) -> Timings:
    """Cold, then hot, each until `precise`, `limit_s` seconds or 1000 samples.

    What was taken until the power limit showed itself is dropped; a rest comes before each portion after that.
    """
    collector = Collector(timer, floor_us, pause)
    batch = FULL_SAMPLES // 3
    deadline = now() + limit_s
    reading = Reading(())
    while not _enough(reading.samples_us, now, deadline):
        more = collector.cold(batch)
        if isinstance(more, Timings):
            return more
        if POWER_LIMIT in more.throttle and not collector.rest_s:
            collector.rest_s = REST_S
            reading = Reading(())
        else:
            reading = joined(reading, more)
    hot_deadline = now() + limit_s
    return collector.finish(reading, lambda taken: _enough(taken, now, hot_deadline), batch)


def _enough(samples_us: Sequence[float], now: Callable[[], float], deadline: float) -> bool:
    if not samples_us:
        return False
    return precise(samples_us) or now() >= deadline or len(samples_us) >= FULL_LIMIT


@dataclass
class Collector:
    """Takes readings, discards throttled ones a bounded number of times, measures refused ones once more.

    back_offs: the pauses left, in seconds; several collectors may spend from one list. rest_s: before each reading.
    """

    timer: Timer
    floor_us: float
    pause: Callable[[float], None]
    back_offs: list[float] = field(default_factory=lambda: list(BACK_OFFS_S))
    rest_s: float = 0.0

    def cold(self, samples: int) -> Reading | Timings:
        """The samples, or why there is no trusting them."""
        return self._trusted(lambda: self.timer.cold(samples), self.floor_us)

    def hot(self, samples: int, launches: int) -> Reading | Timings:
        """As `cold`. Hot sets may fit in L2, so memory sets no floor."""
        return self._trusted(lambda: self.timer.hot(samples, launches), 0.0)

    def finish(self, cold: Reading, enough: Callable[[Sequence[float]], bool], batch: int) -> Timings:
        """The hot samples after the cold ones, and the verdict."""
        cold_timing = summarise("cold", rested(self.timer.method("cold", 1), self.rest_s), cold)
        launches = launches_per_sample(cold_timing.median_us)
        hot = Reading(())
        while not enough(hot.samples_us):
            more = self.hot(batch, launches)
            if isinstance(more, Timings):
                return more
            hot = joined(hot, more)
        method = rested(self.timer.method("hot", launches), self.rest_s)
        return Timings(Status.OK, "", cold_timing, summarise("hot", method, hot))

    def _trusted(self, take: Callable[[], Reading], floor_us: float) -> Reading | Timings:
        if self.rest_s:
            self.pause(self.rest_s)
        reading = self._unthrottled(take)
        reason = refusal(reading.samples_us, floor_us)
        if not reason:
            return reading
        reading = self._unthrottled(take)
        reason = refusal(reading.samples_us, floor_us)
        return Timings(Status.UNSTABLE, f"{reason}, twice") if reason else reading

    def _unthrottled(self, take: Callable[[], Reading]) -> Reading:
        """A reading without hardware throttling, or, once the back-offs are spent, one that is flagged with it."""
        reading = take()
        while self.back_offs and not DISCARDED_REASONS.isdisjoint(reading.throttle):
            self.pause(self.back_offs.pop(0))
            reading = take()
        return reading


def rested(method: str, rest_s: float) -> str:
    """The method of a timing, with the rests that it was taken after."""
    return f"{method}, after rests of {1000 * rest_s:.0f} ms" if rest_s else method


def joined(first: Reading, second: Reading) -> Reading:
    """All samples; the lower of the clocks; every throttle reason of either.

    The second alone where a plan turned host-bound between them: times with and without launch gaps don't mix.
    """
    if first.host_bound != second.host_bound:
        return second
    clocks = [clock for clock in (first.sm_clock_mhz, second.sm_clock_mhz) if clock is not None]
    return Reading(
        first.samples_us + second.samples_us,
        min(clocks, default=None),
        tuple(sorted({*first.throttle, *second.throttle})),
        first.host_bound,
    )


def warm_up(
    work: Callable[[], None],
    sm_clock_mhz: Callable[[], int | None],
    least_s: float,
    limit_s: float,
    now: Callable[[], float] = time.monotonic,
) -> None:
    """Repeat `work` (which waits for the GPU) for `least_s`, then until the SM clock is steady or `limit_s` is over."""
    start = now()
    clock: int | None = None
    while True:
        work()
        elapsed = now() - start
        if elapsed < least_s:
            continue
        before, clock = clock, sm_clock_mhz()
        steady = clock is None or (before is not None and abs(clock - before) <= 0.015 * before)
        if steady or elapsed >= limit_s:
            return
