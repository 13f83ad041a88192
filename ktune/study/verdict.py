"""Faster, slower or tied: what two timings and the noise allow to say, and no more."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from ktune.core.model import Timing
from ktune.gpu.race import TURN_SAMPLES
from ktune.gpu.timing import Reading, median_interval, summarise

# With fewer differences there is no 95 % interval of their median.
FEWEST_TURNS = 6


class Speed(StrEnum):
    """How one is against another."""

    FASTER = "faster"
    SLOWER = "slower"
    TIED = "tied"


@dataclass(frozen=True)
class Ratio:
    """One time over another: `low` and `high` hold it wherever in their intervals the two medians are."""

    value: float
    low: float
    high: float


def verdict(first: Timing, second: Timing, noise_percent: float | None = None) -> Speed:
    """How `first` is against `second`.

    Tied where the two intervals overlap or the medians differ by no more than the noise floor, and where a time is
    no number: nothing is claimed that the samples don't show.
    """
    a_us, b_us = first.median_us, second.median_us
    beyond_noise = abs(a_us - b_us) > min(a_us, b_us) * (noise_percent or 0.0) / 100
    told_apart = beyond_noise and not intervals_overlap(first, second)
    if not told_apart:
        return Speed.TIED
    return Speed.FASTER if a_us < b_us else Speed.SLOWER


@dataclass(frozen=True)
class Difference:
    """How much longer one takes than another, in per cent of the other, and its 95 % interval."""

    percent: float
    low: float
    high: float

    def within(self, noise_percent: float) -> bool:
        """Whether it can't be told from none."""
        return self.low <= 0.0 <= self.high or abs(self.percent) <= noise_percent


def paired_difference(first: Sequence[Timing], second: Sequence[Timing]) -> Difference | None:
    """How much longer `first` takes than `second`, from samples of the same rounds; both have a timing for each race.

    What slows a round down slows both, so that differences tell more than the two times do. A turn's samples are not
    independent: the median of each turn's differences counts as one. The interval holds that of all turns' median and
    the races' own. None where the two did not take the same rounds, and for too few.
    """
    races = []
    for a, b in zip(first, second, strict=True):
        if len(a.samples_us) != len(b.samples_us):
            return None
        apart = [100 * (x - y) / b.median_us for x, y in zip(a.samples_us, b.samples_us, strict=True)]
        races.append([statistics.median(apart[i : i + TURN_SAMPLES]) for i in range(0, len(apart), TURN_SAMPLES)])
    turns = sorted(turn for race in races for turn in race)
    if len(turns) < FEWEST_TURNS:
        return None
    medians = [statistics.median(race) for race in races]
    low, high = median_interval(turns)
    return Difference(statistics.median(medians), min(low, *medians), max(high, *medians))


def intervals_overlap(a: Timing, b: Timing) -> bool:
    """Whether the 95 % intervals of the two medians have a point in common."""
    return a.ci_low_us <= b.ci_high_us and b.ci_low_us <= a.ci_high_us


def time_ratio(over: Timing, under: Timing) -> Ratio:
    """`over`'s median time divided by `under`'s: how many times as fast `under` is."""
    return Ratio(
        over.median_us / under.median_us,
        over.ci_low_us / under.ci_high_us,
        over.ci_high_us / under.ci_low_us,
    )


def usable(timing: Timing | None) -> bool:
    """Whether this is a time at all: median and interval positive and finite."""
    if timing is None:
        return False
    return all(math.isfinite(t) and t > 0 for t in (timing.median_us, timing.ci_low_us, timing.ci_high_us))


def comparable(timings: Sequence[Timing]) -> list[Timing]:
    """Of one thing's timings, those without launch gaps; all where every one has them.

    Some processes may find a plan host-bound that others don't. Those that hid the launches have the lesser time, and a
    median between the two would be nobody's.
    """
    return [t for t in timings if not t.host_bound] or list(timings)


def join_processes(timings: Sequence[Timing]) -> Timing:
    """One timing of the same thing measured in several processes; at least one.

    Its median is the median of the processes' medians, so that none counts for more because it took more samples.
    Its interval holds both the interval of all samples together and that of the processes' medians, and so the
    difference between processes, which samples of one process can't show.
    Only `comparable` timings count; the method says how many are left out.
    """
    alike = comparable(timings)
    if len(alike) < len(timings):
        joined = join_processes(alike)
        left_out = f"host-bound in {len(timings) - len(alike)} of {len(timings)} processes, which are left out"
        return replace(joined, method=f"{joined.method}, {left_out}")
    first = timings[0]
    if len(timings) == 1:
        return first
    clocks = [t.sm_clock_mhz for t in timings if t.sm_clock_mhz is not None]
    reading = Reading(
        tuple(sample for t in timings for sample in t.samples_us),
        min(clocks, default=None),
        tuple(sorted({reason for t in timings for reason in t.throttle})),
        first.host_bound,
    )
    pooled = summarise(first.regime, " and ".join(_distinct(t.method for t in timings)), reading)
    medians = sorted(t.median_us for t in timings)
    low, high = median_interval(medians)
    return replace(
        pooled,
        median_us=statistics.median(medians),
        ci_low_us=min(low, pooled.ci_low_us),
        ci_high_us=max(high, pooled.ci_high_us),
    )


def spread_percent(timings: Sequence[Timing]) -> float | None:
    """The largest difference between processes' medians of the same thing, in per cent, of those `comparable`.

    None where fewer than two are.
    """
    medians = [t.median_us for t in comparable(timings)]
    if len(medians) < 2:
        return None
    return 100 * (max(medians) - min(medians)) / min(medians)


def _distinct(texts: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(texts))
