"""The forecast goes where the measurements point, and nowhere twice."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest

from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.search import forecast as forecast_module
from ktune.search.forecast import TOLD_APART, Forecast
from ktune.search.likeness import REACH_STEPS, Likeness, Steps, _loss
from ktune.search.pool import Pool
from ktune.search.prediction import Prediction
from ktune.search.samplers import LearningSampler, Sampler, make_sampler
from tests.search.landscapes import Landscape, landscape
from tests.search.test_samplers import answer, bowl_family, bowl_us, drive
from tests.search.toy_search import toy_problem, toy_space


@pytest.fixture(scope="module")
def bowl() -> Space:
    return Space(bowl_family(), [toy_problem()])


def forecast_of(space: Space, seed: int = 0) -> tuple[Forecast, Pool]:
    pool = Pool(space, seed)
    return Forecast(space, pool), pool


def tell(forecast: Forecast, pool: Pool, point: Configuration, time_us: float | None) -> None:
    pool.take(point)
    forecast.learn(point, time_us)


def test_rows_differ_in_as_many_entries_as_there_are_steps(bowl: Space) -> None:
    steps = Steps(bowl)
    here = {"algorithm": "staged", "a": 2, "b": 0, "depth": 1}
    for changes, count in (({}, 0), ({"a": 5}, 3), ({"a": 1, "b": 2}, 3), ({"depth": 3}, 2)):
        a, b = steps.rows([bowl.complete(here), bowl.complete({**here, **changes})])
        assert abs(a - b).sum() == count


def test_likeness_falls_with_the_steps_between_two_points(bowl: Space) -> None:
    steps = Steps(bowl)
    rows = steps.rows([bowl.complete({"a": a}) for a in range(8)])
    alike = Likeness(steps.width).between(rows, rows)
    assert alike[0] == pytest.approx([math.exp(-a / REACH_STEPS) for a in range(8)], rel=1e-5)
    assert alike == pytest.approx(alike.T)


def test_the_gradient_of_the_likelihood_is_its_slope() -> None:
    rng = np.random.default_rng(0)
    rows = rng.integers(0, 2, (20, 6)).astype(float)
    values = rng.standard_normal(20)
    logs = rng.uniform(-3, 0, 7)
    _, gradient = _loss(rows, values, logs)
    for i in range(7):
        moved = np.eye(7)[i] * 1e-5
        slope = (_loss(rows, values, logs + moved)[0] - _loss(rows, values, logs - moved)[0]) / 2e-5
        assert gradient[i] == pytest.approx(slope, rel=1e-4, abs=1e-6)


def test_learning_finds_which_steps_matter() -> None:
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 2, (80, 5))
    values = 1.0 * rows[:, 0] + 0.5 * rows[:, 1] + 0.01 * rng.standard_normal(80)
    likeness = Likeness(5)
    likeness.fit(rows, values - values.mean(), rounds=40)
    apart = [1 - likeness.between(np.zeros((1, 5)), np.eye(5, dtype=float)[[i]])[0, 0] for i in range(5)]
    assert min(apart[:2]) > 4 * max(apart[2:])


def test_points_added_in_parts_tell_as_much_as_all_at_once() -> None:
    """Against the posterior's textbook formula."""
    rng = np.random.default_rng(2)
    points, candidates = (rng.integers(0, 2, (count, 8)).astype(float) for count in (12, 30))
    likeness = Likeness(8)
    prediction = Prediction(likeness, candidates)
    for part in (points[:5], points[5:6], points[6:]):
        prediction.add(part)
    whole = likeness.between(points, points) + likeness.own * np.eye(12)
    across = likeness.between(points, candidates)
    untold = 1 + likeness.own - (across * np.linalg.solve(whole, across)).sum(axis=0)
    assert prediction.untold == pytest.approx(untold, abs=1e-9)
    values = rng.standard_normal(4)
    known = [0, 3, 7, 11]
    means, _ = prediction.of(known, values)
    solved = np.linalg.solve(whole[np.ix_(known, known)], values - values.mean())
    assert means == pytest.approx(values.mean() + solved @ across[known])


def test_nothing_is_proposed_before_a_time_is_known(bowl: Space) -> None:
    forecast, pool = forecast_of(bowl)
    assert forecast.propose() is None
    tell(forecast, pool, bowl.default, None)
    assert forecast.propose() is None
    assert len(pool) == len(bowl) - 1


def test_the_first_points_are_further_apart_than_chance_puts_them(bowl: Space) -> None:
    def least_steps(points: list[Configuration]) -> float:
        rows = Steps(bowl).rows(points)
        apart = abs(rows[:, None] - rows[None]).sum(axis=2) + 1000 * np.eye(len(rows))
        return float(apart.min(axis=1).mean())

    spread, chance = [], []
    for seed in range(4):
        forecast, _ = forecast_of(bowl, seed)
        found = []
        for _ in range(20):
            point = forecast.spread()
            assert point is not None
            forecast.expect(point)
            found.append(point)
        assert len(set(found)) == 20
        spread.append(least_steps(found))
        chance.append(least_steps(random.Random(seed).sample(bowl.points, 20)))
    assert min(spread) > max(chance)


def test_what_a_parameter_did_beside_one_point_is_expected_beside_another(bowl: Space) -> None:
    """Two measured steps show that a should grow and d should not: the next point goes that way."""
    forecast, pool = forecast_of(bowl)
    for changes, time_us in (({}, 100.0), ({"d": 3}, 130.0), ({"a": 3}, 80.0), ({"a": 3, "d": 3}, 105.0)):
        tell(forecast, pool, bowl.complete({"a": 2, "d": 2, **changes}), time_us)
    found = forecast.propose()
    assert found is not None and found.integer("a") > 3 and found.integer("d") <= 2


def test_failures_are_kept_away_from(bowl: Space) -> None:
    forecast, pool = forecast_of(bowl)
    for c in range(8):
        for a in (1, 3):
            time_us = 100.0 + a if c < 4 else None
            tell(forecast, pool, bowl.complete({"a": a, "b": 3, "c": c}), time_us)
    tell(forecast, pool, bowl.complete({"a": 0, "b": 0}), 400.0)
    tell(forecast, pool, bowl.complete({"a": 7, "b": 0}), 300.0)
    found = []
    for _ in range(10):
        point = forecast.propose()
        assert point is not None
        forecast.expect(point)
        found.append(point)
    assert sum(point.integer("c") < 4 for point in found) >= 8


def test_how_slow_the_slow_points_are_changes_nothing_once_many_times_are_known(bowl: Space) -> None:
    """But how fast the fast ones are does."""

    def proposed(slow: float, fast: float, known: int) -> list[Configuration | None]:
        forecast, pool = forecast_of(bowl)
        points = sorted(random.Random(3).sample(bowl.points, known), key=bowl_us)
        for place, point in enumerate(points):
            factor = fast if place < 5 else slow if place >= TOLD_APART else 1.0
            tell(forecast, pool, point, factor * bowl_us(point))
        return [forecast.propose() for _ in range(5)]

    many = TOLD_APART + 30
    assert proposed(4.0, 1.0, many) == proposed(1.0, 1.0, many)
    assert proposed(1.0, 0.5, many) != proposed(1.0, 1.0, many)


def test_a_batch_without_answers_between_has_distinct_points_that_spread(bowl: Space) -> None:
    sampler = make_sampler("gp", bowl, trials=60, seed=2, first=[bowl.default])
    asked = drive(sampler, 32, bowl_us)
    batch = [point for _ in range(32) if (point := sampler.ask()) is not None]
    assert len(batch) == 32 and len({*asked, *batch}) == 64


def test_a_search_ends_at_the_best_points(bowl: Space) -> None:
    """The space holds thousands of points; whatever the seed, the very best one is found."""
    least = min(map(bowl_us, bowl.points))
    for seed in range(4):
        sampler = make_sampler("gp", bowl, trials=80, seed=seed, first=[bowl.default])
        assert min(map(bowl_us, drive(sampler, 80, bowl_us))) == least


def test_so_it_does_where_only_a_part_of_the_points_can_be_weighed(
    bowl: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_module, "MOST_CANDIDATES", 500)
    monkeypatch.setattr(forecast_module, "RANDOM", 200)
    least = min(map(bowl_us, bowl.points))
    for seed in range(3):
        sampler = make_sampler("gp", bowl, trials=100, seed=seed, first=[bowl.default])
        assert min(map(bowl_us, drive(sampler, 100, bowl_us))) <= least + 1


def test_only_the_fastest_results_of_a_long_search_are_reckoned_with(
    bowl: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(forecast_module, "MOST_KNOWN", 30)
    sampler = make_sampler("gp", bowl, trials=120, seed=1, first=[bowl.default])
    asked = drive(sampler, 120, bowl_us)
    assert len(set(asked)) == 120
    assert min(map(bowl_us, asked)) <= min(map(bowl_us, bowl.points)) + 1


def test_once_all_points_are_out_the_search_ends() -> None:
    space = toy_space()
    sampler = make_sampler("gp", space, trials=len(space) - 1, seed=1)
    assert set(drive(sampler, len(space), lambda point: 50.0)) == set(space.points)
    assert sampler.ask() is None


def test_the_same_seed_and_the_same_answers_give_the_same_points(bowl: Space) -> None:
    first, second = (
        drive(make_sampler("gp", bowl, trials=60, seed=4, first=[bowl.default]), 60, bowl_us) for _ in range(2)
    )
    assert first == second


def test_what_another_process_measured_counts(bowl: Space) -> None:
    """Told the neighbourhood of the optimum, which it never asked for, it goes there with turns of its own."""
    best = min(bowl.points, key=bowl_us)
    known = [best, *bowl.neighbours(best), *random.Random(0).sample(bowl.points, 20)]
    sampler = make_sampler("gp", bowl, trials=80, seed=1)
    for trial, point in enumerate(known):
        sampler.tell(answer(point, trial, bowl_us(point)))
    asked = drive(sampler, 24, bowl_us)
    assert not set(asked) & set(known)
    near = sum(bowl_us(point) <= bowl_us(best) + 8 for point in asked)
    by_chance = sum(bowl_us(point) <= bowl_us(best) + 8 for point in bowl.points) / len(bowl)
    assert near >= 6 > 4 * by_chance * len(asked)


def test_the_forecast_comes_much_nearer_to_the_best_than_chance_and_nearer_than_the_estimator_alone() -> None:
    """On invented landscapes: how much slower than the best the fastest of 60 is, on average."""
    sums = {"random": 0.0, "alone": 0.0, "gp": 0.0}
    for seed in range(6):
        land = landscape(seed, own=0.02)
        for name in sums:
            sums[name] += math.log(
                min(map(land.time_us, drive(sampler_of(name, land, seed), 60, land.time_us))) / land.best_us
            )
    assert sums["gp"] < sums["random"] / 3
    assert sums["gp"] < sums["alone"]


def sampler_of(name: str, land: Landscape, seed: int) -> Sampler:
    if name == "alone":
        return LearningSampler(land.space, 60, seed, [land.space.default], forecast=False)
    return make_sampler(name, land.space, trials=60, seed=seed, first=[land.space.default])
