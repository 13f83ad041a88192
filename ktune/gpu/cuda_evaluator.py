"""The evaluator that measures on a CUDA GPU, through the builder and an isolated worker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from time import monotonic

from ktune.core.errors import EnvironmentFault
from ktune.core.loading import LoadedFamily
from ktune.core.model import Environment, Measurement, Request, Source
from ktune.gpu.lock import LOCK_FOLDER
from ktune.gpu.pipeline import Builds, Pipeline
from ktune.gpu.pool import CUDA_BACKEND, WorkerPool

SHORTEST_LOOKAHEAD = 8


class CudaEvaluator:
    """Answers requests by building their variants and measuring them on one GPU.

    gpu: UUID or index; "" is the first one. log_dir: where workers' logs and `in_flight.json` go.
    step_deadlines_s, lock_folder, lock_timeout_s, on_event: see WorkerPool.
    lookahead: how many requests are pulled before their measurements are finished.
    Its first worker starts at once; `close` it.
    """

    def __init__(
        self,
        loaded: LoadedFamily,
        builder: Builds,
        *,
        gpu: str = "",
        backend: str = CUDA_BACKEND,
        log_dir: Path,
        step_deadlines_s: Mapping[str, float] | None = None,
        lookahead: int | None = None,
        source: Source = Source.MEASURED,
        lock_folder: Path = LOCK_FOLDER,
        lock_timeout_s: float | None = None,
        on_event: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        try:
            log_dir.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentFault(f"the log folder {log_dir} cannot be made: {error.strerror}") from error
        self.source = source
        self.lookahead = lookahead or max(SHORTEST_LOOKAHEAD, 2 * builder.jobs)
        self._loaded = loaded
        self._builder = builder
        self._seconds = {"gpu_busy": 0.0, "gpu_idle_for_builds": 0.0, "total": 0.0}
        self._pool = WorkerPool(
            loaded.folder,
            gpu=gpu,
            backend=backend,
            log_dir=log_dir,
            compiler=builder.toolchain.label,
            deadlines_s=step_deadlines_s,
            lock_folder=lock_folder,
            lock_timeout_s=lock_timeout_s,
            on_event=on_event,
        )

    @property
    def environment(self) -> Environment:
        """The GPU and what drives it; waits for the first worker. EnvironmentFault if it cannot start."""
        return self._pool.started()

    @property
    def stats(self) -> dict[str, float]:
        """Seconds so far: gpu_busy, gpu_idle_for_builds, and total, all within `evaluate`."""
        return {**self._seconds, "gpu_busy": self._pool.busy_s}

    @property
    def worker_pids(self) -> list[int]:
        """The worker processes that live now; each leads a process group of its own."""
        return self._pool.pids

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        """One measurement per request, as they finish; see `ktune.search.evaluator.Evaluator`."""
        pipeline = Pipeline(self._loaded.family, self._builder, self._pool, self.source)
        source = iter(requests)
        exhausted = False
        began, starved_before = monotonic(), self._seconds["gpu_idle_for_builds"]
        total_before = self._seconds["total"]
        try:
            while True:
                pipeline.advance(wait=False)
                self._seconds["total"] = total_before + monotonic() - began
                self._seconds["gpu_idle_for_builds"] = starved_before + pipeline.starved_s
                if pipeline.finished:
                    yield pipeline.finished.popleft()
                elif pipeline.fault is not None:
                    raise pipeline.fault
                elif not exhausted and pipeline.open < self.lookahead:
                    wanted = min(self._builder.jobs, self.lookahead - pipeline.open)
                    pulled = list(islice(source, wanted))
                    exhausted = len(pulled) < wanted
                    pipeline.add(pulled)
                elif pipeline.open:
                    pipeline.advance(wait=True)
                else:
                    return
        finally:
            self._seconds["total"] = total_before + monotonic() - began
            self._pool.abandon()

    def renew_worker(self) -> None:
        """Measure what follows in a fresh process, with a fresh context."""
        self._pool.renew()

    def close(self) -> None:
        """End the workers and release the GPU. The builder stays its owner's to close."""
        self._pool.close()
