"""`--dry-run`: what a search would measure, and how long that will take from what earlier ones took."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from ktune.build.cores import available_cores, available_memory, count_jobs
from ktune.cli.progress import duration
from ktune.cli.searching import Task
from ktune.core.errors import KtuneError
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily
from ktune.core.model import Measurement, Source
from ktune.study.finding import latest_study

# Where nothing is known: a small kernel compiles in about a second on one core; verifying and timing take a tenth.
COMPILE_S = 1.0
MEASURE_S = 0.1
START_S = 5.0


@dataclass(frozen=True)
class Estimate:
    """How long a search will take. basis: what that rests on."""

    seconds: float
    basis: str


def dry_run_text(tasks: Sequence[Task], jobs: int | None, as_json: bool) -> str:
    """The valid points of each problem, what would be measured of them, and the estimated time."""
    described = [_facts(task, jobs) for task in tasks]
    if as_json and len(tasks) == 1:
        return json.dumps(described[0], indent=2)
    seconds = sum(facts["estimated_s"] for facts in described)
    if as_json:
        family = tasks[0].loaded.name
        return json.dumps({"format": 1, "family": family, "problems": described, "estimated_s": seconds}, indent=2)
    texts = [_text(task, facts) for task, facts in zip(tasks, described, strict=True)]
    if len(tasks) > 1:
        texts.append(
            f"then each problem's winner on the others\n{len(tasks)} problems: about {duration(seconds)} in all"
        )
    return "\n".join(texts)


def _facts(task: Task, jobs: int | None) -> dict[str, Any]:
    valid = len(task.space)
    planned = valid if task.trials is None else min(valid, task.trials)
    found = estimate(task.loaded, planned, jobs, task.results)
    return {
        "format": 1,
        "family": task.loaded.name,
        "problem": task.problem.label,
        "valid_points": valid,
        "trials": planned,
        "sampler": "exhaustive" if planned == valid else task.sampler,
        "default": configuration_id(task.loaded.family, task.space.default),
        "estimated_s": round(found.seconds),
        "estimate_basis": found.basis,
    }


def _text(task: Task, facts: dict[str, Any]) -> str:
    valid, planned = facts["valid_points"], facts["trials"]
    which = "every one" if planned == valid else f"{planned} of them, chosen by {task.sampler}"
    return (
        f"{facts['family']} at {facts['problem']}: {valid} valid configurations\n"
        f"would build, verify and time {which}, beginning with {facts['default']}\n"
        f"estimated time: about {duration(facts['estimated_s'])} ({facts['estimate_basis']})"
    )


def estimate(loaded: LoadedFamily, trials: int, jobs: int | None, results: Path) -> Estimate:
    """Compiling and measuring overlap, so the slower of the two decides."""
    compilers = count_jobs(jobs, available_cores(), available_memory())
    known = _of_earlier_study(loaded, results)
    compile_s, measure_s = known or (COMPILE_S, MEASURE_S)
    basis = "by the latest study of this family" if known else "a guess: no study of this family yet"
    seconds = START_S + trials * max(compile_s / compilers, measure_s)
    return Estimate(seconds, f"{basis}; {compilers} compilers at once, less time where builds are cached")


def _of_earlier_study(loaded: LoadedFamily, results: Path) -> tuple[float, float] | None:
    """(seconds of a compile, seconds on the GPU) of a variant on average; None without a study."""
    try:
        with latest_study(results, loaded.name, replays_last=True) as study:
            if study.source is Source.REPLAYED:
                return None
            found = study.measurements()
    except KtuneError:
        return None
    compiles = [m.build.compile_s for m in found if m.build is not None]
    return (fmean(compiles), fmean(map(_on_gpu_s, found))) if compiles else None


def _on_gpu_s(m: Measurement) -> float:
    return sum(seconds for phase, seconds in m.seconds.items() if phase != "build")
