"""What a search came to."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ktune.core.errors import NothingPassed
from ktune.core.model import Measurement, Status
from ktune.study.study import Study


@dataclass(frozen=True)
class Outcome:
    """winner: None if the search was interrupted, or had no trials, before anything passed.

    default: the default configuration's own measurement, the full one if there is one. tied: those that can't be told
    from the fastest, without the winner. final: the winner was chosen by full measurements. noise_percent, warnings: of
    the races that gave these; None where the finalists did not race.
    exhausted: no valid point is left. trials_done, trials_total: of the study, resumed ones included.
    evaluator_stats: seconds by phase, as the evaluator counts them.
    """

    winner: Measurement | None
    default: Measurement | None
    tied: tuple[Measurement, ...]
    final: bool
    counts: Mapping[Status, int]
    trials_done: int
    trials_total: int
    sampler: str
    elapsed_s: float
    interrupted: bool = False
    exhausted: bool = False
    noise_percent: float | None = None
    warnings: tuple[str, ...] = ()
    evaluator_stats: Mapping[str, float] = field(default_factory=dict)


def nothing_passed(study: Study) -> NothingPassed:
    """Why no variant can win: the failures counted by kind, each with its first example."""
    found = study.measurements()
    examples: dict[Status, Measurement] = {}
    for m in found:
        examples.setdefault(m.status, m)
    counts = study.counts()
    lines = [f"  {count:>4} {status}{_example(study, examples.get(status))}" for status, count in counts.most_common()]
    return NothingPassed(
        f"none of {sum(counts.values())} variants of {study.family} passed for {study.problem.label}:\n"
        + "\n".join(lines)
        + f"\nstart with one: `ktune verify {study.family}` shows where its outputs differ"
    )


def _example(study: Study, m: Measurement | None) -> str:
    if m is None:
        return ""
    reason = m.detail.strip().splitlines()[0][:160] if m.detail.strip() else "no reason given"
    return f": {study.identify(m.variant.configuration)}: {reason}"
