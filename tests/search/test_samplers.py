"""Every sampler keeps one contract; the estimator finds more than chance does."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace

import pytest

from ktune.api import Family, Parameter, Rule
from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Measurement, Status
from ktune.core.space import Space
from ktune.search.pool import CATEGORICAL_STEPS, Pool
from ktune.search.samplers import SAMPLERS, Sampler, make_sampler
from tests.fake_gpu import fake_timing
from tests.search.toy_search import measure, toy, toy_problem, toy_space


def bowl_family() -> Family:
    """Four ordinals of eight values with one rule, an algorithm with a parameter of its own."""
    values = tuple(range(8))
    parameters = (
        Parameter("algorithm", ("plain", "staged"), "plain", "how"),
        *(Parameter(name, values, 0, name) for name in ("a", "b", "c", "d")),
        Parameter("depth", (1, 2, 3, 4), 1, "stages", when={"algorithm": ("staged",)}),
    )
    law = Rule("a and b may not both be large", lambda a, b: a + b <= 11)
    return replace(toy().family, name="bowl", parameters=parameters, rules=(law,), core={})


def bowl_us(point: Configuration) -> float:
    """Least at a=6, b=2, c=5, d=1, staged with depth 3."""
    best = {"a": 6, "b": 2, "c": 5, "d": 1}
    away = sum((point.integer(name) - at) ** 2 for name, at in best.items())
    return 50.0 + away + (abs(point.integer("depth") - 3) if "depth" in point else 10)


def drive(sampler: Sampler, trials: int, time_us: Callable[[Configuration], float]) -> list[Configuration]:
    """Ask and tell one after another."""
    asked = []
    for trial in range(trials):
        point = sampler.ask()
        if point is None:
            break
        asked.append(point)
        sampler.tell(answer(point, trial, time_us(point)))
    return asked


def answer(point: Configuration, trial: int, time_us: float) -> Measurement:
    template = measure(toy_space().default)
    variant = replace(template.variant, configuration=point)
    return replace(template, trial=trial, variant=variant, cold=fake_timing(time_us))


@pytest.fixture(scope="module")
def bowl() -> Space:
    return Space(bowl_family(), [toy_problem()])


@pytest.mark.parametrize("name", SAMPLERS)
def test_every_point_of_the_space_is_proposed_exactly_once_then_none(name: str) -> None:
    space = toy_space()
    sampler = make_sampler(name, space, trials=len(space) - 1, seed=3)
    asked = drive(sampler, len(space), lambda point: 50.0)
    assert len(asked) == len(set(asked)) == len(space)
    assert set(asked) == set(space.points)
    assert sampler.ask() is None


@pytest.mark.parametrize("name", SAMPLERS)
def test_points_known_before_are_never_proposed(name: str) -> None:
    space = toy_space()
    known = [measure(point, trial) for trial, point in enumerate(space.points[:50])]
    sampler = make_sampler(name, space, trials=60, seed=3, first=[space.points[0]], measured=known)
    asked = drive(sampler, 100, lambda point: 50.0)
    assert set(asked) == set(space.points[50:])


@pytest.mark.parametrize("name", SAMPLERS)
def test_a_dropped_point_and_a_batch_without_answers_do_no_harm(name: str) -> None:
    space = toy_space()
    sampler = make_sampler(name, space, trials=60, seed=3)
    batch = [point for _ in range(30) if (point := sampler.ask())]
    assert len(set(batch)) == 30
    sampler.drop(batch[0])
    for trial, point in enumerate(batch[1:]):
        sampler.tell(measure(point, trial))
    rest = drive(sampler, 100, lambda point: 50.0)
    assert not set(rest) & set(batch)
    assert len(rest) + len(batch) == len(space)


@pytest.mark.parametrize("name", SAMPLERS)
@pytest.mark.parametrize("status", [s for s in Status if s is not Status.OK])
def test_nothing_but_failures_of_a_kind_can_be_told(name: str, status: Status) -> None:
    space = toy_space()
    sampler = make_sampler(name, space, trials=60, seed=3)
    for trial in range(30):
        point = sampler.ask()
        assert point is not None
        sampler.tell(measure(point, trial, status=status, cold=None))
    assert sampler.ask() in space


@pytest.mark.parametrize("name", SAMPLERS)
def test_proposals_are_points_of_the_space_with_conditional_parameters_only_where_they_exist(
    name: str, bowl: Space
) -> None:
    sampler = make_sampler(name, bowl, trials=60, seed=5)
    asked = drive(sampler, 60, bowl_us)
    assert all(point in bowl for point in asked)
    assert {point["algorithm"] for point in asked} == {"plain", "staged"}
    assert all(("depth" in point) == (point["algorithm"] == "staged") for point in asked)


def test_a_budget_that_covers_the_space_makes_any_search_exhaustive() -> None:
    space = toy_space()
    assert make_sampler("gp", space, trials=len(space), seed=0).name == "exhaustive"
    assert make_sampler("gp", space, trials=len(space) - 1, seed=0).name == "gp"


def test_an_unknown_sampler_is_refused_with_the_names_that_there_are() -> None:
    with pytest.raises(UsageError, match="no sampler 'ga'; there are gp, tpe, random, exhaustive"):
        make_sampler("ga", toy_space(), trials=3, seed=0)


def test_the_estimator_finds_faster_variants_than_chance_on_average(bowl: Space) -> None:
    best: dict[str, list[float]] = {"gp": [], "random": []}
    for name, found in best.items():
        for seed in range(4):
            sampler = make_sampler(name, bowl, trials=40, seed=seed, first=[bowl.default])
            found.append(min(bowl_us(point) for point in drive(sampler, 40, bowl_us)))
    assert sum(best["gp"]) + 4 < sum(best["random"])


def test_the_estimator_keeps_away_from_a_region_that_does_not_work(bowl: Space) -> None:
    """Half of the space is wrong; well under half of the later proposals are."""
    sampler = make_sampler("gp", bowl, trials=80, seed=1)
    asked = []
    for trial in range(80):
        point = sampler.ask()
        assert point is not None
        asked.append(point)
        m = answer(point, trial, bowl_us(point))
        sampler.tell(replace(m, status=Status.WRONG) if point.integer("c") < 4 else m)
    late = asked[30:]
    assert sum(point.integer("c") < 4 for point in late) < len(late) / 4


@pytest.mark.parametrize("wrong", [range(4), range(4, 8)], ids=["low", "high"])
def test_among_failures_the_estimator_prefers_those_nearer_to_working(bowl: Space, wrong: range) -> None:
    """Nothing works: half of the space is slightly wrong, the other half does not build."""
    sampler = make_sampler("gp", bowl, trials=80, seed=1)
    asked = []
    for trial in range(80):
        point = sampler.ask()
        assert point is not None
        asked.append(point)
        status = Status.WRONG if point.integer("c") in wrong else Status.BUILD_FAILED
        sampler.tell(replace(answer(point, trial, 50.0), status=status))
    late = asked[30:]
    assert sum(point.integer("c") in wrong for point in late) > len(late) * 3 / 4


@pytest.mark.parametrize("bound_us", [None, math.nan, math.inf])
def test_a_culled_variant_without_a_usable_bound_is_told_as_a_failure(bound_us: float | None) -> None:
    space = toy_space()
    sampler = make_sampler("gp", space, trials=20, seed=0)
    point = sampler.ask()
    assert point is not None
    sampler.tell(measure(point, status=Status.CULLED, bound_us=bound_us, cold=None))
    assert sampler.ask() is not None


def steps_between(space: Space, a: Configuration, b: Configuration) -> int:
    total = 0
    for parameter in space.family.parameters:
        x, y = a.get(parameter.name), b.get(parameter.name)
        if x != y:
            values = space.values(parameter)
            near = parameter.ordinal and x is not None and y is not None
            total += abs(values.index(x) - values.index(y)) if near else CATEGORICAL_STEPS  # type: ignore[arg-type]
    return total


def test_a_wish_that_breaks_a_rule_becomes_the_nearest_open_point() -> None:
    """Against a search of the whole space, as the space empties."""
    space = toy_space()
    pool = Pool(space, seed=4)
    values = (("algorithm", "unrolled"), ("block_size", 64), ("items", 1), ("unroll", 8), ("fast_math", False))
    wish = Configuration(values)
    assert wish not in space
    left = set(space.points)
    while left:
        least = min(steps_between(space, point, wish) for point in left)
        found = pool.nearest(wish)
        assert found in left
        assert found is not None and steps_between(space, found, wish) == least
        left.remove(found)
    assert pool.nearest(wish) is None
