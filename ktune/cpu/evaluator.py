"""Answers requests by executing variants on the CPU: right or wrong, never how fast."""

from __future__ import annotations

import platform
from collections import deque
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from time import perf_counter

import torch

from ktune import __version__
from ktune.build.cores import available_cores, available_memory, count_jobs
from ktune.core.loading import LoadedFamily
from ktune.core.model import Environment, Measurement, Request, Source, Variant
from ktune.core.variant import check_problems
from ktune.cpu.compiler import Check, CompileFault, ProgramStore, find_compiler
from ktune.cpu.execute import Execution, Executor
from ktune.cpu.problems import far_problems, largest_of, small_problems

SANITIZED = (Check.PLAIN, Check.ADDRESS, Check.RACES)


class CpuEvaluator:
    """Implements `ktune.search.evaluator.Evaluator`.

    A request's own problem is not executed, but the small ones that its binary serves: `problems.small_problems`. A
    variant that can't run here is INVALID, and its detail begins with "not executable on the CPU". sanitize: also look
    for accesses out of bounds, for races, and for 32-bit offsets.
    """

    source = Source.CPU

    def __init__(
        self,
        loaded: LoadedFamily,
        cache_dir: Path,
        path: str,
        *,
        sanitize: bool = False,
        jobs: int | None = None,
        timeout_s: float = 120.0,
    ) -> None:
        """path: where a compiler is looked for; EnvironmentFault if there is none. timeout_s: of one execution."""
        self._loaded = loaded
        self._sanitize = sanitize
        self._compiler = find_compiler(path)
        self._executor = Executor(loaded, ProgramStore(self._compiler, cache_dir), timeout_s=timeout_s)
        self._jobs = count_jobs(jobs, available_cores(), available_memory())
        self._pool = ThreadPoolExecutor(self._jobs, thread_name_prefix="ktune-cpu")

    @property
    def environment(self) -> Environment:
        """No GPU: `gpu_name` is the processor's."""
        return Environment(
            gpu_name=f"CPU ({platform.machine()})",
            gpu_uuid="",
            driver="",
            cuda_driver="",
            compiler=self._compiler.label,
            torch=torch.__version__,
            ktune=__version__,
        )

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        """One measurement per request, in their order; the next ones compile while one is executed."""
        source = iter(requests)
        waiting: deque[tuple[Request, list[Future[None]]]] = deque()
        while True:
            for request in islice(source, self._jobs + 1 - len(waiting)):
                builds = [self._pool.submit(self._build, request.variant, check) for check in self._checks]
                waiting.append((request, builds))
            if not waiting:
                return
            request, builds = waiting.popleft()
            began = perf_counter()
            for build in builds:
                build.result()
            built = perf_counter()
            execution = self._execute(request)
            yield self._measurement(request, execution, {"build": built - began, "verify": perf_counter() - built})

    def close(self) -> None:
        self._pool.shutdown(wait=True, cancel_futures=True)

    @property
    def _checks(self) -> tuple[Check, ...]:
        return SANITIZED if self._sanitize else (Check.PLAIN,)

    def _build(self, variant: Variant, check: Check) -> None:
        """Into the cache. What the compiler refuses it refuses again when the variant is executed."""
        try:
            self._executor.compile(variant, check)
        except CompileFault:
            return

    def _execute(self, request: Request) -> Execution:
        variant, problem = request.variant, request.problem
        problems = small_problems(self._loaded, variant, problem)
        family = self._loaded.family
        kinds_at = largest_of(family, check_problems(family, variant, problem)) if request.thorough else None
        found = self._executor.verify(variant, problems, self._checks, kinds_at=kinds_at)
        if not (self._sanitize and found.right):
            return found
        far = self._executor.verify_far(variant, far_problems(self._loaded, variant, problem))
        return found if far.right else far

    def _measurement(self, request: Request, execution: Execution, seconds: dict[str, float]) -> Measurement:
        return Measurement(
            trial=request.trial,
            variant=request.variant,
            problem=request.problem,
            status=execution.status,
            source=Source.CPU,
            effort=request.effort,
            detail=execution.detail,
            accuracy=execution.accuracy,
            environment=self.environment,
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds=seconds,
        )
