"""Naming what bounds a plan, from per cents of what the hardware can do. Pure; says `undetermined` where it can't know.

The rules, in this order; every per cent is of a peak that this GPU was seen to reach, or a hardware counter's:
1. Launch overhead, if an empty launch takes at least 50 % of the time.
2. A unit that is at least 75 % busy bounds; the busiest, with those within 5 points of it named as near. Memory, fp32,
   special functions, tensor cores and shared memory come before L2, load/store, integer and instruction issue, which
   are busy in the service of the others.
3. Latency, if every unit is known to be less than 50 % busy, or if every known one is and on average less than one warp
   per scheduler is resident, so that schedulers stand idle whatever the warps do.
4. Otherwise undetermined, with what is missing.
A per cent above 115 is impossible: then the work that the family declares, or a peak, is wrong.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ktune.profile.model import Bound, BoundKind

LAUNCH_PERCENT = 50.0
BUSY_PERCENT = 75.0
IDLE_PERCENT = 50.0
NEAR_POINTS = 5.0
IMPOSSIBLE_PERCENT = 115.0

PRIMARY = (BoundKind.MEMORY, BoundKind.FP32, BoundKind.SPECIAL, BoundKind.TENSOR, BoundKind.SHARED)
SECONDARY = (BoundKind.L2, BoundKind.LOAD_STORE, BoundKind.INTEGER, BoundKind.ISSUE)

# What must be known to be idle before the time can be put down to waiting.
NEEDED_FOR_LATENCY = (*PRIMARY, BoundKind.L2, BoundKind.ISSUE)


@dataclass(frozen=True)
class Evidence:
    """What is known of one plan, or of one kernel of it.

    busy: {unit: per cent of its peak}; a unit that nothing is known of is absent.
    launch_percent: an empty launch's share of the time. warps_per_scheduler: resident, mean over the GPU.
    lacking: why units are absent, in words that a user can act on.
    """

    busy: Mapping[BoundKind, float]
    launch_percent: float | None = None
    warps_per_scheduler: float | None = None
    lacking: str = ""


def name_bound(evidence: Evidence) -> Bound:
    """The verdict by the rules at the top of this module."""
    busy = {unit: percent for unit, percent in evidence.busy.items() if math.isfinite(percent)}
    impossible = [unit for unit, percent in busy.items() if percent > IMPOSSIBLE_PERCENT or percent < 0]
    if impossible:
        unit = impossible[0]
        return Bound(
            BoundKind.UNDETERMINED,
            f"{unit} at {busy[unit]:.0f} % of its measured peak cannot be: less is done than the family's cost() says, "
            "or the peak was measured too low (data that stays in the L2 cache is neither read nor written)",
        )
    if evidence.launch_percent is not None and evidence.launch_percent >= LAUNCH_PERCENT:
        share = evidence.launch_percent
        return Bound(BoundKind.LAUNCH, f"launching nothing takes {share:.0f} % of this time", share)
    for units in (PRIMARY, SECONDARY):
        named = _busiest(busy, units)
        if named is not None:
            return named
    return _latency_or_unknown(busy, evidence)


def _busiest(busy: Mapping[BoundKind, float], units: tuple[BoundKind, ...]) -> Bound | None:
    ranked = sorted((unit for unit in units if unit in busy), key=lambda unit: -busy[unit])
    if not ranked or busy[ranked[0]] < BUSY_PERCENT:
        return None
    first = ranked[0]
    near = tuple(unit for unit in ranked[1:] if busy[unit] >= busy[first] - NEAR_POINTS)
    return Bound(first, f"{first} is {busy[first]:.0f} % busy{_beside(busy, near)}", busy[first], near)


def _latency_or_unknown(busy: Mapping[BoundKind, float], evidence: Evidence) -> Bound:
    unknown = [unit for unit in NEEDED_FOR_LATENCY if unit not in busy]
    highest = max(busy, key=lambda unit: busy[unit], default=None)
    if highest is None:
        return Bound(BoundKind.UNDETERMINED, evidence.lacking or "nothing was measured")
    shown = f"the busiest unit known, {highest}, is {busy[highest]:.0f} % busy"
    idle = busy[highest] < IDLE_PERCENT
    warps = evidence.warps_per_scheduler
    if idle and not unknown:
        return Bound(BoundKind.LATENCY, f"{shown}: warps wait for results more than for a unit", busy[highest])
    if idle and warps is not None and warps < 1.0:
        reason = f"{shown}, and {warps:.2g} warps per scheduler are resident: schedulers stand idle"
        return Bound(BoundKind.LATENCY, reason, busy[highest])
    if not idle and not unknown:
        reason = f"{shown}, under {BUSY_PERCENT:.0f} and over {IDLE_PERCENT:.0f}: several limits together"
        return Bound(BoundKind.UNDETERMINED, reason, busy[highest])
    missing = ", ".join(unknown)
    why = f" ({evidence.lacking})" if evidence.lacking else ""
    return Bound(BoundKind.UNDETERMINED, f"{shown}; not known: {missing}{why}", busy[highest])


def _beside(busy: Mapping[BoundKind, float], near: tuple[BoundKind, ...]) -> str:
    return "".join(f", {unit} {busy[unit]:.0f} %" for unit in near)
