"""Which study a command means, and the family that it is of."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ktune.cli.options import parse_problem
from ktune.core.errors import UsageError
from ktune.core.loading import LoadedFamily, load_family, shipped_families
from ktune.study.finding import find_study, latest_study, study_folders
from ktune.study.naming import LEDGER_NAME
from ktune.study.study import Study


@dataclass(frozen=True)
class OpenStudy:
    """A study of the past, and its family as it is now."""

    study: Study
    loaded: LoadedFamily


def open_study(name: str, results: Path, problem: Sequence[str] | None = None) -> OpenStudy:
    """The study of that name or folder; of a family, its latest; without a name, the latest of all.

    problem: as given to `--problem`; chooses among a family's studies.
    """
    study = _open(name, results, problem)
    try:
        return OpenStudy(study, load_family(_family_of(study)))
    except BaseException:
        study.close()
        raise


def _open(name: str, results: Path, problem: Sequence[str] | None) -> Study:
    if name and (name in shipped_families() or Path(name).expanduser().joinpath("family.py").is_file()):
        loaded = load_family(name)
        return latest_study(results, loaded.name, parse_problem(loaded, problem) if problem else None)
    if problem:
        raise UsageError(f"--problem {problem[0]} chooses among the studies of a family; name the family before it")
    if name:
        return find_study(results, name)
    folders = study_folders(results)
    if not folders:
        raise UsageError(f"no study in {results}; `ktune search` makes one, --results says where to look")
    return Study.open_existing(max(folders, key=_written_at))


def _family_of(study: Study) -> str | Path:
    """The folder that the study was made from, else the shipped family of that name."""
    folder = study.meta.get("family_folder")
    if folder is not None and Path(folder).joinpath("family.py").is_file():
        return Path(folder)
    if study.family in shipped_families():
        return study.family
    raise UsageError(
        f"study {study.name} needs its family, and {folder or study.family} holds no family.py; "
        "put it back to read the study"
    )


def _written_at(folder: Path) -> float:
    return max(path.stat().st_mtime for path in folder.glob(f"{LEDGER_NAME}*"))
