"""Measurements on their way from the evaluator to the study: recorded, counted, told to whoever watches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator
from contextlib import closing

from ktune.core.model import Configuration, Effort, Measurement, Request, Status
from ktune.search.evaluator import Evaluator
from ktune.search.progress import Progress, Snapshot
from ktune.study.ranking import rank
from ktune.study.study import Study

# These may be the machine's fault: worth one more attempt.
RETRIED = (Status.CRASHED, Status.TIMED_OUT)


class Recorder:
    """What one search measures. incumbent: the fastest by the short measurements so far; counts: trials by status."""

    def __init__(self, study: Study, evaluator: Evaluator, progress: Progress, default: Configuration) -> None:
        self.study = study
        self.evaluator = evaluator
        self.progress = progress
        self.begun = time.monotonic()
        self.counts = study.counts()
        self.incumbent: Measurement | None = None
        self._default = default
        for m in study.measurements():
            if m.effort is Effort.SEARCH:
                self._consider(m)

    def measure(self, requests: Iterator[Request]) -> Generator[Measurement, None, None]:
        """The recorded answers; one that may be the machine's fault is asked for once more and then stands."""
        asked: dict[tuple[int, Effort], Request] = {}
        again: deque[Request] = deque()
        retried: set[tuple[int, Effort]] = set()

        def pull() -> Iterator[Request]:
            while True:
                request = again.popleft() if again else next(requests, None)
                if request is None:
                    return
                asked[request.trial, request.effort] = request
                yield request

        while True:
            with closing(_closable(self.evaluator.evaluate(pull()))) as answers:
                for m in answers:
                    key = (m.trial, m.effort)
                    retry = m.status in RETRIED and key not in retried
                    self.study.record(m, keep_claim=retry)
                    if retry:
                        retried.add(key)
                        again.append(asked[key])
                    else:
                        yield m
            if not again:
                return

    def count(self, m: Measurement) -> None:
        """Count a new short measurement, and keep the fastest as the incumbent."""
        self.counts[m.status] += 1
        self._consider(m)

    def tell(self, m: Measurement, phase: str, done: int, total: int, eta_s: float | None) -> None:
        snapshot = Snapshot(phase, done, total, dict(self.counts), self.incumbent, self.elapsed_s, eta_s)
        self.progress.on_result(m, snapshot)

    @property
    def elapsed_s(self) -> float:
        return time.monotonic() - self.begun

    def _consider(self, m: Measurement) -> None:
        rivals = [m] if self.incumbent is None else [m, self.incumbent]
        self.incumbent = next(iter(rank(rivals, self._default, self.study.identify)), None)


def _closable(answers: Iterator[Measurement]) -> Generator[Measurement, None, None]:
    """The same answers, as a generator, whose `close` reaches the evaluator."""
    yield from answers
