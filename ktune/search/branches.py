"""Turns among the branches of a space: the values of a parameter on which others depend, such as `algorithm`."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from ktune.api import Parameter
from ktune.core.model import Configuration, Value
from ktune.core.space import Space
from ktune.search.forecast import Forecast
from ktune.search.pool import Pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A branch's first points are spread out; then its forecast leads.
FIRST = 4
# What a branch's forecast hopes for, in turn: near its fastest point, and far from all that is known.
# With less hope for the second, a quarter of simulated searches of a space of 360,000 points ended among points 11 %
# slower than the best, which were many and alike; with more, no fewer did.
HOPES = (2.0, 8.0)
# Each branch has so large a part of the turns of the next faster one, times this power of how near its fastest point is
# to the fastest of all.
SLOWER, NEARNESS_POWER = 0.5, 2


class Branches:
    """Proposes points of each branch, of the faster ones more often, by a forecast of its own.

    What is known of one branch tells little of another, and the first that has a good point would draw all further
    proposals to itself. So the slowest branches keep some turns, and rise when a point of theirs is faster. A space
    without branches is one.
    """

    def __init__(self, space: Space, pool: Pool) -> None:
        self._parameter = deciding_parameter(space)
        self._forecasts: dict[Value, Forecast] = (
            {"": Forecast(space, pool)}
            if self._parameter is None
            else {value: Forecast(space, pool, own, HOPES) for value, own in _members(space, self._parameter)}
        )
        self._asked = dict.fromkeys(self._forecasts, 0)
        self._due = dict.fromkeys(self._forecasts, 0.0)
        self._best_us = dict.fromkeys(self._forecasts, math.inf)

    def __len__(self) -> int:
        return len(self._forecasts)

    @property
    def timed(self) -> int:
        """Points of which the time, or its bound, is known."""
        return sum(forecast.timed for forecast in self._forecasts.values())

    def propose(self) -> Configuration | None:
        """Take a point of the branch whose turn it is; None if no point is left."""
        for value in self._in_turn():
            forecast = self._forecasts[value]
            point = None if self._asked[value] < FIRST else forecast.propose()
            point = point or forecast.spread()
            if point is not None:
                self._due[value] -= self._asked[value] >= FIRST
                return point
        return None

    def spread(self) -> Configuration | None:
        """Take a point of the branch with the fewest, far from those known; None if no point is left."""
        by_number = sorted(self._forecasts, key=self._asked.__getitem__)
        points = (self._forecasts[value].spread() for value in by_number)
        return next((point for point in points if point is not None), None)

    def expect(self, point: Configuration) -> None:
        """The point will be measured."""
        value = self._branch(point)
        self._asked[value] += 1
        self._forecasts[value].expect(point)

    def learn(self, point: Configuration, time_us: float | None) -> None:
        """The time of a point, or its lower bound; None for one that failed."""
        value = self._branch(point)
        self._forecasts[value].learn(point, time_us)
        if time_us is not None:
            self._best_us[value] = min(time_us, self._best_us[value])

    def _in_turn(self) -> list[Value]:
        """The branches, first the one whose share of the turns is the furthest behind."""
        new = [value for value in self._forecasts if self._asked[value] < FIRST]
        if new:
            rest = [value for value in self._forecasts if value not in new]
            return [*sorted(new, key=self._asked.__getitem__), *rest]
        ranked = sorted(self._forecasts, key=self._best_us.__getitem__)
        best_us = self._best_us[ranked[0]]
        parts = {value: SLOWER**rank * self._nearness(value, best_us) for rank, value in enumerate(ranked)}
        for value, part in parts.items():
            self._due[value] += part / sum(parts.values())
        return sorted(ranked, key=lambda value: -self._due[value])

    def _nearness(self, value: Value, best_us: float) -> float:
        return (best_us / self._best_us[value]) ** NEARNESS_POWER if math.isfinite(best_us) else 1.0

    def _branch(self, point: Configuration) -> Value:
        return "" if self._parameter is None else point[self._parameter.name]


def deciding_parameter(space: Space) -> Parameter | None:
    """The first parameter of several values in the space that decides whether others exist; None if there is none."""
    deciding = {name for parameter in space.family.parameters for name in parameter.when or {}}
    for parameter in space.family.parameters:
        if parameter.name in deciding and not parameter.when and len(space.values(parameter)) > 1:
            return parameter
    return None


def _members(space: Space, parameter: Parameter) -> Iterator[tuple[Value, NDArray[Any]]]:
    """(value, by place in the space whether a point has it) for every value that a valid point has."""
    import numpy as np

    places = {value: place for place, value in enumerate(space.values(parameter))}
    # Not by name, for which each of so many points would keep a dictionary.
    values = (next(value for name, value in point.values_ if name == parameter.name) for point in space.points)
    of_points = np.array([places[value] for value in values])
    for value, place in places.items():
        own = of_points == place
        if own.any():
            yield value, own
