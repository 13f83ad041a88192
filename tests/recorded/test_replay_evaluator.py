"""The evaluator that answers from a table."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import pytest
from toy_recording import CULLED, WRONG, point, toy, toy_core

from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Effort, Measurement, Request, Source, Status
from ktune.core.variant import make_variant
from ktune.recorded.evaluator import SHORT_ONLY, ReplayEvaluator, recorded_space
from ktune.recorded.table import RecordedTable


def requests(points: list[Configuration], effort: Effort = Effort.SEARCH) -> Iterator[Request]:
    problem = toy_core().problems[0]
    for trial, configuration in enumerate(points):
        yield Request(1000 + trial, make_variant(toy().family, configuration, problem), problem, effort)


@pytest.mark.parametrize("effort", list(Effort))
def test_every_ask_is_answered_once_and_as_replayed(table: RecordedTable, effort: Effort) -> None:
    points = list(toy_core().points)
    answers = list(ReplayEvaluator(table).evaluate(requests(points, effort)))
    assert [m.variant.configuration for m in answers] == points
    assert [m.trial for m in answers] == list(range(1000, 1036))
    assert {m.source for m in answers} == {Source.REPLAYED} and {m.effort for m in answers} == {effort}


def test_an_answer_is_what_was_recorded(table: RecordedTable) -> None:
    def kept(m: Measurement) -> Measurement:
        return replace(m, trial=0, source=Source.FAKE, seconds={})

    for m in ReplayEvaluator(table).evaluate(requests(list(toy_core().points))):
        assert kept(m) == kept(table.measurements[m.variant.configuration])


def test_failures_and_bounds_are_replayed_too(table: RecordedTable) -> None:
    wrong, culled = ReplayEvaluator(table).evaluate(requests([point(WRONG), point(CULLED)]))
    assert wrong.status is Status.WRONG and wrong.detail == "planted: wrong"
    assert culled.status is Status.CULLED and culled.bound_us == table.measurements[point(CULLED)].bound_us


def test_a_full_measurement_is_the_recorded_one_or_says_that_it_is_short(table: RecordedTable) -> None:
    for m in ReplayEvaluator(table).evaluate(requests(list(toy_core().points), Effort.FULL)):
        full = table.full.get(m.variant.configuration)
        if full is not None:
            assert m.cold == full.cold and SHORT_ONLY not in m.detail
        else:
            assert m.cold == table.measurements[m.variant.configuration].cold and m.detail.startswith(SHORT_ONLY)


def test_a_few_requests_are_pulled_ahead_as_on_a_gpu(table: RecordedTable) -> None:
    pulled: list[int] = []

    def asked() -> Iterator[Request]:
        for request in requests(list(toy_core().points)):
            pulled.append(request.trial)
            yield request

    answers = ReplayEvaluator(table, lookahead=5).evaluate(asked())
    next(answers)
    assert len(pulled) == 5
    next(answers)
    assert len(pulled) == 6


def test_a_point_that_was_not_recorded_is_refused(table: RecordedTable) -> None:
    other = point({"algorithm": "simple", "block_size": 32, "items": 1, "fast_math": False})
    with pytest.raises(UsageError, match="not among the recorded points of toy"):
        list(ReplayEvaluator(table).evaluate(requests([other])))


def test_the_space_is_the_core_and_may_be_narrowed_within_it(table: RecordedTable) -> None:
    family = toy().family
    assert recorded_space(table, family, {}).points == toy_core().points
    narrowed = recorded_space(table, family, {"block_size": (64,), "items": (1, 2)})
    assert {c["block_size"] for c in narrowed} == {64} and set(narrowed.points) < set(toy_core().points)
    with pytest.raises(UsageError, match=r"block_size was recorded with 64, 128, --set gives 32"):
        recorded_space(table, family, {"block_size": (32,)})


def test_a_family_whose_valid_points_changed_is_refused(table: RecordedTable) -> None:
    less = dict(list(table.measurements.items())[1:])
    with pytest.raises(UsageError, match="1 of 36 valid points are missing and 0 recorded ones are gone"):
        recorded_space(replace(table, measurements=less), toy().family, {})
    with pytest.raises(UsageError, match="0 of 18 valid points are missing and 18 recorded ones are gone"):
        recorded_space(replace(table, core={"block_size": (64,)}), toy().family, {})


def test_an_algorithm_added_beside_the_core_leaves_the_recording_valid(table: RecordedTable) -> None:
    family = toy().family
    first, *rest = family.parameters
    grown = replace(family, parameters=(replace(first, values=(*first.values, "third")), *rest))
    kept = replace(table, core={**table.core, "algorithm": ("simple", "unrolled")})
    assert len(recorded_space(kept, grown, {})) == 36
