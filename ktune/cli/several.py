"""Several problems in one search: each in a study of its own, then each one's best on all the others."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import typer

from ktune.cli.evaluators import gpu_name_of, target_of_evaluator
from ktune.cli.options import folder_word
from ktune.cli.progress import ShownProgress
from ktune.cli.results import check_results, winner_of, write_results
from ktune.cli.searching import Task, open_task_study, search_json, search_task, summary_text
from ktune.core.errors import NothingPassed, UsageError
from ktune.core.loading import LoadedFamily
from ktune.output.several import Several, problem_name, problem_title, several_lines, several_name
from ktune.output.several_files import check_several_files, several_json, write_several
from ktune.search.evaluator import Evaluator
from ktune.search.matrix import Searched, read_matrix
from ktune.search.outcome import Outcome
from ktune.search.several import measure_crossing
from ktune.study.naming import ledger_path, study_folder

Say = Callable[[str], None]


@dataclass(frozen=True)
class _Run:
    """One search of several problems. searched, outcomes: as far as it came; an outcome of None is a failure."""

    tasks: Sequence[Task]
    evaluator: Evaluator
    say: Say
    as_json: bool
    searched: list[Searched] = field(default_factory=list)
    outcomes: list[Outcome | None] = field(default_factory=list)

    @property
    def loaded(self) -> LoadedFamily:
        return self.tasks[0].loaded

    @property
    def folder(self) -> Path:
        task = self.tasks[0]
        problems = [one.problem for one in self.tasks]
        return task.results / several_name(self.loaded.name, problems, gpu_name_of(self.evaluator), task.study)


def run_several(tasks: Sequence[Task], evaluator: Evaluator, say: Say, as_json: bool) -> bool:
    """Search every problem, then measure each one's best on the others; whether it was interrupted.

    One evaluator serves all, so that a binary that problems share is built once. Everything is in the problems' own
    studies as it finishes, however it ends. Raises NothingPassed at the end if a problem has no winner.
    """
    run = _Run(tasks, evaluator, say, as_json)
    _check_studies(run)
    with ExitStack() as opened:
        interrupted = _search_each(run, opened) or _cross(run)
        command = shlex.join(["ktune", *sys.argv[1:]])
        several = summarise(run.loaded, run.searched, run.folder, command, _unfinished(run))
        paths = write_several(several, run.folder) if several.winners else []
        typer.echo(_json_text(run, several, interrupted) if as_json else _text(several, paths))
        if interrupted:
            say(f"interrupted: {_done(run)}; everything measured is on record, the same command resumes")
            return True
    missing = several.matrix.without
    if missing:
        names = ", ".join(one.name for one in missing)
        raise NothingPassed(
            f"no variant of {run.loaded.name} passed for {names}, {len(missing)} of {len(tasks)} problems; "
            f"`ktune verify {run.loaded.name} --problem {missing[0].name}` shows where outputs differ"
        )
    name = folder_word(run.folder)
    say(f"next: ktune report {name} | ktune export {name}")
    return False


def check_tasks(tasks: Sequence[Task]) -> None:
    """UsageError for a `--study` that can't hold several problems."""
    study = tasks[0].study
    if "/" in study or (study and ledger_path(tasks[0].results / study).is_file()):
        raise UsageError(
            f"--study {study} is one folder, and a study has one problem, got {len(tasks)}; "
            "give a name that each problem's study gets at its end"
        )


def summarise(
    loaded: LoadedFamily, searched: Sequence[Searched], folder: Path, command: str, unfinished: Sequence[str] = ()
) -> Several:
    """What the studies say together, as far as they are filled."""
    matrix = read_matrix(searched)
    winners = [winner for one in matrix.columns if (winner := winner_of(one.study, loaded)) is not None]
    return Several(loaded, matrix, tuple(winners), folder, command, tuple(unfinished))


def _check_studies(run: _Run) -> None:
    """Raise now what a later problem's study or the summary would raise after the searches before it."""
    for task in run.tasks:
        gpu_name = gpu_name_of(run.evaluator)
        folder = study_folder(task.results, task.loaded.name, task.problem, gpu_name, task.study or None)
        if ledger_path(folder).is_file():
            with open_task_study(task, run.evaluator):
                pass
        if folder.exists():
            check_results(folder)
    if run.folder.exists():
        check_several_files(run.folder)


def _search_each(run: _Run, opened: ExitStack) -> bool:
    """Search one problem after the other, each with the winners before as seeds; whether it was interrupted."""
    for number, task in enumerate(run.tasks, start=1):
        study = opened.enter_context(open_task_study(task, run.evaluator))
        one = Searched(problem_name(task.loaded, task.problem), study, task.space)
        before = [best.variant.configuration for other in run.searched if (best := other.study.best()) is not None]
        seeds = [c for c in dict.fromkeys(reversed(before)) if c in task.space]
        run.say(f"problem     {problem_title(one)}, {number} of {len(run.tasks)}")
        run.searched.append(one)
        progress = ShownProgress(task.loaded.family, task.space.default)
        try:
            outcome, paths = search_task(task, study, run.evaluator, progress, seeds)
        except NothingPassed as fault:
            run.outcomes.append(None)
            run.say(str(fault))
            continue
        run.outcomes.append(outcome)
        if not run.as_json:
            typer.echo(f"problem {problem_title(one)}\n{summary_text(study, task, paths)}")
        if outcome.interrupted:
            return True
    return False


def _cross(run: _Run) -> bool:
    """Fill the matrix, and write the files anew of the studies that grew by it; whether it was interrupted."""
    before = [(len(one.study.measurements()), one.study.best()) for one in run.searched]
    progress = ShownProgress(run.loaded.family, run.tasks[0].space.default)
    try:
        measure_crossing(run.searched, run.evaluator, progress, target_of_evaluator(run.evaluator))
    except KeyboardInterrupt:
        return True
    finally:
        for one, (count, winner) in zip(run.searched, before, strict=True):
            if len(one.study.measurements()) != count:
                write_results(one.study, run.loaded)
            best = one.study.best()
            if best is not None and winner is not None and best.variant != winner.variant:
                run.say(f"{one.name}: #{best.trial}, a candidate of another problem, wins over #{winner.trial}")
    return False


def _unfinished(run: _Run) -> list[str]:
    """Problems that the search did not come to, or not to the end of."""
    complete = sum(outcome is None or not outcome.interrupted for outcome in run.outcomes)
    return [problem_name(task.loaded, task.problem) for task in run.tasks[complete:]]


def _done(run: _Run) -> str:
    return f"{len(run.tasks) - len(_unfinished(run))} of {len(run.tasks)} problems are searched"


def _text(several: Several, paths: Sequence[Path]) -> str:
    lines = [f"together {len(several.names)} problems", *several_lines(several)]
    if paths:
        lines.append(f"wrote {several.folder}/: {', '.join(path.name for path in paths)}")
    return "\n".join(lines)


def _json_text(run: _Run, several: Several, interrupted: bool) -> str:
    together = several_json(several, run.folder)
    entries: list[dict[str, Any]] = []
    for task, one, outcome in zip(run.tasks, run.searched, run.outcomes, strict=False):
        told = _failed_json(one) if outcome is None else search_json(one.study, task, outcome)
        entries.append({"name": one.name, **told})
    found = {
        "format": together["format"],
        "family": run.loaded.name,
        "folder": str(run.folder),
        "interrupted": interrupted,
        "problems": entries,
        "configurations": together["configurations"],
        "compromise": together["compromise"],
    }
    return json.dumps(found, indent=2)


def _failed_json(one: Searched) -> dict[str, Any]:
    study = one.study
    return {
        "format": 1,
        "study": str(study.folder),
        "problem": study.problem.label,
        "source": study.source.value,
        "counts": {status.value: count for status, count in study.counts().items()},
        "trials_done": study.trials_done,
        "winner": None,
    }
