"""The HTML report: one file that opens anywhere, without scripts or network."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from ktune import __version__
from ktune.core.identity import value_text
from ktune.core.model import Measurement, Problem
from ktune.output.charts import bars
from ktune.output.columns import glossary
from ktune.output.figures import marginal_figure, trial_figure
from ktune.output.limits import dram_floor_us
from ktune.output.markup import card, environment_tables, figure, identity, paragraph, row, table
from ktune.output.ranking import default_measurement, has_time, rank_key, standing
from ktune.output.rounding import interval, median, microseconds, ratio
from ktune.output.style import STYLE
from ktune.output.summary import (
    Finding,
    Report,
    comparison,
    counts_line,
    failure_reasons,
    source_mark,
    source_note,
    status_counts,
    unmeasured_note,
)
from ktune.study.verdict import Speed

MARK = '<meta name="generator" content="ktune'
TOP = 20


def html_page(report: Report) -> str:
    """The whole page. Everything that comes from a family, a compiler or a user is escaped."""
    body = [f"<h1>{escape(report.family.name)}</h1>", paragraph(report.family.summary, "lead")]
    if note := unmeasured_note(report.measurements):
        body.append(paragraph(f"Not a measurement: {note}.", "warning"))
    if not report.measurements:
        body.append(paragraph("Nothing measured yet."))
    for problem in report.problems:
        body += _problem_section(report, problem)
    environments = environment_tables(report.measurements)
    if environments:
        body += ["<h2>Environment</h2>", *environments]
    body.append(_glossary(report))
    body.append(_footer(report))
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'{MARK} {escape(__version__)}">',
        f"<title>ktune: {escape(report.name)}</title>",
        f"<style>{STYLE}</style></head><body><main>",
    ]
    return "\n".join([*head, *body, "</main></body></html>", ""])


def _problem_section(report: Report, problem: Problem) -> list[str]:
    measurements = report.of_problem(problem)
    finding = report.finding(problem)
    parts = [f"<h2>{escape(problem.label)}</h2>"]
    if finding is None:
        parts.append(paragraph("No variant is both right and timed; the reasons are below.", "warning"))
    else:
        parts += _headline(report, finding, measurements)
    parts.append(paragraph(f"{counts_line(measurements)}{source_mark(measurements)}."))
    parts += trial_figure(report, problem)
    parts += _leaders(report, measurements, finding)
    parts += marginal_figure(report, problem)
    return parts + _endings(measurements)


def _headline(report: Report, finding: Finding, measurements: Sequence[Measurement]) -> list[str]:
    winner = finding.winner
    mark = source_mark([winner])
    notes = [comparison(finding)]
    if finding.noise_percent is not None:
        notes.append(f"noise floor {finding.noise_percent:.2g} % (the same binary against itself in fresh processes)")
    told = [f"<li>{escape(f'{note}{mark}')}</li>" for note in notes if note]
    if finding.tied:
        told.append(f"<li>{_tied(report, finding, mark)}</li>")
    return [
        f'<div class="cards">{"".join(_cards(report, winner, measurements))}</div>',
        paragraph(f"Winner: #{winner.trial}, effort {winner.effort}. Source: {source_note([winner])}.", "source"),
        f"<p>{identity(report.identify(winner.variant.configuration))}</p>",
        f"<ul>{''.join(told)}</ul>" if told else "",
        *(paragraph(f"Warning: {warning}.", "warning") for warning in finding.warnings),
        _configuration_table(report, winner, measurements),
    ]


def _tied(report: Report, finding: Finding, mark: str) -> str:
    """The variants that are as fast as the winner, one below the other, and why they did not win."""
    lines = [
        f"<li>#{m.trial} {median(m.cold)} us {identity(report.identify(m.variant.configuration))}</li>"
        for m in finding.tied
    ]
    rule = "of equals the default wins, then the one with fewer registers, then with fewer changes"
    return f"{escape(f'cannot be told from it ({rule}){mark}:')}<ul>{''.join(lines)}</ul>"


def _cards(report: Report, winner: Measurement, measurements: Sequence[Measurement]) -> list[str]:
    assert winner.cold is not None
    mark = source_mark([winner])
    cards = [card(f"cold median{mark}", f"{median(winner.cold)} us", f"95 %: {interval(winner.cold)}")]
    if winner.hot is not None:
        cards.append(card(f"hot median{mark}", f"{median(winner.hot)} us", f"95 %: {interval(winner.hot)}"))
    default = default_measurement(report.family, measurements)
    if default is not None and default.cold is not None and has_time(default):
        gain = ratio(default.cold.median_us / winner.cold.median_us)
        cards.append(card(f"speed-up over the default{mark}", gain, f"default: {median(default.cold)} us"))
    floor_us = dram_floor_us(report.family.cost(winner.problem), winner.environment)
    if floor_us is not None:
        share = 100 * floor_us / winner.cold.median_us
        cards.append(card(f"share of the memory limit{mark}", f"{share:.3g} %", f"limit: {microseconds(floor_us)} us"))
    if winner.accuracy is not None:
        worst = f"{winner.accuracy.worst_ratio:.2g}"
        cards.append(card(f"error / tolerance{mark}", worst, f"max |error|: {winner.accuracy.max_abs:.2g}"))
    return cards


def _configuration_table(report: Report, winner: Measurement, measurements: Sequence[Measurement]) -> str:
    default = default_measurement(report.family, measurements)
    rows = []
    for name, value in winner.variant.configuration.items():
        before = None if default is None else default.variant.configuration.get(name)
        shown = "n/a" if before is None else value_text(before)
        style = "changed" if shown != value_text(value) else ""
        rows.append(row(name, value_text(value), shown, report.family.parameter(name).help, style=style))
    return table(("parameter", "winner", "default", "meaning"), rows)


def _leaders(report: Report, measurements: Sequence[Measurement], finding: Finding | None) -> list[str]:
    def order(m: Measurement) -> tuple[bool, tuple[bool, bool, float, int]]:
        return finding is None or m.variant != finding.winner.variant, rank_key(m)

    fastest = sorted((m for m in standing(measurements) if has_time(m)), key=order)[:TOP]
    if not fastest:
        return []
    rows = []
    for m in fastest:
        assert m.cold is not None
        error = "n/a" if m.accuracy is None else f"{m.accuracy.worst_ratio:.2g}"
        registers = "n/a" if m.build is None else str(m.build.registers)
        cold = f"{median(m.cold)} {interval(m.cold)}"
        won = finding is not None and m.variant == finding.winner.variant
        against = finding.verdict_against(m) if finding and m.effort is finding.winner.effort else None
        speed = "n/a" if against is None else "winner" if won else _SEEN_FROM_IT[against]
        identity = report.identify(m.variant.configuration)
        cells = (f"#{m.trial}", identity, cold, speed, median(m.hot), error, registers, m.effort.value)
        rows.append(row(*cells, style="winner" if won else ""))
    head = ("trial", "configuration", "cold median [95 %], us", "verdict", "hot, us", "error / tolerance", "registers")
    note = paragraph(
        "The winner is first, then what was timed in full, then what only the search timed, briefly; the fastest "
        "first in each. Verdict: against the winner, by intervals and noise floor; n/a where the two were timed by "
        f"different protocols. Source: {source_note(fastest)}.",
        "source",
    )
    return ["<h3>The winner and the next best</h3>", table((*head, "effort"), rows, "numbers"), note]


# The winner's verdict on another, as the other's on the winner.
_SEEN_FROM_IT = {Speed.FASTER: Speed.SLOWER, Speed.SLOWER: Speed.FASTER, Speed.TIED: Speed.TIED}


def _endings(measurements: Sequence[Measurement]) -> list[str]:
    counts = status_counts(measurements)
    chart = bars([(status.value, count) for status, count in counts.items()])
    parts = ["<h3>How variants ended</h3>", figure(chart, "Variants by status.", measurements)]
    reasons = failure_reasons(measurements)
    if reasons:
        rows = [row(status.value, str(count), reason) for status, reason, count in reasons[:TOP]]
        parts.append(table(("status", "variants", "reason"), rows))
    if len(reasons) > TOP:
        parts.append(paragraph(f"{len(reasons) - TOP} more reasons are in measurements.csv, column `detail`."))
    return parts


def _glossary(report: Report) -> str:
    rows = [row(name, meaning) for name, meaning in glossary(report.family, report.measurements)]
    columns = table(("column", "meaning"), rows)
    return f"<details><summary>Columns of measurements.csv</summary>{columns}</details>"


def _footer(report: Report) -> str:
    parts = [f"study {report.name}", f"ktune {__version__}", "format 1"]
    command = f"<code>{escape(report.command)}</code><br>" if report.command else ""
    return f"<footer>{command}{escape(' · '.join(parts))}</footer>"
