"""How a job or a race ended, and which faults end more than that."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ktune.core import errors
from ktune.core.errors import KtuneError
from ktune.core.model import Environment, Status, Variant
from ktune.gpu.messages import Answer, Cause, Fault, Order, Race, Task


@dataclass(frozen=True)
class Outcome:
    """How a job or a race ended. `failed` is CRASHED, TIMED_OUT or LAUNCH_FAILED, or None where `answer` is complete.

    entrant: the one in a race that made it fail.
    """

    job: Task
    answer: Answer
    environment: Environment
    failed: Status | None = None
    detail: str = ""
    entrant: str = ""


def culprit(task: Task, entrant: str) -> tuple[str, Variant | None]:
    """What ran when a worker was lost: its name, and its variant unless it was a peer."""
    if isinstance(task, Race):
        return entrant, next((e.variant for e in task.entrants if e.name == entrant), None)
    return f"#{task.trial}", task.variant


def is_final(fault: Fault, order: Order) -> bool:
    """Whether a fresh worker would meet it again. A defect while starting may be a GPU that is short of memory."""
    return fault.cause is Cause.EXPLAINED or (fault.cause is Cause.DEFECT and isinstance(order, Task))


def explained(fault: Fault, log: Path) -> KtuneError:
    """The exception to raise for a final fault."""
    if fault.cause is Cause.EXPLAINED:
        kind = getattr(errors, fault.error, KtuneError)
        return cast(KtuneError, kind(fault.message))
    return KtuneError(f"the GPU worker met {fault.error} in {fault.step}: {fault.message}; its traceback is in {log}")
