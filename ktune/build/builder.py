"""Builds variants in the background, as many at once as the machine holds, and answers as each is done."""

from __future__ import annotations

import os
import queue
import shutil
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from ktune.build.batch import Batch, Finished, Unit
from ktune.build.cache import LOG, BuildCache, unwritable
from ktune.build.cores import available_cores, available_memory, count_jobs
from ktune.build.key import build_key, nvcc_flags
from ktune.build.source import family_source, with_prelude
from ktune.build.target import normalise_target
from ktune.build.toolchain import Toolchain, require_target
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily
from ktune.core.model import BuildFacts, Status, Variant


@dataclass(frozen=True)
class BuildResult:
    """status: OK, BUILD_FAILED, or SPILLED where a limit is set.

    facts, cubin: None for a failure, and for a variant that has no kernel of its own. log: the compiler's.
    """

    variant: Variant
    status: Status
    facts: BuildFacts | None
    cubin: Path | None
    detail: str = ""
    log: Path | None = None


class Builder:
    """Compiles variants of one family, each key once. The family's sources are read once, on first use.

    jobs: compilers at once; one a core if None, and never more than free memory holds.
    spill_limit_bytes: variants that spill more (stores and loads together) are SPILLED; None accepts all.
    """

    def __init__(
        self,
        loaded: LoadedFamily,
        toolchain: Toolchain,
        cache_dir: Path,
        *,
        jobs: int | None = None,
        compile_timeout_s: float = 120.0,
        spill_limit_bytes: int | None = None,
    ) -> None:
        self.loaded = loaded
        self.toolchain = toolchain
        self.cache_dir = cache_dir.absolute()
        self.jobs = count_jobs(jobs, available_cores(), available_memory())
        self.compile_timeout_s = compile_timeout_s
        self.spill_limit_bytes = spill_limit_bytes
        self._cache = BuildCache(self.cache_dir)
        self._lock = threading.RLock()
        self._results: queue.SimpleQueue[BuildResult | Exception] = queue.SimpleQueue()
        self._queued: deque[Unit] = deque()
        self._waiting: dict[str, list[Variant]] = {}
        self._batches: dict[Batch, threading.Thread] = {}
        self._sources: dict[str, str] = {}
        self._targets: set[str] = set()
        self._pending = 0
        self._grew = False
        self._closed = False

    def __enter__(self) -> Builder:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def pending(self) -> int:
        """Variants submitted and not yet returned by `next_result`."""
        return self._pending

    def key(self, variant: Variant) -> str:
        """The build key; "" for a variant without kernels of its own."""
        unit = self._unit(variant)
        return "" if unit is None else unit.key

    def submit(self, variants: Sequence[Variant]) -> None:
        """Queue variants and return. Results of what the cache holds are there at once.

        Raises UsageError for an odd target, EnvironmentFault for one that this nvcc doesn't know,
        FamilyError for a source that isn't there; nothing is queued then.
        """
        units = [self._unit(variant) for variant in variants]
        for variant, unit in zip(variants, units, strict=True):
            with self._lock:
                self._pending += 1
            if unit is None:
                self._results.put(BuildResult(variant, Status.OK, None, None))
            else:
                self._enqueue(variant, unit)
        self._start_batches()

    def next_result(self, timeout_s: float | None) -> BuildResult | None:
        """The next variant that is done, in any order; None if none is within `timeout_s`.

        Without a limit: None if none is pending or the builder is closed. Raises EnvironmentFault if builds
        can't go on, such as on a full disk, now and at every later call.
        """
        if timeout_s is None and self._pending == 0:
            return None
        try:
            result = self._results.get(timeout=0.0 if self._closed else timeout_s)
        except queue.Empty:
            return None
        if isinstance(result, Exception):
            self._results.put(result)
            raise result
        with self._lock:
            self._pending -= 1
        return result

    def build(self, variants: Sequence[Variant]) -> Iterator[BuildResult]:
        """Submit, then yield results as they finish until none is pending."""
        self.submit(variants)
        while (result := self.next_result(None)) is not None:
            yield result

    def close(self) -> None:
        """End all compilers, drop what is unfinished, and bound the cache's size. May be called twice."""
        with self._lock:
            self._closed = True
            self._queued.clear()
            batches = dict(self._batches)
            for batch in batches:
                batch.kill()
        for thread in batches.values():
            thread.join()
        if self._grew:
            self._cache.clean_daily()
            self._grew = False

    def _unit(self, variant: Variant) -> Unit | None:
        family = self.loaded.family
        name = family.source_of(variant)
        if not name:
            return None
        self._check_target(variant.target)
        if name not in self._sources:
            self._sources[name] = family_source(self.loaded.folder, name, line_markers=True)
        source = with_prelude(self.loaded, variant, self._sources[name])
        flags = nvcc_flags(family, variant)
        key = build_key(source, flags, self.toolchain)
        return Unit(key, variant, configuration_id(family, variant.configuration), source, flags)

    def _check_target(self, target: str) -> None:
        if target in self._targets:
            return
        spelled = normalise_target(target)
        if spelled != target:
            raise UsageError(f"a variant's target must be spelled {spelled}, got {target}; use normalise_target")
        require_target(self.toolchain, target)
        self._targets.add(target)

    def _enqueue(self, variant: Variant, unit: Unit) -> None:
        """Answer from the cache, wait with others for the same key, or queue a compile."""
        with self._lock:
            if unit.key in self._waiting:
                self._waiting[unit.key].append(variant)
                return
        cached = self._cache.lookup(unit.key)
        if cached is not None:
            facts, cubin = cached
            self._results.put(self._judge(variant, Finished(unit, facts, cubin, "", cubin.parent / LOG)))
            return
        with self._lock:
            if unit.key not in self._waiting:
                self._queued.append(unit)
            self._waiting.setdefault(unit.key, []).append(variant)

    def _start_batches(self) -> None:
        """Give idle jobs work: everything queued if all are idle, else one unit to each, so that none waits
        for the slowest compile of another batch."""
        with self._lock:
            idle = self.jobs - sum(batch.held for batch in self._batches)
            if self._closed or not self._queued or idle <= 0:
                return
            count = len(self._queued) if idle == self.jobs else min(idle, len(self._queued))
            units = [self._queued.popleft() for _ in range(count)]
            batch = Batch(units, idle, self.toolchain, self._cache, self.compile_timeout_s)
            thread = threading.Thread(target=self._run, args=(batch,), name="ktune-build", daemon=True)
            self._batches[batch] = thread
            thread.start()

    def _run(self, batch: Batch) -> None:
        """The life of a batch, on its own thread. What goes wrong is raised by `next_result`."""
        folder = None
        try:
            folder = self._cache.workspace(f"batch-{os.getpid()}")
            with self._lock:
                if self._closed:
                    return
                batch.start(folder)
            for unit_folder, unit in batch.compiled(folder):
                self._start_batches()
                self._answer(batch.conclude(unit_folder, unit))
        except OSError as error:
            self._results.put(unwritable(self.cache_dir, error))
        except Exception as error:
            self._results.put(error)
        finally:
            if folder is not None:
                shutil.rmtree(folder, ignore_errors=True)
            with self._lock:
                del self._batches[batch]
            self._start_batches()

    def _answer(self, finished: Finished) -> None:
        with self._lock:
            waiting = self._waiting.pop(finished.unit.key)
            self._grew = self._grew or finished.cubin is not None
        for variant in waiting:
            self._results.put(self._judge(variant, finished))

    def _judge(self, variant: Variant, finished: Finished) -> BuildResult:
        facts, cubin, log = finished.facts, finished.cubin, finished.log
        if facts is None:
            return BuildResult(variant, Status.BUILD_FAILED, None, None, finished.detail, log)
        spilled = facts.spill_store_bytes + facts.spill_load_bytes
        if self.spill_limit_bytes is not None and spilled > self.spill_limit_bytes:
            detail = f"spills {spilled} bytes, the limit is {self.spill_limit_bytes}"
            return BuildResult(variant, Status.SPILLED, facts, cubin, detail, log)
        return BuildResult(variant, Status.OK, facts, cubin, "", log)
