"""The worker that has the GPU: the orders that it owes, and how long it has been in which step."""

from __future__ import annotations

import time
from collections import deque

from ktune.core.model import Problem
from ktune.gpu.messages import Order, Prepare
from ktune.gpu.process import WorkerProcess
from ktune.gpu.protocol import Job


class ActiveWorker:
    """`since`: when the present step began. `announced`: the worker itself has said that it is in `step`."""

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.owed: deque[Order] = deque()
        self.told: set[Problem] = set()
        self.announced = False
        self.started = False
        self.since = time.monotonic()
        self._step = ""
        self._order_since = self.since

    @property
    def step(self) -> str:
        """The step announced last, or the first one of the order that is due."""
        if self.announced or not self.owed:
            return self._step or "start"
        order = self.owed[0]
        return "load" if isinstance(order, Job) else "prepare" if isinstance(order, Prepare) else "start"

    @property
    def jobs_told(self) -> int:
        return sum(isinstance(order, Job) for order in self.owed)

    @property
    def preparing(self) -> bool:
        return any(isinstance(order, Prepare) for order in self.owed)

    @property
    def job_seconds(self) -> float:
        return time.monotonic() - self._order_since

    def prepare(self, problem: Problem) -> None:
        """Tell it to prepare a problem, unless it was told before."""
        if problem not in self.told:
            self.told.add(problem)
            self.tell(Prepare(problem))

    def tell(self, order: Order) -> None:
        if not self.owed:
            self._due()
        self.owed.append(order)
        self.process.send(order)

    def enter(self, step: str) -> None:
        self._step, self.announced, self.since = step, True, time.monotonic()

    def settle(self) -> None:
        self.started = True
        self.owed.popleft()
        self._due()

    def _due(self) -> None:
        self._step, self.announced = "", False
        self.since = self._order_since = time.monotonic()
