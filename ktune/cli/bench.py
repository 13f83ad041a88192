"""`ktune bench`: the winner against the family's default and its peers, in one interleaved race."""

from __future__ import annotations

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
    from ktune.search.evaluator import Evaluator

PROCESSES = 2


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
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the order in which they take turns.")] = 0,
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
        from ktune.cli.racing import run_bench
        from ktune.core.loading import load_family
        from ktune.output.bench_files import check_bench_files, json_text, write_bench
        from ktune.output.bench_table import bench_lines

        if peer and no_peers:
            raise UsageError("--peer names a rival and --no-peers wants none; leave one of them out")
        loaded = load_family(family)
        lineup = find_lineup(loaded, configuration or (), problem, study, results)
        place = str(lineup.study.folder.resolve()) if lineup.study else study
        options = EvaluatorOptions(lineup.problem, results, place, gpu, jobs, nvcc, _say)
        evaluator = make_evaluator(loaded, options)
        try:
            folder = output or _folder(loaded, lineup, evaluator, results, study)
            check_bench_files(folder, force=force)
            # The first worker starts while torch is imported here.
            names = [contender.name for contender in lineup.contenders]
            peers = [] if no_peers else find_peers(loaded, peer or (), names)
            if not peers and not no_peers:
                _say(f"{loaded.name} has no peers.py: configurations are compared with one another only")
            found = run_bench(loaded, lineup, peers, evaluator, repeat, seed)
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


def _folder(loaded: LoadedFamily, lineup: Lineup, evaluator: Evaluator, results: Path, study: str) -> Path:
    """The study's folder, or that of this problem on this GPU if the study was made on another model."""
    from ktune.cli.evaluators import gpu_name_of
    from ktune.study.naming import study_folder

    here = gpu_name_of(evaluator)
    if lineup.study is None:
        return study_folder(results, loaded.name, lineup.problem, here, study or None)
    if lineup.study.gpu_name == here:
        return lineup.study.folder
    _say(f"study {lineup.study.name} was made on {lineup.study.gpu_name}; all times below are from {here}")
    return study_folder(results, loaded.name, lineup.problem, here)


def _say(sentence: str) -> None:
    typer.echo(sentence, err=True)
