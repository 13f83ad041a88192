"""Small wrong edits of the shipped kernels. Each must be found by executing the kernel on the CPU, or say why not."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ktune.core.model import Value


@dataclass(frozen=True)
class Mutant:
    """One edit: `old`, which occurs once in `file`, becomes `new`, in a configuration where that line matters.

    problem: a name that the family gives, or sizes, which are executed too; far: sizes that the far check takes too.
    inputs: the kind that is drawn, "" for the family's first. Of the inputs in `scaled` the last row is multiplied, of
    those in `outliers` only its first number.
    found_by: the first check that finds it. survives: why no execution can tell it from the original, in place of that.
    """

    kind: str
    name: str
    file: str
    old: str
    new: str
    configuration: Mapping[str, Value]
    problem: str | Mapping[str, Value] = "small"
    inputs: str = ""
    scaled: Mapping[str, float] = field(default_factory=dict)
    outliers: Mapping[str, float] = field(default_factory=dict)
    far: Mapping[str, int] = field(default_factory=dict)
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
    configurations, problems = table["configurations"], table["problems"]

    def meant(name: str, value: Any) -> Any:
        if name == "configuration":
            return configurations[value]
        return problems.get(value, value) if name in ("problem", "far") else value

    return tuple(Mutant(**{name: meant(name, value) for name, value in row.items()}) for row in table["mutant"])


MUTANTS = _read()
