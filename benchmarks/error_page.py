"""What benchmarks/error_and_time.py found, as one HTML page that stands alone: error over time, and a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape

from ktune.output.charts import Level, Mark, scatter
from ktune.output.markup import paragraph, row, table
from ktune.output.rounding import microseconds
from ktune.output.style import STYLE

MEASURED = "measured"
KINDS = {"normal": "x from N(0, 1)", "uniform": "x from U[0, 1)"}
# Light and dark enough for both of the style sheet's backgrounds.
COLOURS = ("#2a78b5", "#d1495b", "#3c8d5a", "#b7791f", "#8e5bb5", "#1c8f94", "#8a8a8a", "#c05a8a", "#6b7f2a")
SIZE = (920, 520)
HEAD = ("product", "fp32 sums every", "cold median, us", "95 % interval", "elementwise", "componentwise", "normwise",
        "verdict")  # fmt: skip


@dataclass(frozen=True)
class Point:
    """One scheme at one promotion interval on one kind of inputs.

    promote_k: columns after which sums move to fp32; None for schemes that have no such interval. Errors are fractions
    of what the family allows, by each of its rules; 1 is the limit. reason: why it is wrong; empty if it is right.
    """

    scheme: str
    promote_k: int | None
    inputs: str
    time_us: float
    low_us: float
    high_us: float
    elementwise: float
    componentwise: float
    normwise: float
    reason: str

    @property
    def worst(self) -> float:
        """Of the three; NaN if one is."""
        errors = (self.elementwise, self.componentwise, self.normwise)
        return math.nan if any(math.isnan(error) for error in errors) else max(errors)


def error_page(points: Sequence[Point], facts: Mapping[str, str], source: str, depth: int) -> str:
    """The page. facts: what, on what, when. source: MEASURED, or what the figures are instead. depth: K."""
    schemes = list(dict.fromkeys(point.scheme for point in points))
    colours = {scheme: COLOURS[i % len(COLOURS)] for i, scheme in enumerate(schemes)}
    styles = "".join(
        f".mark.{_style(scheme)} {{ fill: {colour}; fill-opacity: 1; }} .mark.{_style(scheme)}.wrong {{ "
        f"fill: var(--page); stroke: {colour}; stroke-width: 1.6; }} svg text.{_style(scheme)} {{ fill: {colour}; }} "
        for scheme, colour in colours.items()
    )
    body = ["<h1>Error and time of linear + swish + scale</h1>"]
    body.append(paragraph("; ".join(f"{name} {value}" for name, value in facts.items()), "lead"))
    if source != MEASURED:
        body.append(paragraph(f"Not a measurement: {source}.", "warning"))
    for kind, name in KINDS.items():
        found = [point for point in points if point.inputs == kind]
        if found:
            body += [f"<h2>{escape(name)}</h2>", _figure(found, source, depth), _table(found, depth)]
    head = [
        "<!doctype html>",
        '<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width, initial-scale=1">',
        "<title>Error and time</title>",
        f"<style>{STYLE}{styles}</style></head><body><main>",
    ]
    return "\n".join([*head, *body, "</main></body></html>", ""])


def interval_text(point: Point, depth: int) -> str:
    """`1,024`, `never` where sums stay in the tensor cores for all of K, or nothing."""
    if point.promote_k is None:
        return ""
    return "never" if point.promote_k >= depth else f"{point.promote_k:,}"


def _figure(points: Sequence[Point], source: str, depth: int) -> str:
    drawn = sorted((p for p in points if math.isfinite(p.worst) and p.worst > 0), key=lambda p: -p.worst)
    if not drawn:
        return paragraph("No error is finite, so nothing is drawn.", "warning")
    named: set[str] = set()
    marks = []
    for point in drawn:
        # the topmost of each scheme has its name
        name = "" if point.scheme in named else point.scheme
        named.add(point.scheme)
        label = " ".join(filter(None, (name, interval_text(point, depth))))
        style = _style(point.scheme) + (" wrong" if point.reason else "")
        what = f"{point.scheme} {interval_text(point, depth)}".strip()
        title = f"{what}: {microseconds(point.time_us)} us, {point.worst:.2g} of the limit"
        marks.append(Mark(point.time_us, point.worst, style, title, label))
    axis = ("cold median, us", "worst error, fraction of allowed")
    chart = scatter(marks, [], [Level(1.0, "floor", "limit: wrong above")], axis, SIZE, (True, True))
    caption = (
        "Each mark is a product of the matrices, with the number of columns after which its sums move to fp32; filled "
        "if it is right, hollow if it is wrong. The error is the largest of the three in the table, each as a fraction "
        f"of what is allowed. Lower left is better. Both axes are logarithmic. Source: {source}."
    )
    return f"<figure>{chart}<figcaption>{escape(caption)}</figcaption></figure>"


def _table(points: Sequence[Point], depth: int) -> str:
    def texts(point: Point) -> tuple[str, ...]:
        noise = (point.high_us - point.low_us) / 2
        errors = (f"{error:.2g}" for error in (point.elementwise, point.componentwise, point.normwise))
        low, high = microseconds(point.low_us, noise), microseconds(point.high_us, noise)
        shown = (microseconds(point.time_us, noise), f"[{low}, {high}]")
        return (
            point.scheme,
            interval_text(point, depth),
            *shown,
            *errors,
            f"wrong: {point.reason}" if point.reason else "right",
        )

    ordered = sorted(points, key=lambda point: (bool(point.reason), point.time_us))
    return table(HEAD, [row(*texts(point)) for point in ordered])


def _style(scheme: str) -> str:
    """As a class of the style sheet."""
    return "scheme-" + "".join(letter if letter.isalnum() else "-" for letter in scheme)
