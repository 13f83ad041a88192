"""What the parent and the isolated worker say to each other, and what a worker needs of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ktune.core.model import Accuracy, Effort, Environment, Problem, Status, Timing, Variant


@dataclass(frozen=True)
class Job:
    """One variant to load, verify and time. `cubin` is None for a plan of torch operations alone.

    thorough: verified on every kind of inputs, too.
    """

    trial: int
    variant: Variant
    problem: Problem
    cubin: str | None
    effort: Effort = Effort.SEARCH
    cull_above_us: float | None = None
    thorough: bool = False


@dataclass(frozen=True)
class Verdict:
    """What verification found. `status` is OK, WRONG or UNSTABLE. `damaged`: memory of others was changed."""

    status: Status
    detail: str = ""
    accuracy: Accuracy | None = None
    damaged: bool = False


@dataclass(frozen=True)
class Timings:
    """What timing found. `status` is OK, CULLED (with `bound_us`) or UNSTABLE."""

    status: Status
    detail: str = ""
    cold: Timing | None = None
    hot: Timing | None = None
    bound_us: float | None = None


@dataclass(frozen=True)
class Entrant:
    """One that runs in a race: a variant with its cubin, or a peer of the family by name. `name` is unique in it."""

    name: str
    variant: Variant | None = None
    cubin: str | None = None
    peer: str | None = None


@dataclass(frozen=True)
class RaceResult:
    """How an entrant did. A wrong one is timed all the same and says WRONG.

    One that failed, or that changed memory which is not its own to write, has no times.
    """

    name: str
    status: Status
    detail: str = ""
    accuracy: Accuracy | None = None
    cold: Timing | None = None
    hot: Timing | None = None


class LaunchFault(Exception):
    """The driver refused to load or launch a variant; the process is still sound."""


class StickyFault(Exception):
    """The context is spoilt (illegal address, trap): the worker must be replaced."""


class Backend(Protocol):
    """One process's hold on a GPU, for one family. Called by the worker in this order, step by step.

    `load`, `verify`, `time` and `recheck` are for the job of the last `load`. They may raise LaunchFault or
    StickyFault; whatever else they raise is a defect and ends the search with its traceback in the log.
    """

    def environment(self) -> Environment: ...

    def prepare(self, problem: Problem) -> None:
        """Inputs and float64 references of a problem, before any variant runs in this process."""
        ...

    def load(self, job: Job) -> None: ...

    def verify(self) -> Verdict:
        """The measured problem, and the family's small check problems on a second seed; of a thorough job, those on
        every kind of inputs, too."""
        ...

    def time(self) -> Timings: ...

    def recheck(self) -> Verdict:
        """The output that the timed launches left behind, canaries and inputs."""
        ...

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], seed: int, step: Callable[[str, str], None]
    ) -> list[RaceResult]:
        """Verify each entrant thoroughly, then time all in turn, in a new random order each round, on the same buffers.

        Rounds go on until each median is precise or the time is up. `step(name of step, name of entrant)` is called
        before each part, so that a crash can be blamed. One result per entrant, in the order given. The problem was
        prepared before.
        """
        ...

    def unload(self) -> None: ...

    def close(self) -> None: ...


BackendFactory = Callable[[str, str], Backend]
"""(family folder, GPU uuid or index or "") -> Backend."""

Steps = Sequence[str]
STEPS: Steps = ("start", "prepare", "load", "verify", "time", "recheck", "compile")
