"""From what the builder and the worker found to the measurement that goes on record."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from ktune.core.model import Accuracy, Measurement, Request, Source, Status
from ktune.gpu.messages import Answer
from ktune.gpu.outcome import Outcome
from ktune.gpu.protocol import Verdict

if TYPE_CHECKING:
    from ktune.build.builder import BuildResult


def measured(request: Request, built: BuildResult, outcome: Outcome, source: Source) -> Measurement:
    """The measurement of a variant that the worker has had."""
    answer = outcome.answer
    status, detail = (outcome.failed, outcome.detail) if outcome.failed is not None else judge(answer)
    # Times of a variant that then spoiled its worker are not trusted.
    timings = answer.timings if outcome.failed is None else None
    return replace(
        not_launched(request, built, status, detail, source),
        accuracy=_accuracy(answer),
        cold=None if timings is None else timings.cold,
        hot=None if timings is None else timings.hot,
        bound_us=None if timings is None else timings.bound_us,
        environment=outcome.environment,
        seconds={**_build_seconds(built), **answer.seconds},
    )


def not_launched(request: Request, built: BuildResult, status: Status, detail: str, source: Source) -> Measurement:
    """The measurement of a variant that never reached the worker."""
    return Measurement(
        trial=request.trial,
        variant=request.variant,
        problem=request.problem,
        status=status,
        source=source,
        effort=request.effort,
        detail=detail,
        build=built.facts,
        finished_at=_now(),
        seconds=_build_seconds(built),
    )


def same_code(request: Request, built: BuildResult, twin: Measurement) -> Measurement:
    """The twin's measurement under this request's name: the same instructions with the same arguments."""
    detail = f"same code as #{twin.trial}"
    return replace(
        twin,
        trial=request.trial,
        variant=request.variant,
        detail=f"{detail}: {twin.detail}" if twin.detail else detail,
        build=built.facts,
        finished_at=_now(),
        seconds=_build_seconds(built),
    )


def judge(answer: Answer) -> tuple[Status, str]:
    """Status and detail of a complete answer: verification, then timing, then the output left by the timing."""
    verdict, timings, recheck = answer.verdict, answer.timings, answer.recheck
    assert verdict is not None, "an answer without a fault has a verdict"
    if verdict.status is not Status.OK:
        return verdict.status, verdict.detail
    assert timings is not None, "a variant that is right is timed"
    if timings.status is not Status.OK or recheck is None or recheck.status is Status.OK:
        return timings.status, timings.detail
    return demoted(recheck)


def demoted(recheck: Verdict) -> tuple[Status, str]:
    """Status and detail of a variant that was right when verified, and not in the check after its timed launches."""
    detail = f"right when verified, not after the timed launches: {recheck.detail}"
    # Same binary, same inputs, first right and then wrong values: the output varies.
    return (Status.UNSTABLE if _values_are_wrong(recheck) else recheck.status), detail


def _values_are_wrong(verdict: Verdict) -> bool:
    accuracy = verdict.accuracy
    if accuracy is None:
        return False
    beyond_bound = accuracy.bound_ratio is not None and not accuracy.bound_ratio <= 1.0
    return beyond_bound or not accuracy.worst_ratio <= 1.0


def _accuracy(answer: Answer) -> Accuracy | None:
    """The accuracy of the check that decided: the second where it failed, else the first."""
    recheck = answer.recheck
    if recheck is not None and recheck.status is not Status.OK and recheck.accuracy is not None:
        return recheck.accuracy
    return None if answer.verdict is None else answer.verdict.accuracy


def _build_seconds(built: BuildResult) -> dict[str, float]:
    if built.facts is None:
        return {}
    return {"build": 0.0 if built.facts.cached else built.facts.compile_s}


def _now() -> str:
    return datetime.now(UTC).isoformat(timespec="milliseconds")
