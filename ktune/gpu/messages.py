"""The sentences that the parent and its isolated worker exchange, beside `Job`: frozen and pickled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ktune.core.model import Environment, Problem
from ktune.gpu.protocol import Entrant, Job, RaceResult, Timings, Verdict


@dataclass(frozen=True)
class Start:
    """Parent to worker: take hold of this GPU for this family."""

    family_folder: str
    gpu: str


@dataclass(frozen=True)
class Prepare:
    """Parent to worker: make the inputs and references of a problem."""

    problem: Problem


@dataclass(frozen=True)
class Race:
    """Parent to worker: time these in turn on a problem."""

    problem: Problem
    entrants: tuple[Entrant, ...]
    seed: int = 0


Task = Job | Race
"""An order in which variants run."""

Order = Start | Prepare | Task
"""Whatever the parent tells a worker to do. Orders are carried out one after another."""


@dataclass(frozen=True)
class Step:
    """Worker to parent, before each step: what is about to run, and which entrant of a race it is about."""

    name: str
    entrant: str = ""


class Cause(StrEnum):
    """Why a step ended early: refused by the driver, context spoilt, a clear sentence for the user, or a defect."""

    REFUSED = "refused"
    STICKY = "sticky"
    EXPLAINED = "explained"
    DEFECT = "defect"


@dataclass(frozen=True)
class Fault:
    """A step that ended with an exception of class `error`; the traceback is in the worker's log."""

    step: str
    cause: Cause
    error: str
    message: str


@dataclass(frozen=True)
class Answer:
    """Worker to parent: an order is done, or has failed in the way that `fault` says."""

    seconds: Mapping[str, float] = field(default_factory=dict)
    fault: Fault | None = None
    environment: Environment | None = None
    verdict: Verdict | None = None
    timings: Timings | None = None
    recheck: Verdict | None = None
    results: tuple[RaceResult, ...] = ()
