"""The points of a space that are still to be measured: take one, walk them, find the nearest to a wish."""

from __future__ import annotations

import random
from collections.abc import Mapping
from functools import cached_property
from itertools import combinations
from typing import TYPE_CHECKING, Any

from ktune.core.model import Configuration, Value
from ktune.core.space import Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

# A categorical parameter that differs counts as this many steps of an ordinal one.
CATEGORICAL_STEPS = 2
WIDE = 500


class Pool:
    """The open points of `space`. A point leaves the pool once and never comes back.

    walk: every point once, in an order that depends on the seed alone, so that a resumed search goes on with it.
    """

    def __init__(self, space: Space, seed: int) -> None:
        self.space = space
        self._open = bytearray(b"\1") * len(space)
        self._left = len(space)
        self._order = list(range(len(space)))
        random.Random(seed).shuffle(self._order)
        self._walked = iter(self._order)
        self._random = random.Random(seed + 1)

    def __len__(self) -> int:
        return self._left

    def __contains__(self, configuration: object) -> bool:
        """Whether it is an open point."""
        index = self.space.index.get(configuration) if isinstance(configuration, Configuration) else None
        return index is not None and bool(self._open[index])

    def take(self, configuration: Configuration) -> bool:
        """Remove a point; False if it is not in the space or has left already."""
        index = self.space.index.get(configuration)
        if index is None or not self._open[index]:
            return False
        self._open[index] = 0
        self._left -= 1
        return True

    def open(self, indices: NDArray[Any]) -> NDArray[Any]:
        """For points by their place in the space: whether each is open."""
        import numpy as np

        found: NDArray[Any] = np.frombuffer(self._open, dtype=np.bool_)[indices]
        return found

    def sample(self, count: int, members: NDArray[Any] | None = None) -> list[int]:
        """The places in the space of so many random open points; of all in order if there are no more.

        members: by place in the space, whether a point may be among them.
        """
        import numpy as np

        open_ = np.frombuffer(self._open, dtype=np.bool_)
        indices = np.flatnonzero(open_ if members is None else open_ & members)
        if len(indices) > count:
            indices = indices[self._random.sample(range(len(indices)), count)]
        found: list[int] = indices.tolist()
        return found

    def walk(self) -> Configuration | None:
        """Take the next open point of the walk; None when none is left."""
        for index in self._walked:
            point = self.space.points[index]
            if self.take(point):
                return point
        return None

    def nearest(self, wish: Mapping[str, Value]) -> Configuration | None:
        """Take the open point with the fewest steps from `wish`, which need keep no rule; None if none is left.

        Among equally near ones, one at random by the seed. Where none is within two steps and more than WIDE points
        are open, the nearest of WIDE random ones.
        """
        point = self._beside(wish) or self._far_from(wish)
        if point is not None:
            self.take(point)
        return point

    def _beside(self, wish: Mapping[str, Value]) -> Configuration | None:
        """An open point one step from the wish, or else two: found without looking at the whole space."""
        moves = self._moves(wish)
        once = [[move] for cost, move in moves if cost == 1]
        twice = [[move] for cost, move in moves if cost == 2]
        twice += [[a, b] for [a], [b] in combinations(once, 2) if a[0] != b[0]]
        for ring in (once, twice):
            found = []
            for changes in ring:
                values = {**wish, **dict(changes)}
                point = Configuration(tuple((name, values[name]) for name in wish))
                index = self.space.index.get(point)
                if index is not None and self._open[index]:
                    found.append(point)
            if found:
                return self._random.choice(found)
        return None

    def _moves(self, wish: Mapping[str, Value]) -> list[tuple[int, tuple[str, Value]]]:
        """(steps, (parameter, value)): the changes of one parameter that no other depends on, two steps at most."""
        found: list[tuple[int, tuple[str, Value]]] = []
        for parameter in self.space.family.parameters:
            if parameter.name not in wish or parameter.name in self._deciding:
                continue
            values = self.space.values(parameter)
            here = values.index(wish[parameter.name])
            for index, value in enumerate(values):
                steps = abs(index - here) if parameter.ordinal else CATEGORICAL_STEPS
                if index != here and steps <= 2:
                    found.append((steps, (parameter.name, value)))
        return found

    @cached_property
    def _deciding(self) -> frozenset[str]:
        """Parameters on which the existence of others depends."""
        return frozenset(name for p in self.space.family.parameters for name in p.when or {})

    def _far_from(self, wish: Mapping[str, Value]) -> Configuration | None:
        """The nearest of all open points, or of a sample of them."""
        found = [(self._distance(self.space.points[i], wish), i) for i in self.sample(WIDE)]
        if not found:
            return None
        least = min(steps for steps, _ in found)
        return self.space.points[self._random.choice([i for steps, i in found if steps == least])]

    def _distance(self, point: Configuration, wish: Mapping[str, Value]) -> int:
        """Steps between the two: positions apart for an ordinal, CATEGORICAL_STEPS for anything else that differs."""
        shared = sum(name in wish for name, _ in point.values_)
        total = CATEGORICAL_STEPS * (len(wish) - shared)
        for name, value in point.values_:
            wanted = wish.get(name)
            if wanted != value:
                positions = self._positions.get(name)
                if positions is None or wanted is None:
                    total += CATEGORICAL_STEPS
                else:
                    total += abs(positions[value] - positions[wanted])
        return total

    @cached_property
    def _positions(self) -> dict[str, dict[Value, int]]:
        """{ordinal parameter: {value: position}}."""
        ordinals = [p for p in self.space.family.parameters if p.ordinal]
        return {p.name: {v: i for i, v in enumerate(self.space.values(p))} for p in ordinals}
