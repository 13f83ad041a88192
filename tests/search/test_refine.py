"""Refinement goes where the measurements point, and nowhere twice."""

from __future__ import annotations

import pytest

from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.search.pool import Pool
from ktune.search.refine import Refiner
from ktune.search.samplers import make_sampler
from tests.search.test_samplers import bowl_family, bowl_us, drive
from tests.search.toy_search import toy_problem, toy_space


@pytest.fixture(scope="module")
def bowl() -> Space:
    return Space(bowl_family(), [toy_problem()])


def refiner_of(space: Space, seed: int = 0) -> tuple[Refiner, Pool]:
    pool = Pool(space, seed)
    return Refiner(space, pool), pool


def two_steps_from(space: Space, point: Configuration) -> set[Configuration]:
    once = space.neighbours(point)
    return {*once, *(far for near in once for far in space.neighbours(near))}


def test_nothing_is_proposed_before_a_time_is_known(bowl: Space) -> None:
    refiner, pool = refiner_of(bowl)
    assert refiner.propose() is None
    refiner.learn(bowl.default, None)
    assert refiner.propose() is None
    assert len(pool) == len(bowl)


def test_proposals_are_open_points_within_two_steps_of_the_best_each_once(bowl: Space) -> None:
    refiner, pool = refiner_of(bowl)
    pool.take(bowl.default)
    refiner.learn(bowl.default, 100.0)
    near = two_steps_from(bowl, bowl.default) - {bowl.default}
    found = []
    while (point := refiner.propose()) is not None:
        found.append(point)
    assert set(found) == near and len(found) == len(near)
    assert all(point not in pool for point in found)


def test_what_a_parameter_did_beside_one_point_is_expected_beside_another(bowl: Space) -> None:
    """From a slow start, two measured steps show that a should grow and d should not: the next goes that way."""
    refiner, pool = refiner_of(bowl)
    start = bowl.complete({"a": 2, "d": 2})
    slower, faster = bowl.complete({"a": 2, "d": 3}), bowl.complete({"a": 3, "d": 2})
    for point, time_us in ((start, 100.0), (slower, 130.0), (faster, 80.0)):
        pool.take(point)
        refiner.learn(point, time_us)
    first = refiner.propose()
    assert first is not None and first.integer("a") > 3 and first.integer("d") <= 2


def test_failures_are_kept_away_from(bowl: Space) -> None:
    refiner, pool = refiner_of(bowl)
    start = bowl.complete({"a": 3, "b": 3})
    pool.take(start)
    refiner.learn(start, 100.0)
    for c in range(1, 4):
        failed = bowl.complete({"a": 3, "b": 3, "c": c})
        pool.take(failed)
        refiner.learn(failed, None)
    slow = bowl.complete({"a": 0, "b": 0})
    pool.take(slow)
    refiner.learn(slow, 400.0)
    first = [refiner.propose() for _ in range(5)]
    assert all(point is not None and point.integer("c") == 0 for point in first)


def test_a_batch_without_answers_between_has_distinct_points(bowl: Space) -> None:
    sampler = make_sampler("tpe", bowl, trials=60, seed=2, first=[bowl.default])
    asked = drive(sampler, 32, bowl_us)
    batch = [point for _ in range(32) if (point := sampler.ask()) is not None]
    assert len(batch) == 32 and len({*asked, *batch}) == 64


def test_the_second_half_of_a_search_ends_at_the_best_points(bowl: Space) -> None:
    """The space holds thousands of points; whatever the seed, the very best one is found."""
    least = min(map(bowl_us, bowl.points))
    for seed in range(4):
        sampler = make_sampler("tpe", bowl, trials=80, seed=seed, first=[bowl.default])
        assert min(map(bowl_us, drive(sampler, 80, bowl_us))) == least


def test_once_all_near_points_are_out_the_search_goes_on_elsewhere() -> None:
    space = toy_space()
    sampler = make_sampler("tpe", space, trials=len(space) - 1, seed=1)
    assert set(drive(sampler, len(space), lambda point: 50.0)) == set(space.points)
