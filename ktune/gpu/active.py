"""The worker that has the GPU: the orders that it owes, and how long it has been in which step."""

from __future__ import annotations

import time
from collections import deque

from ktune.core.model import Problem
from ktune.gpu.messages import Order, Prepare, Task
from ktune.gpu.process import WorkerProcess


class ActiveWorker:
    """`since`: when the present step began. `announced`: the worker itself has said that it is in `step`.

    entrant: of a race, the one that the step is about. used: it has been given variants to run.
    """

    def __init__(self, process: WorkerProcess) -> None:
        self.process = process
        self.owed: deque[Order] = deque()
        self.told: set[Problem] = set()
        self.announced = False
        self.started = False
        self.used = False
        self.entrant = ""
        self.since = time.monotonic()
        self._step = ""
        self._order_since = self.since

    @property
    def step(self) -> str:
        """The step announced last, or the first one of the order that is due."""
        if self.announced or not self.owed:
            return self._step or "start"
        order = self.owed[0]
        return "load" if isinstance(order, Task) else "prepare" if isinstance(order, Prepare) else "start"

    @property
    def tasks_told(self) -> int:
        return sum(isinstance(order, Task) for order in self.owed)

    @property
    def preparing(self) -> bool:
        return any(isinstance(order, Prepare) for order in self.owed)

    @property
    def order_seconds(self) -> float:
        """Since the order that is due became so; of the first one, since the process was taken."""
        return time.monotonic() - self._order_since

    def prepare(self, problem: Problem) -> None:
        """Tell it to prepare a problem, unless it was told before."""
        if problem not in self.told:
            self.told.add(problem)
            self.tell(Prepare(problem))

    def tell(self, order: Order) -> None:
        if not self.owed:
            self._due()
        self.used = self.used or isinstance(order, Task)
        self.owed.append(order)
        self.process.send(order)

    def enter(self, step: str, entrant: str) -> None:
        self._step, self.announced, self.since = step, True, time.monotonic()
        self.entrant = entrant

    def settle(self) -> None:
        self.started = True
        self.owed.popleft()
        self._due()

    def _due(self) -> None:
        self._step, self.entrant, self.announced = "", "", False
        self.since = self._order_since = time.monotonic()
