"""What the stress scripts share: kernels of a family on torch tensors, a line per run, and their command line."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import torch

from ktune.api import Family
from ktune.checks.compare import same_bits
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Problem
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.nn.winners import shipped_winners

if TYPE_CHECKING:
    from ktune.nn.executable import Executable

Tensors = dict[str, torch.Tensor]
# Runs a kernel once: inputs by name, and outputs by name.
Run = Callable[[Tensors, Tensors], None]
Made = TypeVar("Made")

KINDS = ("finite", "NaN", "Inf", "-Inf")


@dataclass(frozen=True)
class Line:
    """One run. told: it is wrong as the README says."""

    check: str
    subject: str
    problem: str
    right: bool
    detail: str
    told: bool = False

    def __str__(self) -> str:
        mark = "ok   " if self.right else "told " if self.told else "WRONG"
        return f"{mark} {self.check:<9} {self.subject:<24} {self.problem:<22} {self.detail}"


@dataclass(frozen=True)
class Subject:
    """A configuration for one problem."""

    name: str
    configuration: Configuration
    problem: Problem


def winners(family: Family) -> Iterator[Subject]:
    """Each shipped winner on the problem that it won."""
    for gpu, known in shipped_winners()[family.name].items():
        for won in known:
            problem = family.problem_of(won.sizes, won.dtype)
            configuration = Space(family, [problem]).complete(won.configuration)
            yield Subject(f"{configuration['algorithm']} of {gpu.split()[-1]}", configuration, problem)


def valid(
    problems: Sequence[Problem], names: Iterable[str], configured: Callable[[str, Problem], Subject | None]
) -> list[Subject]:
    """Each of the names on each problem for which it is valid, in order of the problems."""
    made = [configured(name, problem) for problem in problems for name in names]
    return [subject for subject in made if subject is not None]


def runs(loaded: LoadedFamily, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Run]]:
    """Each subject with what runs its kernel on poisoned outputs."""
    for subject, executable in executables(loaded, subjects):

        def run(given: Tensors, found: Tensors, executable: Executable = executable) -> None:
            for output in found.values():
                output.fill_(torch.nan)
            executable({**given, **found})

        yield subject, run


def executables(loaded: LoadedFamily, subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Executable]]:
    """Each subject with its kernel, built and loaded on the current GPU."""
    from ktune.build.builder import Builder
    from ktune.build.toolchain import find_toolchain
    from ktune.nn.executable import Executable

    family, settings = loaded.family, read_settings()
    device = torch.device("cuda", torch.cuda.current_device())
    torch.zeros(1, device=device)
    variants = [make_variant(family, subject.configuration, subject.problem) for subject in subjects]
    with Builder(loaded, find_toolchain(settings), settings.cache_dir) as builder:
        built = {result.variant: result for result in builder.build(list(dict.fromkeys(variants)))}
    for subject, variant in zip(subjects, variants, strict=True):
        result = built[variant]
        assert result.cubin is not None, f"{subject.name}: {result.status} {result.detail}"
        plan = family.plan(subject.configuration, subject.problem)
        tensors = (*family.inputs(subject.problem), *family.outputs(subject.problem))
        yield subject, Executable(loaded, plan, tensors, result.cubin, device)


def outputs(family: Family, problem: Problem, device: torch.device | str) -> Tensors:
    """The outputs of a problem, poisoned."""
    return {
        tensor.name: torch.full(tensor.shape, torch.nan, dtype=getattr(torch, tensor.dtype), device=device)
        for tensor in family.outputs(problem)
    }


def differing(run: Run, given: Tensors, found: Tensors, launches: int) -> int:
    """How many of the launches give other bits than `found` has, which they overwrite."""
    first = {name: output.clone() for name, output in found.items()}
    different = torch.zeros((), dtype=torch.int64, device=given["x"].device)
    for _ in range(launches):
        run(given, found)
        same = torch.stack([same_bits(output, first[name]) for name, output in found.items()])
        different += ~same.all()
    return int(different)


def kinds(values: torch.Tensor) -> torch.Tensor:
    """Indices into KINDS."""
    return values.isnan() + 2 * values.isposinf() + 3 * values.isneginf()


def changed_kinds(wanted: torch.Tensor, found: torch.Tensor) -> dict[tuple[str, str], int]:
    """{(kind that float64 gives, kind found): how many elements}, of those that differ; both are of `kinds`."""
    differ = wanted != found
    pairs, counts = torch.stack([wanted[differ], found[differ]], 1).unique(dim=0, return_counts=True)
    return {
        (KINDS[want], KINDS[got]): count for (want, got), count in zip(pairs.tolist(), counts.tolist(), strict=True)
    }


def last_kept(make: Callable[[Problem, str], Made]) -> Callable[[Problem, str], Made]:
    """`make` of a problem and a device; only what was made last is kept, since it may fill the memory."""
    kept: dict[tuple[Problem, str], Made] = {}

    def made(problem: Problem, device: str) -> Made:
        if (problem, device) not in kept:
            kept.clear()
            kept[problem, device] = make(problem, device)
        return kept[problem, device]

    return made


def main(description: str, checks: Sequence[str], lines_of: Callable[[str, str, int], Iterator[Line]]) -> int:
    """lines_of: (check, part of a subject's name, launches) -> a line per run."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checks", nargs="*", metavar="CHECK", help=", ".join(checks))
    parser.add_argument("--only", default="", metavar="PART", help="subjects whose name holds this")
    parser.add_argument("--launches", type=int, default=1000)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    unknown = set(options.checks) - set(checks)
    if unknown:
        parser.error(f"checks are {', '.join(checks)}, got {', '.join(sorted(unknown))}")
    found: list[Line] = []
    with torch.no_grad():
        for check in options.checks or checks:
            for line in lines_of(check, options.only, options.launches):
                found.append(line)
                print(line, flush=True)
    wrong = [line for line in found if not line.right and not line.told]
    told = sum(line.told for line in found)
    print(f"{len(found)} runs on {torch.cuda.get_device_name()}: {len(wrong)} wrong, {told} as told in the README")
    if options.output:
        record = {"gpu": torch.cuda.get_device_name(), "lines": [asdict(line) for line in found]}
        options.output.write_text(json.dumps(record, indent=1) + "\n")
    return int(bool(wrong) or not found)
