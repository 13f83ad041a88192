"""One active worker on a GPU and a spare one: jobs go in, outcomes come out, whatever the variants do."""

from __future__ import annotations

import atexit
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import islice, takewhile
from pathlib import Path

from ktune.core.errors import EnvironmentFault, KtuneError
from ktune.core.model import Effort, Environment, Problem, Status, Variant
from ktune.gpu.active import ActiveWorker
from ktune.gpu.in_flight import InFlight
from ktune.gpu.lock import LOCK_FOLDER, GpuLock
from ktune.gpu.messages import Answer, Cause, Start, Step
from ktune.gpu.outcome import Outcome, explained, is_final
from ktune.gpu.protocol import STEPS, Job
from ktune.gpu.supply import WorkerSupply

CUDA_BACKEND = "ktune.gpu.backend:cuda_backend"
DEADLINES_S: Mapping[str, float] = dict(zip(STEPS, (120.0, 120.0, 30.0, 60.0, 30.0, 30.0), strict=True))
FULL_EFFORT_FACTOR = 4.0
# The worker runs one job while the next already waits in its pipe.
DEPTH = 2
FAILED_STARTS = 2
KILLS = 2


class WorkerPool:
    """Keeps a worker on the GPU; replaces it when a variant kills, hangs or spoils it.

    compiler: what built the variants, for the environment: a worker does not know it.
    deadlines_s: seconds per step, over the defaults; four times as much for full effort.
    lock_timeout_s: how long to wait for another user of the GPU; None is for ever.
    on_event: told in one sentence what a user may want to know: a worker replaced, the GPU waited for.
    """

    def __init__(
        self,
        family_folder: Path,
        *,
        gpu: str = "",
        backend: str = CUDA_BACKEND,
        log_dir: Path,
        compiler: str = "",
        deadlines_s: Mapping[str, float] | None = None,
        lock_folder: Path = LOCK_FOLDER,
        lock_timeout_s: float | None = None,
        on_event: Callable[[str], None] = lambda sentence: None,
    ) -> None:
        self.environment: Environment | None = None
        self.busy_s = 0.0
        self._start_order = Start(str(family_folder), gpu)
        self._compiler = compiler
        self._supply = WorkerSupply(backend, log_dir)
        self._deadlines_s = {**DEADLINES_S, **(deadlines_s or {})}
        self._lock_folder, self._lock_timeout_s = lock_folder, lock_timeout_s
        self._on_event = on_event
        self._jobs: deque[Job] = deque()
        self._problem: Problem | None = None
        self._kills: Counter[Variant] = Counter()
        self._failed_starts = 0
        self._fault: KtuneError | None = None
        self._lock: GpuLock | None = None
        self._active: ActiveWorker | None = None
        self._in_flight = InFlight(log_dir)
        self._owner = os.getpid()
        atexit.register(self.close)
        for name in self._in_flight.left_behind():
            self._on_event(f"the last run ended without a clean end while {name} was being measured")
        self._ensure_active()

    @property
    def room(self) -> bool:
        """Whether another job may be submitted."""
        return len(self._jobs) < DEPTH

    @property
    def ready(self) -> bool:
        """The worker has started and prepared its problem: it could measure now."""
        active = self._active
        return active is not None and active.started and bool(active.told) and not active.preparing

    @property
    def idle(self) -> bool:
        """There is no job that has not been answered."""
        return not self._jobs

    @property
    def pids(self) -> list[int]:
        """The workers that live now, each the leader of its process group."""
        processes = [self._active.process if self._active else None, self._supply.spare]
        return [p.pid for p in processes if p is not None]

    def prepare(self, problem: Problem) -> None:
        """Have the worker make a problem's inputs and references before its first job. Jobs bring their own."""
        if self._problem is None:
            self._problem = problem
            self._feed()

    def submit(self, job: Job) -> None:
        """Measure `job` after those submitted before. Only where there is `room`."""
        self._problem = job.problem
        self._jobs.append(job)
        self._feed()

    def started(self) -> Environment:
        """Wait until a worker has the GPU, and return what it says of it."""
        while self.environment is None:
            self.poll(1.0)
        return self.environment

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Outcomes in the order of their jobs, none after `timeout_s`; replaces the worker where it must.

        EnvironmentFault if workers fail twice in a row before a variant runs, or if the worker says so;
        another KtuneError for a defect of ktune or of the family. What had come before the fault is returned first.
        """
        if self._fault is not None:
            fault, self._fault = self._fault, None
            raise fault
        outcomes: list[Outcome] = []
        try:
            outcomes += self._refuse()
            self._listen(0.0 if outcomes else timeout_s, outcomes)
            outcomes += self._refuse()
            self._feed()
        except KtuneError as fault:
            if not outcomes:
                raise
            self._fault = fault
        return outcomes

    def abandon(self) -> None:
        """Forget the jobs that have no outcome yet; the worker that runs one is killed."""
        self._jobs.clear()
        if self._active is not None and self._active.jobs_told:
            self.renew()

    def renew(self) -> None:
        """Measure on in a fresh process. Only where no job is unanswered."""
        assert not self._jobs, "a job still runs"
        if self._active is not None:
            self._active.process.stop()
            self._active = None
        self._in_flight.clear()

    def close(self) -> None:
        """End both workers and their process groups, and release the GPU. May be called twice."""
        if os.getpid() != self._owner:
            return
        atexit.unregister(self.close)
        active, self._active = self._active, None
        self._supply.close()
        if active is not None and not active.owed:
            active.process.leave()
        elif active is not None:
            active.process.stop()
        self._jobs.clear()
        self._in_flight.clear()
        if self._lock is not None:
            self._lock.release()

    def _listen(self, timeout_s: float, outcomes: list[Outcome]) -> None:
        """Act on what the active worker says, or fails to say in time."""
        active = self._ensure_active()
        left_s = active.since + self._limit_s(active) - time.monotonic() if active.owed else timeout_s
        active.process.wait(min(timeout_s, left_s))
        for message in active.process.messages():
            if isinstance(message, Step):
                self._enter(active, message)
            else:
                outcomes += self._settle(active, message)
            if self._active is not active:
                break
        else:
            if active.process.hung_up:
                outcomes += self._lose(active, Status.CRASHED, "")
            elif active.owed and time.monotonic() - active.since > self._limit_s(active):
                outcomes += self._lose(active, Status.TIMED_OUT, f"took longer than {self._limit_s(active):g} s")

    def _ensure_active(self) -> ActiveWorker:
        if self._active is None:
            self._active = ActiveWorker(self._supply.take())
            self._active.tell(self._start_order)
        return self._active

    def _feed(self) -> None:
        """Tell the active worker the jobs that it has not been told, each after its problem."""
        active = self._ensure_active()
        if not active.started or self._problem is None:
            return
        self._hold_gpu()
        untold = list(takewhile(self._may_run, islice(self._jobs, active.jobs_told, None)))
        if untold:
            self._in_flight.write(list(self._jobs), active.process.pid)
        elif not active.told:
            active.prepare(self._problem)
        for job in untold:
            active.prepare(job.problem)
            active.tell(job)

    def _may_run(self, job: Job) -> bool:
        return self._kills[job.variant] < KILLS

    def _refuse(self) -> list[Outcome]:
        """Answer the oldest jobs that are not to be launched again."""
        refused = []
        while self._jobs and not self._may_run(self._jobs[0]):
            job = self._jobs.popleft()
            detail = f"not tried again: it has killed {self._kills[job.variant]} workers"
            refused.append(self._outcome(job, Answer(), Status.CRASHED, detail))
        return refused

    def _hold_gpu(self) -> None:
        assert self.environment is not None
        if self._lock is None:
            self._lock = GpuLock(self.environment.gpu_uuid, self._lock_folder)
        name = self.environment.gpu_name
        self._lock.acquire(self._lock_timeout_s, lambda holder: self._on_event(f"waiting for {name}, held by {holder}"))

    def _limit_s(self, active: ActiveWorker) -> float:
        order = active.owed[0]
        factor = FULL_EFFORT_FACTOR if isinstance(order, Job) and order.effort is Effort.FULL else 1.0
        return self._deadlines_s[active.step] * factor

    def _enter(self, active: ActiveWorker, step: Step) -> None:
        active.enter(step.name)
        if isinstance(active.owed[0], Job):
            self._failed_starts = 0

    def _settle(self, active: ActiveWorker, answer: Answer) -> list[Outcome]:
        """Take the answer to the oldest order."""
        fault = answer.fault
        order = active.owed[0]
        if fault is not None and is_final(fault, order):
            active.process.stop()
            self._active = None
            raise explained(fault, active.process.log)
        if fault is not None and not isinstance(order, Job):
            return self._lose(active, Status.CRASHED, f"{fault.error}: {fault.message}")
        if fault is not None and fault.cause is Cause.STICKY:
            return self._lose(active, Status.CRASHED, fault.message, answer)
        active.settle()
        if answer.environment is not None:
            self.environment = replace(answer.environment, compiler=self._compiler)
            self._supply.keep_spare()
        if not isinstance(order, Job):
            return []
        self._jobs.popleft()
        self.busy_s += sum(answer.seconds.values())
        if fault is None:
            return [self._outcome(order, answer)]
        return [self._outcome(order, answer, Status.LAUNCH_FAILED, f"{fault.message} (in {fault.step})")]

    def _lose(self, active: ActiveWorker, status: Status, reason: str, answer: Answer | None = None) -> list[Outcome]:
        """Give up the active worker, blame the job that ran if one did, and put the spare in its place."""
        step, order = (active.step, active.owed[0]) if active.owed else ("idleness", None)
        blamed = order if isinstance(order, Job) and active.announced else None
        end = active.process.stop()
        self._active = None
        reason = f"{reason or end} in {step}; worker log: {active.process.log}"
        if blamed is None:
            self._failed_starts += 1
            if self._failed_starts >= FAILED_STARTS:
                raise EnvironmentFault(
                    f"GPU workers failed {self._failed_starts} times in a row before a variant ran, the last one: "
                    f"{reason}; `ktune doctor` checks the GPU, and the same command resumes"
                )
            self._on_event(f"GPU worker replaced: {reason}")
            self._ensure_active()
            return []
        self._jobs.popleft()
        self._kills[blamed.variant] += 1
        self.busy_s += active.job_seconds
        self._on_event(f"GPU worker replaced after #{blamed.trial}: {reason}")
        self._ensure_active()
        return [self._outcome(blamed, answer or Answer(), status, reason)]

    def _outcome(self, job: Job, answer: Answer, failed: Status | None = None, detail: str = "") -> Outcome:
        assert self.environment is not None
        return Outcome(job, answer, self.environment, failed, detail)
