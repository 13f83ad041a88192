"""Which configurations to try for a problem: from the table of winners by GPU model and shape, then the default."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ktune.api import Family
from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Problem, Value
from ktune.core.space import Space

FORMAT = 1
KIND = "ktune winners by shape"
PATH = Path(__file__).with_name("winners.json")


@dataclass(frozen=True)
class Recorded:
    """What won a search of a problem of these sizes; options that are not among them have their default."""

    sizes: Mapping[str, int]
    configuration: Mapping[str, Value]
    dtype: str = "float32"


Table = Mapping[str, Mapping[str, tuple[Recorded, ...]]]
"""{family: {GPU model: winners}}."""


def read_winners(path: Path) -> Table:
    """UsageError for a file that is no table of winners of this format."""
    remedy = "`python -m ktune.nn.collect` writes such files"
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}; {remedy}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND or data.get("format") != FORMAT:
        raise UsageError(f'{path} must say "kind": "{KIND}" and "format": {FORMAT}; {remedy}')
    try:
        return {
            family: {
                gpu: tuple(
                    Recorded(dict(won["sizes"]), dict(won["configuration"]), str(won.get("dtype", "float32")))
                    for won in winners
                )
                for gpu, winners in models.items()
            }
            for family, models in data["winners"].items()
        }
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(f"{path} lacks or garbles {error}; {remedy}") from error


@cache
def shipped_winners() -> Table:
    """The table that comes with the package."""
    return read_winners(PATH)


def candidates(family: Family, gpu: str, problem: Problem, table: Table) -> Iterator[Configuration]:
    """Configurations that are valid for `problem`, best guess first, each once; the family's default comes last.

    Guesses are this GPU model's winners, those of the same options and dtype before others, among them the nearest
    shape first; those of other models where this one has none.
    """
    problem = family.completed(problem)
    space = Space(family, [problem])
    given: set[Configuration] = set()
    for won in _nearest_first(family, table.get(family.name, {}), gpu, problem):
        try:
            configuration = space.complete(won.configuration)
        except UsageError:
            # not valid at this shape, or of another version of the family
            continue
        if configuration not in given:
            given.add(configuration)
            yield configuration
    try:
        default = space.default
    except UsageError:
        return
    if default not in given:
        yield default


def _nearest_first(
    family: Family, models: Mapping[str, tuple[Recorded, ...]], gpu: str, problem: Problem
) -> list[Recorded]:
    own = models.get(gpu, ())
    known = own or [won for model in sorted(models) for won in models[model]]
    far: list[tuple[int, float, Recorded]] = []
    for won in known:
        try:
            its = family.problem_of(won.sizes, won.dtype)
        except UsageError:
            # of another version of the family
            continue
        far.append((differences(won, problem), distance(family, its, problem), won))
    return [won for *_, won in sorted(far, key=lambda measured: measured[:2])]


def differences(won: Recorded, problem: Problem) -> int:
    """In how many of the options, and the dtype, the problem that was won differs from this one."""
    options = [won.sizes.get(name, default) != problem[name] for name, default in problem.defaults]
    return sum(options) + (won.dtype != problem.dtype)


def distance(family: Family, one: Problem, other: Problem) -> float:
    """Euclidean, between the logarithms of what the family says of nearness, or else of the dimensions, not options."""

    def quantities(problem: Problem) -> Sequence[float]:
        if family.nearness is not None:
            return family.nearness(problem)
        return [problem[size.name] for size in family.sizes if size.default is None]

    return math.dist(*([math.log(quantity) for quantity in quantities(problem)] for problem in (one, other)))
