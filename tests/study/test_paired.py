"""Pairs of samples of the same rounds: what they tell, when they tell nothing, and that ties go by them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.model import Effort, Timing
from ktune.gpu.timing import Reading, summarise
from ktune.search.final import find_pairs
from ktune.study.finals import Finals, Pairs, finals_from_json, finals_to_json
from ktune.study.verdict import Difference, intervals_overlap, paired_difference
from tests.search.toy_search import measure, open_toy, timing, toy_space

DRIFT = random.Random(5)


def of(samples: Sequence[float]) -> Timing:
    return summarise("cold", "events", Reading(tuple(samples)))


def race(*more_us: float, turns: int = 20, spread_us: float = 2.0) -> list[Timing]:
    """Timings of one race in which rounds differ much more than the entrants, each `more_us` slower than the first."""
    rounds = [100.0 + DRIFT.gauss(0.0, spread_us) for _ in range(5 * turns)]
    return [of([us + more + DRIFT.gauss(0.0, 0.05) for us in rounds]) for more in (0.0, *more_us)]


def test_pairs_tell_apart_what_intervals_do_not() -> None:
    first, second = race(0.4)
    assert intervals_overlap(first, second)
    found = paired_difference([second], [first])
    assert found is not None and 0.3 < found.low <= found.percent <= found.high < 0.5
    assert not found.within(0.1) and found.within(0.5)


def test_the_same_is_within_any_noise() -> None:
    first, second = race(0.0)
    found = paired_difference([second], [first])
    assert found is not None and found.within(0.0)


def test_races_that_disagree_widen_the_interval() -> None:
    one, other = race(0.5), race(-0.1)
    found = paired_difference([one[1], other[1]], [one[0], other[0]])
    assert found is not None and found.low <= -0.05 and found.high >= 0.45 and found.within(0.0)


def test_a_turns_samples_count_as_one() -> None:
    """Five samples of a turn that are all alike are no more evidence than one."""
    few = [0.0, 0.0, 0.0, 1.0, 1.0, 1.0, 1.0]
    base, slower = of([100.0] * 35), of([100.0 + more for more in few for _ in range(5)])
    found = paired_difference([slower], [base])
    assert found is not None and (found.low, found.high) == (0.0, 1.0)


@pytest.mark.parametrize(("first", "second"), [(30, 35), (25, 25), (1, 1)])
def test_other_rounds_or_too_few_tell_nothing(first: int, second: int) -> None:
    assert paired_difference([of([100.0] * first)], [of([101.0] * second)]) is None


def test_a_final_says_how_much_longer_each_takes_than_the_fastest() -> None:
    leader, control, other, slow = race(0.0, -0.5, 3.0)
    pairs = find_pairs({"leader": [leader], "other": [other], "slow": [slow]}, [control])
    assert pairs is not None and pairs.fastest == "other"
    assert pairs.tied("other") is True and pairs.tied("leader") is False and pairs.tied("slow") is False
    assert pairs.tied("not raced") is None
    assert pairs.noise_percent < 0.1
    assert find_pairs({"leader": [leader]}, [of([100.0])]) is None


def test_ties_go_by_pairs_where_there_are_some(tmp_path: Path) -> None:
    fast, apart, alike = toy_space().points[1:4]
    with open_toy(tmp_path) as study:
        for trial, (point, time_us) in enumerate([(fast, 50.0), (apart, 50.1), (alike, 50.4)]):
            study.record(measure(point, trial, cold=timing(time_us)))
            study.record(measure(point, trial, cold=timing(time_us, 1.0), effort=Effort.FULL))
        ids = {name: study.identify(p) for name, p in (("fast", fast), ("apart", apart), ("alike", alike))}
        longer = {
            ids["fast"]: Difference(0.0, 0.0, 0.0),
            ids["apart"]: Difference(0.2, 0.15, 0.25),
            ids["alike"]: Difference(0.1, -0.1, 0.8),
        }
        settled = study.settle(Finals(5.0, (), (), pairs=Pairs(ids["fast"], longer, 0.1)))
        assert {settled.winner, *settled.tied} == {ids["fast"], ids["alike"]}
        # of another fastest they say nothing
        settled = study.settle(replace(settled, pairs=Pairs(ids["alike"], longer, 0.1)))
        assert {settled.winner, *settled.tied} == set(ids.values())


def test_pairs_are_remembered_and_may_be_absent() -> None:
    finals = Finals(1.0, (), (), pairs=Pairs("a", {"b": Difference(0.2, 0.1, 0.3)}, 0.05))
    assert finals_from_json(finals_to_json(finals)) == finals
    older = {name: value for name, value in finals_to_json(finals).items() if name != "pairs"}
    assert finals_from_json(older) == replace(finals, pairs=None)
