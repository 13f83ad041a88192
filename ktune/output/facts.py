"""What an exported header says about one winner: a list of named values, each a macro and a C++ constant."""

from __future__ import annotations

from dataclasses import dataclass

from ktune.api import KernelLaunch, Parameter
from ktune.core.identity import value_text
from ktune.core.model import Source, Value
from ktune.core.prelude import camel
from ktune.output.c_text import identifier, integer, macro, string
from ktune.output.provenance import provenance_text
from ktune.output.winner import Choice, Winner, choice_among


@dataclass(frozen=True)
class Fact:
    """`#define <macro> <literal>` and `static constexpr <ctype> <member> = <macro>`."""

    macro: str
    member: str
    ctype: str
    literal: str
    note: str = ""


@dataclass(frozen=True)
class Setting:
    """One parameter in a header.

    literal: what the macro is defined as; choices: (macro, value) of each choice of a parameter of words.
    """

    parameter: Parameter
    macro: str
    literal: str
    applies: bool
    choices: tuple[tuple[str, Value], ...] = ()

    @property
    def member(self) -> str:
        return f"k{camel(identifier(self.parameter.name))}"

    @property
    def type_name(self) -> str:
        return camel(identifier(self.parameter.name))

    @property
    def boolean(self) -> bool:
        return all(isinstance(value, bool) for value in self.parameter.values)


def settings(winner: Winner) -> list[Setting]:
    """Every parameter of the family; one that does not exist in this configuration has its default, as in the build."""
    family = winner.loaded.family
    found = []
    for parameter in family.parameters:
        value = winner.configuration.get(parameter.name, parameter.default)
        name = macro(family.name, parameter.name)
        choices: tuple[tuple[str, Value], ...] = ()
        if not parameter.ordinal and not all(isinstance(v, bool) for v in parameter.values):
            choices = tuple((macro(family.name, parameter.name, value_text(v)), v) for v in parameter.values)
        literal = next((n for n, v in choices if v == value), value_text(value))
        found.append(Setting(parameter, name, literal, parameter.name in winner.configuration, choices))
    return found


def facts(winner: Winner, choice: Choice | None = None) -> list[Fact]:
    """Sizes, launches, workspace, flags, figures and origin of a winner, in a fixed order.

    choice: among the winners of the same header, which all state the same sizes.
    """
    m = winner.measurement
    sizes, by_dtype = choice or choice_among([winner])
    found = [_integer(winner, f"size_{name}", winner.problem[name], "long long") for name in sizes]
    found += [_text(winner, "dtype", winner.problem.dtype)] if by_dtype else []
    found += [_integer(winner, f"constant_{name}", size, "long long") for name, size in m.variant.constants]
    launches = winner.plan.launches
    found.append(_integer(winner, "launch_count", len(launches), "int"))
    for position, launch in enumerate(launches):
        found += _launch_facts(winner, f"launch{position}", launch)
    found.append(_integer(winner, "workspace_bytes", winner.workspace_bytes, "unsigned long long"))
    if m.cold is not None:
        found.append(_real(winner, "time_cold_median_us", m.cold.median_us))
        found.append(_real(winner, "time_cold_ci_low_us", m.cold.ci_low_us))
        found.append(_real(winner, "time_cold_ci_high_us", m.cold.ci_high_us))
    if m.hot is not None:
        found.append(_real(winner, "time_hot_median_us", m.hot.median_us))
    found.append(_text(winner, "target", m.variant.target))
    found.append(_text(winner, "nvcc_flags", " ".join(winner.flags), "what the kernel must be compiled with"))
    found.append(_text(winner, "configuration_id", winner.identity))
    found.append(_text(winner, "problem_label", winner.problem.label))
    found.append(_text(winner, "gpu", m.environment.gpu_name if m.environment else ""))
    found.append(_text(winner, "source", m.source.value, "measured, replayed, cpu or fake"))
    found.append(_text(winner, "provenance", provenance_text(winner)))
    return found


def _launch_facts(winner: Winner, prefix: str, launch: object) -> list[Fact]:
    if not isinstance(launch, KernelLaunch):
        name = getattr(launch, "function", "")
        return [_text(winner, f"{prefix}_torch_operation", name, "a call of PyTorch, not a kernel")]
    found = [_text(winner, f"{prefix}_kernel", launch.kernel)]
    for what, extent in (("grid", launch.grid), ("block", launch.block), ("cluster", launch.cluster)):
        found += [_integer(winner, f"{prefix}_{what}_{axis}", n) for axis, n in zip("xyz", extent, strict=True)]
    return [*found, _integer(winner, f"{prefix}_smem_bytes", launch.smem_bytes)]


def _integer(winner: Winner, name: str, value: int, ctype: str = "unsigned int") -> Fact:
    suffix = {"unsigned int": "u", "unsigned long long": "ull"}.get(ctype)
    literal = integer(value) if suffix is None else f"{value}{suffix}"
    return _fact(winner, name, ctype, literal)


def _real(winner: Winner, name: str, value: float) -> Fact:
    source = winner.measurement.source
    note = "" if source is Source.MEASURED else f"{source}, not measured"
    return _fact(winner, name, "double", repr(float(f"{value:.7g}")), note)


def _text(winner: Winner, name: str, text: str, note: str = "") -> Fact:
    return _fact(winner, name, "const char*", string(text), note)


def _fact(winner: Winner, name: str, ctype: str, literal: str, note: str = "") -> Fact:
    return Fact(macro(winner.loaded.name, name), f"k{camel(identifier(name))}", ctype, literal, note)
