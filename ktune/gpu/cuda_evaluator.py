"""The evaluator that measures on a CUDA GPU, through the builder and an isolated worker."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from time import monotonic

from ktune.core.errors import EnvironmentFault, UsageError
from ktune.core.loading import LoadedFamily
from ktune.core.model import Environment, Measurement, Problem, Request, Source, Status, Variant
from ktune.gpu.lock import LOCK_FOLDER
from ktune.gpu.messages import Race
from ktune.gpu.pipeline import Builds, Pipeline
from ktune.gpu.pool import CUDA_BACKEND, WorkerPool
from ktune.gpu.protocol import Entrant, RaceResult

SHORTEST_LOOKAHEAD = 8
# Beyond one for each compiler: enough to bridge a slow build. Each further one is proposed knowing less.
BUILT_AHEAD = 4


def check_names(entrants: Sequence[Entrant]) -> None:
    """UsageError if two entrants of a race share a name."""
    names = Counter(entrant.name for entrant in entrants)
    twice = next((name for name, count in names.items() if count > 1), None)
    if twice is not None:
        raise UsageError(f"entrants of a race need distinct names, {twice!r} is there {names[twice]} times")


class CudaEvaluator:
    """Answers requests by building their variants and measuring them on one GPU.

    gpu: UUID or index; "" is the first one. log_dir: where workers' logs and the notes of what is in flight go.
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
        self.lookahead = lookahead or max(SHORTEST_LOOKAHEAD, builder.jobs + BUILT_AHEAD)
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
        """Seconds so far: gpu_busy, gpu_idle_for_builds, and total, all within `evaluate`; worker_start and prepare."""
        return {**self._seconds, "gpu_busy": self._pool.busy_s, **self._pool.seconds}

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
                    pulled = []
                    for request in islice(source, wanted):
                        # The worker prepares the problem while the rest is proposed and built.
                        pipeline.expect(request.problem)
                        pulled.append(request)
                    exhausted = len(pulled) < wanted
                    pipeline.add(pulled)
                elif pipeline.open:
                    pipeline.advance(wait=True)
                else:
                    return
        finally:
            self._seconds["total"] = total_before + monotonic() - began
            self._pool.abandon()

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], *, seed: int = 0, fresh: bool = False
    ) -> list[RaceResult]:
        """Time variants and peers in turn in one process; one result each, in their order. Not during `evaluate`.

        fresh: in a process that has run no variant. One that crashes or hangs the worker is CRASHED or TIMED_OUT, and
        the race is run again without it, in a fresh process. UsageError for entrants of one name or an unknown peer.
        """
        check_names(entrants)
        if fresh:
            self._pool.renew()
        found: dict[str, RaceResult] = {}
        for entrant in entrants:
            if entrant.variant is not None and (reason := self._pool.banned(entrant.variant)):
                found[entrant.name] = RaceResult(entrant.name, Status.CRASHED, reason)
        try:
            while left := tuple(e for e in entrants if e.name not in found):
                outcome = self._pool.finish(Race(problem, left, seed))
                if outcome.failed is None:
                    found.update({result.name: result for result in outcome.answer.results})
                elif not outcome.entrant:
                    raise EnvironmentFault(f"the race failed before an entrant ran: {outcome.detail}")
                else:
                    found[outcome.entrant] = RaceResult(outcome.entrant, outcome.failed, outcome.detail)
        finally:
            self._pool.abandon()
        return [found[entrant.name] for entrant in entrants]

    def cubin_of(self, variant: Variant) -> str | None:
        """The path of a variant's binary, built if need be; None if it has no kernel of its own or does not build.

        Not during `evaluate`.
        """
        self._builder.submit([variant])
        while (built := self._builder.next_result(None)) is not None:
            if built.variant == variant:
                return None if built.cubin is None else str(built.cubin)
        return None

    def renew_worker(self) -> None:
        """Measure what follows in a process that has run no variant."""
        self._pool.renew()

    def close(self) -> None:
        """End the workers and release the GPU. The builder stays its owner's to close."""
        self._pool.close()
