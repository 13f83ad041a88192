"""The folder that a search of several problems leaves: found by name, read again from its studies, exported."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import typer

from ktune.cli.several import summarise
from ktune.core.errors import NothingPassed, UsageError
from ktune.core.loading import load_family
from ktune.core.space import Space
from ktune.output.header import write_header
from ktune.output.several import Several, several_lines
from ktune.output.several_files import HEADER_NAME, JSON_NAME, read_several, several_json, write_json, write_several
from ktune.output.several_kernels import check_kernels, write_kernels
from ktune.output.winner import winner_json
from ktune.search.matrix import Searched
from ktune.study.study import Study


def find_several(name: str, results: Path) -> Path | None:
    """The folder of that name, as it is or below `results`, if a search of several problems wrote it."""
    if not name:
        return None
    folders = (Path(name).expanduser(), results / name)
    return next((folder for folder in folders if folder.joinpath(JSON_NAME).is_file()), None)


@contextmanager
def open_several(folder: Path) -> Iterator[Several]:
    """What the studies that the folder names say together, by what they hold now."""
    found = read_several(folder)
    loaded = load_family(found.family)
    with ExitStack() as opened:
        searched = []
        for name, study_folder in found.studies.items():
            study = opened.enter_context(Study.open_existing(study_folder, loaded.family))
            narrowing = {parameter: tuple(values) for parameter, values in study.meta.get("narrowing", {}).items()}
            searched.append(Searched(name, study, Space(loaded.family, [study.problem], narrowing)))
        yield summarise(loaded, searched, folder, found.command, found.unfinished)


def report_several(folder: Path, output: Path | None, as_json: bool) -> None:
    """Print the matrix and write the summary's files anew."""
    with open_several(folder) as several:
        target = output or folder
        paths = write_several(several, target)
        if as_json:
            typer.echo(json.dumps(several_json(several, target), indent=2))
        else:
            typer.echo("\n".join([several.folder.name, *several_lines(several)]))
    for path in paths:
        typer.echo(f"wrote {path}", err=True)


def export_several(folder: Path, output: Path | None, with_kernel: bool, force: bool, as_json: bool) -> None:
    """Write every winner into one header and winners.json; with kernels, a source for each and one launcher."""
    with open_several(folder) as several:
        winners, target = several.winners, output or folder
        if not winners:
            raise NothingPassed(
                f"no problem of {folder} has a winner to export: no variant is both right and timed; "
                "`ktune report` says why"
            )
        if with_kernel:
            check_kernels(winners, "best")
        paths = [write_header(winners, target / HEADER_NAME, force=force), write_json(several, target, force=force)]
        if with_kernel:
            paths += write_kernels(winners, target, "best", force=force)
        described = [winner_json(winner) for winner in winners]
    if as_json:
        typer.echo(json.dumps({"format": 1, "files": [str(p) for p in paths], "winners": described}, indent=2))
    else:
        typer.echo("\n".join(f"wrote {path}" for path in paths))


def refuse_choices(folder: Path, **given: object) -> None:
    """UsageError for an option that chooses within one study."""
    for option, value in given.items():
        if value:
            raise UsageError(
                f"--{option} chooses in one study, and {folder} is of several problems; "
                "name the study, they are listed in its winners.json"
            )
