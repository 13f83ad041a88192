"""A compiled variant as a process of its own: tensors go in by a file, faults come out as sentences."""

from __future__ import annotations

import math
import os
import re
import shutil
import signal
import struct
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any

import torch

from ktune.api import Argument, KernelLaunch, Tensor, TensorMap
from ktune.core.errors import FamilyError, KtuneError
from ktune.core.model import Status
from ktune.cpu.source import FOLDER
from ktune.gpu.buffers import CANARY_BYTES, Region, dtype_of


class Order(IntEnum):
    """Which of the threads that can run goes next: the one that has waited longest, shortest, or any."""

    OLDEST_FIRST = 0
    NEWEST_FIRST = 1
    RANDOM = 2


@dataclass(frozen=True)
class Schedule:
    """An order of execution. Asynchronous copies land at once, at their wait, or at either, in the same sequence."""

    order: Order
    seed: int = 0

    @property
    def label(self) -> str:
        return f"random order {self.seed}" if self.order is Order.RANDOM else self.order.name.lower().replace("_", " ")


class ExecutionFault(Exception):
    """The program ended before its launches were done. `status` is what a measurement says; None: not executable."""

    def __init__(self, status: Status | None, sentence: str) -> None:
        super().__init__(sentence)
        self.status = status


# The codes that runtime.h defines, and the one that AddressSanitizer is told to use.
_FAULT, _NOT_EXECUTABLE, _BAD_JOB, _REFUSED, _DEADLOCK, _SANITIZER, _CRASH = range(70, 77)
_STATUSES = {
    _FAULT: Status.WRONG,
    _NOT_EXECUTABLE: None,
    _REFUSED: Status.LAUNCH_FAILED,
    _DEADLOCK: Status.TIMED_OUT,
    _CRASH: Status.CRASHED,
}
_KINDS = {"int32": "i", "uint32": "u", "int64": "l", "uint64": "U", "float32": "f"}
_LIMITS = {"int32": "<i", "uint32": "<I", "int64": "<q", "uint64": "<Q", "float32": "<f"}
_ENVIRONMENT = {
    "ASAN_OPTIONS": f"exitcode={_SANITIZER}:detect_leaks=0:detect_stack_use_after_return=0:abort_on_error=0"
    ":verify_asan_link_order=0",
    "UBSAN_OPTIONS": f"exitcode={_SANITIZER}:print_stacktrace=0",
}
_PAGE = 1 << 12
_GAP = 1 << 16
# Further than a 32-bit number of 16-byte elements reaches.
_FAR_GAP = 1 << 36
_PLACE = re.compile(r"\{pc:0x([0-9a-f]+)\}")
_SANITIZER_LINE = re.compile(r"^SUMMARY: \w+Sanitizer: (\S+) (.*)$|^(\S+:\d+):\d+: runtime error: (.*)$", re.MULTILINE)


def run_program(
    program: Path,
    launches: Sequence[KernelLaunch],
    regions: Mapping[str, Region],
    schedule: Schedule,
    timeout_s: float,
) -> None:
    """Execute the launches on the regions, whose memory is changed as the kernels change theirs.

    Raises ExecutionFault where a kernel deadlocks, crashes, is caught or takes longer than `timeout_s`.
    """
    with tempfile.TemporaryDirectory(prefix="ktune-cpu-") as name:
        folder = Path(name)
        tensors = [_Held(region.name, region.bytes, region.tensor.element_size()) for region in regions.values()]
        (folder / "job").write_text(_job(launches, tensors, schedule, _GAP, 0))
        with (folder / "data").open("wb") as data:
            for region in regions.values():
                for part in _parts(region):
                    data.write(_bytes_of(part))
        _execute(program, folder, timeout_s)
        with (folder / "data").open("rb") as data:
            for region in regions.values():
                for part in _parts(region):
                    data.readinto(_bytes_of(part))


def run_ends(program: Path, launches: Sequence[KernelLaunch], tensors: Sequence[Tensor], timeout_s: float) -> None:
    """Execute the first and last two blocks of each launch on tensors of zeros that may be larger than memory.

    What they compute is lost: this finds accesses outside of the tensors. Raises ExecutionFault as `run_program`.
    """
    held = [_Held(t.name, math.prod(t.shape) * dtype_of(t).itemsize, dtype_of(t).itemsize) for t in tensors]
    with tempfile.TemporaryDirectory(prefix="ktune-cpu-") as name:
        folder = Path(name)
        (folder / "job").write_text(_job(launches, held, Schedule(Order.OLDEST_FIRST), _FAR_GAP, 2))
        (folder / "data").touch()
        _execute(program, folder, timeout_s)


@dataclass(frozen=True)
class _Held:
    """A tensor as the program's memory knows it."""

    name: str
    bytes: int
    item_bytes: int


def _parts(region: Region) -> tuple[torch.Tensor, ...]:
    """The canary before, the tensor, the canary after, as bytes."""
    before, after = region.canaries
    return before, region.tensor.reshape(-1).view(torch.uint8), after


def _bytes_of(part: torch.Tensor) -> memoryview:
    array: Any = part.numpy()
    return memoryview(array)


def _job(launches: Sequence[KernelLaunch], tensors: Sequence[_Held], schedule: Schedule, gap: int, ends: int) -> str:
    """The text that launch.cpp reads."""
    reserve = sum(tensor.bytes + gap + 2 * (CANARY_BYTES + _PAGE) for tensor in tensors)
    lines = [
        f"schedule {int(schedule.order)} {schedule.seed} reserve {reserve} gap {gap} canary {CANARY_BYTES} ends {ends}"
    ]
    lines += [f"tensor {t.name} {t.bytes} {t.item_bytes} {int(ends == 0)}" for t in tensors]
    numbers = {tensor.name: number for number, tensor in enumerate(tensors)}
    for launch in launches:
        sizes = " ".join(str(n) for n in (*launch.grid, *launch.block))
        lines.append(f"launch {launch.kernel} {sizes} {launch.smem_bytes} {len(launch.arguments)}")
        lines += [_argument(launch, argument, numbers) for argument in launch.arguments]
    return "\n".join(lines) + "\n"


def _number(launch: KernelLaunch, tensor: str, numbers: Mapping[str, int]) -> int:
    if tensor not in numbers:
        raise FamilyError(f"the plan passes {tensor!r} to {launch.kernel}; the problem has {', '.join(numbers)}")
    return numbers[tensor]


def _argument(launch: KernelLaunch, argument: Argument, numbers: Mapping[str, int]) -> str:
    if isinstance(argument, TensorMap):
        return f"m {_number(launch, argument.tensor, numbers)}"
    if isinstance(argument, str):
        return f"p {_number(launch, argument, numbers)}"
    try:
        packed = struct.pack(_LIMITS[argument.ctype], argument.value)
    except (KeyError, struct.error) as error:
        raise FamilyError(f"{launch.kernel} can't be passed {argument}: {error}; see Scalar in ktune.api") from error
    return f"{_KINDS[argument.ctype]} {int.from_bytes(packed, 'little')}"


def _execute(program: Path, folder: Path, timeout_s: float) -> None:
    try:
        done = subprocess.run(
            [program, "job", "data"], cwd=folder, env={**os.environ, **_ENVIRONMENT}, capture_output=True, text=True,
            errors="replace", timeout=timeout_s, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        raise ExecutionFault(
            Status.TIMED_OUT,
            f"did not end within {timeout_s:.0f} s: a thread that waits for another by reading memory?",
        ) from error
    code = done.returncode
    if code == 0:
        return
    if code == _BAD_JOB:
        raise KtuneError(f"{program}: {done.stdout.strip() or 'bad arguments'}")
    if code in _STATUSES:
        sentence = _with_lines(program, done.stdout.strip())
        if _STATUSES[code] is None:
            sentence = f"not executable on the CPU: {sentence}"
        raise ExecutionFault(_STATUSES[code], sentence)
    if code == _SANITIZER or "Sanitizer" in done.stderr or "runtime error:" in done.stderr:
        raise ExecutionFault(Status.WRONG, _sanitizer_sentence(done.stdout, done.stderr))
    ended = f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"
    raise ExecutionFault(Status.CRASHED, f"the kernel {ended}")


def _sanitizer_sentence(said: str, report: str) -> str:
    """What the runtime said of the access, and the kind and line of the sanitizer's report."""
    match = _SANITIZER_LINE.search(report)
    if match is None:
        return said.strip() or next(iter(report.strip().splitlines()), "AddressSanitizer said nothing")
    if match[3]:
        return f"{match[4]} at {match[3]}"
    where = _own_line(re.findall(r"^ +#\d+ 0x\w+ in .* (\S+?:\d+)(?::\d+)?$", report, re.MULTILINE), "an unknown line")
    return f"out of bounds at {where}: {said.strip()}" if said.strip() else f"{match[1]} at {where}"


def _with_lines(program: Path, sentence: str) -> str:
    """`{pc:0x...}` replaced by the file and line of that instruction, as far as addr2line knows it."""
    places = list(dict.fromkeys(_PLACE.findall(sentence)))
    if not places:
        return sentence
    lines = dict.fromkeys(places, "an unknown line")
    tool = shutil.which("addr2line")
    if tool is not None:
        # A return address is after its call: the line is that of the byte before.
        asked = [hex(int(place, 16) - 1) for place in places]
        command = [tool, "-a", "-i", "-e", str(program), *asked]
        said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False).stdout
        for place, frames in zip(places, re.split(r"^0x.*\n", said, flags=re.MULTILINE)[1:], strict=False):
            lines[place] = _own_line(frames.splitlines(), lines[place])
    return _PLACE.sub(lambda match: lines[match[1]], sentence)


def _own_line(frames: Sequence[str], otherwise: str) -> str:
    """The innermost of inlined frames that is the family's, not of this package."""
    for frame in frames:
        line = re.sub(r" \(discriminator \d+\)$", "", frame)
        if not line.startswith((str(FOLDER), "??")):
            return re.sub(r"^(\./)+", "", line)
    return otherwise
