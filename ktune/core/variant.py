"""From a configuration and a problem to the variant that serves it."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ktune.api import Family
from ktune.core.errors import FamilyError
from ktune.core.model import Configuration, Problem, Variant

HOPPER = "sm_90a"


def make_variant(family: Family, configuration: Configuration, problem: Problem, target: str = HOPPER) -> Variant:
    """The variant of `configuration` whose binary serves `problem`: compile-time sizes come from the family."""
    constants = family.constants(configuration, problem)
    return Variant(family.name, configuration, tuple(constants.items()), target)


def check_problems(family: Family, variant: Variant, problem: Problem) -> tuple[Problem, ...]:
    """The family's checks for `problem`; FamilyError where the same binary and tolerance do not serve each."""
    checks = tuple(family.checks(variant.configuration, problem))
    if not checks:
        raise FamilyError(f"{family.name} must give at least one check problem, `checks` returned none")
    for check in checks:
        if check.dtype != problem.dtype:
            raise FamilyError(
                f"check problem {check.label} of {family.name} is of {check.dtype}, the problem {problem.label} of "
                f"{problem.dtype}; checks must keep the dtype: family.problem(..., dtype=problem.dtype)"
            )
        constants = tuple(family.constants(variant.configuration, check).items())
        if constants != variant.constants:
            raise FamilyError(
                f"check problem {check.label} of {family.name} needs the binary of {dict(constants)}, "
                f"the variant has {dict(variant.constants)}; checks must keep the compiled-in sizes"
            )
    return checks


def input_kinds(family: Family, problem: Problem) -> Mapping[str, float]:
    """The family's `kinds` for `problem`; FamilyError where one has no name or no positive scale."""
    kinds = family.kinds(problem)
    for kind, scale in kinds.items():
        if not kind or not (0.0 < scale < math.inf):
            raise FamilyError(
                f"kinds of {family.name} must map names of kinds of inputs to finite scales above 0, got {kind!r}: "
                f"{scale!r} for {problem.label}"
            )
    return kinds
