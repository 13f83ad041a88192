"""The winners of several problems as CUDA files for one program: a kernel each, and a launcher that picks by size."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ktune.core.errors import UsageError
from ktune.output.c_text import comment, identifier, integer, macro
from ktune.output.files import write_file
from ktune.output.header import MARK
from ktune.output.kernel import (
    argument_names,
    kernel_text,
    labelled_macro,
    launcher_name,
    signature,
    write_kernel,
)
from ktune.output.winner import Choice, Winner, choice_among


def check_kernels(winners: Sequence[Winner], name: str) -> None:
    """UsageError where a winner can't be such a file, or the launcher can't serve them all."""
    for winner in winners:
        try:
            kernel_text(winner, _file_stem(winner, name), _label(winner))
        except UsageError as error:
            raise UsageError(f"{winner.problem.label}: {error}") from error
    dispatch_text(winners, name)


def write_kernels(winners: Sequence[Winner], folder: Path, name: str, *, force: bool = False) -> list[Path]:
    """Write `<name>_<problem>_kernel.cu` and `.cuh` for each winner, and `<name>_kernels.cuh`, which includes them."""
    paths = []
    for winner in winners:
        paths += write_kernel(winner, folder, _file_stem(winner, name), label=_label(winner), force=force)
    return [*paths, write_file(folder / f"{name}_kernels.cuh", dispatch_text(winners, name), MARK, force=force)]


def dispatch_text(winners: Sequence[Winner], name: str) -> str:
    """The header that includes every declaration: a launcher and its workspace's size, by the problem's sizes."""
    first = winners[0]
    family = first.loaded.name
    choice = choice_among(winners)
    declared = {signature(winner, "", choice.sizes) for winner in winners}
    if len(declared) > 1 or choice.dtype:
        raise UsageError(
            f"the problems of {family} differ in their tensors' names or types, so that one launcher can't take them; "
            "export them one by one"
        )
    guard = macro(family, name, "kernels", "cuh")
    listed = ", ".join(f"long long size_{identifier(size)}" for size in choice.sizes)
    lines = [
        *comment([f"{MARK}: launchers of {family} for {len(winners)} problems, chosen by their sizes."]),
        f"#ifndef {guard}",
        f"#define {guard}",
        "",
        *(f'#include "{_file_stem(winner, name)}_kernel.cuh"' for winner in winners),
        "",
        *comment(["Bytes of workspace that the launcher needs for these sizes; 0 also where they were not tuned."]),
        f"static inline unsigned long long ktune_{identifier(family)}_workspace_bytes({listed}) {{",
        *(f"  if ({_test(w, choice)}) return {labelled_macro(w, _label(w), 'workspace_bytes')};" for w in winners),
        "  return 0;",
        "}",
        "",
        *comment(["Calls the launcher of the problem with these sizes; cudaErrorInvalidValue where there is none."]),
        f"static inline {declared.pop()} {{",
        *(f"  if ({_test(w, choice)}) return {launcher_name(w, _label(w))}({_arguments(w)});" for w in winners),
        "  return cudaErrorInvalidValue;",
        "}",
        "",
        f"#endif  /* {guard} */",
    ]
    return "\n".join([*lines, ""])


def _test(winner: Winner, choice: Choice) -> str:
    return " && ".join(f"size_{identifier(name)} == {integer(winner.problem[name])}" for name in choice.sizes)


def _arguments(winner: Winner) -> str:
    """What the launcher of one problem takes: that problem's own sizes."""
    sizes = [f"size_{identifier(name)}" for name, _ in winner.problem.sizes]
    return ", ".join([*argument_names(winner), "workspace", *sizes, "stream"])


def _label(winner: Winner) -> str:
    return identifier(winner.problem.label)


def _file_stem(winner: Winner, name: str) -> str:
    return f"{name}_{_label(winner)}"
