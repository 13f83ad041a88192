"""Local refinement: open points near the best ones, those first that all measurements together speak for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.search.pool import CATEGORICAL_STEPS, Pool

if TYPE_CHECKING:
    from numpy.typing import NDArray

# The best points from which steps are taken.
INCUMBENTS = 5
# So many results, the fastest ones, predict the rest; the work grows with the cube of their number.
MOST_KNOWN = 400
# How many proposals one ranking gives at most, and how many new results make it obsolete.
RANKED = 64
OBSOLETE_AFTER = 4
# Two points so many steps apart still tell e^-1 about each other: single parameters' effects carry far.
REACH_STEPS = 24.0
# The share of a log time's variance that no other point can tell: noise, and effects of a point's own.
OWN_SHARE = 0.02

_ABSENT = -1


class Refiner:
    """Proposes points of `pool` at most two steps from the INCUMBENTS best, the fastest by prediction first.

    The prediction is the mean of a Gaussian process over log times. Two points are as alike as exp(-steps / reach),
    steps counted as Pool.nearest counts them, so that what changing one parameter did beside one point is expected
    beside others. A failure counts as the slowest time known.
    """

    def __init__(self, space: Space, pool: Pool) -> None:
        self._space = space
        self._pool = pool
        self._values = [(p.name, space.values(p), p.ordinal) for p in space.family.parameters]
        self._times: dict[Configuration, float] = {}
        self._failed: list[Configuration] = []
        self._ranked: list[Configuration] = []
        self._news = 0
        self._neighbours: dict[Configuration, list[Configuration]] = {}
        self._rows: dict[Configuration, list[int]] = {}

    def learn(self, point: Configuration, time_us: float | None) -> None:
        """The time of a point, or its lower bound; None for one that failed."""
        if time_us is None:
            self._failed.append(point)
        else:
            self._times[point] = time_us
        self._news += 1

    def propose(self) -> Configuration | None:
        """Take a point from the pool; None while no time is known and once none is open so near."""
        if not self._ranked or self._news >= OBSOLETE_AFTER:
            self._ranked = self._rank()
            self._news = 0
        while self._ranked:
            point = self._ranked.pop()
            if self._pool.take(point):
                return point
        return None

    def _rank(self) -> list[Configuration]:
        """The candidates with the shortest predicted times, the shortest last."""
        best = sorted(self._times, key=self._times.__getitem__)[:INCUMBENTS]
        once = [point for incumbent in best for point in self._beside(incumbent)]
        near = dict.fromkeys([*once, *(point for first in once for point in self._beside(first))])
        candidates = [point for point in near if point in self._pool]
        if not candidates:
            return []
        times = self._predicted(candidates)
        order = sorted(range(len(candidates)), key=times.__getitem__)[:RANKED]
        return [candidates[i] for i in reversed(order)]

    def _beside(self, point: Configuration) -> list[Configuration]:
        if point not in self._neighbours:
            self._neighbours[point] = self._space.neighbours(point)
        return self._neighbours[point]

    def _predicted(self, candidates: Sequence[Configuration]) -> list[float]:
        """Log times up to a constant."""
        import numpy as np

        slowest = max(self._times.values())
        results = sorted([*self._times.items(), *((point, slowest) for point in self._failed)], key=lambda r: r[1])
        known = self._positions([point for point, _ in results[:MOST_KNOWN]])
        times = np.array([math.log(time_us) for _, time_us in results[:MOST_KNOWN]])
        alike = self._alike(known, known) + OWN_SHARE * np.eye(len(known))
        weights = np.linalg.solve(alike, times - times.mean())
        predicted: list[float] = (self._alike(self._positions(candidates), known) @ weights).tolist()
        return predicted

    def _positions(self, points: Sequence[Configuration]) -> NDArray[Any]:
        """[points, parameters]: where each value stands among its parameter's."""
        import numpy as np

        for point in points:
            if point not in self._rows:
                self._rows[point] = [
                    values.index(point[name]) if name in point else _ABSENT for name, values, _ in self._values
                ]
        return np.array([self._rows[point] for point in points])

    def _alike(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """[points of a, points of b]: 1 for the same point, towards 0 with the steps between them."""
        import numpy as np

        steps = np.zeros((len(a), len(b)))
        for i, (_, _, ordinal) in enumerate(self._values):
            here, there = a[:, i, None], b[None, :, i]
            apart = CATEGORICAL_STEPS * (here != there)
            both = (here != _ABSENT) & (there != _ABSENT)
            steps += np.where(both, abs(here - there), apart) if ordinal else apart
        return np.exp(-steps / REACH_STEPS)
