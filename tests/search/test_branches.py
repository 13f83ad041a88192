"""Turns among the algorithms of a space: who gets how many, and that none is forgotten for another's first success."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace

import pytest

from ktune.api import Parameter
from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.search.branches import FIRST, Branches, deciding_parameter
from ktune.search.pool import Pool
from tests.search.toy_search import toy_problem, toy_space

SIZES = tuple(2**i for i in range(9))


def branched() -> Space:
    """Three algorithms with two parameters of their own each, 243 points."""
    algorithm = Parameter("algorithm", ("fast", "slow", "deep"), "slow", "which")
    own = [
        Parameter(f"{name}_{axis}", SIZES, 1, "of one algorithm", when={"algorithm": (name,)})
        for name in ("fast", "slow", "deep")
        for axis in "ab"
    ]
    family = replace(toy_space().family, parameters=(algorithm, *own), rules=(), core={})
    return Space(family, [toy_problem()])


def time_us(point: Configuration) -> float:
    """ "deep" is the slowest nearly everywhere and the fastest at its far corner; "fast" is flat."""
    a, b = (math.log2(point.integer(name)) for name, _ in point.values_[1:])
    if point["algorithm"] == "deep":
        return 40.0 + 9.0 * ((8 - a) + (8 - b))
    return {"fast": 60.0, "slow": 600.0}[str(point["algorithm"])] + 0.3 * (a + b)


def asked(space: Space, trials: int) -> Counter[str]:
    branches, counts = Branches(space, Pool(space, 3)), Counter[str]()
    for _ in range(trials):
        point = branches.propose()
        assert point is not None
        branches.expect(point)
        branches.learn(point, time_us(point))
        counts[str(point["algorithm"])] += 1
    return counts


def test_the_parameter_that_decides_on_others_makes_the_branches() -> None:
    parameter = deciding_parameter(branched())
    assert parameter is not None and parameter.name == "algorithm"
    assert deciding_parameter(Space(branched().family, [toy_problem()], {"algorithm": ("deep",)})) is None
    assert len(Branches(branched(), Pool(branched(), 0))) == 3


def test_each_branch_has_its_first_points_before_any_is_led() -> None:
    assert asked(branched(), 3 * FIRST) == {"fast": FIRST, "slow": FIRST, "deep": FIRST}


def test_a_branch_that_is_ten_times_as_slow_keeps_few_turns() -> None:
    counts = asked(branched(), 100)
    assert FIRST <= counts["slow"] <= FIRST + 3


def test_a_branch_that_begins_slowly_is_gone_on_with_until_it_is_the_fastest() -> None:
    space = branched()
    branches, found = Branches(space, Pool(space, 5)), []
    for _ in range(90):
        point = branches.propose()
        assert point is not None
        branches.expect(point)
        branches.learn(point, time_us(point))
        found.append(point)
    best = min(found, key=time_us)
    assert best["algorithm"] == "deep" and time_us(best) == pytest.approx(40.0, abs=10)


def test_points_that_fail_or_are_all_out_leave_the_turn_to_others() -> None:
    space = branched()
    branches, seen = Branches(space, Pool(space, 1)), set()
    while (point := branches.propose()) is not None:
        assert point not in seen
        seen.add(point)
        branches.expect(point)
        branches.learn(point, None if point["algorithm"] == "slow" else time_us(point))
    assert len(seen) == len(space)
