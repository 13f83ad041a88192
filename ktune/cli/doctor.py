"""`ktune doctor`: what this machine has for ktune, what it lacks, and the way out."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import DebugOption, JsonOption, NvccOption
from ktune.core.errors import EnvironmentFault, KtuneError
from ktune.core.settings import Settings, read_settings

if TYPE_CHECKING:
    from ktune.build.toolchain import Toolchain
    from ktune.gpu.nvml import GpuInfo

OK, MISSING, FAULT = "ok", "--", "!!"
GIB = 1 << 30
LOW_DISK_BYTES = 2 * GIB
TORCH_LIMIT_S = 60.0
INSTALL_TORCH = "install a CUDA build for this driver, see https://pytorch.org/get-started"


@dataclass(frozen=True)
class Line:
    """One finding. mark: ok; -- for something that can be done without; !! for what a search needs."""

    mark: str
    name: str
    text: str

    def __str__(self) -> str:
        return f"{self.mark} {self.name:<6} {self.text}"


def doctor(
    clean_cache: Annotated[
        bool, typer.Option("--clean-cache", help="Remove every cached build, and say how much.")
    ] = False,
    nvcc: NvccOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Say whether this machine can search: GPU, driver, compiler, torch, disk. Exits with 3 if it can't.

    Example: ktune doctor
    """
    with faults(debug):
        settings = read_settings()
        if clean_cache:
            typer.echo(_clean_cache(settings.cache_dir))
            return
        lines = list(examine(settings, nvcc))
        if json_:
            typer.echo(json.dumps([asdict(line) for line in lines], indent=2))
        else:
            for line in lines:
                typer.echo(str(line))
        if any(line.mark == FAULT for line in lines):
            raise typer.Exit(EnvironmentFault.exit_code)


def examine(settings: Settings, nvcc: Path | None = None) -> Iterator[Line]:
    """Every finding, in the order in which a search would need it."""
    gpus, lines = _gpu_lines(settings)
    yield from lines
    toolchain, line = _nvcc_line(settings, nvcc)
    yield line
    if toolchain is not None and gpus:
        yield from _driver_lines(gpus, toolchain)
    yield _torch_line(settings, bool(gpus))
    yield _ninja_line(settings)
    yield _host_compiler_line(settings)
    for tool, consequence in (
        ("ncu", "profiles omit counters"),
        ("compute-sanitizer", "winners are not checked for races and memory errors"),
        ("cuobjdump", "no disassembly"),
    ):
        yield _tool_line(settings, toolchain, tool, consequence)
    yield _cache_line(settings.cache_dir)
    yield _memory_line()


def _gpu_lines(settings: Settings) -> tuple[list[GpuInfo], list[Line]]:
    from ktune.gpu.nvml import gpus

    try:
        found = gpus()
    except EnvironmentFault as fault:
        return [], [Line(FAULT, "GPU", str(fault))]
    lines = [Line(OK, f"GPU {gpu.index}", _gpu_text(gpu)) for gpu in found]
    if not found:
        lines = [Line(FAULT, "GPU", "the driver lists none; check `nvidia-smi -L`")]
    return found, lines


def _gpu_text(gpu: GpuInfo) -> str:
    free = "memory unknown" if gpu.free_bytes is None else f"{gpu.free_bytes / GIB:.0f} GiB free"
    others = gpu.foreign_processes
    use = {None: "use unknown", 0: "idle"}.get(others, f"{others} other processes: times will be noisy")
    return f"{gpu.name}, {free}, {use}, driver {gpu.driver} (CUDA {gpu.cuda_driver})"


def _nvcc_line(settings: Settings, option: Path | None) -> tuple[Toolchain | None, Line]:
    from ktune.build.toolchain import find_toolchain

    try:
        toolchain = find_toolchain(settings, option)
    except KtuneError as error:
        return None, Line(FAULT, "nvcc", str(error))
    return toolchain, Line(OK, "nvcc", f"{toolchain.release} from {toolchain.found_by} ({toolchain.nvcc})")


def _driver_lines(gpus: list[GpuInfo], toolchain: Toolchain) -> Iterator[Line]:
    from ktune.build.toolchain import require_target
    from ktune.cli.machine import check_driver, target_of

    for gpu in gpus:
        target = target_of(gpu)
        try:
            check_driver(gpu, toolchain)
            require_target(toolchain, target)
        except EnvironmentFault as fault:
            yield Line(FAULT, "driver", str(fault))
            continue
        hopper = "" if target.startswith("sm_90") else "; algorithms with Hopper instructions do not run on it"
        yield Line(OK, "driver", f"runs code of nvcc {toolchain.release} for GPU {gpu.index} ({target}){hopper}")


def _torch_line(settings: Settings, has_gpu: bool) -> Line:
    from ktune.cli.machine import torch_build

    build = torch_build()
    if build is None:
        return Line(FAULT, "torch", f"not installed; {INSTALL_TORCH}")
    if build.cuda is None:
        return Line(FAULT, "torch", f"{build.version} is a CPU-only build; {INSTALL_TORCH}")
    text = f"{build.version} (CUDA {build.cuda})"
    if not has_gpu:
        return Line(OK, "torch", text)
    seen = _gpus_seen_by_torch()
    if seen:
        return Line(OK, "torch", f"{text} sees {seen} GPU{'s' if seen > 1 else ''}")
    if settings.visible_devices is not None:
        return Line(
            FAULT, "torch", f"{text} sees no GPU: CUDA_VISIBLE_DEVICES is {settings.visible_devices!r}; unset it"
        )
    return Line(FAULT, "torch", f"{text} sees no GPU; {INSTALL_TORCH}")


def _gpus_seen_by_torch() -> int | None:
    """Asked in a process of its own, so that this one holds no CUDA context; None if torch fails."""
    code = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"
    try:
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, timeout=TORCH_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return None
    last = done.stdout.strip().splitlines()[-1:]
    return int(last[0]) if done.returncode == 0 and last and last[0].isdigit() else None


def _ninja_line(settings: Settings) -> Line:
    from ktune.build.toolchain import find_ninja

    try:
        return Line(OK, "ninja", str(find_ninja(settings)))
    except EnvironmentFault as fault:
        return Line(FAULT, "ninja", str(fault))


def find_gcc(settings: Settings) -> str | None:
    """The host compiler that nvcc needs."""
    return shutil.which("gcc", path=settings.path)


def _host_compiler_line(settings: Settings) -> Line:
    found = find_gcc(settings)
    if found:
        return Line(OK, "gcc", found)
    return Line(FAULT, "gcc", "not found, and nvcc needs it even for a cubin; install it: apt-get install g++")


def _tool_line(settings: Settings, toolchain: Toolchain | None, tool: str, consequence: str) -> Line:
    beside = f"{toolchain.nvcc.resolve().parent}:" if toolchain is not None else ""
    found = shutil.which(tool, path=f"{beside}{settings.path}") or _from_pip(tool)
    return Line(OK, tool, found) if found else Line(MISSING, tool, f"not found: {consequence}")


def _from_pip(tool: str) -> str | None:
    from cuda.pathfinder import find_nvidia_binary_utility

    found = find_nvidia_binary_utility(tool)
    return None if found is None else str(found)


def _cache_line(cache: Path) -> Line:
    existing = next(p for p in (cache, *cache.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    text = f"{_gib(folder_bytes(cache))} in {cache}, {_gib(free)} free on its disk"
    if free < LOW_DISK_BYTES:
        return Line(
            FAULT,
            "cache",
            f"{text}; builds need {_gib(LOW_DISK_BYTES)}: ktune doctor --clean-cache, or set KTUNE_CACHE_DIR",
        )
    return Line(OK, "cache", text)


def _memory_line() -> Line:
    from ktune.build.cores import available_cores, available_memory, count_jobs

    memory = available_memory()
    jobs = count_jobs(None, available_cores(), memory)
    text = "unknown" if memory is None else f"{_gib(memory)} available"
    return Line(OK, "memory", f"{text}; {available_cores()} cores, {jobs} compilers at once")


def _clean_cache(cache: Path) -> str:
    from ktune.build.cache import clean_cache

    freed = clean_cache(cache, 0, spare_s=0.0)
    return f"removed {_gib(freed)} of builds from {cache}"


def folder_bytes(folder: Path) -> int:
    """Size of all files below; 0 for a folder that is not there."""
    return sum(p.lstat().st_size for p in folder.rglob("*") if p.is_file() and not p.is_symlink())


def _gib(size: int) -> str:
    return f"{size / GIB:.1f} GiB" if size >= GIB else f"{size / (1 << 20):.1f} MiB"
