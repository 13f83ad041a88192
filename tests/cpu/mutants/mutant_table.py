"""Small wrong edits of the shipped kernels. Each must be found by executing the kernel on the CPU, or say why not."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ktune.core.model import Value


@dataclass(frozen=True)
class Mutant:
    """One edit: `old`, which occurs once in `file`, becomes `new`, in a configuration where that line matters.

    found_by: the first check that finds it. survives: why no execution can tell it from the original, in place of that.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str
    configuration: Mapping[str, Value]
    problem: str = "small"
    found_by: str = ""
    survives: str = ""

    @property
    def family(self) -> str:
        return self.file.partition("/")[0]

    @property
    def id(self) -> str:
        return f"{self.file.partition('/')[2].partition('.')[0]}-{self.name.replace(' ', '-')}"


def _read() -> tuple[Mutant, ...]:
    table = tomllib.loads(Path(__file__).with_name("mutants.toml").read_text(encoding="utf-8"))
    return tuple(
        Mutant(**{**row, "configuration": table["configurations"][row["configuration"]]}) for row in table["mutant"]
    )


MUTANTS = _read()
