"""The cross phase of a search of several problems: each one's best configurations are measured on all the others."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing

from ktune.core.model import Configuration, Effort, Measurement, Request, Status
from ktune.core.variant import HOPPER, make_variant
from ktune.search.evaluator import Evaluator
from ktune.search.matrix import Searched, candidates, law_against, settled
from ktune.search.progress import Progress, Snapshot
from ktune.search.recorder import Recorder
from ktune.study.claims import Refused
from ktune.study.study import Study

CROSS = "cross"


def measure_crossing(
    searched: Sequence[Searched], evaluator: Evaluator, progress: Progress, target: str = HOPPER
) -> int:
    """Measure in full what the matrix of `searched` lacks; how many measurements that took.

    Each is on disk, in its problem's study, as it finishes. They may bring a problem a new winner, and with it new
    candidates: it ends when nothing is missing that was not tried. KeyboardInterrupt passes, with every claim given
    back.
    """
    return _Crossing(searched, evaluator, progress, target).carry_out()


class _Crossing:
    """One call of `measure_crossing`."""

    def __init__(self, searched: Sequence[Searched], evaluator: Evaluator, progress: Progress, target: str) -> None:
        self._searched = searched
        self._evaluator = evaluator
        self._progress = progress
        self._target = target
        self._begun = time.monotonic()
        self._counts: Counter[Status] = Counter()
        self._done = 0

    def carry_out(self) -> int:
        tried: set[tuple[str, Configuration]] = set()
        try:
            while asked := self._missing(tried):
                tried.update((one.name, point) for one, points in asked for point in points)
                total = self._done + sum(len(points) for _, points in asked)
                self._progress.on_phase(CROSS, total - self._done)
                for one, points in asked:
                    self._measure(one, points, total)
        finally:
            for one in self._searched:
                one.study.release()
        return self._done

    def _missing(self, tried: set[tuple[str, Configuration]]) -> list[tuple[Searched, list[Configuration]]]:
        """What is to be measured of each problem. Where anything is, also what was measured on another GPU."""
        found = []
        wanted = candidates(self._searched)
        for one in self._searched:
            one.study.refresh()
            if one.study.standing() is None:
                continue
            known = {c: settled(one.study, c) for c in wanted if not law_against(one.space, c)}
            missing = [c for c, m in known.items() if m is None and (one.name, c) not in tried]
            if missing:
                here = self._evaluator.environment.gpu_uuid
                missing += [
                    c
                    for c, m in known.items()
                    if m and m.eligible and m.gpu_uuid != here and (one.name, c) not in tried
                ]
                found.append((one, missing))
        return found

    def _measure(self, one: Searched, points: Sequence[Configuration], total: int) -> None:
        recorder = Recorder(one.study, self._evaluator, self._progress, one.space.default)
        with closing(recorder.measure(self._requests(one, points))) as results:
            for m in results:
                self._tell(m, total)
        if one.study.finals is not None:
            one.study.settle(one.study.finals)

    def _requests(self, one: Searched, points: Sequence[Configuration]) -> Iterator[Request]:
        for point in points:
            trial = _claim(one.study, point)
            if trial is not None:
                variant = make_variant(one.space.family, point, one.problem, self._target)
                yield Request(trial, variant, one.problem, Effort.FULL)

    def _tell(self, m: Measurement, total: int) -> None:
        self._done += 1
        self._counts[m.status] += 1
        elapsed_s = time.monotonic() - self._begun
        eta_s = elapsed_s / self._done * (total - self._done)
        self._progress.on_result(m, Snapshot(CROSS, self._done, total, dict(self._counts), None, elapsed_s, eta_s))


def _claim(study: Study, configuration: Configuration) -> int | None:
    """The number of the configuration's trial, a new one if it has none; None where another process measures it."""
    own = [m for m in study.measurements() if m.variant.configuration == configuration]
    if own:
        return own[-1].trial if study.claim_full(own[-1]) else None
    trial = study.claim(configuration, effort=Effort.FULL)
    return None if isinstance(trial, Refused) else trial
