"""report.html and the terminal's summary: what they say, and that they say it safely."""

from __future__ import annotations

import importlib.util
import math
import re
import xml.etree.ElementTree as ElementTree
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest

from ktune.core.model import Effort, Measurement, Source, Status
from ktune.output import report as report_module
from ktune.output.page import html_page
from ktune.output.report import write_report
from ktune.output.rounding import microseconds
from ktune.output.summary import Finding, Report, failure_reasons, status_counts, summary_lines
from tests.output.studies import mixed_status, row_sums_winner, toy, toy_study

VOID = {"meta", "br", "wbr"}


class Balance(HTMLParser):
    """Fails on a tag that is not closed in order; collects the visible text."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: object) -> None:
        """`<line/>`: closed by itself."""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] != "style":
            self.text += f"{data}\n"


def report_of(measurements: list[Measurement], **more: object) -> Report:
    return Report("toy-study", toy().family, measurements, **more)


def text_of(report: Report) -> str:
    parser = Balance()
    parser.feed(html_page(report))
    assert parser.open == []
    return parser.text


def test_the_page_names_winner_default_environment_counts_and_reasons():
    study = toy_study(40, mixed_status)
    text = text_of(report_of(study, command="ktune search toy"))
    winner = report_of(study).finding(study[0].problem).winner
    assert f"#{winner.trial}" in text
    assert microseconds(winner.cold.median_us, winner.cold.ci_high_us - winner.cold.ci_low_us) in text
    for expected in (
        "over the default",
        "Fake H200",
        "580.0 (CUDA 13.0)",
        "planted: wrong",
        "ktune search toy",
        "Memory limit: 8.389 MB",
        "time_cold_median_us",
    ):
        assert expected in text, expected


def test_the_page_needs_no_network_and_runs_no_script():
    page = html_page(report_of(toy_study(40, mixed_status)))
    assert not re.search(r"<script|<link|<img|<iframe|@import|url\(|https?:|src=|\son\w+=", page)


def test_every_figure_is_well_formed_svg_with_finite_coordinates():
    page = html_page(report_of(toy_study(60, mixed_status)))
    figures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    assert len(figures) >= 6
    for figure in figures:
        ElementTree.fromstring(figure)
        assert "nan" not in figure and "inf" not in figure


def test_every_figure_says_where_its_numbers_come_from():
    page = html_page(report_of(toy_study(40, mixed_status)))
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert len(captions) >= 3
    assert all("Source: fake" in caption for caption in captions)


@pytest.mark.parametrize(
    ("source", "warned"), [(Source.MEASURED, False), (Source.REPLAYED, True), (Source.CPU, True), (Source.FAKE, True)]
)
def test_what_was_not_measured_is_headed_by_a_warning(source: Source, warned: bool):
    study = [replace(m, source=source) for m in toy_study(8)]
    assert ("Not a measurement" in text_of(report_of(study))) is warned


def test_text_of_families_compilers_and_users_is_escaped():
    evil = "<script>alert('x')</script>&"
    study = toy_study(8)
    study[1] = replace(study[1], status=Status.BUILD_FAILED, detail=evil)
    page = html_page(report_of(study, command=evil))
    assert "<script" not in page and "&lt;script&gt;alert" in page
    winner = row_sums_winner()
    page = html_page(Report("r", winner.loaded.family, [winner.measurement]))
    assert "<b>split</b>" not in page and "&lt;b&gt;split&lt;/b&gt;" in page


def test_a_study_where_nothing_passed_says_so_with_its_reasons():
    study = toy_study(12, lambda request: Status.WRONG if request.trial % 2 else Status.CRASHED)
    text = text_of(report_of(study))
    assert "No variant is both right and timed" in text
    assert "planted: wrong" in text and "planted: crashed" in text
    assert summary_lines(report_of(study)) == [
        "12 variants: 6 crashed, 6 wrong (fake: from a formula, not from a GPU)",
        "no variant is both right and timed (fake)",
        "    6 crashed       planted: crashed (fake)",
        "    6 wrong         planted: wrong (fake)",
    ]


def test_an_empty_study_is_a_page_too():
    assert "Nothing measured yet" in text_of(report_of([]))
    assert summary_lines(report_of([])) == []


def test_a_study_whose_only_pass_has_a_time_of_nan_has_no_winner():
    (only,) = toy_study(1)[:1]
    spoilt = replace(only, cold=replace(only.cold, median_us=math.nan))
    assert report_of([spoilt]).finding(only.problem) is None
    assert "No variant is both right and timed" in text_of(report_of([spoilt]))


def test_one_measurement_alone_can_be_drawn():
    text_of(report_of(toy_study(1)[:1]))


def test_the_given_finding_is_the_winner_and_its_ties_and_noise_are_told():
    study = toy_study(30)
    chosen, other = study[4], study[5]
    given = report_of(study, findings=[Finding(chosen, (other,), 0.4)])
    lines = summary_lines(given)
    assert lines[1].startswith(f"winner #{chosen.trial} ")
    assert f"tied: #{other.trial}" in lines[3] and "noise 0.4 %" in lines[3]
    assert "noise floor 0.4 %" in text_of(given)


def test_a_winner_slower_than_the_default_is_called_that():
    study = toy_study(30)
    slowest = max(study[:30], key=lambda m: m.cold_us)
    lines = summary_lines(report_of(study, findings=[Finding(slowest)]))
    assert "slower than the default" in lines[3] and "keep it" in lines[3]


def finding_against_default(winner_us: float, default_us: float, noise_percent: float, **more) -> Report:
    """Intervals of 0.2 us; no other variant."""
    default, winner = toy_study(2)[:2]
    timed = [
        replace(m, effort=Effort.FULL, cold=replace(m.cold, median_us=us, ci_low_us=us - 0.1, ci_high_us=us + 0.1))
        for m, us in ((default, default_us), (winner, winner_us))
    ]
    return report_of(timed, findings=[Finding(timed[1], noise_percent=noise_percent, default=timed[0], **more)])


@pytest.mark.parametrize(
    ("winner_us", "noise_percent", "told"),
    [
        (50.0, 0.4, "2x faster than the default"),
        (99.9, 0.4, "tied with the default"),
        (98.0, 3.0, "tied with the default"),
        (200.0, 0.4, "2x slower than the default"),
    ],
    ids=["faster", "intervals-overlap", "within-the-noise", "slower"],
)
def test_the_winner_is_faster_slower_or_tied_by_interval_and_noise(winner_us, noise_percent, told):
    report = finding_against_default(winner_us, 100.0, noise_percent)
    assert told in "\n".join(summary_lines(report))
    assert told in text_of(report)


def test_a_warning_of_the_environment_is_shown_beside_the_winner():
    report = finding_against_default(50.0, 100.0, 2.5, warnings=("the noise floor is 2.5 %",))
    assert "  warning: the noise floor is 2.5 % (fake)" in summary_lines(report)
    assert "Warning: the noise floor is 2.5 %" in text_of(report)


def test_the_fastest_are_listed_with_their_verdict_against_the_winner():
    report = finding_against_default(50.0, 100.0, 0.4)
    rows = re.findall(r"<tr[^>]*>(?:(?!</tr>).)*#\d(?:(?!</tr>).)*</tr>", html_page(report), re.DOTALL)
    assert [("winner" in row, "slower" in row) for row in rows if "full" in row] == [(True, False), (False, True)]


def test_the_winner_is_listed_first_and_ringed_also_where_a_tied_one_reads_less():
    study = toy_study(30)
    slower, faster = sorted(
        (m for m in study if m.effort is Effort.FULL or m.trial in (4, 5)), key=lambda m: -m.cold_us
    )[:2]
    page = html_page(report_of(study, findings=[Finding(slower, (faster,), 0.4)]))
    table = page[page.index("The winner and the next best") :]
    assert re.search(r"#\d+", table).group() == f"#{slower.trial}"
    (ringed,) = re.findall(r'class="mark won".*?<title>(.*?)</title>', page)
    assert ringed.startswith(f"winner #{slower.trial} ")


def test_long_ids_outside_tables_may_break_after_their_dots():
    study = toy_study(30)
    page = html_page(report_of(study, findings=[Finding(study[4], (study[5], study[6]), 0.4)]))
    shown = page[: page.index("<table")]
    for m in (study[4], study[5], study[6]):
        name = report_of(study).identify(m.variant.configuration)
        assert f"<code>{name.replace('.', '.<wbr>')}</code>" in shown and f"{name}<" not in shown


def test_several_problems_have_a_section_and_a_winner_each():
    both = report_of([*toy_study(6, problem="default"), *toy_study(6, problem="small")])
    text = text_of(both)
    assert "N1048576" in text and "N1000" in text
    assert [line for line in summary_lines(both) if line.startswith("problem")] == ["problem N1048576", "problem N1000"]


def test_a_finalist_counts_once_and_culled_is_no_failure():
    study = toy_study(20, mixed_status)
    assert sum(status_counts(study).values()) == 20
    assert status_counts(study)[Status.CULLED] == 2
    assert {status for status, _, _ in failure_reasons(study)} == {
        Status.WRONG,
        Status.BUILD_FAILED,
        Status.CRASHED,
        Status.SPILLED,
    }


@pytest.mark.parametrize(
    ("value", "noise", "shown"),
    [
        (97.94321, 0.45, "97.9"),
        (97.94321, 2.0, "98"),
        (1234.5678, 0.02, "1,234.57"),
        (0.52345, 0.0, "0.523"),
        (None, 0.1, "n/a"),
        (math.nan, 0.1, "nan"),
        (104.0, 0.0, "104.0"),
    ],
)
def test_times_are_rounded_to_their_noise(value: float | None, noise: float, shown: str):
    assert microseconds(value, noise) == shown


def test_a_report_is_three_files_and_the_same_each_time(tmp_path: Path):
    report = report_of(toy_study(15, mixed_status))
    written = write_report(report, tmp_path)
    names = {"measurements.csv", "report.html"} | (
        {"measurements.parquet"} if importlib.util.find_spec("pyarrow") else set()
    )
    assert {path.name for path in written.paths} == names == {path.name for path in tmp_path.iterdir()}
    before = {path: path.read_bytes() for path in written.paths if path.suffix != ".parquet"}
    write_report(report, tmp_path)
    assert {path: path.read_bytes() for path in before} == before


def test_parquet_holds_the_same_table_as_csv(tmp_path: Path):
    pytest.importorskip("pyarrow")
    import pandas as pd

    write_report(report_of(toy_study(15, mixed_status)), tmp_path)
    parquet, csv = pd.read_parquet(tmp_path / "measurements.parquet"), pd.read_csv(tmp_path / "measurements.csv")
    assert list(parquet.columns) == list(csv.columns)
    assert parquet["time_cold_median_us"].to_numpy(float) == pytest.approx(
        csv["time_cold_median_us"].to_numpy(float), rel=1e-6, nan_ok=True
    )
    assert parquet["registers"].isna().sum() == csv["registers"].isna().sum() > 0


def test_without_pyarrow_the_rest_is_written_and_the_remedy_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(report_module.importlib.util, "find_spec", lambda name: None)
    written = write_report(report_of(toy_study(5)), tmp_path)
    assert {path.name for path in written.paths} == {"measurements.csv", "report.html"}
    assert "pip install 'ktune-cuda[parquet]'" in written.notes[0]
