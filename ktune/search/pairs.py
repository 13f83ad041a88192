"""Points that differ from one in two parameters, chosen by what the two changes did alone."""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import combinations

from ktune.core.model import Configuration, Value
from ktune.core.space import Space


def paired_changes(
    centre: Configuration, slowdowns: Mapping[Configuration, float], space: Space, most: float
) -> list[Configuration]:
    """The valid points with two changes of `centre`, those first that would be the fastest if changes did not interact.

    slowdowns: how many times the centre's time its variations take, of those that are known; what failed is left out.
    A pair of changes is taken for the product of its slowdowns, and left out above `most`. Main effects of factors
    screened one at a time, then their two-factor interactions where both look well: Box, Hunter and Hunter, "Statistics
    for Experimenters" (2005), chapter 6.
    """
    effects: list[tuple[str, Value, float]] = []
    for point, slowdown in slowdowns.items():
        changed = [(name, value) for name, value in point.items() if centre.get(name) != value]
        if len(changed) == 1 and point.keys() == centre.keys() and 0 < slowdown < math.inf:
            effects.append((*changed[0], slowdown))
    found: list[tuple[float, Configuration]] = []
    for (one, its, slowdown), (other, others, another) in combinations(effects, 2):
        if one != other and slowdown * another <= most:
            pair = space.changed(centre, {one: its, other: others})
            if pair is not None:
                found.append((slowdown * another, pair))
    return [pair for _, pair in sorted(found, key=lambda costed: costed[0])]
