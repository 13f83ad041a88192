"""Which measurement is best, and which are as good: rules that give the same answer on every run."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from ktune.core.model import Configuration, Effort, Measurement, Variant
from ktune.study.finals import Finals
from ktune.study.verdict import Speed, verdict

Identify = Callable[[Configuration], str]


@dataclass(frozen=True)
class Standing:
    """The winner, and the others that can't be told from the fastest. `final`: by the full protocol."""

    winner: Measurement
    tied: tuple[Measurement, ...] = ()
    final: bool = False


def eligible_time_us(m: Measurement | None) -> float | None:
    """The cold median of a measurement that may win; None for a failure or a time that is no time."""
    if m is None or not m.eligible or m.cold is None:
        return None
    time_us = m.cold.median_us
    return time_us if math.isfinite(time_us) and time_us > 0 else None


def latest(measurements: Iterable[Measurement], effort: Effort) -> dict[Variant, Measurement]:
    """The last measurement of each variant at that effort; a later one stands in for those before."""
    return {m.variant: m for m in measurements if m.effort is effort}


def rank(measurements: Iterable[Measurement], default: Configuration | None, identify: Identify) -> list[Measurement]:
    """Those that may win, the fastest first; equal times by `preference`."""
    timed = [(time_us, m) for m in measurements if (time_us := eligible_time_us(m)) is not None]
    return [m for _, m in sorted(timed, key=lambda pair: (pair[0], *preference(pair[1], default, identify)))]


def preference(m: Measurement, default: Configuration | None, identify: Identify) -> tuple[bool, float, int, str]:
    """Smaller is preferred among equals: the default first, then fewer registers, then fewer changes, then by id."""
    configuration = m.variant.configuration
    registers = float(m.build.registers) if m.build else math.inf
    changes = sum(default.get(name) != value for name, value in configuration.items()) if default else 0
    return configuration != default, registers, changes, identify(configuration)


def stand(
    measurements: Sequence[Measurement],
    default: Configuration | None,
    identify: Identify,
    finals: Finals | None = None,
) -> Standing | None:
    """The winner among everything measured; None if nothing passed.

    Full measurements decide, once the fastest of the search has one. Among those that are tied with the fastest,
    the winner is chosen by `preference`, so that noise does not change it. Pairs of samples tell where there are some.
    A variant that failed its full measurement can't win. finals: what the last final said.
    """
    short, full = latest(measurements, Effort.SEARCH), latest(measurements, Effort.FULL)
    finalists = rank(full.values(), default, identify)
    rest = rank((m for variant, m in short.items() if variant not in full), default, identify)
    if finalists:
        reached = [t for m in finalists if (t := eligible_time_us(short.get(m.variant))) is not None]
        if not rest or not reached or min(reached) <= rest[0].cold_us:  # type: ignore[operator]
            return _settle(finalists, default, identify, finals)
    return Standing(rest[0]) if rest else None


def tied(a: Measurement, b: Measurement, noise_percent: float | None = None) -> bool:
    """Whether neither of two cold times can be called the faster."""
    return a.cold is not None and b.cold is not None and verdict(a.cold, b.cold, noise_percent) is Speed.TIED


def _settle(
    finalists: Sequence[Measurement], default: Configuration | None, identify: Identify, finals: Finals | None
) -> Standing:
    fastest = finalists[0]
    noise_percent, pairs = (finals.noise_percent, finals.pairs) if finals else (None, None)
    if pairs and pairs.fastest != identify(fastest.variant.configuration):
        pairs = None

    def is_equal(m: Measurement) -> bool:
        told = pairs.tied(identify(m.variant.configuration)) if pairs else None
        return tied(m, fastest, noise_percent) if told is None else told

    equal = [m for m in finalists if m is fastest or is_equal(m)]
    winner = min(equal, key=lambda m: preference(m, default, identify))
    return Standing(winner, tuple(m for m in equal if m is not winner), final=True)
