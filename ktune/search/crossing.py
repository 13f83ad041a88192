"""Crossings of the fastest points: points that are made of nothing but their values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product

from ktune.core.model import Configuration, Value
from ktune.core.space import Space

MOST_COMBINATIONS = 500


def crossings(fastest: Sequence[Configuration], space: Space, most: int = MOST_COMBINATIONS) -> list[Configuration]:
    """The valid points each of whose values one of `fastest` has, those with values of the faster ones first.

    fastest: the fastest first. Those with other parameters than the first one's take no part, nor do the slowest, from
    the one on with which there would be more than `most` combinations of values, valid or not. The points are ordered
    by the sum of their values' ranks, each that of the fastest one that has the value.
    """
    ranks = _ranks([point for point in fastest if point.keys() == fastest[0].keys()], most)
    pairs = product(*([(name, value) for value in values] for name, values in ranks.items()))
    points = [point for point in map(Configuration, pairs) if point in space]
    return sorted(points, key=lambda point: sum(ranks[name][value] for name, value in point.items()))


def _ranks(fastest: Sequence[Configuration], most: int) -> dict[str, dict[Value, int]]:
    """{parameter: {value: rank}} of as many of `fastest` as make at most `most` combinations."""
    ranks: dict[str, dict[Value, int]] = {}
    for rank, point in enumerate(fastest):
        wider = {name: {value: rank, **ranks.get(name, {})} for name, value in point.items()}
        if math.prod(map(len, wider.values())) > most:
            break
        ranks = wider
    return ranks
