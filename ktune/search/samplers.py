"""What to measure next. Every sampler proposes each point of the space at most once, and None when all are out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Protocol

from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Measurement
from ktune.core.space import Space
from ktune.search.branches import Branches
from ktune.search.estimator import Estimator, objective
from ktune.search.pool import Pool

SAMPLERS = ("gp", "tpe", "random", "exhaustive")
# With so many times known, the forecast begins.
FEW = 3
# Without branches, one proposal out of so many is the estimator's.
TPE_TURN = 8


class Sampler(Protocol):
    """Proposes points and learns from their measurements, in any order."""

    name: str

    def ask(self) -> Configuration | None:
        """A point that was not proposed before; None when there is none left."""
        ...

    def tell(self, m: Measurement) -> None:
        """Learn how a proposed point did."""
        ...

    def drop(self, configuration: Configuration) -> None:
        """A proposed point will not be measured here."""
        ...


def make_sampler(
    name: str,
    space: Space,
    *,
    trials: int,
    seed: int,
    first: Sequence[Configuration] = (),
    measured: Sequence[Measurement] = (),
) -> Sampler:
    """The sampler called `name`, one of SAMPLERS; exhaustive whatever the name if `trials` covers the space.

    first: points to propose before any other; those outside the space are skipped. measured: what is known already.
    """
    if name not in SAMPLERS:
        raise UsageError(f"no sampler {name!r}; there are {', '.join(SAMPLERS)}")
    if len(space) <= trials:
        name = "exhaustive"
    if name in ("gp", "tpe"):
        return LearningSampler(space, trials, seed, first, measured, forecast=name == "gp")
    return WalkSampler(name, space, seed, first, measured)


class WalkSampler:
    """Random without replacement: the seed's walk over the space. With the whole space as budget it is exhaustive."""

    def __init__(
        self,
        name: str,
        space: Space,
        seed: int,
        first: Sequence[Configuration] = (),
        measured: Sequence[Measurement] = (),
    ) -> None:
        self.name = name
        self._pool = Pool(space, seed)
        self._first = deque(first)
        for m in measured:
            self._pool.take(m.variant.configuration)

    def ask(self) -> Configuration | None:
        while self._first:
            point = self._first.popleft()
            if self._pool.take(point):
                return point
        return self._pool.walk()

    def tell(self, m: Measurement) -> None:
        self._pool.take(m.variant.configuration)

    def drop(self, configuration: Configuration) -> None:
        self._pool.take(configuration)


class LearningSampler:
    """Gaussian processes over the points of each branch, and Optuna's tree-structured Parzen estimator.

    Before anything is known, each point is one of which those before tell little. Then proposals are the Forecasts' of
    the Branches, or in a space without branches one in TPE_TURN the estimator's. While nothing passes, all are the
    estimator's, which knows how far from right a failure is.

    forecast: "gp"; False is "tpe", which leaves all to the estimator, after a random start.
    """

    def __init__(
        self,
        space: Space,
        trials: int,
        seed: int,
        first: Sequence[Configuration] = (),
        measured: Sequence[Measurement] = (),
        forecast: bool = True,
    ) -> None:
        self.name = "gp" if forecast else "tpe"
        self._space = space
        self._pool = Pool(space, seed)
        self._first = deque(first)
        self._startup = max(5, min(20, trials // 10))
        # Another seed after a resumption, or the same suggestions would come again.
        self._estimator = Estimator(space, self._pool, seed * 1_000_003 + len(measured), self._startup)
        self._branches = Branches(space, self._pool) if forecast else None
        self._told: set[Configuration] = set()
        self._asked = 0
        for m in measured:
            self.tell(m)

    def ask(self) -> Configuration | None:
        while self._first:
            point = self._first.popleft()
            if self._pool.take(point):
                self._estimator.run(point)
                return self._asked_for(point)
        point_or_none = self._unled() if self._branches is None else self._led(self._branches)
        return None if point_or_none is None else self._asked_for(point_or_none)

    def tell(self, m: Measurement) -> None:
        point = m.variant.configuration
        if point not in self._space or point in self._told:
            return
        if self._pool.take(point):
            self._asked += 1
        self._told.add(point)
        self._estimator.tell(m)
        if self._branches is not None:
            self._branches.learn(point, objective(m))

    def drop(self, configuration: Configuration) -> None:
        self._estimator.drop(configuration)

    @property
    def moved(self) -> int:
        """Suggestions of the estimator that could not be asked for as they were."""
        return self._estimator.moved

    def _asked_for(self, point: Configuration) -> Configuration:
        self._asked += 1
        if self._branches is not None:
            self._branches.expect(point)
        return point

    def _led(self, branches: Branches) -> Configuration | None:
        if branches.timed < FEW:
            return branches.spread() if len(self._told) < self._startup else self._suggest()
        if len(branches) == 1 and self._asked % TPE_TURN == 0:
            return self._suggest()
        return branches.propose()

    def _unled(self) -> Configuration | None:
        if self._asked >= self._startup:
            return self._suggest()
        point = self._pool.walk()
        if point is not None:
            self._estimator.run(point)
        return point

    def _suggest(self) -> Configuration | None:
        return self._estimator.suggest() if len(self._pool) else None
