"""What the parent and the isolated worker say to each other, and what a worker needs of a GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from ktune.core.model import Accuracy, Effort, Environment, Problem, Status, Timing, Variant


@dataclass(frozen=True)
class Job:
    """One variant to load, verify and time. `cubin` is None for a plan of torch operations alone."""

    trial: int
    variant: Variant
    problem: Problem
    cubin: str | None
    effort: Effort = Effort.SEARCH
    cull_above_us: float | None = None


@dataclass(frozen=True)
class Verdict:
    """What verification found. `status` is OK, WRONG or UNSTABLE."""

    status: Status
    detail: str = ""
    accuracy: Accuracy | None = None


@dataclass(frozen=True)
class Timings:
    """What timing found. `status` is OK, CULLED (with `bound_us`) or UNSTABLE."""

    status: Status
    detail: str = ""
    cold: Timing | None = None
    hot: Timing | None = None
    bound_us: float | None = None


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
        """Level 0: the measured problem, and the family's small check problems on a second seed."""
        ...

    def time(self) -> Timings: ...

    def recheck(self) -> Verdict:
        """The output that the timed launches left behind, canaries and inputs."""
        ...

    def unload(self) -> None: ...

    def close(self) -> None: ...


BackendFactory = Callable[[str, str], Backend]
"""(family folder, GPU uuid or index or "") -> Backend."""

Steps = Sequence[str]
STEPS: Steps = ("start", "prepare", "load", "verify", "time", "recheck")
