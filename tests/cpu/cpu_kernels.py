"""The kernels in `kernels/`: their files, lines and schedules, and one launch of one of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import torch

from ktune.api import KernelLaunch, Scalar, Tensor, TensorMap
from ktune.cpu.compiler import Check, ProgramStore
from ktune.cpu.process import Order, Schedule, run_program
from ktune.cpu.source import translated
from ktune.gpu.buffers import Region

KERNELS = Path(__file__).resolve().parent / "kernels"
SCHEDULES = (Schedule(Order.OLDEST_FIRST), Schedule(Order.NEWEST_FIRST), Schedule(Order.RANDOM, 7))

Runner = Callable[..., dict[str, torch.Tensor]]


def launch(
    programs: ProgramStore,
    file: str,
    kernel: str,
    arguments: Sequence[str | TensorMap | tuple[float, str]],
    tensors: Mapping[str, torch.Tensor],
    *,
    block: Sequence[int] = (32,),
    grid: Sequence[int] = (1,),
    smem_bytes: int = 0,
    schedule: Schedule = SCHEDULES[0],
    check: Check = Check.PLAIN,
    timeout_s: float = 60.0,
) -> dict[str, torch.Tensor]:
    """The tensors as they are after one launch. An argument is a tensor's name or map, or (value, ctype)."""
    program = programs.program(translated(_marked(KERNELS / file)), check, file)
    regions = {name: _region(name, tensor) for name, tensor in tensors.items()}
    given = tuple(Scalar(*a) if isinstance(a, tuple) else a for a in arguments)
    one = KernelLaunch(kernel, _three(grid), _three(block), given, smem_bytes)
    run_program(program, [one], regions, schedule, timeout_s)
    return {name: region.tensor for name, region in regions.items()}


def line_of(file: str, comment: str) -> str:
    """`planted.cu:12`, the line that ends in that comment."""
    lines = (KERNELS / file).read_text().splitlines()
    (number,) = [i for i, line in enumerate(lines, 1) if line.endswith(f"// {comment}")]
    return f"{file}:{number}"


def _marked(path: Path) -> str:
    """A kernel file as a build sees it: its lines are those of the file."""
    return f'#line 1 "{path.name}"\n{path.read_text()}'


def _region(name: str, tensor: torch.Tensor) -> Region:
    dtype = str(tensor.dtype).removeprefix("torch.")
    region = Region(Tensor(name, tuple(tensor.shape), dtype), torch.device("cpu"))
    region.tensor.copy_(tensor)
    return region


def _three(sizes: Sequence[int]) -> tuple[int, int, int]:
    x, y, z = (*sizes, 1, 1)[:3]
    return x, y, z
