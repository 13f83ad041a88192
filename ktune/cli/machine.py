"""Whether this machine can search, found out in a moment: no CUDA context, no import of torch."""

from __future__ import annotations

import ast
import importlib.util
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING

from ktune.core.errors import EnvironmentFault
from ktune.core.settings import Settings

if TYPE_CHECKING:
    from ktune.build.toolchain import Toolchain
    from ktune.gpu.nvml import GpuInfo

WAYS_OUT = (
    "run on a machine with an NVIDIA GPU and a CUDA build of torch; "
    "or search what was recorded on one: `ktune search FAMILY --replay h200`; --dry-run says what a search would do"
)
FIRST_DRIVER = {"12": "525", "13": "580"}


def require_gpu(settings: Settings, wanted: str) -> GpuInfo:
    """The GPU of `--gpu`, or the first visible one; EnvironmentFault with the cause and the ways out."""
    from ktune.gpu.nvml import gpus, reason_no_gpu, select_gpu

    reason = reason_no_gpu(settings)
    if reason:
        raise EnvironmentFault(f"can't run kernels here: {reason}. Otherwise {WAYS_OUT}")
    chosen = wanted or (settings.visible_devices or "").split(",")[0].strip()
    return select_gpu(chosen) if chosen else gpus()[0]


def check_driver(gpu: GpuInfo, toolchain: Toolchain) -> None:
    """EnvironmentFault if the driver is older than the toolkit's CUDA."""
    toolkit, driver = toolchain.release.split(".")[0], gpu.cuda_driver.split(".")[0]
    if driver.isdigit() and int(driver) < int(toolkit):
        raise EnvironmentFault(
            f"driver {gpu.driver} runs CUDA {gpu.cuda_driver}, too old for the code of nvcc {toolchain.release}; "
            f"install driver {FIRST_DRIVER.get(toolkit, f'for CUDA {toolkit}')} or newer, "
            f"or set CUDA_HOME to a CUDA {driver} toolkit"
        )


def target_of(gpu: GpuInfo) -> str:
    """The architecture to compile for: every instruction of this GPU."""
    from ktune.build.target import target_of_capability
    from ktune.core.variant import HOPPER

    return HOPPER if gpu.compute_capability is None else target_of_capability(*gpu.compute_capability)


@dataclass(frozen=True)
class TorchBuild:
    """The installed torch: its version, and the CUDA it was built for; None for a CPU-only build."""

    version: str
    cuda: str | None


def torch_build() -> TorchBuild | None:
    """Read from torch's files, because importing it takes seconds; None if it is not installed."""
    try:
        version = metadata.version("torch")
        spec = importlib.util.find_spec("torch")
    except (metadata.PackageNotFoundError, ValueError):
        return None
    if spec is None or spec.origin is None:
        return None
    return TorchBuild(version, _built_for(Path(spec.origin).with_name("version.py")))


def _built_for(path: Path) -> str | None:
    """The value of `cuda` in torch's generated version.py."""
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            named = any(isinstance(t, ast.Name) and t.id == "cuda" for t in targets)
            if named and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                return node.value.value
    return None
