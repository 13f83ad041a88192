"""The page of a search of several problems: the loss matrix, and the way to each problem's own report."""

from __future__ import annotations

import os
from html import escape
from pathlib import Path

from ktune import __version__
from ktune.core.identity import value_text
from ktune.core.model import Measurement
from ktune.output.markup import environment_tables, paragraph, row, table
from ktune.output.page import MARK
from ktune.output.rounding import interval, median
from ktune.output.several import (
    Several,
    cell_text,
    compromise_lines,
    loss_text,
    mean_loss_percent,
    problem_title,
    roles,
    unfinished_lines,
)
from ktune.output.style import STYLE
from ktune.search.matrix import Row, Searched

REPORT_NAME = "report.html"


def several_page(several: Several, folder: Path) -> str:
    """The whole page, for a file in `folder`. Everything that comes from a family or a user is escaped."""
    family = several.loaded.family
    matrix = several.matrix
    body = [f"<h1>{escape(family.name)}</h1>", paragraph(family.summary, "lead")]
    if not several.measured:
        body.append(paragraph(f"Not a measurement: {several.sources}.", "warning"))
    body += [paragraph(line, "warning") for line in unfinished_lines(several)]
    body += [f"<h2>{len(matrix.columns) + len(matrix.without)} problems</h2>", _problems(several, folder)]
    body += [
        paragraph(f"{problem_title(one)}: no variant is both right and timed.", "warning") for one in matrix.without
    ]
    if matrix.columns:
        body += ["<h2>Each configuration on every problem</h2>", *map(paragraph, compromise_lines(several))]
        body += [_matrix(several), paragraph(f"{_LEGEND} Source: {several.sources}.", "source")]
        body += ["<h2>Configurations</h2>", _configurations(several)]
        body += ["<h2>Environment</h2>", *environment_tables(_measurements(several))]
    command = f"<code>{escape(several.command)}</code><br>" if several.command else ""
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        f'{MARK} {escape(__version__)}">',
        f"<title>ktune: {escape(several.folder.name)}</title>",
        f"<style>{STYLE}</style></head><body><main>",
    ]
    footer = f"<footer>{command}{escape(several.folder.name)} · ktune {__version__} · format 1</footer>"
    return "\n".join([*head, *body, footer, "</main></body></html>", ""])


_LEGEND = (
    "Cold median in us, and per cent over the problem's own winner (*); bold: the best compromise. invalid: a rule of "
    "the family, or the values that the search was narrowed to, exclude the configuration there. -: not measured."
)


def _problems(several: Several, folder: Path) -> str:
    rows = []
    for one, winner in zip(several.matrix.columns, several.winners, strict=True):
        cold = winner.measurement.cold
        shown = row(one.problem.label, f"{median(cold)} {interval(cold) if cold else ''}", winner.identity)
        rows.append(shown.replace("<tr>", f"<tr><td>{_link(one, folder)}</td>", 1))
    rows += [
        row(one.problem.label, "n/a", "").replace("<tr>", f"<tr><td>{_link(one, folder)}</td>", 1)
        for one in several.matrix.without
    ]
    return table(("problem", "sizes", "winner's cold median [95 %], us", "winner"), rows)


def _link(one: Searched, folder: Path) -> str:
    way = os.path.relpath((one.study.folder / REPORT_NAME).resolve(), folder.resolve())
    # The style sheet has no links; a browser's own colour is for light pages only.
    return f'<a style="color: var(--accent)" href="{escape(Path(way).as_posix(), quote=True)}">{escape(one.name)}</a>'


def _matrix(several: Several) -> str:
    """A row per configuration, a column per problem. The compromise is bold."""
    rows = []
    for found in several.matrix.rows:
        cells = [cell_text(cell, number in found.wins) for number, cell in enumerate(found.cells)]
        mean = mean_loss_percent(found)
        overall = "n/a" if mean is None else f"{loss_text(mean)} %"
        rows.append(row(several.key(found), *cells, overall, style=_style(several, found)))
    return table(("", *several.names, "mean loss"), rows, "matrix")


def _configurations(several: Several) -> str:
    rows = []
    for found in several.matrix.rows:
        told = "; ".join(roles(several, found)) or "tied with a winner"
        rows.append(row(several.key(found), found.identity, told, style=_style(several, found)))
    names = list(dict.fromkeys(name for found in several.matrix.rows for name in found.configuration))
    values = [row(name, *(_value(found, name) for found in several.matrix.rows)) for name in names]
    keys = [several.key(found) for found in several.matrix.rows]
    return table(("", "configuration", "what it is"), rows) + table(("parameter", *keys), values, "values")


def _value(found: Row, name: str) -> str:
    return value_text(found.configuration[name]) if name in found.configuration else ""


def _style(several: Several, found: Row) -> str:
    return "winner" if found is several.matrix.compromise else ""


def _measurements(several: Several) -> list[Measurement]:
    return [winner.measurement for winner in several.winners]
