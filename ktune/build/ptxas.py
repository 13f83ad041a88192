"""Reading what nvcc and `ptxas -v` printed: resources per kernel, the first error, serialised wgmma."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")
_ERROR = re.compile(r"\b(?:error|fatal)\b[^:]*:", re.IGNORECASE)
_SERIALISED = "wgmma.mma_async instructions are serialized"


@dataclass(frozen=True)
class KernelResources:
    """One kernel and the device functions that it calls."""

    registers: int = 0
    stack_bytes: int = 0
    spill_store_bytes: int = 0
    spill_load_bytes: int = 0
    smem_static_bytes: int = 0


def parse_resources(log: str) -> dict[str, KernelResources]:
    """{kernel: resources} of a log of `-Xptxas -v`; device functions count with the kernel before them."""
    found: dict[str, KernelResources] = {}
    kernel = None
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            kernel = entry[1]
            found[kernel] = KernelResources()
        elif kernel is None:
            continue
        elif frame := _FRAME.search(line):
            stack, stores, loads = (int(number) for number in frame.groups())
            known = found[kernel]
            found[kernel] = replace(
                known,
                stack_bytes=known.stack_bytes + stack,
                spill_store_bytes=known.spill_store_bytes + stores,
                spill_load_bytes=known.spill_load_bytes + loads,
            )
        elif used := _USED.search(line):
            shared = _SHARED.search(line)
            found[kernel] = replace(
                found[kernel], registers=int(used[1]), smem_static_bytes=int(shared[1]) if shared else 0
            )
    return found


def first_error(log: str) -> str | None:
    """The first line on which a compiler reports an error, in one piece; None if there is none."""
    return next((" ".join(line.split()) for line in log.splitlines() if _ERROR.search(line)), None)


def serialised_wgmma(log: str) -> str | None:
    """The line with which ptxas (C7510 and its kin) says that it serialised the tensor cores' pipeline."""
    return next((" ".join(line.split()) for line in log.splitlines() if _SERIALISED in line), None)
