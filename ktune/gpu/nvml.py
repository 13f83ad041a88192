"""What NVML knows about GPUs, by UUID and never by CUDA's index. A figure that it does not give is None."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

from ktune.core.errors import EnvironmentFault, UsageError
from ktune.core.settings import Settings, read_settings

T = TypeVar("T")

# A number of fewer digits is an index, never the beginning of a UUID.
_SHORTEST_UUID = 6

# NVML's bits, with the names that a Timing carries. Idle (0x1) is no throttling and is left out.
_REASONS = {
    0x2: "applications_clocks",
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x10: "sync_boost",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "hw_power_brake",
    0x100: "display_clocks",
}


@dataclass(frozen=True)
class GpuInfo:
    """One GPU as NVML lists it. `foreign_processes` counts compute processes other than this one."""

    index: int
    name: str
    uuid: str
    driver: str
    cuda_driver: str
    compute_capability: tuple[int, int] | None = None
    memory_bytes: int | None = None
    free_bytes: int | None = None
    power_limit_w: float | None = None
    foreign_processes: int | None = None


def gpus() -> list[GpuInfo]:
    """Every GPU of the machine, hidden ones too; empty if there is none. EnvironmentFault where NVML cannot tell."""
    nvml = _nvml()
    try:
        driver = _text(nvml.nvmlSystemGetDriverVersion())
        version = _optional(nvml.nvmlSystemGetCudaDriverVersion)
        cuda = f"{version // 1000}.{version % 1000 // 10}" if version else ""
        return [_info(nvml, index, driver, cuda) for index in range(nvml.nvmlDeviceGetCount())]
    except nvml.NVMLError as error:
        raise EnvironmentFault(f"the GPUs cannot be listed: NVML says {error}; check `nvidia-smi`") from error


def select_gpu(wanted: str) -> GpuInfo:
    """The GPU of a UUID (or its beginning) or an NVML index. UsageError if there is none."""
    found = gpus()
    by_index = wanted.isdecimal() and len(wanted) < _SHORTEST_UUID
    for gpu in found:
        if int(wanted) == gpu.index if by_index else _bare(gpu.uuid).startswith(_bare(wanted)):
            return gpu
    known = ", ".join(f"{gpu.index} ({gpu.uuid})" for gpu in found) or "none"
    raise UsageError(f"no GPU {wanted!r}; this machine has {known}")


def reason_no_gpu(settings: Settings | None = None) -> str:
    """Why CUDA kernels cannot run here, with the remedy; empty if they can as far as is known without torch."""
    visible = (settings or read_settings()).visible_devices
    if visible is not None and visible.strip() in ("", "-1"):
        return f"CUDA_VISIBLE_DEVICES={visible!r} hides every GPU; unset it or name one"
    try:
        found = gpus()
    except EnvironmentFault as fault:
        return str(fault)
    if not found:
        return "NVML lists no GPU; check `nvidia-smi -L`"
    return _reason_in_torch(_torch_cuda(), found[0])


def _reason_in_torch(built_for: str | None, gpu: GpuInfo) -> str:
    """built_for: the CUDA release of the installed torch, empty for a CPU-only one, None where there is no torch."""
    if built_for is None:
        return "torch is not installed; pip install torch"
    if not built_for:
        return "the installed torch is CPU-only; install a CUDA build, see https://pytorch.org/get-started"
    if gpu.cuda_driver and int(gpu.cuda_driver.split(".")[0]) < int(built_for.split(".")[0]):
        return (
            f"driver {gpu.driver} supports CUDA {gpu.cuda_driver}, torch is built for {built_for}; "
            f"update the driver or install a torch for CUDA {gpu.cuda_driver}"
        )
    return ""


class Sensor:
    """One GPU's momentary figures, each None where NVML does not give it."""

    def __init__(self, uuid: str) -> None:
        self._nvml: Any = None
        self._handle: Any = None
        try:
            self._nvml = nvml = _nvml()
        except EnvironmentFault:
            return
        self._handle = _optional(lambda: nvml.nvmlDeviceGetHandleByUUID(uuid))

    def sm_clock_mhz(self) -> int | None:
        return self._read(lambda n, h: int(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_SM)))

    def memory_clock_mhz(self) -> int | None:
        return self._read(lambda n, h: int(n.nvmlDeviceGetClockInfo(h, n.NVML_CLOCK_MEM)))

    def power_w(self) -> float | None:
        return self._read(lambda n, h: float(n.nvmlDeviceGetPowerUsage(h)) / 1000.0)

    def power_limit_w(self) -> float | None:
        return self._read(_power_limit_w)

    def energy_mj(self) -> int | None:
        """Millijoules of the whole GPU since the driver was loaded; moves every 100 ms."""
        return self._read(lambda n, h: int(n.nvmlDeviceGetTotalEnergyConsumption(h)))

    def throttle(self) -> tuple[str, ...]:
        """The names of what holds the clock down now; empty also where NVML does not say."""
        mask = self._read(_reasons_mask)
        return reason_names(mask or 0)

    def foreign_processes(self) -> int | None:
        return self._read(_foreign_processes)

    def _read(self, read: Callable[[Any, Any], T]) -> T | None:
        if self._handle is None:
            return None
        return _optional(lambda: read(self._nvml, self._handle))


def reason_names(mask: int) -> tuple[str, ...]:
    """NVML's bit mask of clock event reasons as names, in the order of their bits; idle is not one."""
    return tuple(name for bit, name in _REASONS.items() if mask & bit)


def _nvml() -> Any:
    """pynvml, initialised (NVML counts initialisations; repeating it is cheap). EnvironmentFault with the cause."""
    try:
        import pynvml
    except ImportError as error:
        raise EnvironmentFault("pynvml is not installed; pip install nvidia-ml-py") from error
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError_LibraryNotFound as error:
        raise EnvironmentFault(
            "no NVIDIA driver: libnvidia-ml.so.1 is not on this machine; install the driver"
        ) from error
    except pynvml.NVMLError as error:
        raise EnvironmentFault(f"the NVIDIA driver does not answer: NVML says {error}; check `nvidia-smi`") from error
    return pynvml


def _info(nvml: Any, index: int, driver: str, cuda: str) -> GpuInfo:
    handle = nvml.nvmlDeviceGetHandleByIndex(index)
    memory = _optional(lambda: nvml.nvmlDeviceGetMemoryInfo(handle))
    capability = _optional(lambda: nvml.nvmlDeviceGetCudaComputeCapability(handle))
    return GpuInfo(
        index=index,
        name=_text(nvml.nvmlDeviceGetName(handle)),
        uuid=_text(nvml.nvmlDeviceGetUUID(handle)),
        driver=driver,
        cuda_driver=cuda,
        compute_capability=(int(capability[0]), int(capability[1])) if capability else None,
        memory_bytes=int(memory.total) if memory else None,
        free_bytes=int(memory.free) if memory else None,
        power_limit_w=_optional(lambda: _power_limit_w(nvml, handle)),
        foreign_processes=_optional(lambda: _foreign_processes(nvml, handle)),
    )


def _power_limit_w(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetEnforcedPowerLimit(handle)) / 1000.0


def _reasons_mask(nvml: Any, handle: Any) -> int:
    read = (
        getattr(nvml, "nvmlDeviceGetCurrentClocksEventReasons", None) or nvml.nvmlDeviceGetCurrentClocksThrottleReasons
    )
    return int(read(handle))


def _foreign_processes(nvml: Any, handle: Any) -> int:
    return sum(process.pid != os.getpid() for process in nvml.nvmlDeviceGetComputeRunningProcesses(handle))


def _optional(read: Callable[[], T]) -> T | None:
    import pynvml

    try:
        return read()
    except pynvml.NVMLError:
        return None


def _text(value: str | bytes) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _bare(uuid: str) -> str:
    return uuid.lower().removeprefix("gpu-")


def _torch_cuda() -> str | None:
    """The CUDA release that the installed torch is built for, read from its version.py without importing it."""
    spec = find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    version = Path(spec.origin).with_name("version.py")
    if not version.is_file():
        return None
    match = re.search(r"^cuda\b[^=]*=\s*['\"]([\d.]+)['\"]", version.read_text(), re.MULTILINE)
    return match.group(1) if match else ""
