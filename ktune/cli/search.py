"""`ktune search`: find the fastest right configuration on the GPU at hand."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

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
    ReplayOption,
    ResultsOption,
    SamplerName,
    SetOption,
    StudyOption,
)
from ktune.core.errors import UsageError

if TYPE_CHECKING:
    from ktune.cli.searching import Task
    from ktune.core.loading import LoadedFamily

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
    sampler: Annotated[
        SamplerName,
        typer.Option(
            help="How the next configuration is chosen. gp: Gaussian processes over the open points, one for each "
            "algorithm, or where there is none in turn with Optuna's TPE; tpe: that alone; exhaustive: the family's "
            "core, unless --set narrows."
        ),
    ] = SamplerName.GP,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the sampler.")] = 0,
    finalists: Annotated[
        int | None,
        typer.Option(
            min=0, metavar="N", help="Most of the fastest that are measured in full at the end. 0 skips that phase."
        ),
    ] = None,
    replay: ReplayOption = "",
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
        from ktune.core.loading import load_family

        loaded = load_family(family)
        total = None if trials is None and sampler is SamplerName.EXHAUSTIVE else trials or TRIALS
        if replay:
            from ktune.cli.replaying import Wish, run_replay

            if gpu:
                raise UsageError(f"--gpu {gpu} chooses a GPU to measure on, --replay measures nothing; leave one out")
            wish = Wish(
                loaded, replay, problem, set_, results, study, total, sampler.value, seed, finalists, nvcc, dry_run
            )
            interrupted = run_replay(wish, json_)
        else:
            tasks = _tasks(loaded, problem, set_, results, study, total, sampler, seed, finalists)
            interrupted = _search_here(tasks, gpu, jobs, nvcc, dry_run, json_)
        if interrupted:
            raise typer.Exit(INTERRUPTED)


def _tasks(
    loaded: LoadedFamily,
    problem: list[str] | None,
    set_: list[str] | None,
    results: Path,
    study: str,
    total: int | None,
    sampler: SamplerName,
    seed: int,
    finalists: int | None,
) -> list[Task]:
    """One a problem. An exhaustive search that nothing narrows is a recording of the family's core."""
    from ktune.cli.options import parse_narrowing, parse_problems, value_texts
    from ktune.cli.searching import Task
    from ktune.core.space import Space

    recording = sampler is SamplerName.EXHAUSTIVE and not set_ and bool(loaded.family.core)
    narrowing = dict(loaded.family.core) if recording else parse_narrowing(loaded, set_)
    tasks = []
    for chosen in parse_problems(loaded, problem):
        space = Space(loaded.family, [chosen], narrowing)
        # The default is found without counting the space, and not at all in an empty one.
        _ = space.default
        tasks.append(Task(loaded, chosen, space, results, study, total, sampler.value, seed, finalists, recording))
    if recording:
        values = "; ".join(f"{name} {value_texts(values)}" for name, values in narrowing.items())
        typer.echo(f"exhaustive: the core of {loaded.name}, which is {values}. --set searches others", err=True)
    return tasks


def _search_here(
    tasks: list[Task], gpu: str, jobs: int | None, nvcc: Path | None, dry_run: bool, as_json: bool
) -> bool:
    """Search on this machine's GPU, or say what that would do; whether it was interrupted."""
    from ktune.cli.evaluators import EvaluatorOptions, make_evaluator
    from ktune.cli.progress import ShownProgress
    from ktune.cli.searching import check_folder, run_search

    task = tasks[0]
    if len(tasks) > 1:
        from ktune.cli.several import check_tasks, run_several

        check_tasks(tasks)
    if dry_run:
        from ktune.cli.dry_run import dry_run_text

        typer.echo(dry_run_text(tasks, jobs, as_json))
        return False
    for one in tasks:
        check_folder(one)
    progress = ShownProgress(task.loaded.family, task.space.default)
    options = EvaluatorOptions(task.problem, task.results, task.study, gpu, jobs, nvcc, progress.say)
    evaluator = make_evaluator(task.loaded, options)
    try:
        if len(tasks) > 1:
            return run_several(tasks, evaluator, progress.say, as_json)
        return run_search(task, evaluator, progress, as_json).interrupted
    finally:
        evaluator.close()
