"""The small and the far problems on which a variant is executed: the family's checks, and what lies around them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import replace
from itertools import islice

from ktune.api import Family, KernelLaunch
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Problem, Variant
from ktune.core.space import Space
from ktune.core.variant import check_problems

# What a problem may be for all schedules to take about a second.
FLOPS_LIMIT = 4_000_000
BYTES_LIMIT = 2_000_000
# A check times this, and one more: several whole tiles, and a rest.
LARGER = 8
# The next sizes that a rule may allow: most ask for a multiple of a vector.
_STEPS = (1, 2, 3, 4, 8, 16, 32)
# Between 2^31 and 2^32 elements: a 32-bit offset becomes negative.
_FAR_ELEMENTS = (1 << 32) - (1 << 22)


def small_problems(loaded: LoadedFamily, variant: Variant, problem: Problem) -> tuple[Problem, ...]:
    """The family's checks for `problem`, the nearest sizes around the largest of them, several times each of its sizes,
    and the family's small named problems of its dtype, as far as this variant serves them. Options are not varied."""
    family = loaded.family
    checks = check_problems(family, variant, problem)
    largest = largest_of(family, checks)
    around = [near for name in _dimensions(family) for near in _around(family, variant, largest, name)]
    alike = [p for p in loaded.named_problems.values() if p.dtype == problem.dtype and _is_small(family, p)]
    named = [p for p in alike if not broken_laws(family, variant.configuration, p)]
    others = [p for p in (*around, *named) if _serves(family, variant, p) and _is_small(family, p)]
    return tuple(dict.fromkeys((*checks, *others)))


def largest_of(family: Family, checks: Iterable[Problem]) -> Problem:
    """The one with most to compute."""
    return max(checks, key=lambda check: family.cost(check).flops)


def far_problems(loaded: LoadedFamily, variant: Variant, problem: Problem) -> tuple[Problem, ...]:
    """Problems with a tensor of more than 2^31 elements, reached by one size, whose first and last blocks do little."""
    family = loaded.family
    checks = check_problems(family, variant, problem)
    found = []
    for base in _bases(family, variant, checks):
        for name in _dimensions(family):
            stretched = _stretched(family, variant, base, name)
            if stretched is not None and _work_of_ends(family, variant, stretched) <= FLOPS_LIMIT:
                found.append(stretched)
    return tuple(dict.fromkeys(found))


def broken_laws(family: Family, configuration: Configuration, problem: Problem) -> frozenset[str]:
    """The laws of all rules that the configuration breaks at this problem, but for those that only prune."""
    return frozenset(
        rule.law
        for rule in family.rules
        if not rule.prunes and Space(replace(family, rules=(rule,)), [problem]).broken_rule(configuration) is not None
    )


def _is_small(family: Family, problem: Problem) -> bool:
    cost = family.cost(problem)
    return cost.flops <= FLOPS_LIMIT and cost.bytes_read + cost.bytes_written <= BYTES_LIMIT


def _serves(family: Family, variant: Variant, problem: Problem) -> bool:
    return tuple(family.constants(variant.configuration, problem).items()) == variant.constants


def _dimensions(family: Family) -> list[str]:
    """The sizes that a tensor's extent may follow; an option is a choice."""
    return [size.name for size in family.sizes if size.default is None]


def _with(problem: Problem, name: str, size: int) -> Problem:
    return replace(problem, sizes=tuple((n, size if n == name else s) for n, s in problem.sizes))


def _around(family: Family, variant: Variant, base: Problem, name: str) -> Iterator[Problem]:
    """The two next smaller problems in one size, the next larger one, and one several times as large."""
    allowed = broken_laws(family, variant.configuration, base)
    minimum = next(size.minimum for size in family.sizes if size.name == name)
    here = base[name]
    for sizes, count in (
        ([here - step for step in _STEPS], 2),
        ([here + step for step in _STEPS], 1),
        ([LARGER * here + step for step in _STEPS], 1),
    ):
        tries = (_with(base, name, size) for size in sizes if size >= minimum)
        yield from islice((p for p in tries if broken_laws(family, variant.configuration, p) <= allowed), count)


def _bases(family: Family, variant: Variant, checks: tuple[Problem, ...]) -> Iterator[Problem]:
    """Each check, and each with one size as small as can be."""
    yield from checks
    for check in checks:
        allowed = broken_laws(family, variant.configuration, check)
        for size in family.sizes:
            if size.default is not None:
                continue
            tries = (_with(check, size.name, size.minimum - 1 + step) for step in _STEPS)
            yield from islice((p for p in tries if broken_laws(family, variant.configuration, p) <= allowed), 1)


def _elements(family: Family, problem: Problem) -> int:
    return max(math.prod(t.shape) for t in (*family.inputs(problem), *family.outputs(problem)))


def _stretched(family: Family, variant: Variant, base: Problem, name: str) -> Problem | None:
    """`base` with one size so large that its largest tensor has just under 2^32 elements; None if it can't be."""
    low, high = 1, _FAR_ELEMENTS
    while low < high:
        middle = (low + high + 1) // 2
        if _elements(family, _with(base, name, middle)) <= _FAR_ELEMENTS:
            low = middle
        else:
            high = middle - 1
    # down to a multiple of every vector width, then up by the base's own rest
    size = low // 64 * 64 - 64 + base[name] % 64
    far = _with(base, name, size)
    if size <= base[name] or size >= 1 << 31 or _elements(family, far) <= 1 << 31:
        return None
    allowed = broken_laws(family, variant.configuration, base)
    return far if broken_laws(family, variant.configuration, far) <= allowed and _serves(family, variant, far) else None


def _work_of_ends(family: Family, variant: Variant, problem: Problem) -> float:
    """Flops of the few blocks at the ends of the grid, as if all did the same."""
    launches = family.plan(variant.configuration, problem).launches
    blocks = [math.prod(launch.grid) for launch in launches if isinstance(launch, KernelLaunch)]
    return 4 * family.cost(problem).flops / min(blocks, default=1)
