"""`ktune bench`: the winner against the family's default and its peers, in one interleaved race."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import (
    RESULTS,
    ConfigOption,
    DebugOption,
    FamilyArgument,
    GpuOption,
    JobsOption,
    JsonOption,
    NvccOption,
    ProblemOption,
    ResultsOption,
    StudyOption,
)
from ktune.core.errors import NothingPassed, UsageError

if TYPE_CHECKING:
    from ktune.cli.lineup import Lineup
    from ktune.core.loading import LoadedFamily
    from ktune.gpu.protocol import RaceResult
    from ktune.output.bench import Bench, Contender
    from ktune.search.evaluator import Evaluator

PROCESSES = 2


@dataclass(frozen=True)
class _Race:
    """How often, and with what inputs and order."""

    processes: int
    seed: int


def bench(
    family: FamilyArgument,
    configuration: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[CONFIGURATION]...",
            help="#trial, id, digest prefix or JSON file; the first is compared with all others. "
            "The latest study's winner if not given.",
        ),
    ] = None,
    problem: ProblemOption = None,
    peer: Annotated[
        list[str] | None, typer.Option("--peer", metavar="NAME", help="Only this peer of the family. Repeatable.")
    ] = None,
    no_peers: Annotated[bool, typer.Option("--no-peers", help="Compare configurations only.")] = False,
    repeat: Annotated[
        int, typer.Option(min=1, metavar="N", help="Fresh processes. How far they differ is the noise floor.")
    ] = PROCESSES,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the inputs and of the order.")] = 0,
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where the files go, instead of the study.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that ktune did not write.")] = False,
    gpu: GpuOption = "",
    jobs: JobsOption = None,
    nvcc: NvccOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Compare the winner with the default and every peer, right or wrong, timed in turn; times in microseconds.

    Writes bench.json and bench.csv. Exits with 4 if the winner itself is not right.

    Example: ktune bench selective_scan --repeat 3
    """
    with faults(debug):
        from ktune.cli.evaluators import EvaluatorOptions, make_evaluator
        from ktune.cli.lineup import find_lineup, find_peers
        from ktune.core.loading import load_family
        from ktune.output.bench_files import check_bench_files, json_text, write_bench
        from ktune.output.bench_table import bench_lines

        if peer and no_peers:
            raise UsageError("--peer names a rival and --no-peers wants none; leave one of them out")
        loaded = load_family(family)
        lineup = find_lineup(loaded, configuration or (), problem, study, results)
        # The name of the study is for its folder: a study found by its name need not be called so on this GPU.
        options = EvaluatorOptions(lineup.problem, results, study, gpu, jobs, nvcc, _say)
        evaluator = make_evaluator(loaded, options)
        try:
            folder = output or _folder(loaded, lineup, evaluator, results, study)
            check_bench_files(folder, force=force)
            # The first worker starts while torch is imported here.
            names = [contender.name for contender in lineup.contenders]
            peers = [] if no_peers else find_peers(loaded, peer or (), names)
            if not peers and not no_peers:
                _say(f"{loaded.name} has no peers.py: configurations are compared with one another only")
            found = run_bench(loaded, lineup, peers, evaluator, _Race(repeat, seed))
        finally:
            evaluator.close()
        paths = write_bench(found, folder, force=force)
        typer.echo(json_text(found) if json_ else "\n".join(bench_lines(found)))
        for path in paths:
            _say(f"wrote {path}")
        if not found.subject.right:
            raise NothingPassed(
                f"{found.subject.name} is not right at {lineup.problem.label}: {found.subject.detail or 'no time'}; "
                f"`ktune verify {family}` says more"
            )


def run_bench(
    loaded: LoadedFamily, lineup: Lineup, peers: Sequence[Contender], evaluator: Evaluator, race: _Race
) -> Bench:
    """Race everyone who is here in `race.processes` fresh processes, each with another seed."""
    from datetime import UTC, datetime

    from ktune.output.bench import Bench, Outcome

    contenders = [*lineup.contenders, *peers]
    found: dict[str, list[RaceResult]] = {contender.name: [] for contender in contenders}
    entrants, unbuilt = enter(loaded, lineup, peers, evaluator)
    for process in range(race.processes):
        _say(f"process {process + 1} of {race.processes}: {len(entrants)} in the race")
        results = evaluator.race(lineup.problem, entrants, seed=race.seed + process, fresh=True)
        for result in [*unbuilt, *results]:
            found[result.name].append(result)
    return Bench(
        loaded,
        lineup.problem,
        [Outcome(contender, tuple(found[contender.name])) for contender in contenders],
        evaluator.source,
        evaluator.environment,
        race.processes,
        race.seed,
        datetime.now(UTC).isoformat(timespec="seconds"),
        lineup.study.name if lineup.study else "",
        shlex.join(["ktune", *sys.argv[1:]]),
    )


def _say(sentence: str) -> None:
    typer.echo(sentence, err=True)
