"""What was being launched when everything ended: written before each launch, removed at a clean end.

Several processes may share a log folder, on one GPU or on several: each writes a file of its own.
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ktune.core.errors import EnvironmentFault
from ktune.core.identity import value_text
from ktune.core.model import Problem, Variant
from ktune.core.processes import is_running
from ktune.gpu.messages import Task
from ktune.gpu.protocol import Job


class InFlight:
    """`in_flight-<process id>.json` in the log folder: the jobs that a worker has been given and has not answered."""

    def __init__(self, log_dir: Path) -> None:
        self.path = log_dir / f"in_flight-{os.getpid()}.json"

    def write(self, tasks: Sequence[Task], worker: int) -> None:
        """On disk before it returns. EnvironmentFault if that cannot be."""
        jobs = [named for task in tasks for named in _names(task)]
        text = json.dumps({"format": 1, "worker_pid": worker, "jobs": jobs}, indent=1)
        temporary = self.path.with_suffix(".tmp")
        try:
            with temporary.open("w") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            temporary.replace(self.path)
        except OSError as error:
            raise EnvironmentFault(
                f"{self.path} cannot be written: {error.strerror}; free space, or choose another study folder"
            ) from error

    def left_behind(self) -> list[str]:
        """What earlier runs had in flight when they were killed, as "#12 of B16-L2048"; [] after clean ends.

        Their files are removed: it is said once. Call it before the first `write`.
        """
        jobs: list[str] = []
        for path in sorted(self.path.parent.glob("in_flight-*.json")):
            writer = path.stem.partition("-")[2]
            # a file of this process's id is of an earlier one
            if path != self.path and writer.isdecimal() and is_running(int(writer)):
                continue
            jobs += _jobs_in(path)
            path.unlink(missing_ok=True)
        return jobs

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def _jobs_in(path: Path) -> list[str]:
    try:
        jobs = json.loads(path.read_text())["jobs"]
        return [f"{job.get('entrant') or '#' + str(job['trial'])} of {job['problem']}" for job in jobs]
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return []


def _names(task: Task) -> list[dict[str, object]]:
    """What may run: the variant of a job, or every entrant of a race."""
    if isinstance(task, Job):
        return [{"trial": task.trial, **_named(task.problem, task.variant, task.cubin)}]
    return [{"entrant": e.name, **_named(task.problem, e.variant, e.cubin)} for e in task.entrants]


def _named(problem: Problem, variant: Variant | None, cubin: str | None) -> dict[str, object]:
    """A peer has neither a configuration nor a binary."""
    configuration = {} if variant is None else variant.configuration
    return {
        "family": problem.family,
        "problem": problem.label,
        "configuration": {name: value_text(value) for name, value in configuration.items()},
        "cubin": cubin,
    }
