"""The table of measurements: what each cell is, what is missing, and the order of rows."""

from __future__ import annotations

import io
import math
import random
from dataclasses import replace

import pandas as pd
import pytest

from ktune.api import Parameter
from ktune.core.model import Effort, Measurement, Status
from ktune.output.columns import glossary
from ktune.output.ranking import ranked, standing
from ktune.output.table import csv_text, measurements_table
from tests.fake_gpu import ENVIRONMENT
from tests.output.studies import mixed_status, row_sums_winner, toy, toy_study


def table(measurements: list[Measurement]) -> pd.DataFrame:
    return measurements_table(measurements, toy().family)


def csv_rows(measurements: list[Measurement]) -> dict[str, dict[str, str]]:
    """{trial: {column: cell as text}}."""
    read = pd.read_csv(io.StringIO(csv_text(table(measurements))), dtype=str, keep_default_na=False)
    return {row["trial"]: row for row in read.to_dict("records")}


def with_cold(m: Measurement, median: float) -> Measurement:
    assert m.cold is not None
    return replace(m, cold=replace(m.cold, median_us=median))


def test_every_column_is_in_the_glossary_with_a_meaning():
    study = toy_study(20, mixed_status)
    meanings = glossary(toy().family, study)
    assert [name for name, _ in meanings] == list(table(study).columns)
    assert all(meaning for _, meaning in meanings)
    assert len(meanings) == len(dict(meanings))


def test_every_time_says_its_unit_and_its_cache_regime():
    names = [name for name in table(toy_study(5)).columns if name.startswith("time_")]
    assert "time_cold_median_us" in names and "time_hot_ci_high_us" in names
    assert all(name.endswith(("_us", "_samples", "_method")) for name in names)


def test_a_cell_that_is_not_known_is_empty_and_never_zero():
    rows = csv_rows(toy_study(20, mixed_status))
    failed = rows["5"]
    assert failed["status"] == "build_failed" and failed["detail"] == "planted: build_failed"
    for column in (
        "time_cold_median_us",
        "time_hot_mad_us",
        "dram_gbps",
        "gflops",
        "dram_limit_percent",
        "registers",
        "smem_bytes",
        "worst_error_ratio",
        "build_key",
        "code_digest",
        "time_cold_samples",
        "sm_clock_mhz",
    ):
        assert failed[column] == "", column
    assert rows["0"]["spill_store_bytes"] == "0"


def test_the_ratio_to_a_bound_is_empty_where_the_family_states_none():
    (only,) = toy_study(1)[:1]
    bounded = replace(only, trial=1, accuracy=replace(only.accuracy, bound_ratio=0.25))
    rows = csv_rows([only, bounded])
    assert [rows[trial]["worst_bound_ratio"] for trial in "01"] == ["", "0.25"]


def test_a_machine_that_is_not_known_leaves_its_cells_empty():
    (only,) = toy_study(1)[:1]
    row = csv_rows([replace(only, environment=None, build=None)])["0"]
    assert [row[c] for c in ("gpu", "driver", "compiler", "torch", "power_limit_w")] == [""] * 5


def test_parameters_have_a_column_each_with_booleans_as_digits_and_absent_ones_empty():
    study = toy_study(40)
    rows = csv_rows(study)
    for m in study:
        row, configuration = rows[str(m.trial)], m.variant.configuration
        assert row["fast_math"] == ("1" if configuration["fast_math"] else "0")
        assert row["block_size"] == str(configuration["block_size"])
        assert row["algorithm"] == configuration["algorithm"]
        assert row["unroll"] == str(configuration.get("unroll", ""))


def test_a_parameter_named_like_another_column_keeps_both():
    family = toy().family
    clashing = replace(family, parameters=(*family.parameters, Parameter("status", (1, 2), 1, "a clash")))
    columns = measurements_table(toy_study(3), clashing).columns
    assert "status" in columns and "parameter_status" in columns


def test_rates_follow_from_the_familys_cost_and_the_cold_median():
    study = toy_study(3)
    row = table(study).set_index("trial").loc[0]
    seconds, elements = study[0].cold_us * 1e-6, 1 << 20
    assert row["dram_gbps"] == pytest.approx(8 * elements / seconds / 1e9)
    assert row["gflops"] == pytest.approx(elements / seconds / 1e9)
    assert row["dram_limit_percent"] == pytest.approx(100 * 8 * elements / 4.8e12 / seconds)


def test_no_limit_is_claimed_for_a_gpu_whose_bandwidth_is_not_known():
    unknown = replace(toy_study(1)[0], environment=replace(ENVIRONMENT, gpu_name="NVIDIA B999"))
    assert table([unknown])["dram_limit_percent"].isna().all()


def test_dynamic_shared_memory_is_that_of_the_plans_largest_launch():
    winner = row_sums_winner()
    (row,) = measurements_table([winner.measurement], winner.loaded.family).to_dict("records")
    assert row["smem_dynamic_bytes"] == 65536 and row["smem_bytes"] == 65536


def test_finalists_come_first_then_by_cold_time_and_failures_last():
    study = toy_study(30, mixed_status)
    rows = table(study)
    order = list(zip(rows["status"] == "ok", rows["effort"] == "full", rows["time_cold_median_us"], strict=True))
    right = [(full, time) for ok, full, time in order if ok]
    assert right == sorted(right, key=lambda pair: (not pair[0], pair[1]))
    assert [ok for ok, _, _ in order] == sorted((ok for ok, _, _ in order), reverse=True)


def test_the_order_of_rows_does_not_depend_on_the_order_of_measurements():
    study = toy_study(30, mixed_status)
    shuffled = random.Random(3).sample(study, len(study))
    assert csv_text(table(shuffled)) == csv_text(table(study))


@pytest.mark.parametrize("bad", [math.nan, 0.0, -1.0, math.inf])
def test_a_time_that_is_no_time_never_ranks_first_even_when_listed_first(bad: float):
    study = toy_study(10)
    spoilt = [with_cold(study[0], bad), *study[1:]]
    assert ranked(spoilt)[0].trial != 0
    assert ranked(spoilt)[-1].trial == 0
    assert math.isfinite(table(spoilt)["time_cold_median_us"].iloc[0])


def test_an_error_of_nan_is_written_as_nan_and_not_as_missing():
    m = toy_study(1)[0]
    wrong = replace(m, status=Status.WRONG, accuracy=replace(m.accuracy, max_abs=math.nan, worst_ratio=math.nan))
    row = csv_rows([wrong])["0"]
    assert row["max_abs_error"] == "nan" and row["worst_error_ratio"] == "nan"


def test_csv_text_reads_back_as_the_same_figures():
    study = toy_study(12, mixed_status)
    written = table(study)
    read = pd.read_csv(io.StringIO(csv_text(written)))
    assert list(read.columns) == list(written.columns)
    for name in ("time_cold_median_us", "registers", "block_size", "phase_build_s"):
        expected = written[name].astype("Float64").to_numpy(dtype=float, na_value=math.nan)
        assert read[name].to_numpy(dtype=float) == pytest.approx(expected, rel=1e-6, nan_ok=True)


def test_a_detail_with_line_breaks_commas_and_quotes_stays_one_cell():
    detail = 'error: expected ";", got\n"}"'
    broken = replace(toy_study(1)[0], status=Status.BUILD_FAILED, detail=detail)
    assert csv_rows([broken])["0"]["detail"] == detail


def test_nothing_measured_is_a_table_with_columns_and_no_rows():
    empty = table([])
    assert len(empty) == 0 and "time_cold_median_us" in empty.columns
    assert csv_text(empty).startswith("trial,configuration_id,problem,status,source,")


def test_a_finalist_found_wrong_outweighs_the_searchs_pass():
    first = toy_study(1)[0]
    demoted = replace(first, trial=9, status=Status.WRONG, effort=Effort.FULL)
    assert standing([first, demoted]) == [demoted]


def test_a_failure_of_the_machine_that_went_away_does_not_count():
    passed = toy_study(1)[0]
    crashed = replace(passed, status=Status.CRASHED, cold=None, hot=None)
    assert standing([crashed, passed]) == [passed]
