"""From a variant's CUDA source to C++ for the host: shared memory, inline PTX and the table of kernels."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ktune.build.source import variant_source
from ktune.core.loading import LoadedFamily
from ktune.core.model import Variant

FOLDER = Path(__file__).resolve().parent

# Comments and literals are matched first, so that what looks like code inside one is left alone.
_SKIPPED = r"//[^\n]*|/\*.*?\*/|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
_ALIGNMENT = r"(?:(?:__align__|alignas)\s*\([^()]*\)\s*)?"
_TYPE = r"(?P<{0}>[A-Za-z_][\w:]*(?:\s*<[^<>;]*>)?(?:\s+(?:int|long|short|char))*)"
_TOKENS = re.compile(
    rf"(?P<skipped>{_SKIPPED})"
    r"|\bextern\s+__shared__\s+" + _ALIGNMENT + _TYPE.format("dynamic_type")
    + r"\s+(?P<dynamic>\w+)\s*\[\s*\]\s*;"
    r"|\b(?:static\s+)?__shared__\s+(?P<alignment>" + _ALIGNMENT + ")" + _TYPE.format("type")
    + r"\s+(?P<static>\w+)(?P<extents>(?:\s*\[[^\];]+\])*)\s*;"
    r"|\b(?P<asm>asm|__asm__|__asm)\b\s*(?:(?:volatile|__volatile__)\s*)?\(",
    re.DOTALL,
)  # fmt: skip
_KERNEL = re.compile(r"extern\s*\"C\"[^;{]*?\b__global__\b(?P<head>[^{;]*?)\b(?P<name>\w+)\s*\((?!\s*\()", re.DOTALL)
_BOUNDS = re.compile(r"__(?:launch_bounds|cluster_dims|maxnreg)__\s*\((?:[^()]|\((?:[^()]|\([^()]*\))*\))*\)")
_CUDA_INCLUDE = re.compile(
    r"^[ \t]*#[ \t]*include[ \t]*"
    r"[<\"](?:cuda_runtime|cuda_runtime_api|device_launch_parameters|vector_types|cuda_bf16)\.h[>\"]",
    re.MULTILINE,
)
_LITERAL = re.compile(r'"((?:\\.|[^"\\])*)"')
_OPERAND = re.compile(r'\s*(?:\[\w+\]\s*)?"([^"]*)"\s*(?=\()')


def host_source(loaded: LoadedFamily, variant: Variant) -> str:
    """C++ with the variant's kernels and the table that names them; "" for a variant without kernels of its own."""
    text = variant_source(loaded, variant, line_markers=True)
    return translated(text) if text else ""


def translated(text: str) -> str:
    """`text` rewritten line for line, then the table of its kernels."""
    text = _CUDA_INCLUDE.sub("", text)
    return _rewritten(text) + _table(kernel_names(text))


def kernel_names(text: str) -> list[str]:
    """The names of the `extern "C" __global__` functions that a source defines."""
    bare = re.sub(_SKIPPED, lambda m: m[0] if m[0] == '"C"' else " ", text, flags=re.DOTALL)
    return list(dict.fromkeys(match["name"] for match in _KERNEL.finditer(_BOUNDS.sub(" ", bare))))


def _rewritten(text: str) -> str:
    parts, end = [], 0
    for match in _TOKENS.finditer(text):
        if match.start() < end or match["skipped"] is not None:
            continue
        stop = match.end()
        if match["asm"] is not None:
            stop = _closing(text, match.end() - 1) + 1
            made = _assembly(text[match.end() : stop - 1])
        elif match["dynamic"] is not None:
            kind, name = match["dynamic_type"], match["dynamic"]
            made = f"{kind}* const {name} = static_cast<{kind}*>(ktune_cpu::dynamic_shared());"
        else:
            made = _static_array(match["type"], match["static"], match["extents"], match["alignment"])
        lines = text.count("\n", match.start(), stop) - made.count("\n")
        parts += [text[end : match.start()], made, "\n" * lines]
        end = stop
    return "".join(parts) + text[end:]


def _static_array(kind: str, name: str, extents: str, alignment: str) -> str:
    """A reference to memory of the block, in place of a `__shared__` array or value."""
    shape = " ".join(extents.split())
    least = re.search(r"\((.*)\)", alignment, re.DOTALL)
    aligned = f"(alignof({kind}) > ({least[1]}) ? alignof({kind}) : ({least[1]}))" if least else f"alignof({kind})"
    return (
        f'typedef {kind} {name}_shared_t{shape}; static const char {name}_shared_key[] = "{name}"; '
        f"{name}_shared_t& {name} = *static_cast<{name}_shared_t*>("
        f"ktune_cpu::static_shared({name}_shared_key, sizeof({name}_shared_t), {aligned}));"
    )


@dataclass(frozen=True)
class _Instruction:
    name: str
    operands: tuple[str, ...]


def _assembly(body: str) -> str:
    """Calls of the functions in ptx.h, or of one that says which instruction can't run."""
    sections = _split(body, ":")
    template = "".join(bytes(t, "utf-8").decode("unicode_escape") for t in _LITERAL.findall(sections[0]))
    operands = [text for section in sections[1:3] for text in _operands(section)]
    statements = [statement.strip() for statement in re.split(r"[;\n]", template) if statement.strip()]
    calls = []
    for statement in statements:
        instruction = _parse(statement, operands)
        if instruction is None or instruction.name not in ptx_functions():
            shown = " ".join(statement.split()).replace("\\", "").replace('"', "'")[:80]
            return f'ktune_cpu::not_executable("inline PTX `{shown}`")'
        calls.append(f"ktune_cpu::ptx::{instruction.name}({', '.join(instruction.operands)})")
    return "(" + ", ".join(calls or ["void(0)"]) + ")"


def _parse(statement: str, operands: list[str]) -> _Instruction | None:
    """None for what is more than one plain instruction: predicates, labels, scopes, declarations."""
    match = re.fullmatch(r"([a-z][\w.:]*)(?:\s+(.*))?", statement, re.DOTALL)
    if match is None or match[1].endswith(":"):
        return None
    arguments = [_operand(text.strip(), operands) for text in re.split(r"[,{}]", match[2] or "") if text.strip()]
    if any(argument is None for argument in arguments):
        return None
    name = match[1].replace("::", "_").replace(".", "_")
    return _Instruction(name, tuple(argument for argument in arguments if argument is not None))


def _operand(text: str, operands: list[str]) -> str | None:
    text = text.removeprefix("[").removesuffix("]").strip()
    match = re.fullmatch(r"%(\d+)\s*(\+\s*\d+)?", text)
    if match is not None and int(match[1]) < len(operands):
        return f"({operands[int(match[1])]}){match[2] or ''}"
    if re.fullmatch(r"-?(?:0[xX][0-9a-fA-F]+|\d+)", text):
        return text
    special = re.fullmatch(r"%%(\w+)", text)
    if special is not None and special[1] in ptx_functions():
        return f"ktune_cpu::ptx::{special[1]}()"
    return None


def _operands(section: str) -> list[str]:
    """The expressions of an asm statement's outputs or inputs."""
    found = []
    for part in _split(section, ","):
        match = _OPERAND.match(part)
        if match is not None:
            found.append(part[match.end() + 1 : _closing(part, match.end())])
    return found


def _split(text: str, separator: str) -> list[str]:
    """Parts between separators that are in no bracket and no string."""
    parts, depth, start, at = [], 0, 0, 0
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            at = literal.end()
            continue
        depth += (text[at] in "([{") - (text[at] in ")]}")
        if text[at] == separator and depth == 0:
            parts.append(text[start:at])
            start = at + 1
        at += 1
    return [*parts, text[start:]]


def _closing(text: str, opening: int) -> int:
    """Where the bracket at `opening` is closed; the end of the text if it is not."""
    depth, at = 0, opening
    while at < len(text):
        literal = _LITERAL.match(text, at)
        if literal is not None:
            at = literal.end()
            continue
        depth += (text[at] == "(") - (text[at] == ")")
        if depth == 0:
            return at
        at += 1
    return at


@cache
def ptx_functions() -> frozenset[str]:
    """The names of the functions in ptx.h."""
    text = (FOLDER / "ptx.h").read_text(encoding="utf-8")
    return frozenset(re.findall(r"^__forceinline__ \w+ (\w+)\(", text, re.MULTILINE))


def _table(names: list[str]) -> str:
    rows = "".join(f'    Launchable<&::{name}>::named("{name}"),\n' for name in names) or "    {},\n"
    return (
        f"\nnamespace ktune_cpu {{\nconst Kernel kernels[] = {{\n{rows}}};\n"
        f"const int kernel_count = {len(names)};\n}}  // namespace ktune_cpu\n"
    )
