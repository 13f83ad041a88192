"""What points tell of others, with results or without: the posterior of a Gaussian process, kept up to date."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ktune.search.likeness import Likeness

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Prediction:
    """Predicts `candidates`, rows of Steps, from points that are added: by value once known, by place at once.

    What a point leaves uncertain of a candidate depends on where it is and not on its value, so it is reckoned when the
    point is added. untold: [candidates], the share of each one's variance that the added points do not tell.
    """

    def __init__(self, likeness: Likeness, candidates: NDArray[Any]) -> None:
        import numpy as np

        self._likeness = likeness
        self._candidates = candidates
        self._rows = candidates[:0]
        self._alike = np.zeros((0, len(candidates)))
        # The inverse of the Cholesky factor of the added points' covariance, and its product with `_alike`.
        self._inverse = np.zeros((0, 0))
        self._told = np.zeros((0, len(candidates)))
        self.untold = np.full(len(candidates), 1 + likeness.own)

    def add(self, rows: NDArray[Any]) -> None:
        """Points, [points, steps], that are or will be measured."""
        import numpy as np

        across = self._likeness.between(rows, self._rows) @ self._inverse.T
        rest = self._likeness.between(rows, rows) + self._likeness.own * np.eye(len(rows)) - across @ across.T
        inverse = np.linalg.inv(np.linalg.cholesky(rest))
        alike = self._likeness.between(rows, self._candidates)
        told = inverse @ (alike - across @ self._told)
        self._inverse = np.block(
            [[self._inverse, np.zeros((len(self._rows), len(rows)))], [-inverse @ across @ self._inverse, inverse]]
        )
        self._told = np.concatenate([self._told, told])
        self._alike = np.concatenate([self._alike, alike])
        self._rows = np.concatenate([self._rows, rows])
        self.untold = np.maximum(self.untold - (told**2).sum(axis=0), 1e-9)

    def of(self, added: list[int], values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
        """[candidates] means and standard deviations, where the points added as these numbers turned out as `values`.

        A candidate's own share counts: a point may be better than all others tell.
        """
        import numpy as np

        rows = self._rows[added]
        whole = self._likeness.between(rows, rows) + self._likeness.own * np.eye(len(rows))
        away = values - values.mean()
        solved = np.linalg.solve(whole, away)
        variance = max(float(away @ solved) / len(values), 1e-12)
        return values.mean() + solved @ self._alike[added], np.sqrt(variance * self.untold)
