"""Figures as people read them: rounded to their noise."""

from __future__ import annotations

import math

from ktune.core.model import Timing


def microseconds(value: float | None, noise_us: float = 0.0) -> str:
    """`97.9`: decimals down to the noise, at most 3; 4 significant digits where no noise is given. `n/a` for None."""
    if value is None:
        return "n/a"
    if not math.isfinite(value):
        return str(value)
    scale = noise_us if noise_us > 0 and math.isfinite(noise_us) else abs(value) / 1e3
    decimals = 0 if scale <= 0 else min(3, max(0, -math.floor(math.log10(scale))))
    return f"{value:,.{decimals}f}"


def interval(timing: Timing) -> str:
    """`[97.6, 98.5]`: the 95 % confidence interval of the median."""
    noise = half_width_us(timing)
    return f"[{microseconds(timing.ci_low_us, noise)}, {microseconds(timing.ci_high_us, noise)}]"


def median(timing: Timing | None) -> str:
    """The median, rounded to its interval."""
    return "n/a" if timing is None else microseconds(timing.median_us, half_width_us(timing))


def half_width_us(timing: Timing) -> float:
    return (timing.ci_high_us - timing.ci_low_us) / 2


def ratio(value: float) -> str:
    """`2.91x`, `14.2x`, `103x`."""
    return f"{value:.3g}x" if value < 100 else f"{value:,.0f}x"


def ratio_interval(value: float, low: float, high: float) -> str:
    """`2.91x [2.88, 2.94]`: a ratio and its interval, rounded to the interval."""
    noise = (high - low) / 2
    shown, least, most = (microseconds(figure, noise) for figure in (value, low, high))
    return f"{shown}x [{least}, {most}]"
