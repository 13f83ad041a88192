"""What came of one compile: facts of a whole cubin, or one sentence about the failure."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ktune.build.cache import CUBIN, LOG
from ktune.build.cubin import CubinFault, read_cubin
from ktune.build.ninja import EXIT_CODE, STARTED
from ktune.build.ptxas import first_error, parse_resources, serialised_wgmma
from ktune.core.model import BuildFacts

_TIMED_OUT = 124
_KILLED = 137
_CPU_LIMIT = 152
# Files' times tick every few milliseconds.
_NEARLY = 0.9


@dataclass(frozen=True)
class Built:
    """kernels: per kernel, as the cache keeps it for readers of facts.json."""

    facts: BuildFacts
    kernels: dict[str, Any]


@dataclass(frozen=True)
class Failed:
    detail: str


def examine(folder: Path, key: str, compiler: str, timeout_s: float) -> Built | Failed:
    """Judge what a compile left in `folder`. A cubin counts only if it is whole and the log names its kernels."""
    code = _exit_code(folder)
    log = _log(folder)
    if code is None:
        return Failed("the compiler was killed before it ended")
    compile_s = _modified(folder / EXIT_CODE) - _modified(folder / STARTED)
    if code in (_TIMED_OUT, _KILLED, _CPU_LIMIT) and compile_s >= _NEARLY * timeout_s:
        return Failed(f"the compiler ran past its limit of {timeout_s:g} s")
    if code != 0:
        return Failed(first_error(log) or f"the compiler ended with {code} and named no error")
    serialised = serialised_wgmma(log)
    if serialised is not None:
        return Failed(serialised)
    try:
        cubin = read_cubin(folder / CUBIN)
    except CubinFault as fault:
        return Failed(f"the compiler reported success and left an unusable cubin: {fault}")
    resources = parse_resources(log)
    unnamed = [name for name in cubin.kernels if name not in resources]
    if unnamed:
        return Failed(f"the compiler printed no registers and spills for {', '.join(unnamed)}")
    kernels = [resources[name] for name in cubin.kernels]
    facts = BuildFacts(
        key=key,
        code_digest=cubin.code_digest,
        registers=max(k.registers for k in kernels),
        spill_store_bytes=sum(k.spill_store_bytes for k in kernels),
        spill_load_bytes=sum(k.spill_load_bytes for k in kernels),
        stack_bytes=sum(k.stack_bytes for k in kernels),
        smem_static_bytes=sum(k.smem_static_bytes for k in kernels),
        compile_s=round(compile_s, 3),
        cached=False,
        compiler=compiler,
    )
    return Built(facts, {name: asdict(resources[name]) for name in cubin.kernels})


def _exit_code(folder: Path) -> int | None:
    try:
        return int((folder / EXIT_CODE).read_text())
    except (OSError, ValueError):
        return None


def _log(folder: Path) -> str:
    path = folder / LOG
    return path.read_text(errors="replace") if path.exists() else ""


def _modified(path: Path) -> float:
    return path.stat().st_mtime
