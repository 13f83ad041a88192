"""Which study a user means: the latest of a family and problem, or one by name."""

from __future__ import annotations

from pathlib import Path

from ktune.api import Family
from ktune.core.errors import KtuneError, UsageError
from ktune.core.model import Problem, Source
from ktune.study.ledger import Ledger, StudyRecord
from ktune.study.naming import LEDGER_NAME, is_writable, ledger_path
from ktune.study.study import Study


def latest_study(
    results_dir: Path,
    family: str,
    problem: Problem | None = None,
    loaded: Family | None = None,
    *,
    replays_last: bool = False,
) -> Study:
    """The study opened last of that family (and problem) under `results_dir`. UsageError if there is none.

    replays_last: a replayed one only where there is no other.
    """
    found: list[tuple[bool, str, Path]] = []
    unreadable: list[str] = []
    for folder in study_folders(results_dir):
        try:
            record = _last_record(folder)
        except KtuneError as error:
            unreadable.append(str(error))
            continue
        if record and record.family == family and problem in (None, record.problem):
            wanted = not replays_last or record.source is not Source.REPLAYED
            found.append((wanted, record.opened_at, folder))
    if found:
        return Study.open_existing(max(found)[2], loaded)
    what = f"{family} {problem.label}" if problem else family
    hint = f" ({unreadable[0]})" if unreadable else ""
    raise UsageError(f"no study of {what} in {results_dir}{hint}; `ktune search {family}` makes one")


def find_study(results_dir: Path, name: str, loaded: Family | None = None) -> Study:
    """The study in the folder `name`, or in `results_dir/name`, or the only one whose folder ends with `-name`."""
    for folder in (Path(name).expanduser(), results_dir / name):
        if folder.is_file() or ledger_path(folder).is_file():
            return Study.open_existing(folder, loaded)
    ending = [folder for folder in study_folders(results_dir) if folder.name.endswith(f"-{name}")]
    if len(ending) == 1:
        return Study.open_existing(ending[0], loaded)
    known = ", ".join(folder.name for folder in (ending or study_folders(results_dir))) or "none"
    count = f"{len(ending)} studies are" if ending else "no study is"
    raise UsageError(f"{count} called {name!r} in {results_dir}; give the folder's whole name, there are: {known}")


def study_folders(results_dir: Path) -> list[Path]:
    """The folders directly under `results_dir` that hold a ledger, by name."""
    return sorted(path.parent for path in results_dir.glob(f"*/{LEDGER_NAME}"))


def _last_record(folder: Path) -> StudyRecord | None:
    ledger = Ledger(ledger_path(folder), lock_wait_s=1.0, read_only=not is_writable(folder))
    try:
        records = ledger.studies()
    finally:
        ledger.close()
    return records[-1] if records else None
