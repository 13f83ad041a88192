"""How a job ended, and which faults end more than a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import cast

from ktune.core import errors
from ktune.core.errors import KtuneError
from ktune.core.model import Environment, Status
from ktune.gpu.messages import Answer, Cause, Fault, Order
from ktune.gpu.protocol import Job


@dataclass(frozen=True)
class Outcome:
    """How a job ended. `failed` is CRASHED, TIMED_OUT or LAUNCH_FAILED, or None where `answer` is complete."""

    job: Job
    answer: Answer
    environment: Environment
    failed: Status | None = None
    detail: str = ""


def is_final(fault: Fault, order: Order) -> bool:
    """Whether a fresh worker would meet it again. A defect while starting may be a GPU that is short of memory."""
    return fault.cause is Cause.EXPLAINED or (fault.cause is Cause.DEFECT and isinstance(order, Job))


def explained(fault: Fault, log: Path) -> KtuneError:
    """The exception to raise for a final fault."""
    if fault.cause is Cause.EXPLAINED:
        kind = getattr(errors, fault.error, KtuneError)
        return cast(KtuneError, kind(fault.message))
    return KtuneError(f"the GPU worker met {fault.error} in {fault.step}: {fault.message}; its traceback is in {log}")
