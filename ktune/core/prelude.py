"""The generated lines that set a variant's parameters in front of the family's unchanged source."""

from __future__ import annotations

from ktune.api import Family
from ktune.core.identity import value_text
from ktune.core.model import Variant


def camel(name: str) -> str:
    """`block_size` -> `BlockSize`, as in the constant `kBlockSize` and the type `Reduction`."""
    return "".join(part[:1].upper() + part[1:] for part in name.split("_"))


def prelude(family: Family, variant: Variant) -> str:
    """C++ that declares, in namespace `config`, one constexpr per parameter and compile-time size.

    A string parameter becomes `enum class Reduction { shuffle, ... }` and `kReduction`. A parameter
    that does not exist in this configuration has its default, so that one template serves all.
    """
    lines = ["#pragma once", "namespace config {"]
    for parameter in family.parameters:
        value = variant.configuration.get(parameter.name, parameter.default)
        name = camel(parameter.name)
        if parameter.ordinal:
            lines.append(f"constexpr int k{name} = {value};")
        elif all(isinstance(v, bool) for v in parameter.values):
            lines.append(f"constexpr bool k{name} = {'true' if value else 'false'};")
        else:
            choices = ", ".join(value_text(v) for v in parameter.values)
            lines.append(f"enum class {name} {{ {choices} }};")
            lines.append(f"constexpr {name} k{name} = {name}::{value_text(value)};")
    lines += [f"constexpr long long k{camel(name)} = {size};" for name, size in variant.constants]
    lines.append("}  // namespace config")
    return "\n".join(lines) + "\n"


def variant_flags(family: Family, variant: Variant) -> tuple[str, ...]:
    """The compiler flags that this variant's parameters ask for, in the parameters' order."""
    flags: list[str] = []
    for parameter in family.parameters:
        if parameter.flags and parameter.name in variant.configuration:
            flags += parameter.flags.get(variant.configuration[parameter.name], ())
    return tuple(flags)
