"""The regret of samplers over evaluations as an SVG that stands alone: medians as lines, the middle 80 % as bands."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

WIDTH, HEIGHT = 760, 316
LEFT, RIGHT, TOP, BOTTOM = 62, 150, 34, 56
# What is nearer to the optimum than this is drawn here, so that the axis can be logarithmic.
LEAST_PERCENT = 0.1
COLOURS = ("#8a8a8a", "#2a78b5", "#d1495b", "#3c8d5a")

Curve = Sequence[float]


def regret_plot(panels: Mapping[str, Mapping[str, tuple[Curve, Curve, Curve]]]) -> str:
    """{title: {sampler: (median, low, high) of the regret in per cent after each evaluation}} below one another."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT * len(panels)}" '
        f'width="{WIDTH}" font-family="sans-serif" font-size="12">',
        f'<rect width="{WIDTH}" height="{HEIGHT * len(panels)}" fill="white"/>',
    ]
    for row, (title, curves) in enumerate(panels.items()):
        parts += [f'<g transform="translate(0 {row * HEIGHT})">', *_panel(title, curves), "</g>"]
    return "\n".join([*parts, "</svg>\n"])


def _panel(title: str, curves: Mapping[str, tuple[Curve, Curve, Curve]]) -> list[str]:
    finite = [regret for bands in curves.values() for band in bands for regret in band if math.isfinite(regret)]
    most = 10 ** math.ceil(math.log10(max([*finite, 10 * LEAST_PERCENT])))
    longest = max(len(median) for median, _, _ in curves.values())

    def x(count: float) -> float:
        return LEFT + (count - 1) / max(1, longest - 1) * (WIDTH - LEFT - RIGHT)

    def y(regret: float) -> float:
        part = math.log(min(max(regret, LEAST_PERCENT), most) / LEAST_PERCENT) / math.log(most / LEAST_PERCENT)
        return HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)

    def line(curve: Curve) -> list[str]:
        return [f"{x(i):.1f},{y(regret):.1f}" for i, regret in enumerate(curve, 1)]

    parts = [f'<text x="{LEFT}" y="20" font-weight="bold">{escape(title)}</text>']
    tick = LEAST_PERCENT
    while tick <= most * 1.001:
        name = f"≤ {tick:g} %" if tick == LEAST_PERCENT else f"{tick:g} %"
        parts.append(
            f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" stroke="#ddd"/>'
            f'<text x="{LEFT - 6}" y="{y(tick) + 4:.1f}" text-anchor="end">{name}</text>'
        )
        tick *= 10
    step = max(1, 5 * round(longest / 25))
    parts += [
        f'<text x="{x(count):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{count}</text>'
        for count in range(step, longest + 1, step)
    ]
    parts.append(
        f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - BOTTOM + 34}" text-anchor="middle">evaluations</text>'
        f'<text transform="translate(14 {(HEIGHT + TOP - BOTTOM) / 2}) rotate(-90)" text-anchor="middle">'
        f"time above the optimum</text>"
        f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 * len(curves) + 26}" fill="#555">line: median</text>'
        f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 * len(curves) + 42}" fill="#555">band: middle 80 %</text>'
    )
    for i, (name, (median, low, high)) in enumerate(curves.items()):
        colour = COLOURS[i % len(COLOURS)]
        outline = " ".join([*line(low), *reversed(line(high))])
        parts.append(f'<polygon points="{outline}" fill="{colour}" opacity="0.15"/>')
        parts.append(f'<polyline points="{" ".join(line(median))}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(f'<text x="{WIDTH - RIGHT + 10}" y="{TOP + 16 * (i + 1)}" fill="{colour}">{escape(name)}</text>')
    return parts
