"""`ktune report`: what a study found, as text, CSV, HTML and Parquet; two studies side by side."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import RESULTS, ConfigOption, DebugOption, JsonOption, ProblemOption, ResultsOption, StudyOption
from ktune.core.errors import UsageError

if TYPE_CHECKING:
    from ktune.output.summary import Report

ROWS = 10


def report(
    studies: Annotated[
        list[str] | None,
        typer.Argument(metavar="[STUDY] [STUDY]", help="Names, folders or a family: its latest. Two are compared."),
    ] = None,
    problem: ProblemOption = None,
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where the files go, instead of the study.")
    ] = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Summarise a study and write measurements.csv, report.html and, with pyarrow, measurements.parquet.

    Example: ktune report selective_scan
    """
    with faults(debug):
        names = [*(studies or []), *([study] if study else [])]
        if len(names) > 2:
            raise UsageError(f"report takes one study, or two to compare, got {len(names)}")
        if len(names) == 2:
            _compare(names, results, output, json_)
        else:
            _report(names[0] if names else "", results, problem, output, json_)


def _report(name: str, results: Path, problem: list[str] | None, output: Path | None, as_json: bool) -> None:
    from ktune.cli.results import report_of
    from ktune.cli.several_results import find_several, refuse_choices, report_several
    from ktune.cli.studies import open_study
    from ktune.output.report import write_report
    from ktune.output.summary import summary_lines
    from ktune.output.table import measurements_table

    together = find_several(name, results)
    if together is not None:
        refuse_choices(together, problem=problem)
        report_several(together, output, as_json)
        return
    opened = open_study(name, results, problem)
    with opened.study as study:
        found = report_of(study, opened.loaded)
        written = write_report(found, output or study.folder)
    if as_json:
        table = measurements_table(found.measurements, found.family)
        rows = json.loads(table.to_json(orient="records"))
        typer.echo(json.dumps({"format": 1, "study": found.name, "measurements": rows}, indent=2))
    else:
        typer.echo(f"{found.name}\n" + "\n".join([*summary_lines(found), "", *_top_lines(found)]))
    for path in written.paths:
        typer.echo(f"wrote {path}", err=True)
    for note in written.notes:
        typer.echo(note, err=True)


def _top_lines(report: Report) -> list[str]:
    """The fastest configurations, at most ROWS of them."""
    from ktune.output.ranking import has_time, ranked, standing
    from ktune.output.rounding import interval, median
    from ktune.output.summary import source_mark

    timed = [m for m in ranked(standing(report.measurements)) if has_time(m)]
    if not timed:
        return []
    mark = source_mark(report.measurements)
    lines = [_row("trial", "cold us", "95 % interval", "hot us", "registers", "timing", "configuration")]
    for m in timed[:ROWS]:
        registers = str(m.build.registers) if m.build else "-"
        span = interval(m.cold) if m.cold else "-"
        identity = report.identify(m.variant.configuration)
        row = _row(f"#{m.trial}", median(m.cold), span, median(m.hot), registers, m.effort.value, identity)
        lines.append(f"{row}{mark}")
    more = len(timed) - ROWS
    return [*lines, f"{more} more in measurements.csv"] if more > 0 else lines


def _row(trial: str, cold: str, span: str, hot: str, registers: str, timing: str, identity: str) -> str:
    return f"{trial:>6}  {cold:>9}  {span:>20}  {hot:>9}  {registers:>9}  {timing:<6}  {identity}"


def _compare(names: list[str], results: Path, output: Path | None, as_json: bool) -> None:
    from ktune.cli.studies import open_study
    from ktune.output.compare import compare_studies, comparison_lines
    from ktune.output.report import write_csv
    from ktune.output.summary import source_mark, unmeasured_note

    first, second = (open_study(name, results) for name in names)
    with first.study as a, second.study as b:
        if a.family != b.family:
            raise UsageError(
                f"{a.name} is a study of {a.family}, {b.name} of {b.family}; compare studies of one family"
            )
        table = compare_studies(first.loaded.family, a.measurements(), b.measurements())
        measurements = (a.measurements(), b.measurements())
        noted = [f" ({note})" if (note := unmeasured_note(found)) else "" for found in measurements]
        mark = source_mark([m for found in measurements for m in found])
        lines = [f"first:  {a.name}{noted[0]}", f"second: {b.name}{noted[1]}"]
        lines += [f"{line}{mark}" for line in comparison_lines(table)]
    if as_json:
        typer.echo(json.dumps({"format": 1, "rows": json.loads(table.to_json(orient="records"))}, indent=2))
    else:
        typer.echo("\n".join(lines))
    if output is not None:
        typer.echo(f"wrote {write_csv(table, output / 'comparison.csv')}", err=True)
