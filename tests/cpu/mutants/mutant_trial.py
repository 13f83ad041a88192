"""One mutant put to the test: compiled and executed as a variant of the shipped family would be."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from time import perf_counter
from types import SimpleNamespace
from typing import Any

import torch
from mutant_table import Mutant

from ktune.build.source import variant_source
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Problem, Status, Variant
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.compiler import Check, ProgramStore
from ktune.cpu.execute import Execution, Executor
from ktune.cpu.problems import far_problems, small_problems
from ktune.cpu.source import translated

FAR = "far"
CHECKS = (*Check, FAR)


@dataclass(frozen=True)
class Trial:
    """What became of a mutant. by: the check that found it, "" if none did."""

    mutant: Mutant
    by: str
    detail: str
    seconds: float

    @property
    def killed(self) -> bool:
        return bool(self.by)

    @property
    def as_expected(self) -> bool:
        return self.killed is bool(self.mutant.found_by)


def mutated(mutant: Mutant, folder: Path) -> LoadedFamily:
    """The family with the mutant's file in a copy of its folder."""
    original = load_family(mutant.family)
    copy = folder / mutant.family
    shutil.copytree(original.folder, copy, ignore=shutil.ignore_patterns("__pycache__"))
    path = copy / mutant.file.partition("/")[2]
    text = path.read_text(encoding="utf-8")
    if text.count(mutant.old) != 1:
        raise ValueError(
            f"{mutant.id}: {mutant.old!r} must occur once in {mutant.file}, found {text.count(mutant.old)}"
        )
    path.write_text(text.replace(mutant.old, mutant.new), encoding="utf-8")
    return LoadedFamily(original.family, copy)


@dataclass(frozen=True)
class OtherInputs(LoadedFamily):
    """A family whose inputs are drawn as a mutant's are."""

    kind: str
    scaled: tuple[tuple[str, float], ...]
    outliers: tuple[tuple[str, float], ...]

    def module(self, name: str) -> Any:
        module = super().module(name)
        return SimpleNamespace(**{**vars(module), "inputs": self._inputs}) if name == "reference" else module

    def _inputs(self, problem: Problem, seed: int, *, device: str) -> dict[str, torch.Tensor]:
        kind = {"kind": self.kind} if self.kind else {}
        given = super().module("reference").inputs(problem, seed, device=device, **kind)
        for name, factor in self.scaled:
            given[name][-1] *= factor
        for name, factor in self.outliers:
            given[name][-1, 0] *= factor
        return given


def variant_of(mutant: Mutant) -> tuple[Variant, Problem]:
    """The original's variant and problem that the mutant is tried in."""
    loaded = load_family(mutant.family)
    given = mutant.problem
    problem = loaded.named_problems[given] if isinstance(given, str) else loaded.family.problem(**given)
    configuration = Space(loaded.family, [problem]).complete(mutant.configuration)
    return make_variant(loaded.family, configuration, problem), problem


@cache
def executor_of(family: str, store: ProgramStore, *drawn: Any) -> Executor:
    """One for each way that a family's inputs are drawn, so that references are computed once."""
    loaded = load_family(family)
    return Executor(OtherInputs(loaded.family, loaded.folder, *drawn), store, timeout_s=60.0)


def execute(mutant: Mutant, store: ProgramStore, source: str, checks: Iterable[str] = CHECKS) -> tuple[str, Execution]:
    """The first check that a source fails where the mutant is tried, and how; "" and the last execution if none."""
    drawn = (mutant.inputs, tuple(mutant.scaled.items()), tuple(mutant.outliers.items()))
    executor = executor_of(mutant.family, store, *drawn)
    loaded = load_family(mutant.family)
    variant, problem = variant_of(mutant)
    small, far = small_problems(loaded, variant, problem), far_problems(loaded, variant, problem)
    if not isinstance(mutant.problem, str):
        small = tuple(dict.fromkeys((problem, *small)))
    if mutant.far:
        far = (*far, loaded.family.problem(**mutant.far))
    found = Execution(Status.OK)
    for check in checks:
        if check == FAR:
            found = executor.verify_far(variant, far, source=source)
        else:
            found = executor.verify(variant, small, (Check(check),), source=source)
        if not found.executable:
            raise ValueError(f"{mutant.family} must be executable to be mutated: {found.detail}")
        if not found.right:
            return check, found
    return "", found


def try_mutant(mutant: Mutant, store: ProgramStore, checks: Iterable[str] = CHECKS) -> Trial:
    began = perf_counter()
    variant, _ = variant_of(mutant)
    with tempfile.TemporaryDirectory() as folder:
        source = translated(variant_source(mutated(mutant, Path(folder)), variant, line_markers=True))
    by, found = execute(mutant, store, source, checks)
    return Trial(mutant, by, found.detail, perf_counter() - began)
