"""One bench on an opened evaluator: build what takes part, race it in fresh processes, gather what was found."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Protocol

import typer

from ktune.api import KernelLaunch
from ktune.cli.evaluators import target_of_evaluator
from ktune.cli.lineup import Lineup
from ktune.core.errors import EnvironmentFault
from ktune.core.loading import LoadedFamily
from ktune.core.model import Problem, Status, Variant
from ktune.core.variant import make_variant
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.output.bench import Bench, Contender, Outcome
from ktune.search.evaluator import Evaluator


class Racer(Evaluator, Protocol):
    """An evaluator that can time several things in turn in one process, as a GPU can and a recorded table can't."""

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], *, seed: int = 0, fresh: bool = False
    ) -> list[RaceResult]: ...

    def cubin_of(self, variant: Variant) -> str | None: ...


def run_bench(
    loaded: LoadedFamily,
    lineup: Lineup,
    peers: Sequence[Contender],
    evaluator: Evaluator,
    processes: int,
    seed: int,
) -> Bench:
    """Race all who are here in that many fresh processes, in another order each, counted from `seed`."""
    racer = _racer(evaluator)
    contenders = [*lineup.contenders, *peers]
    entrants, unbuilt = _enter(loaded, lineup.problem, contenders, racer)
    found: dict[str, list[RaceResult]] = {contender.name: [] for contender in contenders}
    for process in range(processes):
        typer.echo(f"process {process + 1} of {processes}: {len(entrants)} race", err=True)
        results = racer.race(lineup.problem, entrants, seed=seed + process, fresh=True) if entrants else []
        for result in [*unbuilt, *results]:
            found[result.name].append(result)
    return Bench(
        loaded,
        lineup.problem,
        [Outcome(contender, tuple(found[contender.name])) for contender in contenders],
        racer.source,
        racer.environment,
        processes,
        seed,
        datetime.now(UTC).isoformat(timespec="seconds"),
        lineup.study.name if lineup.study else "",
        shlex.join(["ktune", *sys.argv[1:]]),
    )


def _racer(evaluator: Evaluator) -> Racer:
    if not hasattr(evaluator, "race"):
        raise EnvironmentFault(
            f"bench needs a GPU: {evaluator.source} figures of different variants can't be interleaved"
        )
    return evaluator  # type: ignore[return-value]


def _enter(
    loaded: LoadedFamily, problem: Problem, contenders: Sequence[Contender], racer: Racer
) -> tuple[list[Entrant], list[RaceResult]]:
    """(those that can race, a result for each that does not build). Missing peers are in neither."""
    entrants, unbuilt = [], []
    for contender in contenders:
        if contender.configuration is not None:
            variant = make_variant(loaded.family, contender.configuration, problem, target_of_evaluator(racer))
            cubin = racer.cubin_of(variant)
            launches = loaded.family.plan(contender.configuration, problem).launches
            if cubin is None and any(isinstance(launch, KernelLaunch) for launch in launches):
                unbuilt.append(RaceResult(contender.name, Status.BUILD_FAILED, "`ktune verify` shows the first error"))
            else:
                entrants.append(Entrant(contender.name, variant, cubin))
        elif not contender.install:
            entrants.append(Entrant(contender.name, peer=contender.name))
    return entrants, unbuilt
