"""Which points cross the fastest, and in which order."""

from __future__ import annotations

from itertools import product

from ktune.core.model import Configuration, Value
from ktune.core.space import Space
from ktune.search.crossing import MOST_COMBINATIONS, crossings
from tests.search.landscapes import landscape_family
from tests.search.toy_search import toy_problem, toy_space


def landscape_space() -> Space:
    return Space(landscape_family(), [toy_problem()])


def point(space: Space, **values: Value) -> Configuration:
    return space.complete(values)


def test_every_valid_point_of_the_fastest_ones_values_is_a_crossing_and_no_other() -> None:
    space = landscape_space()
    fastest = [
        point(space, algorithm="staged", block=64, share=2, unroll=8),
        point(space, algorithm="staged", block=128, share=8, unroll=2),
        point(space, algorithm="staged", block=128, share=8, unroll=2, fast=True),
    ]
    wanted = {
        point(space, algorithm="staged", block=block, share=share, unroll=unroll, fast=fast)
        for block, share, unroll, fast in product((64, 128), (2, 8), (8, 2), (False, True))
        if block >= 16 * share
    }
    found = crossings(fastest, space)
    assert len(found) == len(set(found)) == len(wanted) == 12
    assert set(found) == wanted


def test_crossings_with_values_of_the_faster_ones_come_first() -> None:
    space = landscape_space()
    fastest = [
        point(space, block=64),
        point(space, block=64, order="tile"),
        point(space, block=256, unroll=4),
    ]
    ranks: dict[tuple[str, Value], int] = {("order", "tile"): 1, ("block", 256): 2, ("unroll", 4): 2}
    sums = [sum(ranks.get(pair, 0) for pair in found.items()) for found in crossings(fastest, space)]
    assert sums == [0, 1, 2, 2, 3, 3, 4, 5]


def test_points_with_other_parameters_than_the_leader_take_no_part() -> None:
    space = landscape_space()
    staged = [point(space, algorithm="staged", depth=depth, block=block) for depth, block in ((2, 128), (3, 64))]
    plain = point(space, algorithm="plain", unroll=8)
    assert crossings([staged[0], plain, staged[1]], space) == crossings(staged, space)
    assert crossings([plain, *staged], space) == [plain]


def test_the_slowest_take_no_part_where_there_would_be_too_many_combinations() -> None:
    space = landscape_space()
    fastest = [point(space), point(space, share=2), point(space, unroll=2), point(space, order="tile")]
    assert len(crossings(fastest, space, most=16)) == 8
    assert crossings(fastest, space, most=7) == crossings(fastest[:3], space) == crossings(fastest, space, most=4)
    assert crossings(fastest, space, most=3) == crossings(fastest[:2], space)


def test_all_points_of_a_large_space_have_few_crossings() -> None:
    space = landscape_space()
    assert len(space) > MOST_COMBINATIONS
    assert 1 < len(crossings(space.points[::-1], space)) <= MOST_COMBINATIONS


def test_one_point_crosses_into_itself_and_none_into_none() -> None:
    space = toy_space()
    assert crossings([space.default], space) == [space.default]
    assert crossings([], space) == []
