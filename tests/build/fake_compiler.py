"""A compiler that answers like nvcc from a shell script, cubins made by hand, and families to build."""

from __future__ import annotations

import shlex
import struct
from pathlib import Path

from ktune.build.toolchain import Toolchain, find_ninja
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Variant
from ktune.core.settings import read_settings
from ktune.core.variant import make_variant

PTXAS_LOG = """\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_90a'
ptxas info    : Function properties for k
    16 bytes stack frame, 4 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 1 barriers, 16 bytes cumulative stack size, 1024 bytes smem
"""

GOOD = 'cp "$cubin" kernel.cubin; cat "$log"'

CASES = """
from ktune.api import Cost, Family, Parameter, Plan, Size, Tensor, Tolerance

family = Family(
    name="cases",
    summary="one kernel, numbered cases",
    sizes=(Size("N", "elements"),),
    problems={{"default": {{"N": 8}}}},
    parameters=(Parameter("case", tuple(range({cases})), 0, "which"),),
    rules=(),
    source=lambda configuration: {source!r},
    inputs=lambda problem: (Tensor("x", (problem["N"],)),),
    outputs=lambda problem: (Tensor("y", (problem["N"],)),),
    plan=lambda configuration, problem: Plan(()),
    checks=lambda configuration, problem: (problem,),
    cost=lambda problem: Cost(0, 0, 0),
    tolerance=Tolerance(0, 0, 0, "exact"),
)
"""

KERNEL = """\
extern "C" __global__ void k(float* x) { x[threadIdx.x] = config::kCase; }
"""


def write_family(folder: Path, source: str = KERNEL, *, cases: int = 40, name: str = "cases.cu") -> LoadedFamily:
    """A family with one parameter `case`, and `source` as its file; no kernel if `name` is empty."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "family.py").write_text(CASES.format(cases=cases, source=name))
    if name:
        (folder / name).write_text(source)
    return load_family(folder)


def case(loaded: LoadedFamily, number: int, target: str = "sm_90a") -> Variant:
    problem = loaded.named_problems["default"]
    return make_variant(loaded.family, Configuration((("case", number),)), problem, target)


def fake_toolchain(folder: Path, body: str = GOOD) -> Toolchain:
    """A toolchain whose nvcc runs `body` in the unit's folder; $cubin and $log are a whole cubin and its log."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "whole.cubin").write_bytes(make_cubin({"k": b"code"}))
    (folder / "whole.log").write_text(PTXAS_LOG)
    script = folder / "nvcc"
    script.write_text(
        "#!/bin/sh\n"
        'case "$1" in\n'
        '--version) echo "Cuda compilation tools, release 13.0, V13.0.88"; exit 0;;\n'
        '--list-gpu-code) echo "sm_80 sm_90"; exit 0;;\n'
        "esac\n"
        f"cubin={shlex.quote(str(folder / 'whole.cubin'))}\nlog={shlex.quote(str(folder / 'whole.log'))}\n{body}\n"
    )
    script.chmod(0o755)
    settings = read_settings()
    return Toolchain(script, "13.0.88", ninja=find_ninja(settings), path=settings.path)


def make_cubin(kernels: dict[str, bytes], constants: bytes = b"", machine: int = 190) -> bytes:
    """A 64-bit ELF file with a .text section and an entry symbol per kernel, as ptxas lays it out."""
    names = ["", ".shstrtab", ".strtab", ".symtab", *(f".text.{k}" for k in kernels), ".nv.constant3"]
    section_names, name_at = _string_table(names)
    symbol_names, symbol_at = _string_table(["", *kernels])
    symbols = bytes(24) + b"".join(
        struct.pack("<IBBHQQ", symbol_at[k], 0x12, 0x10, 4 + i, 0, len(code))
        for i, (k, code) in enumerate(kernels.items())
    )
    contents = [b"", section_names, symbol_names, symbols, *kernels.values(), constants]
    types = [0, 3, 3, 2, *(1 for _ in kernels), 1]
    offsets, at = [], 64
    for content in contents:
        offsets.append(at)
        at += len(content)
    headers = b"".join(
        struct.pack("<IIQQQQIIQQ", name_at[n], t, 0, 0, o, len(c), 2 if t == 2 else 0, 0, 1, 0)
        for n, t, o, c in zip(names, types, offsets, contents, strict=True)
    )
    header = struct.pack(
        "<16sHHIQQQIHHHHHH", b"\x7fELF\x02\x01\x01", 2, machine, 1, 0, 0, at, 0, 64, 56, 0, 64, len(names), 1
    )
    return header + b"".join(contents) + headers


def _string_table(names: list[str]) -> tuple[bytes, dict[str, int]]:
    table, at = b"", {}
    for name in names:
        at[name] = len(table)
        table += name.encode() + b"\0"
    return table, at


def living_below(folder: Path) -> list[int]:
    """Processes whose working directory is in `folder`: ninja and all compilers of a build there."""
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                state = (process / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX" and (process / "cwd").readlink().is_relative_to(folder):
                    found.append(int(process.name))
            except OSError:
                continue
    return found
