"""One active worker on a GPU and a spare one: jobs and races go in, outcomes come out, whatever the variants do."""

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
from ktune.gpu.messages import Answer, Cause, Race, Start, Step, Task
from ktune.gpu.outcome import Outcome, culprit, explained, is_final
from ktune.gpu.protocol import STEPS, Job
from ktune.gpu.supply import WorkerSupply

CUDA_BACKEND = "ktune.gpu.backend:cuda_backend"
DEADLINES_S: Mapping[str, float] = dict(zip(STEPS, (120.0, 120.0, 30.0, 60.0, 30.0, 30.0, 180.0), strict=True))
FULL_EFFORT_FACTOR = 4.0
# The worker runs one job while the next already waits in its pipe.
DEPTH = 2
FAILED_STARTS = 2
KILLS = 2


class WorkerPool:
    """Keeps a worker on the GPU; replaces it when a variant kills, hangs or spoils it.

    compiler: what built the variants, for the environment: a worker does not know it.
    deadlines_s: seconds per step, over the defaults; four times as much for a job of full effort.
    seconds: how long workers took to start, from process to context, and to prepare problems.
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
        self.seconds = {"worker_start": 0.0, "prepare": 0.0}
        self._start_order = Start(str(family_folder), gpu)
        self._compiler = compiler
        self._supply = WorkerSupply(backend, log_dir)
        self._deadlines_s = {**DEADLINES_S, **(deadlines_s or {})}
        self._lock_folder, self._lock_timeout_s = lock_folder, lock_timeout_s
        self._on_event = on_event
        self._tasks: deque[Task] = deque()
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
        """Whether another task may be submitted."""
        return len(self._tasks) < DEPTH

    @property
    def ready(self) -> bool:
        """The worker has started and prepared its problem: it could measure now."""
        active = self._active
        return active is not None and active.started and bool(active.told) and not active.preparing

    @property
    def idle(self) -> bool:
        """There is no task that has not been answered."""
        return not self._tasks

    @property
    def pids(self) -> list[int]:
        """The workers that live now, each the leader of its process group."""
        processes = [self._active.process if self._active else None, self._supply.spare]
        return [p.pid for p in processes if p is not None]

    def banned(self, variant: Variant) -> str:
        """Why a variant is not to be launched again; empty if it may be."""
        kills = self._kills[variant]
        return f"not tried again: it has killed {kills} workers" if kills >= KILLS else ""

    def prepare(self, problem: Problem) -> None:
        """Have the worker make a problem's inputs and references before its first task. Tasks bring their own."""
        if self._problem is None:
            self._problem = problem
            self._feed()

    def submit(self, task: Task) -> None:
        """Carry out a job or a race after those submitted before. Only where there is `room`."""
        self._problem = task.problem
        self._tasks.append(task)
        self._feed()

    def finish(self, race: Race) -> Outcome:
        """Carry out a race while nothing else is asked for, and wait for its end."""
        assert self.idle, "a job still runs"
        self.submit(race)
        while not (outcomes := self.poll(1.0)):
            pass
        return outcomes[0]

    def started(self) -> Environment:
        """Wait until a worker has the GPU, and return what it says of it."""
        while self.environment is None:
            self.poll(1.0)
        return self.environment

    def poll(self, timeout_s: float) -> list[Outcome]:
        """Outcomes in the order of their tasks, none after `timeout_s`; replaces the worker where it must.

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
        """Forget the tasks that have no outcome yet; the worker that runs one is killed."""
        self._tasks.clear()
        if self._active is not None and self._active.tasks_told:
            self.renew()

    def renew(self) -> None:
        """Measure on in a process that has run no variant. Only where no task is unanswered."""
        assert not self._tasks, "a job still runs"
        if self._active is not None and self._active.used:
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
        self._tasks.clear()
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
        """Tell the active worker the tasks that it has not been told, each after its problem."""
        active = self._ensure_active()
        if not active.started or self._problem is None:
            return
        self._hold_gpu()
        untold = list(takewhile(self._may_run, islice(self._tasks, active.tasks_told, None)))
        if untold:
            self._in_flight.write(list(self._tasks), active.process.pid)
        elif not active.told:
            active.prepare(self._problem)
        for task in untold:
            active.prepare(task.problem)
            active.tell(task)

    def _may_run(self, task: Task) -> bool:
        return isinstance(task, Race) or not self.banned(task.variant)

    def _refuse(self) -> list[Outcome]:
        """Answer the oldest jobs that are not to be launched again."""
        refused = []
        while self._tasks and not self._may_run(self._tasks[0]):
            job = self._tasks.popleft()
            assert isinstance(job, Job)
            refused.append(self._outcome(job, Answer(), Status.CRASHED, self.banned(job.variant)))
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
        active.enter(step.name, step.entrant)
        if isinstance(active.owed[0], Task):
            self._failed_starts = 0

    def _settle(self, active: ActiveWorker, answer: Answer) -> list[Outcome]:
        """Take the answer to the oldest order."""
        fault = answer.fault
        order = active.owed[0]
        if fault is not None and is_final(fault, order):
            active.process.stop()
            self._active = None
            raise explained(fault, active.process.log)
        if fault is not None and not isinstance(order, Task):
            return self._lose(active, Status.CRASHED, f"{fault.error}: {fault.message}")
        if fault is not None and fault.cause is Cause.STICKY:
            return self._lose(active, Status.CRASHED, fault.message, answer)
        entrant, took_s = active.entrant, active.order_seconds
        active.settle()
        if not isinstance(order, Task):
            self._note(answer, took_s)
            return []
        self._tasks.popleft()
        # not before: importing torch, it would take a core from the first builds
        self._supply.keep_spare()
        if isinstance(order, Job):
            self.busy_s += sum(answer.seconds.values())
        if fault is None:
            return [self._outcome(order, answer)]
        return [self._outcome(order, answer, Status.LAUNCH_FAILED, f"{fault.message} (in {fault.step})", entrant)]

    def _note(self, answer: Answer, took_s: float) -> None:
        """What is known once a worker has started or has prepared a problem."""
        if answer.environment is not None:
            self.environment = replace(answer.environment, compiler=self._compiler)
            self.seconds["worker_start"] += took_s
        self.seconds["prepare"] += answer.seconds.get("prepare", 0.0)

    def _lose(self, active: ActiveWorker, status: Status, reason: str, answer: Answer | None = None) -> list[Outcome]:
        """Give up the active worker, blame the variant that ran if one did, and put the spare in its place."""
        step, order = (active.step, active.owed[0]) if active.owed else ("idleness", None)
        blamed = order if isinstance(order, Task) and active.announced else None
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
        self._tasks.popleft()
        if isinstance(blamed, Job):
            self.busy_s += active.order_seconds
        name, variant = culprit(blamed, active.entrant)
        if variant is not None:
            self._kills[variant] += 1
        self._on_event(f"GPU worker replaced after {name}: {reason}")
        self._ensure_active()
        return [self._outcome(blamed, answer or Answer(), status, reason, active.entrant)]

    def _outcome(
        self, task: Task, answer: Answer, failed: Status | None = None, detail: str = "", entrant: str = ""
    ) -> Outcome:
        assert self.environment is not None
        return Outcome(task, answer, self.environment, failed, detail, entrant)
