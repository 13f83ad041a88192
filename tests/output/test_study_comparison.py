"""Two studies side by side."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ktune.core.errors import UsageError
from ktune.core.identity import configuration_id
from ktune.core.model import Measurement, Problem, Status
from ktune.output.compare import COLUMNS, compare_studies, comparison_lines
from tests.fake_gpu import fake_timing
from tests.output.studies import toy, toy_study

FAMILY = toy().family


def slowed(m: Measurement, factor: float) -> Measurement:
    assert m.cold is not None
    return replace(m, cold=fake_timing(m.cold.median_us * factor))


def by_id(first: list[Measurement], second: list[Measurement]) -> dict[str, dict]:
    return {row["configuration_id"]: row for row in compare_studies(FAMILY, first, second).to_dict("records")}


def name(m: Measurement) -> str:
    return configuration_id(FAMILY, m.variant.configuration)


def test_times_ratio_and_verdict_stand_beside_each_other():
    study = toy_study(6)[:6]
    rows = by_id(study[:3], [slowed(study[0], 2.0), slowed(study[1], 0.5), study[2]])
    assert [rows[name(m)]["verdict"] for m in study[:3]] == ["slower", "faster", "tied"]
    assert rows[name(study[0])]["ratio_b_to_a"] == pytest.approx(2.0)
    assert rows[name(study[0])]["time_cold_median_a_us"] == pytest.approx(study[0].cold_us)
    assert rows[name(study[0])]["source_a"] == "fake"


def test_a_changed_status_is_named_first():
    study = toy_study(5)[:5]
    second = [*study[:4], replace(study[4], status=Status.WRONG)]
    table = compare_studies(FAMILY, study, second)
    top = table.iloc[0]
    assert (top["configuration_id"], top["status_a"], top["status_b"]) == (name(study[4]), "ok", "wrong")
    assert f"  {name(study[4])}: ok -> wrong" in comparison_lines(table)


def test_what_only_one_study_measured_has_empty_cells_and_is_counted():
    study = toy_study(5)[:5]
    table = compare_studies(FAMILY, study[:4], study[1:])
    only_first = table[table["configuration_id"] == name(study[0])].iloc[0]
    assert only_first["time_cold_median_b_us"] is not None and table["status_b"].isna().sum() == 1
    assert comparison_lines(table) == [
        "second against first: 0 faster, 0 slower, 3 tied",
        "1 only in the second",
        "1 only in the first",
    ]


def test_one_problem_against_another_joins_by_configuration():
    rows = by_id(toy_study(5, problem="default")[:5], toy_study(5, problem="small")[:5])
    assert {(row["problem_a"], row["problem_b"]) for row in rows.values()} == {("N1048576", "N1000")}


def test_studies_of_several_problems_that_share_none_are_refused_with_the_remedy():
    first, second = toy_study(3, problem="default")[:3], toy_study(3, problem="small")[:3]
    other = replace(first[0], problem=Problem("toy", (("N", 5),)))
    with pytest.raises(UsageError, match=r"share no problem.*compare studies of one problem each"):
        compare_studies(FAMILY, [*first, other], second)


def test_columns_are_the_documented_ones_even_for_empty_studies():
    assert list(compare_studies(FAMILY, [], []).columns) == [column for column, _, _ in COLUMNS]
