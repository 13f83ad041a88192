"""How alike points are: a kernel over the steps between them, with one weight a step, learned from measurements."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ktune.core.model import Configuration, Value
from ktune.core.space import Space

if TYPE_CHECKING:
    from numpy.typing import NDArray

# Before anything is known: two points so many steps apart are e^-1 alike, so that effects of single steps carry far.
REACH_STEPS = 24.0
# Before anything is known: the share of a log time's variance that no other point tells, a point's own and noise.
OWN_SHARE = 0.02
# How far the logarithms may go, and how far they move at once: at first, at least and at most.
_LEAST, _MOST = -9.0, 3.0
_MOVE, _SHORTEST, _LONGEST = 0.15, 1e-3, 0.6


class Steps:
    """Points as rows of zeros and ones; the entries in which two rows differ are the steps between the points.

    An ordinal has an entry for each value after its first: one where the point is there or beyond. Any other
    parameter has an entry for each value: one where it is the point's. A parameter that does not exist has zeros.
    """

    def __init__(self, space: Space) -> None:
        self._ones: list[tuple[str, dict[Value, range]]] = []
        self.width = 0
        for parameter in space.family.parameters:
            values, start = space.values(parameter), self.width
            if parameter.ordinal:
                ones = {value: range(start, start + at) for at, value in enumerate(values)}
                self.width += len(values) - 1
            else:
                ones = {value: range(start + at, start + at + 1) for at, value in enumerate(values)}
                self.width += len(values)
            self._ones.append((parameter.name, ones))

    def rows(self, points: Sequence[Configuration]) -> NDArray[Any]:
        """[points, width]"""
        import numpy as np

        found = np.zeros((len(points), self.width))
        for row, point in zip(found, points, strict=True):
            values = point.by_name
            row[[i for name, ones in self._ones if name in values for i in ones[values[name]]]] = 1
        return found


class Likeness:
    """exp(-sum of the weights of the steps between two points); the points' `own` share comes on top.

    With small weights that is a sum of single steps' effects, with larger ones more and more of their interactions.
    """

    def __init__(self, width: int) -> None:
        import numpy as np

        self._prior = np.append(np.full(width, -math.log(REACH_STEPS)), math.log(OWN_SHARE))
        self._logs = self._prior

    @property
    def own(self) -> float:
        """The share of a point's variance that no other point tells, over that which others tell."""
        return math.exp(self._logs[-1])

    def between(self, a: NDArray[Any], b: NDArray[Any]) -> NDArray[Any]:
        """[rows of a, rows of b]: 1 for the same point, towards 0 with the steps between them."""
        return _between(a, b, self._logs)

    def fit(self, rows: NDArray[Any], values: NDArray[Any], rounds: int) -> None:
        """Go on towards the weights and the own share that make `values`, of mean 0, the most likely.

        By the signs of the posterior's gradient, each logarithm with a move of its own that grows while the sign stays
        and shrinks when it turns (Rprop). The prior is log-normal around the constants above.
        """
        import numpy as np

        logs, best, least = self._logs, self._logs, math.inf
        moves, before = np.full(len(logs), _MOVE), np.zeros(len(logs))
        for _ in range(rounds):
            loss, gradient = _loss(rows, values, logs)
            away = logs - self._prior
            loss += 0.5 * float(away @ away)
            if loss < least:
                best, least = logs, loss
            signs = np.sign(gradient + away)
            turned = signs * before < 0
            moves = np.clip(moves * np.where(turned, 0.5, np.where(signs * before > 0, 1.3, 1.0)), _SHORTEST, _LONGEST)
            before = np.where(turned, 0.0, signs)
            logs = np.clip(logs - moves * before, _LEAST, _MOST)
        self._logs = best


def _between(a: NDArray[Any], b: NDArray[Any], logs: NDArray[Any]) -> NDArray[Any]:
    import numpy as np

    weights = np.exp(logs[:-1])
    weighted = a * weights
    apart = weighted.sum(axis=1)[:, None] + (b @ weights)[None, :] - 2 * (weighted @ b.T)
    alike: NDArray[Any] = np.exp(-np.maximum(apart, 0))
    return alike


def _loss(rows: NDArray[Any], values: NDArray[Any], logs: NDArray[Any]) -> tuple[float, NDArray[Any]]:
    """-log likelihood of the values, their variance the likeliest, and its gradient by the logs.

    Rasmussen and Williams, Gaussian Processes for Machine Learning, section 5.4.1.
    """
    import numpy as np

    count, own = len(values), math.exp(logs[-1])
    alike = _between(rows, rows, logs)
    whole = alike + own * np.eye(count)
    inverse = np.linalg.inv(whole)
    solved = inverse @ values
    variance = max(float(values @ solved) / count, 1e-12)
    loss = 0.5 * (count * math.log(variance) + np.linalg.slogdet(whole)[1])
    pull = np.outer(solved, solved) / variance - inverse
    weighted = pull * alike
    # sum over pairs of `weighted` where the rows differ in an entry, for each entry
    differing = 2 * (rows.T @ weighted.sum(axis=1) - np.einsum("pe,pe->e", rows, weighted @ rows))
    by_weights = 0.5 * np.exp(logs[:-1]) * differing
    return float(loss), np.append(by_weights, -0.5 * own * np.trace(pull))
