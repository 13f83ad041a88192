"""The options that commands share, each spelled once, and what their text means."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from ktune.api import check_size
from ktune.cli.config import apply_config
from ktune.core.errors import UsageError
from ktune.core.identity import value_text
from ktune.core.loading import LoadedFamily
from ktune.core.model import Problem, Value
from ktune.core.space import Space, find_parameter, parse_value


class SamplerName(StrEnum):
    """How the next configurations are chosen."""

    GP = "gp"
    TPE = "tpe"
    RANDOM = "random"
    EXHAUSTIVE = "exhaustive"


FamilyArgument = Annotated[
    str, typer.Argument(metavar="FAMILY", help="A shipped family's name, or a folder: ./my_kernel.")
]
ProblemOption = Annotated[
    list[str] | None,
    typer.Option(
        "--problem",
        metavar="NAME|SIZES",
        help="A named problem, or sizes: B=16,L=2048, also options and dtype. Missing ones are the default problem's.",
    ),
]
ProblemsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--problem",
        metavar="NAME|SIZES",
        help="A named problem, or sizes: B=16,L=2048, also options and dtype. Missing ones are the default problem's. "
        "Repeatable: each problem gets its own winner, all together the best compromise.",
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUES", help="Narrow a parameter: block_size=64,128. Repeatable."),
]
GpuOption = Annotated[str, typer.Option("--gpu", metavar="GPU", help="Index or UUID. The first GPU if not given.")]
StudyOption = Annotated[str, typer.Option("--study", metavar="NAME", help="The study's name or folder.")]
ResultsOption = Annotated[Path, typer.Option("--results", metavar="DIR", help="Where studies are kept.")]
ConfigOption = Annotated[
    Path | None,
    typer.Option(
        "--config",
        metavar="FILE.toml",
        callback=apply_config,
        is_eager=True,
        help="Options from a file: keys are option names. The command line wins.",
    ),
]
ReplayOption = Annotated[
    str,
    typer.Option(
        "--replay",
        metavar="GPU|FILE",
        help="Search what was recorded on that GPU (h200), without one: nothing is measured.",
    ),
]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
DryRunOption = Annotated[bool, typer.Option("--dry-run", help="Say what would be done, and stop.")]
JobsOption = Annotated[
    int | None, typer.Option("--jobs", min=1, metavar="N", help="Compilers at once. By cores and memory if not given.")
]
NvccOption = Annotated[
    Path | None, typer.Option("--nvcc", metavar="PATH", help="The nvcc to use, before CUDA_HOME and PATH.")
]
DebugOption = Annotated[bool, typer.Option("--debug", help="Show tracebacks.")]

RESULTS = Path("results")


def parse_problem(loaded: LoadedFamily, given: Sequence[str] | None) -> Problem:
    """The problem named or spelled by `--problem`; the family's first if nothing was given."""
    if not given:
        return next(iter(loaded.named_problems.values()))
    if len(given) > 1:
        raise UsageError(
            f"--problem is given {len(given)} times; only `ktune search` takes several: give this command one"
        )
    return _parse_problem(loaded, given[0])


def parse_problems(loaded: LoadedFamily, given: Sequence[str] | None) -> list[Problem]:
    """The problems of every `--problem`, in the order given; the family's first if nothing was given."""
    if not given:
        return [parse_problem(loaded, given)]
    found: dict[Problem, str] = {}
    for text in given:
        problem = _parse_problem(loaded, text)
        if problem in found:
            spelled = f" as {found[problem]!r}" + (f" and {text!r}" if text != found[problem] else "")
            raise UsageError(f"--problem gives {problem.label} twice,{spelled}; give it once")
        found[problem] = text
    return list(found)


def _parse_problem(loaded: LoadedFamily, text: str) -> Problem:
    named = loaded.named_problems
    default = next(iter(named.values()))
    if "=" not in text:
        if text in named:
            return named[text]
        raise UsageError(
            f"{loaded.name} has no problem {text!r}; {_nearest(text, list(named))}; or give sizes: "
            f"--problem {problem_text(default)}"
        )
    given = _given(loaded, text)
    dtype = given.pop("dtype", default.dtype)
    if dtype not in loaded.family.dtypes:
        raise UsageError(
            f"dtype of {loaded.name} must be {' or '.join(loaded.family.dtypes)}, got {dtype!r} in --problem {text}"
        )
    return loaded.family.problem_of({**default.by_name, **_sizes(loaded, given)}, dtype)


def _given(loaded: LoadedFamily, text: str) -> dict[str, str]:
    """{size, option or dtype: its text} of `B=16,softplus=1,dtype=bfloat16`."""
    known = [size.name for size in loaded.family.sizes]
    given: dict[str, str] = {}
    for part in text.split(","):
        name, _, value = (p.strip() for p in part.partition("="))
        if name not in known and name != "dtype":
            raise UsageError(f"{loaded.name} has no size {name!r}; {_nearest(name, known)}")
        if name in given:
            raise UsageError(f"{name} is given twice in --problem {text}; give it once")
        given[name] = value
    return given


def _sizes(loaded: LoadedFamily, given: dict[str, str]) -> dict[str, int]:
    sizes: dict[str, int] = {}
    for size in loaded.family.sizes:
        number = given.get(size.name)
        if number is None:
            continue
        if not number.isascii() or not number.removeprefix("-").isdigit():
            example = 1024 if size.default is None else size.default
            raise UsageError(
                f"{size.name} must be a whole number, got {number!r}; write --problem {size.name}={example}"
            )
        sizes[size.name] = int(number)
        check_size(size, sizes[size.name])
    return sizes


def problem_text(problem: Problem) -> str:
    """`B=16,L=2048,softplus=1,dtype=bfloat16`, as `--problem` takes it."""
    parts = [f"{name}={size}" for name, size in problem.sizes]
    return ",".join(parts if problem.dtype == "float32" else [*parts, f"dtype={problem.dtype}"])


def parse_space(loaded: LoadedFamily, problem: Problem, given: Sequence[str] | None) -> Space:
    """The valid configurations for `problem` that `--set` leaves; UsageError if it leaves none."""
    space = Space(loaded.family, [problem], parse_narrowing(loaded, given))
    # The default is found without counting the space, and not at all in an empty one.
    _ = space.default
    return space


def parse_narrowing(loaded: LoadedFamily, given: Sequence[str] | None) -> dict[str, tuple[Value, ...]]:
    """{parameter: values} of every `--set name=value,value`."""
    narrowing: dict[str, tuple[Value, ...]] = {}
    for text in given or ():
        name, equals, values = (p.strip() for p in text.partition("="))
        if not equals or not values:
            raise UsageError(f"--set takes name=value,value, got {text!r}; for example --set block_size=64,128")
        parameter = find_parameter(loaded.family, name)
        if name in narrowing:
            raise UsageError(f"{name} is set twice; give its values once, with commas: --set {name}={values}")
        narrowing[name] = tuple(parse_value(loaded.family, parameter, v.strip()) for v in values.split(","))
    return narrowing


def value_texts(values: Sequence[Value]) -> str:
    """`64,128`, as `--set` takes them."""
    return ",".join(value_text(value) for value in values)


def folder_word(folder: Path) -> str:
    """A study's folder as the word that other commands find it by, quoted for a shell."""
    return shlex.quote(folder.name if folder.parent == RESULTS else str(folder))


def _nearest(text: str, names: list[str]) -> str:
    near = difflib.get_close_matches(text, names, n=1)
    return f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
