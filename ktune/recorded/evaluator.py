"""Answers requests from a recorded table: no torch, no CUDA, no compiler, and nothing is measured."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from ktune.api import Family
from ktune.core.errors import UsageError
from ktune.core.model import Effort, Environment, Measurement, Request, Source, Value, Variant
from ktune.core.space import Space
from ktune.core.variant import HOPPER
from ktune.recorded.table import RecordedTable

# As on a GPU, proposals are made before the answers to the last few are known.
LOOKAHEAD = 8
SHORT_ONLY = "recorded by the search's short timing only"


class ReplayEvaluator:
    """Implements `ktune.search.evaluator.Evaluator`.

    A full measurement is answered by the recorded one, or by the short one where the point was no finalist of the
    recording, and its detail says so. lookahead: how many requests are pulled before the first is answered.
    """

    source = Source.REPLAYED

    def __init__(self, table: RecordedTable, lookahead: int = LOOKAHEAD) -> None:
        self.table = table
        self.lookahead = lookahead

    @property
    def environment(self) -> Environment:
        """Of the recording."""
        return self.table.environment

    @property
    def gpu_name(self) -> str:
        return self.table.environment.gpu_name

    @property
    def target(self) -> str:
        """What the recorded variants were compiled for."""
        return next((m.variant.target for m in self.table.measurements.values()), HOPPER)

    @property
    def noise_percent(self) -> float | None:
        """The recording's noise floor."""
        return self.table.noise_percent

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        """One answer per request, in their order."""
        source = iter(requests)
        waiting = deque(islice(source, self.lookahead))
        while waiting:
            yield self.answer(waiting.popleft())
            waiting.extend(islice(source, 1))

    def answer(self, request: Request) -> Measurement:
        """The recorded measurement under the request's name. UsageError for a point that was not recorded."""
        recorded = self._recorded(request.variant, request.effort)
        detail = recorded.detail
        if recorded.effort is not request.effort:
            detail = f"{SHORT_ONLY}; {detail}" if detail else SHORT_ONLY
        return replace(
            recorded,
            trial=request.trial,
            variant=request.variant,
            source=self.source,
            effort=request.effort,
            detail=detail,
            seconds={},
        )

    def close(self) -> None:
        """Nothing was started."""

    def _recorded(self, variant: Variant, effort: Effort) -> Measurement:
        configuration = variant.configuration
        full = self.table.full.get(configuration) if effort is Effort.FULL else None
        found = full or self.table.measurements.get(configuration)
        if found is None:
            raise UsageError(f"{dict(configuration)} is not among the recorded points of {self.table.label}")
        return found


def recorded_space(table: RecordedTable, family: Family, narrowing: Mapping[str, tuple[Value, ...]]) -> Space:
    """The table's core, or the part of it that `narrowing` leaves.

    UsageError if the family's valid points there are not the recorded ones any more, or for values not recorded.
    """
    core = Space(family, [table.problem], table.core)
    missing = [point for point in core.points if point not in table.measurements]
    gone = [point for point in table.measurements if point not in core]
    if missing or gone:
        raise UsageError(
            f"{table.label}, does not hold what is the core now: {len(missing)} of {len(core)} valid points are missing"
            f" and {len(gone)} recorded ones are gone, such as {dict((missing or gone)[0])}; record it again on a GPU: "
            f"`ktune search {family.name} --sampler exhaustive`"
        )
    if not narrowing:
        return core
    for name, values in narrowing.items():
        recorded = core.values(family.parameter(name))
        if not set(values) <= set(recorded):
            raise UsageError(
                f"{name} was recorded with {', '.join(map(str, recorded))}, --set gives "
                f"{', '.join(map(str, values))}; a replay knows no other values"
            )
    return Space(family, [table.problem], {**table.core, **narrowing})
