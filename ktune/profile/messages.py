"""What the profile's processes are asked and answer, as JSON files (format 1). No torch here."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from ktune.core.model import Configuration, Problem
from ktune.profile.calibration import peaks_from_json
from ktune.profile.model import DeviceFacts, Missing, Steady, StepOnGpu
from ktune.study.codec import configuration_from_json, configuration_to_json, problem_from_json, problem_to_json

FORMAT = 1


@dataclass(frozen=True)
class Order:
    """One configuration to look at on a GPU.

    calibration: the cubin of the calibration kernels; None where the peaks are known. cubin: the variant's, None for a
    plan of torch operations alone. steady_s: how long it runs in a loop; 0 skips everything that runs the variant.
    """

    family_folder: str
    gpu: str
    problem: Problem
    configuration: Configuration
    cubin: str | None
    calibration: str | None = None
    steady_s: float = 1.5
    seed: int = 0


def write_order(order: Order, path: Path) -> None:
    stored = {
        **asdict(order),
        "format": FORMAT,
        "problem": problem_to_json(order.problem),
        "configuration": configuration_to_json(order.configuration),
    }
    path.write_text(json.dumps(stored))


def read_order(path: Path) -> Order:
    stored = json.loads(path.read_text())
    if stored.pop("format") != FORMAT:
        raise ValueError(f"{path} must be of format {FORMAT}")
    problem, configuration = problem_from_json(stored["problem"]), configuration_from_json(stored["configuration"])
    return Order(**{**stored, "problem": problem, "configuration": configuration})


def write_facts(facts: DeviceFacts, path: Path) -> None:
    """In one step, so that a reader never sees half of it."""
    temporary = path.with_suffix(".part")
    temporary.write_text(json.dumps(asdict(facts)))
    temporary.replace(path)


def read_facts(path: Path) -> DeviceFacts | None:
    """What the worker has written so far; None for nothing."""
    try:
        stored = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    steps = stored["steps"]
    return DeviceFacts(
        sm_count=stored["sm_count"],
        steps=Missing(**steps) if isinstance(steps, dict) else tuple(StepOnGpu(**step) for step in steps),
        steady=_part(stored["steady"], _steady),
        peaks=_part(stored["peaks"], peaks_from_json),
    )


def with_reason(facts: DeviceFacts, reason: str) -> DeviceFacts:
    """Every missing part is missing for this reason."""
    missing = Missing(reason)
    return replace(
        facts,
        steps=missing if isinstance(facts.steps, Missing) else facts.steps,
        steady=missing if isinstance(facts.steady, Missing) else facts.steady,
        peaks=missing if isinstance(facts.peaks, Missing) else facts.peaks,
    )


def _part(stored: Mapping[str, Any], make: Any) -> Any:
    return Missing(stored["reason"]) if set(stored) == {"reason"} else make(stored)


def _steady(stored: Mapping[str, Any]) -> Steady:
    return Steady(**{**stored, "throttle": tuple(stored["throttle"])})


def nothing_known(reason: str) -> DeviceFacts:
    """Before the GPU has told anything."""
    missing = Missing(reason)
    return DeviceFacts(None, missing, missing, missing)
