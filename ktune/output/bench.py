"""A bench: the subject and its rivals after they raced in one or more fresh processes, and how they compare."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from ktune.core.loading import LoadedFamily
from ktune.core.model import Accuracy, Configuration, Environment, Problem, Source, Status, Timing
from ktune.gpu.protocol import RaceResult
from ktune.study.verdict import Ratio, Speed, join_processes, spread_percent, time_ratio, usable, verdict

NOISE_LIMIT_PERCENT = 1.0

# What a contender ended as, if its processes disagree: the first of these that one of them found.
_WORST_FIRST = (Status.WRONG, Status.UNSTABLE, Status.CRASHED, Status.TIMED_OUT, Status.LAUNCH_FAILED)


class Role(StrEnum):
    """Why it takes part. The subject is what all others are compared with."""

    SUBJECT = "subject"
    CONFIGURATION = "configuration"
    DEFAULT = "default"
    PEER = "peer"


@dataclass(frozen=True)
class Contender:
    """One that takes part, or would: `install` says how to get a peer that is missing here. `name` is unique."""

    name: str
    role: Role
    configuration: Configuration | None = None
    install: str = ""


@dataclass(frozen=True)
class Outcome:
    """How a contender did: one result per process, none for a peer that is missing."""

    contender: Contender
    results: tuple[RaceResult, ...] = ()

    @property
    def name(self) -> str:
        return self.contender.name

    @cached_property
    def status(self) -> Status | None:
        """OK only if every process found it right and timed it; None for a peer that is missing."""
        if not self.results:
            return None
        statuses = [r.status if r.status is not Status.OK or usable(r.cold) else Status.UNSTABLE for r in self.results]
        failed = [status for status in statuses if status is not Status.OK]
        if not failed:
            return Status.OK
        if Status.WRONG in failed and Status.OK in statuses:
            return Status.UNSTABLE
        return min(failed, key=lambda s: _WORST_FIRST.index(s) if s in _WORST_FIRST else len(_WORST_FIRST))

    @property
    def right(self) -> bool:
        return self.status is Status.OK

    @cached_property
    def detail(self) -> str:
        """Why it is not right, with the number of processes if only some say so; empty if it is right."""
        if self.status in (None, Status.OK):
            return ""
        counts = Counter(r.status for r in self.results if r.status is not Status.OK)
        told = next((r.detail for r in self.results if r.status is not Status.OK and r.detail), "")
        if not counts:
            return told or "the race gave it no time that is a positive number"
        if counts.total() == len(self.results):
            return told
        shares = ", ".join(f"{status} in {n} of {len(self.results)} processes" for status, n in counts.items())
        return f"{shares}: {told}" if told else shares

    @cached_property
    def accuracy(self) -> Accuracy | None:
        """The worst of its processes; NaN is worse than any number."""
        found = [r.accuracy for r in self.results if r.accuracy is not None]
        return max(found, key=lambda a: math.inf if math.isnan(a.worst_ratio) else a.worst_ratio, default=None)

    @cached_property
    def cold(self) -> Timing | None:
        return _joined(r.cold for r in self.results)

    @cached_property
    def hot(self) -> Timing | None:
        return _joined(r.hot for r in self.results)

    @cached_property
    def noise_percent(self) -> float | None:
        """The difference between its processes' cold medians; None where fewer than two timed it."""
        return spread_percent([r.cold for r in self.results if r.cold is not None and usable(r.cold)])


@dataclass(frozen=True)
class Bench:
    """What took part, the subject first, and where and when. command, study: how to do it again; may be empty."""

    loaded: LoadedFamily
    problem: Problem
    outcomes: Sequence[Outcome]
    source: Source
    environment: Environment
    processes: int
    seed: int
    finished_at: str
    study: str = ""
    command: str = ""

    @property
    def subject(self) -> Outcome:
        return self.outcomes[0]

    @cached_property
    def ordered(self) -> list[Outcome]:
        """The subject; the right rivals by cold time; the wrong ones likewise; those that failed; those missing."""
        return [self.subject, *sorted(self.outcomes[1:], key=_place)]

    @property
    def best_rival(self) -> Outcome | None:
        """The fastest of the others that is right."""
        return next((outcome for outcome in self.ordered[1:] if outcome.right), None)

    @property
    def noise_percent(self) -> float | None:
        """The noise floor: how far the subject's cold medians in fresh processes are apart; None for one process."""
        return self.subject.noise_percent

    def speed_up(self, rival: Outcome) -> Ratio | None:
        """How many times as fast the subject is; None unless both are right."""
        if not (self.subject.right and rival.right and self.subject.cold and rival.cold):
            return None
        return time_ratio(rival.cold, self.subject.cold)

    def speed(self, rival: Outcome) -> Speed | None:
        """The rival against the subject, told by the noisier of the two; None unless both are right."""
        if not (self.subject.right and rival.right and self.subject.cold and rival.cold):
            return None
        noise = max(self.subject.noise_percent or 0.0, rival.noise_percent or 0.0)
        return verdict(rival.cold, self.subject.cold, noise)

    @property
    def timings(self) -> list[Timing]:
        return [t for outcome in self.outcomes for t in (outcome.cold, outcome.hot) if t is not None]

    @cached_property
    def warnings(self) -> list[str]:
        """What a reader must know before believing the figures."""
        found = []
        if self.noise_percent is not None and self.noise_percent > NOISE_LIMIT_PERCENT:
            found.append(
                f"the noise floor is {self.noise_percent:.2g} %, above {NOISE_LIMIT_PERCENT:g} %: fresh processes "
                "disagree on the same binary; look for other work on this GPU or raise --repeat"
            )
        foreign = self.environment.foreign_processes
        if foreign:
            others = "1 other compute process is" if foreign == 1 else f"{foreign} other compute processes are"
            found.append(f"{others} on this GPU; times may be longer than they need be")
        return found


def _joined(timings: Iterable[Timing | None]) -> Timing | None:
    found = [t for t in timings if t is not None and usable(t)]
    return join_processes(found) if found else None


def _place(outcome: Outcome) -> tuple[int, float]:
    if outcome.status is None:
        return 3, 0.0
    if outcome.cold is None:
        return 2, 0.0
    return (0 if outcome.right else 1), outcome.cold.median_us
