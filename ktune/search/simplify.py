"""The leader's needless parameters: each goes back to its default where that costs nothing."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from ktune.core.model import Configuration, Measurement
from ktune.core.space import Space
from ktune.study.ranking import eligible_time_us
from ktune.study.verdict import intervals_overlap

MOST_EXTRA = 12
# A median so little above the leader's is within what short measurements can tell.
WITHIN = 1.005

Measure = Callable[[Sequence[Configuration]], Mapping[Configuration, Measurement]]


def simplify(
    leader: Measurement, space: Space, measure: Measure, known: Callable[[Configuration], bool], most: int = MOST_EXTRA
) -> Configuration:
    """The leader with every parameter at its default that costs nothing there; itself if there is none.

    measure: the measurements of points; those that are `known` take no time, or little. At most `most` others are asked
    for: each parameter on its own, all harmless ones together, and if that fails one more at a time. Each is compared
    with the leader itself, so that small losses don't add up: with the leader's measurement in the same answer, if it
    is there.
    """
    return _Simplifier(leader, space, measure, known, most).carry_out()


class _Simplifier:
    """One call of `simplify`."""

    def __init__(
        self,
        leader: Measurement,
        space: Space,
        measure: Measure,
        known: Callable[[Configuration], bool],
        most: int,
    ) -> None:
        self._leader = leader
        self._point = leader.variant.configuration
        self._space = space
        self._measure = measure
        self._known = known
        self._left = most

    def carry_out(self) -> Configuration:
        alone = {name: point for name in self._changed if (point := self._reset([name])) is not None}
        free = self._free(list(alone.values()))
        harmless = [name for name, point in alone.items() if point in free]
        if not harmless:
            return self._point
        together = self._reset(harmless)
        if together is not None and together in self._free([together]):
            return together
        kept = harmless[:1]
        for name in harmless[1:]:
            point = self._reset([*kept, name])
            if point is not None and point in self._free([point]):
                kept.append(name)
        return self._reset(kept) or self._point

    @property
    def _changed(self) -> list[str]:
        """The parameters of the leader that are not at their defaults."""
        return [name for name, value in self._point.items() if value != self._default(name)]

    def _default(self, name: str) -> object:
        return self._space.default.get(name, self._space.family.parameter(name).default)

    def _reset(self, names: Sequence[str]) -> Configuration | None:
        defaults = {name: self._space.family.parameter(name).default for name in names}
        changes = {name: self._space.default.get(name, value) for name, value in defaults.items()}
        return self._space.changed(self._point, changes)

    def _free(self, points: Sequence[Configuration]) -> set[Configuration]:
        """Those of `points` that are no slower than the leader, as far as they are known or may be measured."""
        new = [point for point in points if not self._known(point)][: self._left]
        self._left -= len(new)
        found = self._measure([point for point in points if point in new or self._known(point)])
        leader = found.get(self._point, self._leader)
        return {point for point, m in found.items() if point != self._point and _costs_nothing(m, leader)}


def _costs_nothing(m: Measurement, leader: Measurement) -> bool:
    time_us, lead_us = eligible_time_us(m), eligible_time_us(leader)
    if time_us is None or lead_us is None or m.cold is None or leader.cold is None:
        return False
    return time_us <= WITHIN * lead_us or intervals_overlap(m.cold, leader.cold)
