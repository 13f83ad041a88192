"""What was being launched when everything ended: written before each launch, removed at a clean end."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path

from ktune.core.errors import EnvironmentFault
from ktune.core.identity import value_text
from ktune.gpu.protocol import Job


class InFlight:
    """`in_flight.json` in the log folder: the jobs that a worker has been given and has not answered."""

    def __init__(self, log_dir: Path) -> None:
        self.path = log_dir / "in_flight.json"

    def write(self, jobs: Sequence[Job], worker: int) -> None:
        """On disk before it returns. EnvironmentFault if that cannot be."""
        text = json.dumps({"format": 1, "worker_pid": worker, "jobs": [_named(job) for job in jobs]}, indent=1)
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
        """What an earlier run had in flight when it was killed, as "#12 of B16-L2048"; [] after a clean end."""
        try:
            jobs = json.loads(self.path.read_text())["jobs"]
            return [f"#{job['trial']} of {job['problem']}" for job in jobs]
        except (FileNotFoundError, ValueError, KeyError, TypeError):
            return []

    def clear(self) -> None:
        self.path.unlink(missing_ok=True)


def _named(job: Job) -> dict[str, object]:
    configuration = {name: value_text(value) for name, value in job.variant.configuration.items()}
    return {
        "trial": job.trial,
        "family": job.variant.family,
        "problem": job.problem.label,
        "configuration": configuration,
        "cubin": job.cubin,
    }
