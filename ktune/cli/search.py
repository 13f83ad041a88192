"""`ktune search`: find the fastest right configuration on the GPU at hand."""

from __future__ import annotations

from typing import Annotated

import typer

from ktune.cli.faults import INTERRUPTED, faults
from ktune.cli.options import (
    RESULTS,
    ConfigOption,
    DebugOption,
    DryRunOption,
    FamilyArgument,
    GpuOption,
    JobsOption,
    JsonOption,
    NvccOption,
    ProblemOption,
    ResultsOption,
    SamplerName,
    SetOption,
    StudyOption,
)

TRIALS = 200


def search(
    family: FamilyArgument,
    problem: ProblemOption = None,
    set_: SetOption = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"Trials of the study in all. {TRIALS}, or every valid point if exhaustive."
        ),
    ] = None,
    sampler: Annotated[SamplerName, typer.Option(help="How the next configuration is chosen.")] = SamplerName.TPE,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sampler.")] = 0,
    gpu: GpuOption = "",
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    jobs: JobsOption = None,
    nvcc: NvccOption = None,
    config: ConfigOption = None,
    dry_run: DryRunOption = False,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Build, verify and time variants; find the fastest. Ctrl-C keeps everything, the same command resumes.

    Example: ktune search selective_scan --problem B=16,L=2048 --trials 200
    """
    with faults(debug):
        from ktune.cli.evaluators import EvaluatorOptions, make_evaluator
        from ktune.cli.options import parse_problem, parse_space
        from ktune.cli.progress import ShownProgress
        from ktune.cli.searching import Task, check_folder, run_search
        from ktune.core.loading import load_family

        loaded = load_family(family)
        chosen = parse_problem(loaded, problem)
        space = parse_space(loaded, chosen, set_)
        total = None if trials is None and sampler is SamplerName.EXHAUSTIVE else trials or TRIALS
        task = Task(loaded, chosen, space, results, study, total, sampler.value, seed)
        if dry_run:
            from ktune.cli.dry_run import dry_run_text

            typer.echo(dry_run_text(task, jobs, json_))
            return
        check_folder(task)
        progress = ShownProgress(loaded.family, space.default)
        options = EvaluatorOptions(chosen, results, study, gpu, jobs, nvcc, progress.say)
        evaluator = make_evaluator(loaded, options)
        try:
            outcome = run_search(task, evaluator, progress, json_)
        finally:
            evaluator.close()
        if outcome.interrupted:
            raise typer.Exit(INTERRUPTED)
