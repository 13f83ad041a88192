"""Where worker processes come from: one waits with torch imported, so that a replacement is there at once."""

from __future__ import annotations

from pathlib import Path

from ktune.gpu.process import WorkerProcess


class WorkerSupply:
    """Starts workers of one backend, each with a log of its own in `log_dir`, and keeps at most one spare."""

    def __init__(self, backend: str, log_dir: Path) -> None:
        self._backend = backend
        self._log_dir = log_dir
        self._started = 0
        self.spare: WorkerProcess | None = None

    def take(self) -> WorkerProcess:
        """The spare if it lives, else a worker that starts now."""
        spare, self.spare = self.spare, None
        if spare is not None and not spare.alive:
            spare.stop()
            spare = None
        return spare or self._start()

    def keep_spare(self) -> None:
        """Start a spare if there is none. It imports the backend and creates no context."""
        if self.spare is None:
            self.spare = self._start()

    def close(self) -> None:
        """End the spare."""
        spare, self.spare = self.spare, None
        if spare is not None:
            spare.stop()

    def _start(self) -> WorkerProcess:
        self._started += 1
        return WorkerProcess(self._backend, self._log_dir / f"worker-{self._started}.log")
