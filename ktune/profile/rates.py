"""Achieved rates: the work that a family declares, over the measured cold time, against this GPU's own peaks."""

from __future__ import annotations

from ktune.api import Cost
from ktune.profile.evidence import bandwidth_peak
from ktune.profile.model import Missing, Peaks, Rate, Rates, Timed


def compute_rates(cost: Cost, timed: Timed | Missing, peaks: Peaks | Missing, steps: int) -> Rates | Missing:
    """GB/s, GFLOP/s and special functions a second. steps: launches of the plan, for the overhead of launching."""
    if isinstance(timed, Missing):
        return timed
    if timed.cold is None or not timed.cold.median_us > 0:
        return Missing(timed.detail or f"there is no cold time: it ended as {timed.status}")
    time_us = timed.cold.median_us
    moved = cost.bytes_read + cost.bytes_written
    known = None if isinstance(peaks, Missing) else peaks
    bandwidth, name = bandwidth_peak(cost.bytes_read, moved, known) if known else (None, "")
    return Rates(
        memory=_rate(moved, time_us, "GB/s", bandwidth),
        fp32=_rate(cost.flops, time_us, "GFLOP/s", known.fp32_gflops if known else None) if cost.flops else None,
        tensor=_rate(cost.flops, time_us, "GFLOP/s", known.tensor_gflops if known else None) if cost.flops else None,
        special=_rate(cost.special, time_us, "Gop/s", known.special_gops if known else None) if cost.special else None,
        memory_peak=name,
        launch_percent=_launch_percent(time_us, known, steps),
    )


def _rate(work: float, time_us: float, unit: str, peak: float | None) -> Rate:
    achieved = work / (time_us * 1e3)
    return Rate(achieved, unit, peak, 100.0 * achieved / peak if peak else None)


def _launch_percent(time_us: float, peaks: Peaks | None, steps: int) -> float | None:
    if peaks is None or peaks.launch_us is None:
        return None
    floor_us = peaks.launch_us + (steps - 1) * (peaks.gap_us or 0.0)
    return 100.0 * floor_us / time_us
