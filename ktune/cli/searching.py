"""One search from an opened evaluator to the files that it leaves behind."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer

from ktune.cli.evaluators import gpu_name_of, key_of, target_of_evaluator
from ktune.cli.options import folder_word
from ktune.cli.progress import ShownProgress
from ktune.cli.results import check_results, report_of, winner_of, write_results
from ktune.core.errors import KtuneError
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Problem, Source
from ktune.core.space import Space
from ktune.output.files import check_writable
from ktune.output.summary import summary_lines
from ktune.output.winner import winner_json
from ktune.recorded.record import patience, write_recording
from ktune.search.evaluator import Evaluator
from ktune.search.outcome import Outcome
from ktune.search.run import FINALISTS
from ktune.search.run import search as search_study
from ktune.study.finding import study_folders
from ktune.study.naming import LEDGER_NAME
from ktune.study.study import Study

SEEDS = 5


@dataclass(frozen=True)
class Task:
    """What is searched, where its study lies, and for how long.

    trials: None is every valid point. finalists: how many are measured in full at the end, 0 is none; None is as usual.
    recording: the space is the family's core, and the study ends as its table.
    """

    loaded: LoadedFamily
    problem: Problem
    space: Space
    results: Path
    study: str
    trials: int | None
    sampler: str
    seed: int
    finalists: int | None = None
    recording: bool = False


def run_search(task: Task, evaluator: Evaluator, progress: ShownProgress, as_json: bool) -> Outcome:
    """Search, and leave the study's files behind however it ends."""
    with open_task_study(task, evaluator) as study:
        outcome, paths = search_task(task, study, evaluator, progress)
        if as_json:
            typer.echo(json.dumps(search_json(study, task, outcome), indent=2))
        else:
            typer.echo(summary_text(study, task, paths))
        if outcome.interrupted:
            done = f"{outcome.trials_done} of {outcome.trials_total} trials"
            progress.say(f"interrupted: {done} are on record; the same command resumes")
        elif outcome.winner is not None:
            name = folder_word(study.folder)
            progress.say(f"next: ktune report {name} | ktune export {name} --with-kernel")
        return outcome


def search_task(
    task: Task, study: Study, evaluator: Evaluator, progress: ShownProgress, seeds: Sequence[Configuration] = ()
) -> tuple[Outcome, list[Path]]:
    """Search in an opened study: what it came to, and the files that it left, which it does however it ends.

    seeds: tried right after the default, before the winners of earlier studies.
    """
    check_results(study.folder)
    _tell_opening(study, progress.say)
    # What a replay finds depends on its recording and its seed alone.
    earlier = [] if study.source is Source.REPLAYED else _earlier_winners(task, study)
    try:
        outcome = search_study(
            study,
            task.space,
            evaluator,
            sampler=task.sampler,
            trials=task.trials,
            seed=task.seed,
            progress=progress,
            seeds=list(dict.fromkeys([*seeds, *earlier]))[: max(SEEDS, len(seeds))],
            target=target_of_evaluator(evaluator),
            finalists=FINALISTS if task.finalists is None else task.finalists,
            patience=patience if task.recording else lambda best_us: 1.0,
        )
    finally:
        paths = write_results(study, task.loaded) if study.measurements() else []
    if task.recording and not outcome.interrupted:
        paths += _record(task, study, progress.say)
    return outcome, paths


def _record(task: Task, study: Study, say: Callable[[str], None]) -> list[Path]:
    """Write the table of a complete recording; what it left."""
    found = write_recording(study, task.loaded, task.space)
    if found is None:
        say("not recorded yet: points are missing; the same command goes on")
        return []
    table = found.table
    say(f"recorded: {len(table.measurements)} points; `--replay {found.path}` searches them without a GPU")
    for note in found.notes:
        say(f"recorded: {note}")
    return [found.path]


def check_folder(task: Task) -> None:
    """Fail now if the results can't be written, rather than after the GPU was found."""
    folder = Path(task.study).expanduser() if "/" in task.study else task.results
    check_writable(folder / LEDGER_NAME, "")


def open_task_study(task: Task, evaluator: Evaluator, about: Mapping[str, Any] | None = None) -> Study:
    """The study of a task, going on where it stopped, or a new one. about: what else its meta says."""
    return Study.open_or_create(
        task.results,
        task.loaded.family,
        task.problem,
        task.space,
        gpu_name_of(evaluator),
        evaluator.source,
        task.study or None,
        current_key=key_of(evaluator),
        meta={"command": shlex.join(["ktune", *sys.argv[1:]]), **(about or {})},
        family_folder=task.loaded.folder,
    )


def _tell_opening(study: Study, say: Callable[[str], None]) -> None:
    opening = study.opening
    if opening.reason not in ("", "new"):
        say(f"new study: {opening.reason}")
    if opening.taken_over:
        say(f"taken over: {opening.taken_over} measurements whose variant is unchanged")
    if opening.absorbed:
        say(f"added: {opening.absorbed} measurements that an earlier run could not record")


def _earlier_winners(task: Task, study: Study) -> list[Configuration]:
    """The winners of other studies of this family below the results folder, the latest first."""
    found = []
    for folder in study_folders(task.results):
        if folder.resolve() == study.folder.resolve():
            continue
        try:
            with Study.open_existing(folder) as other:
                alike = other.family == task.loaded.name and other.source is study.source
                best = other.best() if alike else None
        except KtuneError:
            # A study that can't be read gives no hint; it is no reason not to search.
            continue
        if best is not None and best.variant.configuration in task.space:
            found.append((best.finished_at, best.variant.configuration))
    latest_first = sorted(found, key=lambda winner: winner[0], reverse=True)
    return list(dict.fromkeys(configuration for _, configuration in latest_first))[:SEEDS]


def summary_text(study: Study, task: Task, paths: Sequence[Path]) -> str:
    """What a search says at its end."""
    names = ", ".join(path.name for path in paths)
    return "\n".join([*summary_lines(report_of(study, task.loaded)), f"wrote {study.folder}/: {names}"])


def search_json(study: Study, task: Task, outcome: Outcome) -> dict[str, Any]:
    """What a search came to, as `--json` prints it."""
    winner = winner_of(study, task.loaded)
    return {
        "format": 1,
        "study": str(study.folder),
        "problem": study.problem.label,
        "source": study.source.value,
        "counts": {status.value: count for status, count in outcome.counts.items()},
        "trials_done": outcome.trials_done,
        "trials_total": outcome.trials_total,
        "sampler": outcome.sampler,
        "elapsed_s": outcome.elapsed_s,
        "interrupted": outcome.interrupted,
        "stats_s": dict(outcome.evaluator_stats),
        "winner": None if winner is None else winner_json(winner),
    }
