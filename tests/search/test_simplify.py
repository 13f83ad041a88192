"""What the leader does not need goes back to its default, and what it needs stays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.model import Configuration, Effort, Measurement, Problem, Request, Status, Value
from ktune.core.space import Space
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.search.finalists import AROUND_SHARE
from ktune.search.simplify import MOST_EXTRA, simplify
from ktune.study.tables import EXTRA_TRIALS
from tests.fake_gpu import FakeEvaluator
from tests.search.toy_search import ScriptedEvaluator, measure, open_toy, search_toy, timing, toy_space

TimeUs = Callable[[Configuration], float]


class Bench:
    """Measures points by a formula and counts them."""

    def __init__(self, time_us: TimeUs, known: Sequence[Configuration] = (), broken: Sequence[Configuration] = ()):
        self.time_us = time_us
        self.broken = broken
        self.asked: list[Configuration] = []
        self.known = {point: self.answer(point) for point in known}

    def answer(self, point: Configuration) -> Measurement:
        if point in self.broken:
            return measure(point, status=Status.WRONG, cold=None)
        return measure(point, cold=timing(self.time_us(point)))

    def measure(self, points: Sequence[Configuration]) -> Mapping[Configuration, Measurement]:
        new = [point for point in points if point not in self.known]
        self.asked += new
        self.known |= {point: self.answer(point) for point in new}
        return {point: self.known[point] for point in points}

    def simplified(self, leader: Configuration, space: Space, most: int = MOST_EXTRA) -> Configuration:
        return simplify(self.answer(leader), space, self.measure, lambda point: point in self.known, most)


def point(space: Space, **values: Value) -> Configuration:
    return space.complete(values)


@pytest.fixture(scope="module")
def space() -> Space:
    return toy_space()


def test_a_parameter_that_makes_no_difference_goes_back_to_its_default(space: Space) -> None:
    leader = point(space, block_size=256, items=4, fast_math=True)
    bench = Bench(lambda p: 50.0 + 10 * abs(p.integer("block_size") - 256) / 256)
    assert bench.simplified(leader, space) == point(space, block_size=256)


def test_a_leader_that_needs_everything_stays_as_it_is(space: Space) -> None:
    leader = point(space, block_size=256, items=4, fast_math=True)
    bench = Bench(lambda p: 50.0 if p == leader else 55.0)
    assert bench.simplified(leader, space) == leader


def test_the_default_itself_asks_for_nothing(space: Space) -> None:
    bench = Bench(lambda p: 50.0)
    assert bench.simplified(space.default, space) == space.default
    assert bench.asked == []


def test_two_that_are_harmless_alone_but_not_together_lose_only_one(space: Space) -> None:
    leader = point(space, block_size=256, items=4, fast_math=True)
    bench = Bench(lambda p: 60.0 if p["items"] == 1 and not p["fast_math"] else 50.0)
    found = bench.simplified(leader, space)
    assert found["block_size"] == space.default["block_size"]
    assert (found["items"] == 1) != (found["fast_math"] is False)


def test_small_losses_do_not_add_up(space: Space) -> None:
    """Each of three resets costs 0.3 %: two of them together are beyond what is taken."""
    leader = point(space, block_size=256, items=4, fast_math=True)
    bench = Bench(lambda p: 50.0 * 1.003 ** sum(p[n] != leader[n] for n in ("block_size", "items", "fast_math")))
    found = bench.simplified(leader, space)
    assert sum(found[n] != leader[n] for n in leader) == 1


def test_a_faster_simplification_is_taken_and_a_wrong_one_is_not(space: Space) -> None:
    leader = point(space, block_size=256, items=4)
    broken = [point(space, items=4), point(space)]
    bench = Bench(lambda p: 50.0 if p == leader else 45.0, broken=broken)
    assert bench.simplified(leader, space) == point(space, block_size=256)


def test_rules_are_kept_on_the_way(space: Space) -> None:
    """Resetting items alone would leave unroll above it, which no valid point has."""
    leader = point(space, algorithm="unrolled", items=4, unroll=4)
    bench = Bench(lambda p: 50.0)
    assert bench.simplified(leader, space) in space
    assert all(p in space for p in bench.asked)


def test_no_more_is_measured_than_allowed_and_what_is_known_costs_nothing(space: Space) -> None:
    leader = point(space, block_size=256, items=4, fast_math=True)
    bench = Bench(lambda p: 50.0)
    bench.simplified(leader, space, most=2)
    assert len(bench.asked) <= 2
    knowing = Bench(lambda p: 50.0, known=space.points)
    assert knowing.simplified(leader, space, most=0) == space.default
    assert knowing.asked == []


def flat_but_for_block(request: object, m: Measurement) -> Measurement:
    """Nothing but block_size 256 matters."""
    own = m.variant.configuration["block_size"] == 256
    return measure(
        m.variant.configuration, m.trial, effort=m.effort, cold=timing(50.0 if own else 80.0), hot=m.hot, build=m.build
    )


def test_a_search_simplifies_its_leader_beyond_its_trials_and_exports_the_simple_one(tmp_path: Path) -> None:
    space = toy_space()
    evaluator = ScriptedEvaluator(flat_but_for_block)
    outcome = search_toy(tmp_path, 12, evaluator, space, sampler="random")
    assert outcome.winner is not None and outcome.winner.effort is Effort.FULL
    assert outcome.winner.variant.configuration == point(space, block_size=256)
    assert outcome.trials_done == 12
    with open_toy(tmp_path) as study:
        extra = study.meta[EXTRA_TRIALS]
        short = [m for m in study.measurements() if m.effort is Effort.SEARCH]
    assert 1 <= len(extra) <= AROUND_SHARE * 12 + MOST_EXTRA and len(short) == 12 + len(extra)
    again = FakeEvaluator()
    assert search_toy(tmp_path, 12, again, space, sampler="random").winner == outcome.winner
    assert again.evaluated == [] and again.races == []


def test_extra_measurements_leave_a_larger_total_its_full_count(tmp_path: Path) -> None:
    space = toy_space()
    search_toy(tmp_path, 12, ScriptedEvaluator(flat_but_for_block), space, sampler="random")
    with open_toy(tmp_path) as study:
        before = len(study.measurements())
    outcome = search_toy(tmp_path, 30, ScriptedEvaluator(flat_but_for_block), space, sampler="random", finalists=0)
    assert outcome.trials_done == 30
    with open_toy(tmp_path) as study:
        assert len(study.measurements()) == before + 18


def test_a_leader_that_was_only_lucky_is_compared_as_it_was_measured_beside_the_others(space: Space) -> None:
    leader = point(space, block_size=256, items=4, fast_math=True)
    bench = Bench(lambda p: 50.0)

    def beside(points: Sequence[Configuration]) -> Mapping[Configuration, Measurement]:
        return {**bench.measure(points), leader: measure(leader, cold=timing(50.0))}

    lucky = measure(leader, cold=timing(49.0))
    assert simplify(lucky, space, bench.measure, lambda p: False) == leader
    assert simplify(lucky, space, beside, lambda p: False) == space.default


def test_where_an_evaluator_can_race_what_is_close_to_the_leader_is_raced_beside_it(tmp_path: Path) -> None:
    """Short times of what has fast_math are 2 % too good, and of block size 256 half: the race knows no fast_math."""

    class Fair(ScriptedEvaluator):
        def raced(self, problem: Problem, entrant: Entrant, seed: int) -> RaceResult:
            found = super().raced(problem, entrant, seed)
            assert entrant.variant is not None
            time = timing(50.0 if entrant.variant.configuration["block_size"] == 256 else 100.0)
            return replace(found, cold=time, hot=time)

    def change(request: Request, m: Measurement) -> Measurement:
        configuration = request.variant.configuration
        time_us = (50.0 if configuration["block_size"] == 256 else 100.0) - configuration.integer("fast_math")
        return m if m.cold is None else replace(m, cold=timing(time_us))

    space = toy_space(block_size=(64, 256), items=(1, 4), algorithm=("simple",))
    gpu = Fair(change)
    outcome = search_toy(tmp_path, len(space), gpu, space, finalists=1)
    first, *_ = gpu.races
    raced = {entrant.name for entrant in first[1]}
    assert len(raced) > 1 and all("block_256" in name for name in raced), raced
    assert outcome.winner is not None
    assert outcome.winner.variant.configuration == space.complete({"block_size": 256})
