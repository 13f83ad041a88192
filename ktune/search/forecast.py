"""The open points that all measurements together speak for."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.search.likeness import Likeness, Steps
from ktune.search.pool import Pool
from ktune.search.prediction import Prediction

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Up to so many open points are all weighed. Of more: random ones, those at most two steps from the fastest, and those
# one step from what was the most promising before, so that a way there is gone on.
MOST_CANDIDATES = 4000
RANDOM = 2000
FASTEST = 5
PROMISING = 20
# A point that is to tell the most is chosen out of so many random ones.
SPREAD_OUT_OF = 32
# The weights of the steps are learned again after NEWS new results, or NEWS_SHARE more than there were.
NEWS, NEWS_SHARE = 4, 0.1
ROUNDS = 15
# So many results, the fastest ones, predict the rest; the work grows with the cube of their number.
MOST_KNOWN = 400
# A point is worth its predicted log time less so many standard deviations, of which the chance that it fails takes off.
HOPE = 3.0
# Of more than TOLD_APART times only the fastest, that many or this share, are told apart; the rest count as the slowest
# of them, since how slow they are says little of where the fastest is.
TOLD_APART, TOLD_APART_SHARE = 20, 1 / 3
# A failure counts as this quantile of what the times count as: no cliff beside good points.
FAILED_QUANTILE = 0.6


class Forecast:
    """Proposes points of `pool` that may be the fastest, by a Gaussian process over log times.

    A point that is being measured counts as one that takes what is predicted for it, so that the next goes elsewhere.
    members: by place in the space, whether a point may be proposed; all may if it is None. Others are not told of.
    hopes: the standard deviations that count in a point's favour, in turn.
    """

    def __init__(
        self, space: Space, pool: Pool, members: NDArray[Any] | None = None, hopes: Sequence[float] = (HOPE,)
    ) -> None:
        self._members = members
        self._hopes = hopes
        self._space = space
        self._pool = pool
        self._steps = Steps(space)
        self._likeness = Likeness(self._steps.width)
        self._log_times: dict[int, float] = {}
        self._failed: dict[int, None] = {}
        self._pending: dict[int, None] = {}
        self._cached: dict[int, NDArray[Any]] = {}
        self._candidates: NDArray[Any] | None = None
        self._prediction: Prediction | None = None
        self._added: dict[int, int] = {}
        self._fitted_at = 0
        self._fastest = -1
        self._promising: list[int] = []
        self._neighbours: dict[int, list[int]] = {}
        self._proposed = 0

    @property
    def timed(self) -> int:
        """Points of which the time, or its bound, is known."""
        return len(self._log_times)

    def expect(self, point: Configuration) -> None:
        """The point will be measured."""
        index = self._space.index[point]
        self._pending[index] = None
        if self._prediction is not None:
            self._add([index])

    def learn(self, point: Configuration, time_us: float | None) -> None:
        """The time of a point, or its lower bound; None for one that failed."""
        index = self._space.index[point]
        self._pending.pop(index, None)
        if time_us is None:
            self._failed[index] = None
        else:
            self._log_times[index] = math.log(time_us)

    def spread(self) -> Configuration | None:
        """Take the point of which all others tell the least, out of some random ones; None if none is left."""
        candidates = self._pool.sample(SPREAD_OUT_OF, self._members)
        if not candidates:
            return None
        prediction = Prediction(self._likeness, self._rows(candidates))
        if others := [*self._log_times, *self._failed, *self._pending]:
            prediction.add(self._rows(others))
        return self._take(candidates[int(prediction.untold.argmax())])

    def propose(self) -> Configuration | None:
        """Take the most promising point; None while no time is known, and if none is left."""
        if not self._log_times or not self._pool.sample(1, self._members):
            return None
        results = self._results()
        due = len(results) >= self._fitted_at + max(NEWS, int(NEWS_SHARE * self._fitted_at))
        if due:
            self._fit(results)
        fastest = min(self._log_times, key=self._log_times.__getitem__)
        exhausted = self._candidates is None or not self._pool.open(self._candidates).any()
        if due or exhausted or fastest != self._fastest:
            self._fastest = fastest
            self._look(results)
        return self._take(self._most_promising(results))

    def _take(self, index: int) -> Configuration:
        point = self._space.points[index]
        self._pool.take(point)
        return point

    def _results(self) -> dict[int, float]:
        """{point: log time, or what stands in for it}"""
        import numpy as np

        told_apart = max(TOLD_APART, int(TOLD_APART_SHARE * self.timed))
        slowest = sorted(self._log_times.values())[:told_apart][-1]
        times = {index: min(time, slowest) for index, time in self._log_times.items()}
        failed = float(np.quantile(list(times.values()), FAILED_QUANTILE))
        return {**times, **dict.fromkeys(self._failed, failed)}

    def _fit(self, results: dict[int, float]) -> None:
        import numpy as np

        known = _best(results)
        values = np.array([results[index] for index in known])
        self._likeness.fit(self._rows(known), values - values.mean(), ROUNDS)
        self._fitted_at = len(results)

    def _look(self, results: dict[int, float]) -> None:
        """Choose the candidates anew and predict them from the results and from what is being measured."""
        import numpy as np

        self._candidates = np.array(self._worth_weighing())
        self._prediction = Prediction(self._likeness, self._rows(self._candidates.tolist()))
        self._added = {}
        self._add([*_best(results), *self._pending])

    def _add(self, indices: list[int]) -> None:
        assert self._prediction is not None
        self._added.update(zip(indices, range(len(self._added), len(self._added) + len(indices)), strict=True))
        self._prediction.add(self._rows(indices))

    def _worth_weighing(self) -> list[int]:
        import numpy as np

        candidates = self._pool.sample(MOST_CANDIDATES + 1, self._members)
        if len(candidates) <= MOST_CANDIDATES:
            return candidates
        best = sorted(self._log_times, key=self._log_times.__getitem__)[:FASTEST]
        once = [near for index in best for near in self._beside(index)]
        twice = [near for index in once for near in self._beside(index)]
        further = [near for index in self._promising for near in self._beside(index)]
        nearby = np.array(list(dict.fromkeys([*once, *twice, *further])), dtype=int)
        near = nearby[self._pool.open(nearby)]
        near = near if self._members is None else near[self._members[near]]
        return list(dict.fromkeys([*near.tolist(), *self._pool.sample(RANDOM, self._members)]))

    def _beside(self, index: int) -> list[int]:
        """The places of the points one step from that one."""
        if index not in self._neighbours:
            near = self._space.neighbours(self._space.points[index])
            self._neighbours[index] = [self._space.index[point] for point in near]
        return self._neighbours[index]

    def _most_promising(self, results: dict[int, float]) -> int:
        import numpy as np

        assert self._prediction is not None and self._candidates is not None
        known = [index for index in self._added if index in results]
        places = [self._added[index] for index in known]
        means, deviations = self._prediction.of(places, np.array([results[index] for index in known]))
        failed = np.array([float(index in self._failed) for index in known])
        failing = np.clip(self._prediction.of(places, failed)[0], 0, 1) if failed.any() else 0.0
        hope = self._hopes[self._proposed % len(self._hopes)]
        self._proposed += 1
        hoped = np.where(self._pool.open(self._candidates), means - hope * (1 - failing) * deviations, np.inf)
        first = np.argpartition(hoped, min(PROMISING, len(hoped) - 1))[:PROMISING]
        self._promising = self._candidates[first[hoped[first] < np.inf]].tolist()
        return int(self._candidates[hoped.argmin()])

    def _rows(self, indices: list[int]) -> NDArray[Any]:
        import numpy as np

        new = [index for index in indices if index not in self._cached]
        self._cached.update(zip(new, self._steps.rows([self._space.points[i] for i in new]), strict=True))
        return np.array([self._cached[index] for index in indices])


def _best(results: dict[int, float]) -> list[int]:
    """The points that predict the rest."""
    return list(results) if len(results) <= MOST_KNOWN else sorted(results, key=results.__getitem__)[:MOST_KNOWN]
