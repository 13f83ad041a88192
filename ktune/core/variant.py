"""From a configuration and a problem to the variant that serves it."""

from __future__ import annotations

from ktune.api import Family
from ktune.core.model import Configuration, Problem, Variant

HOPPER = "sm_90a"


def make_variant(family: Family, configuration: Configuration, problem: Problem, target: str = HOPPER) -> Variant:
    """The variant of `configuration` whose binary serves `problem`: compile-time sizes come from the family."""
    constants = family.constants(configuration, problem)
    return Variant(family.name, configuration, tuple(constants.items()), target)
