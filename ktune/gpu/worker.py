"""The isolated process that launches variants: `python -m ktune.gpu.worker FD PARENT BACKEND`.

It imports the backend's module (and with it torch) at once, creates no CUDA context before it is told
to start, carries out one order after another, and ends with its parent.
"""

from __future__ import annotations

import ctypes
import faulthandler
import importlib
import os
import resource
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from time import perf_counter
from typing import Any

from ktune.core.errors import KtuneError
from ktune.core.model import Effort, Status
from ktune.gpu.messages import Answer, Cause, Fault, Order, Prepare, Race, Start, Step
from ktune.gpu.protocol import Backend, BackendFactory, Job, LaunchFault, RaceResult, StickyFault, Timings, Verdict

PR_SET_PDEATHSIG = 1


def main() -> None:
    """Serve the parent on the inherited file descriptor until it hangs up."""
    descriptor, parent, backend = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    _die_with(parent)
    faulthandler.enable()
    # An aborting variant would otherwise leave a core file of the whole process in the user's folder.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    serve(Connection(descriptor), find_factory(backend))


def find_factory(name: str) -> BackendFactory:
    """The backend factory of a "module:function" name; imports the module."""
    module, _, function = name.partition(":")
    factory: BackendFactory = getattr(importlib.import_module(module), function)
    return factory


def serve(connection: Connection[Any, Any], factory: BackendFactory) -> None:
    """Carry out orders from `connection` until it is closed at the other end."""
    bench = _Bench(connection, factory)
    try:
        while True:
            connection.send(bench.carry_out(connection.recv()))
            sys.stderr.flush()
    except (EOFError, BrokenPipeError, ConnectionResetError):
        bench.close()


class _Bench:
    """The backend once it is started, and the step that it is in."""

    def __init__(self, connection: Connection[Any, Any], factory: BackendFactory) -> None:
        self.connection = connection
        self.factory = factory
        self.backend: Backend | None = None
        self.step = "start"
        self.seconds: dict[str, float] = {}

    def carry_out(self, order: Order) -> Answer:
        self.seconds = {}
        found: dict[str, Any] = {}
        fault = None
        try:
            if isinstance(order, Start):
                found["environment"] = self._start(order)
            elif isinstance(order, Prepare):
                with self._entering("prepare"):
                    self._started.prepare(order.problem)
            elif isinstance(order, Race):
                found["results"] = self._race(order)
            else:
                self._measure(order, found)
        except Exception as error:
            traceback.print_exc()
            fault = Fault(self.step, _cause(error), type(error).__name__, _first_line(error))
        return Answer(self.seconds, fault, **found)

    def close(self) -> None:
        if self.backend is not None:
            self.backend.close()

    @property
    def _started(self) -> Backend:
        assert self.backend is not None, "the parent orders a start before anything else"
        return self.backend

    def _start(self, order: Start) -> object:
        with self._entering("start"):
            self.backend = self.factory(order.family_folder, order.gpu)
            return self.backend.environment()

    def _measure(self, job: Job, found: dict[str, Any]) -> None:
        """Load, verify, time and check again; `found` gets what is known even if a later step fails."""
        backend = self._started
        with self._entering("load"):
            backend.load(job)
        try:
            with self._entering("verify"):
                verdict: Verdict = backend.verify()
            found["verdict"] = verdict
            # A wrong variant is timed for the report alone, where the full protocol asks for it and it is safe.
            if verdict.status is Status.OK or (job.effort is Effort.FULL and not verdict.damaged):
                with self._entering("time"):
                    timings: Timings = backend.time()
                found["timings"] = timings
                if timings.status is Status.OK:
                    with self._entering("recheck"):
                        found["recheck"] = backend.recheck()
        except StickyFault:
            raise
        except BaseException:
            backend.unload()
            raise
        # Before the answer, so that a variant that spoils its own end is the one to blame.
        backend.unload()

    def _race(self, race: Race) -> tuple[RaceResult, ...]:
        """Each step ends where the next one begins."""
        self.step, began = "load", perf_counter()

        def end_step() -> None:
            nonlocal began
            now = perf_counter()
            self.seconds[self.step] = self.seconds.get(self.step, 0.0) + now - began
            began = now

        def enter(step: str, entrant: str) -> None:
            end_step()
            self.step = step
            self.connection.send(Step(step, entrant))

        try:
            return tuple(self._started.race(race.problem, race.entrants, race.seed, enter))
        finally:
            end_step()

    @contextmanager
    def _entering(self, step: str) -> Iterator[None]:
        self.step = step
        self.connection.send(Step(step))
        started = perf_counter()
        try:
            yield
        finally:
            self.seconds[step] = perf_counter() - started


def _cause(error: Exception) -> Cause:
    if isinstance(error, LaunchFault):
        return Cause.REFUSED
    if isinstance(error, StickyFault):
        return Cause.STICKY
    return Cause.EXPLAINED if isinstance(error, KtuneError) else Cause.DEFECT


def _first_line(error: Exception) -> str:
    """torch's errors go on for a paragraph; all of it is in the log."""
    return next(iter(str(error).strip().splitlines()), "")


def _die_with(parent: int) -> None:
    """Ask the kernel to kill this process when its parent ends, however that ends."""
    ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    # The parent may have ended before the request was made.
    if os.getppid() != parent:
        sys.exit("the parent process has ended")


if __name__ == "__main__":
    main()
