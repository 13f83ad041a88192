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
    ProblemsOption,
    ResultsOption,
    SamplerName,
    SetOption,
    StudyOption,
)

TRIALS = 200


def search(
    family: FamilyArgument,
    problem: ProblemsOption = None,
    set_: SetOption = None,
    trials: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="N", help=f"Trials of each study in all. {TRIALS}, or every valid point if exhaustive."
        ),
    ] = None,
    sampler: Annotated[SamplerName, typer.Option(help="How the next configuration is chosen.")] = SamplerName.TPE,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sampler.")] = 0,
    finalists: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Most of the fastest that are measured in full at the end. 0 skips that phase."
        ),
    ] = None,
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
        from ktune.cli.options import parse_problems, parse_space
        from ktune.cli.progress import ShownProgress
        from ktune.cli.searching import Task, check_folder, run_search
        from ktune.core.loading import load_family

        loaded = load_family(family)
        total = None if trials is None and sampler is SamplerName.EXHAUSTIVE else trials or TRIALS
        tasks = [
            Task(
                loaded, chosen, parse_space(loaded, chosen, set_), results, study, total, sampler.value, seed, finalists
            )
            for chosen in parse_problems(loaded, problem)
        ]
        if len(tasks) > 1:
            from ktune.cli.several import check_tasks, run_several

            check_tasks(tasks)
        if dry_run:
            from ktune.cli.dry_run import dry_run_text

            typer.echo(dry_run_text(tasks, jobs, json_))
            return
        for task in tasks:
            check_folder(task)
        progress = ShownProgress(loaded.family, tasks[0].space.default)
        options = EvaluatorOptions(tasks[0].problem, results, study, gpu, jobs, nvcc, progress.say)
        evaluator = make_evaluator(loaded, options)
        try:
            if len(tasks) > 1:
                interrupted = run_several(tasks, evaluator, progress.say, json_)
            else:
                interrupted = run_search(tasks[0], evaluator, progress, json_).interrupted
        finally:
            evaluator.close()
        if interrupted:
            raise typer.Exit(INTERRUPTED)
