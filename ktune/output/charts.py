"""Figures as inline SVG: no script, no network, colours from the page's style sheet."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ktune.output.rounding import microseconds

_LEFT, _RIGHT, _TOP, _BOTTOM = 62, 14, 14, 34
# Pixels that a letter and a line of text beside a point may take.
_LETTER, _LINE = 6.4, 14


@dataclass(frozen=True)
class Mark:
    """One point: position, class of the style sheet (`search`, `full`, `culled`, `won`), and what hovering shows.

    label: what stands beside it.
    """

    x: float
    y: float
    style: str
    title: str
    label: str = ""


@dataclass(frozen=True)
class Level:
    """A horizontal line across the figure, with its name."""

    y: float
    style: str
    name: str


class Scale:
    """Maps data to pixels, by logarithm where the data span more than a factor of 8."""

    def __init__(self, low: float, high: float, start: float, end: float, *, logarithmic: bool | None = None) -> None:
        self.logarithmic = _spans_much(low, high) if logarithmic is None else logarithmic
        self.low, self.high, self.start, self.end = low, high, start, end

    def __call__(self, value: float) -> float:
        if self.high <= self.low:
            return (self.start + self.end) / 2
        if self.logarithmic:
            part = math.log(value / self.low) / math.log(self.high / self.low)
        else:
            part = (value - self.low) / (self.high - self.low)
        return self.start + part * (self.end - self.start)

    def ticks(self) -> list[float]:
        """Round numbers inside the range, about five."""
        if self.high <= self.low:
            return [self.low]
        if self.logarithmic:
            return _logarithmic_ticks(self.low, self.high)
        step = _round_step((self.high - self.low) / 5)
        first = math.ceil(self.low / step)
        return [i * step for i in range(first, math.floor(self.high / step) + 1)]


def scatter(
    marks: Sequence[Mark],
    steps: Sequence[tuple[float, float]],
    levels: Sequence[Level],
    axis: tuple[str, str],
    size: tuple[int, int] = (900, 340),
    logarithmic: tuple[bool, bool | None] = (False, None),
) -> str:
    """Points over x, the staircase `steps` of the best so far, and horizontal levels. axis: names of x and y.

    logarithmic: whether x and y are; None is where the data span much.
    """
    width, height = size
    heights = [m.y for m in marks] + [level.y for level in levels]
    low, high = min(m.x for m in marks), max(m.x for m in marks)
    if logarithmic[0]:
        low, high = low / 1.1, high * 1.1
    x = Scale(low, high, _LEFT + 8, width - _RIGHT - 8, logarithmic=logarithmic[0])
    low, high = _padded(min(heights), max(heights))
    y = Scale(low, high, height - _BOTTOM, _TOP, logarithmic=logarithmic[1])
    parts = [_frame(size), *_horizontal_axis(x, axis[0], size), *_vertical_axis(y, axis[1], size)]
    if steps:
        parts.append(f'<path class="incumbent" d="{_staircase(steps, x, y, width - _RIGHT)}"/>')
    for mark in marks:
        radius = 6.5 if mark.style == "won" else 3.4
        parts.append(
            f'<circle class="mark {mark.style}" cx="{x(mark.x):.1f}" cy="{y(mark.y):.1f}" r="{radius}">'
            f"<title>{escape(mark.title)}</title></circle>"
        )
    parts += mark_labels([(x(m.x), y(m.y), m.label, m.style) for m in marks], size)
    # Last, so that a crowd of points does not hide them.
    parts += _level_lines(levels, y, size)
    return _svg(parts, size, f"{axis[1]} over {axis[0]}")


def mark_labels(points: Sequence[tuple[float, float, str, str]], size: tuple[int, int]) -> list[str]:
    """Texts beside the points (x, y, text, style) that have one, moved up or down from what is there already."""
    taken = [(x - 4, y - 4, x + 4, y + 4) for x, y, _, _ in points]
    parts = []
    for x, y, text, style in points:
        if not text:
            continue
        length = _LETTER * len(text)
        places = [
            (left, y + shift)
            for shift in sorted(range(-10 * _LINE, 10 * _LINE + 1, _LINE // 2), key=abs)
            for left in (x + 8, x - 8 - length)
            if _LEFT < left < size[0] - _RIGHT - length and _TOP + _LINE < y + shift < size[1] - _BOTTOM
        ]
        boxes = [(left, at - _LINE / 2, left + length, at + _LINE / 2) for left, at in places]
        free = next((box for box in boxes if not any(_overlap(box, other) for other in taken)), None)
        left, top, right, bottom = free or (x + 8, y - _LINE / 2, x + 8 + length, y + _LINE / 2)
        taken.append((left, top, right, bottom))
        middle = (top + bottom) / 2
        if abs(middle - y) > _LINE / 2:
            near = left - 1 if left > x else right + 1
            parts.append(f'<line class="guide" x1="{x:.1f}" y1="{y:.1f}" x2="{near:.1f}" y2="{middle:.1f}"/>')
        parts.append(f'<text class="beside {style}" x="{left:.1f}" y="{middle + 4:.1f}">{escape(text)}</text>')
    return parts


def dots(rows: Sequence[tuple[str, float, str]], low: float, high: float, width: int = 420) -> str:
    """One labelled dot per row (label, microseconds, note) on a common scale from low to high."""
    label_width, note_width, step = 92, 104, 22
    size = (width, step * len(rows) + 6)
    x = Scale(*_padded(low, high), label_width + 6, width - note_width - 6)
    parts = []
    best = min(value for _, value, _ in rows)
    for i, (label, value, note) in enumerate(rows):
        middle = 3 + step * i + step / 2
        style = "best" if value == best else "ok"
        parts.append(f'<line class="guide" x1="{label_width}" x2="{width - note_width}" y1="{middle}" y2="{middle}"/>')
        parts.append(_label(label_width - 6, middle + 4, _shortened(label, 14)))
        parts.append(f'<circle class="mark {style}" cx="{x(value):.1f}" cy="{middle}" r="4.5"/>')
        parts.append(f'<text x="{width - note_width + 6}" y="{middle + 4}">{escape(note)}</text>')
    return _svg(parts, size, "best time for each value")


def bars(rows: Sequence[tuple[str, int]], width: int = 900) -> str:
    """A horizontal bar with its count for each (label, count)."""
    step, label_width = 24, 190
    size = (width, step * len(rows) + 4)
    x = Scale(0, max(count for _, count in rows), label_width, width - 60, logarithmic=False)
    parts = []
    for i, (label, count) in enumerate(rows):
        top = 2 + step * i
        length = x(count) - label_width
        parts.append(_label(label_width - 8, top + 16, _shortened(label, 30)))
        parts.append(
            f'<rect class="bar {escape(label)}" x="{label_width}" y="{top + 3}" height="17" width="{length:.1f}"/>'
        )
        parts.append(f'<text x="{x(count) + 6:.1f}" y="{top + 16}">{count}</text>')
    return _svg(parts, size, "counts")


def scale_name(low: float, high: float) -> str:
    """How `dots` and `scatter` place data from low to high: `logarithmic` or `linear`."""
    return "logarithmic" if Scale(*_padded(low, high), 0, 1).logarithmic else "linear"


def _spans_much(low: float, high: float) -> bool:
    return low > 0 and high / low > 8


def _padded(low: float, high: float) -> tuple[float, float]:
    if _spans_much(low, high):
        return low / 1.1, high * 1.1
    pad = (high - low) * 0.06 or abs(high) * 0.06 or 1.0
    return low - pad, high + pad


def _round_step(rough: float) -> float:
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.999)


def _logarithmic_ticks(low: float, high: float) -> list[float]:
    exponents = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1, 2, 5) if high / low < 500 else (1,)
    ticks = [factor * 10.0**e for e in exponents for factor in factors]
    return [tick for tick in ticks if low <= tick <= high]


def _staircase(steps: Sequence[tuple[float, float]], x: Scale, y: Scale, end: float) -> str:
    start_x, start_y = steps[0]
    path = [f"M{x(start_x):.1f} {y(start_y):.1f}"]
    for step_x, step_y in steps[1:]:
        path.append(f"H{x(step_x):.1f}V{y(step_y):.1f}")
    return "".join([*path, f"H{end}"])


def _frame(size: tuple[int, int]) -> str:
    width, height = size[0] - _LEFT - _RIGHT, size[1] - _TOP - _BOTTOM
    return f'<rect class="frame" x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}"/>'


def _horizontal_axis(x: Scale, name: str, size: tuple[int, int]) -> list[str]:
    width, height = size
    ticks = [tick for tick in x.ticks() if tick == int(tick)]
    parts = [f'<text class="tick-x" x="{x(tick):.1f}" y="{height - _BOTTOM + 15}">{int(tick)}</text>' for tick in ticks]
    return [*parts, f'<text class="tick-x" x="{(width + _LEFT) / 2}" y="{height - 3}">{escape(name)}</text>']


def _vertical_axis(y: Scale, name: str, size: tuple[int, int]) -> list[str]:
    parts = []
    for tick in y.ticks():
        at = y(tick)
        parts.append(f'<line class="grid" x1="{_LEFT}" x2="{size[0] - _RIGHT}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_label(_LEFT - 6, at + 4, microseconds(tick, tick)))
    middle = (size[1] - _BOTTOM + _TOP) / 2
    return [*parts, f'<text class="tick-x" transform="translate(12 {middle}) rotate(-90)">{escape(name)}</text>']


def _level_lines(levels: Sequence[Level], y: Scale, size: tuple[int, int]) -> list[str]:
    parts = []
    for level in levels:
        at = y(level.y)
        right = size[0] - _RIGHT
        parts.append(f'<line class="level {level.style}" x1="{_LEFT}" x2="{right}" y1="{at:.1f}" y2="{at:.1f}"/>')
        parts.append(_label(right - 6, at - 5, level.name, level.style))
    return parts


def _label(x: float, y: float, text: str, style: str = "") -> str:
    """Text that ends at x."""
    return f'<text class="{f"label {style}".strip()}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _overlap(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    """Of boxes (left, top, right, bottom)."""
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


def _shortened(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"


def _svg(parts: Sequence[str], size: tuple[int, int], description: str) -> str:
    head = f'<svg viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}" role="img" aria-label="{escape(description)}">'
    return "\n".join([head, *parts, "</svg>"])
