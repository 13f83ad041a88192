"""`ktune search --replay`: the same search, answered from a recorded table, then what needs no GPU done for real."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import typer

from ktune.cli.options import folder_word, parse_narrowing, parse_problems
from ktune.cli.progress import ShownProgress
from ktune.cli.searching import Task, check_folder, open_task_study, search_json, search_task, summary_text
from ktune.core.errors import NothingPassed, UsageError
from ktune.core.loading import LoadedFamily
from ktune.core.settings import read_settings
from ktune.recorded.confirm import Confirmation, confirmations
from ktune.recorded.evaluator import ReplayEvaluator, recorded_space
from ktune.recorded.record import source_digest
from ktune.recorded.table import RecordedTable, find_table, is_file_name, table_of_file
from ktune.study.study import Study
from ktune.study.takeover import RECORDING

REPLAYED = "replayed"
MARK = f" ({REPLAYED})"


@dataclass(frozen=True)
class Wish:
    """What the command line says of a replay."""

    loaded: LoadedFamily
    replay: str
    problem: Sequence[str] | None
    narrowed: Sequence[str] | None
    results: Path
    study: str
    trials: int | None
    sampler: str
    seed: int
    finalists: int | None
    nvcc: Path | None
    dry_run: bool


def run_replay(wish: Wish, as_json: bool) -> bool:
    """Search the recorded core and confirm the winner; whether it was interrupted."""
    table = _find(wish)
    loaded = wish.loaded
    space = recorded_space(table, loaded.family, parse_narrowing(loaded, wish.narrowed))
    name = _study_name(wish.study)
    task = Task(
        loaded, table.problem, space, wish.results, name, wish.trials, wish.sampler, wish.seed, wish.finalists
    )  # fmt: skip
    trials = len(space) if wish.trials is None else min(wish.trials, len(space))
    if wish.dry_run:
        text = f"would replay {trials} of {len(space)} recorded points of {table.label}; nothing is measured"
        facts = {"format": 1, "family": table.family, "trials": trials, **_json(table, ())}
        typer.echo(json.dumps(facts, indent=2) if as_json else text)
        return False
    check_folder(task)
    progress = ShownProgress(loaded.family, space.default, mark=MARK)
    progress.say(f"replay: {table.label}; nothing is measured here")
    if table.source_digest and source_digest(loaded, space) != table.source_digest:
        progress.say("the kernels changed since they were recorded: the figures are those of the kernels of that time")
    evaluator = ReplayEvaluator(table)
    with open_task_study(task, evaluator, {RECORDING: table.digest}) as study:
        outcome, paths = search_task(task, study, evaluator, progress)
        best = study.best()
        confirmed: list[Confirmation] = []
        if best is not None and not outcome.interrupted:
            confirmed = confirmations(best, loaded, read_settings(), wish.nvcc, progress.say)
        if as_json:
            typer.echo(json.dumps({**search_json(study, task, outcome), **_json(table, confirmed)}, indent=2))
        else:
            typer.echo("\n".join([summary_text(study, task, paths), *(found.line for found in confirmed)]))
        _tell_next(study, task, outcome.interrupted, progress)
    wrong = [found.line for found in confirmed if not found.right]
    if wrong:
        raise NothingPassed(f"the replayed winner is not confirmed: {'; '.join(wrong)}")
    return outcome.interrupted


def _find(wish: Wish) -> RecordedTable:
    """A file's own problem counts where none is given."""
    if is_file_name(wish.replay) and not wish.problem:
        return table_of_file(wish.replay, wish.loaded.name)
    problems = parse_problems(wish.loaded, wish.problem)
    if len(problems) > 1:
        raise UsageError(f"--replay answers from a recording of one problem, --problem gives {len(problems)}; give one")
    return find_table(wish.replay, wish.loaded.name, problems[0])


def _study_name(given: str) -> str:
    """The user's name or folder for the study; a name also says that it is replayed."""
    if not given:
        return REPLAYED
    return given if "/" in given or given.endswith(REPLAYED) else f"{given}-{REPLAYED}"


def _json(table: RecordedTable, confirmed: Sequence[Confirmation]) -> dict[str, object]:
    return {
        "recording": {
            "recorded_on": table.recorded_on,
            "gpu_name": table.environment.gpu_name,
            "points": len(table.measurements),
            "noise_percent": table.noise_percent,
            "digest": table.digest,
        },
        "confirmed": [
            {"what": found.what, "done": found.done, "right": found.right if found.done else None, "text": found.text}
            for found in confirmed
        ],
    }


def _tell_next(study: Study, task: Task, interrupted: bool, progress: ShownProgress) -> None:
    if interrupted:
        progress.say("interrupted: the same command resumes the replay")
    else:
        name = folder_word(study.folder)
        progress.say(f"next: ktune report {name} | on a GPU, `ktune search {task.loaded.name}` measures")
