"""The order of rows in tables and reports, and the one measurement that counts for each variant."""

from __future__ import annotations

import math
from collections.abc import Iterable

from ktune.api import Family
from ktune.core.model import Effort, Measurement, Problem, Status, Variant
from ktune.core.space import default_values
from ktune.study.ranking import eligible_time_us


def has_time(measurement: Measurement) -> bool:
    """Right, and with a cold median that is a positive number: NaN, infinity, 0 and less never win."""
    return eligible_time_us(measurement) is not None


def rank_key(measurement: Measurement) -> tuple[bool, bool, float, int]:
    """Eligible first, finalists (full effort) before the search's short timings, then cold median, then trial.

    A short timing never outranks a full one: the two protocols' medians are not comparable to the last per cent.
    """
    cold = eligible_time_us(measurement)
    slowest = math.inf if cold is None else cold
    return cold is None, measurement.effort is not Effort.FULL, slowest, measurement.trial


def ranked(measurements: Iterable[Measurement]) -> list[Measurement]:
    """Best first, problem by problem in the order in which the problems first appear."""
    given = list(measurements)
    first: dict[str, int] = {}
    for measurement in given:
        first.setdefault(measurement.problem.label, len(first))
    return sorted(given, key=lambda m: (first[m.problem.label], rank_key(m)))


def standing(measurements: Iterable[Measurement]) -> list[Measurement]:
    """The one measurement that counts for each variant and problem, in the order of first appearance.

    A measurement that found the variant wrong or unstable, or a finalist's that failed, outweighs every pass;
    otherwise the best by `rank_key` stands (a failure of the machine that went away when tried again does not count).
    """
    by_variant: dict[tuple[Variant, Problem], list[Measurement]] = {}
    for m in measurements:
        by_variant.setdefault((m.variant, m.problem), []).append(m)
    return [min(group, key=lambda m: (not _demotes(m), rank_key(m))) for group in by_variant.values()]


def default_measurement(family: Family, measurements: Iterable[Measurement]) -> Measurement | None:
    """The measurement of the family's default configuration; None if it was not measured."""
    wanted = default_values(family)
    of_default = [m for m in standing(measurements) if m.variant.configuration.by_name == wanted]
    return min(of_default, key=rank_key, default=None)


def _demotes(m: Measurement) -> bool:
    if m.status in (Status.WRONG, Status.UNSTABLE):
        return True
    return m.effort is Effort.FULL and m.status not in (Status.OK, Status.CULLED)
