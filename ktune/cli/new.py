"""`ktune new`: a small kernel family that searches at once, to be turned into one's own."""

from __future__ import annotations

import keyword
import re
from pathlib import Path
from string import Template
from typing import Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import DebugOption
from ktune.core.errors import EnvironmentFault, UsageError
from ktune.core.loading import shipped_families

SKELETON = Path(__file__).resolve().parent / "skeleton"
FILES = {
    "family.py": "family.py.template",
    "reference.py": "reference.py.template",
    "{name}.cu": "kernel.cu.template",
    "README.md": "README.md.template",
}


def new(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The family's name: a-z, 0-9 and _.")],
    debug: DebugOption = False,
) -> None:
    """Write a small kernel family into ./NAME; it searches as it is.

    Example: ktune new my_rope
    """
    with faults(debug):
        folder = write_family(name, Path.cwd())
        typer.echo(f"wrote {', '.join(sorted(p.name for p in folder.iterdir()))} into {folder.name}/")
        typer.echo(f"next: ktune list ./{name} | ktune search ./{name}", err=True)


def write_family(name: str, where: Path) -> Path:
    """The new folder `where/name`. UsageError for a bad name, a shipped family's, or a folder that exists."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name) or keyword.iskeyword(name):
        raise UsageError(f"a family's name is a-z, 0-9 and _, starts with a letter and is no keyword, got {name!r}")
    if name in shipped_families():
        raise UsageError(f"{name} ships with ktune, and a folder of that name would hide it; choose another name")
    folder = where / name
    try:
        folder.mkdir()
        for target, template in FILES.items():
            text = Template((SKELETON / template).read_text(encoding="utf-8")).substitute(name=name)
            (folder / target.format(name=name)).write_text(text, encoding="utf-8")
    except FileExistsError:
        raise UsageError(f"{folder} exists already; choose another name or remove it") from None
    except OSError as error:
        raise EnvironmentFault(f"can't write {folder}: {error.strerror}; run this in a folder of your own") from None
    return folder
