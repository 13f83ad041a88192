"""What of the driver's wrapper can be seen without a GPU: faults told apart, arguments packed, NVML's words."""

import ctypes
import struct
import sys
from types import SimpleNamespace

import pytest
import torch

from ktune.api import KernelLaunch, Scalar
from ktune.core.errors import EnvironmentFault, FamilyError, UsageError
from ktune.core.settings import Settings
from ktune.gpu import nvml
from ktune.gpu.protocol import LaunchFault, StickyFault

cuda = pytest.importorskip("cuda.bindings.driver")
driver = pytest.importorskip("ktune.gpu.driver")


@pytest.mark.parametrize(
    "name", ["INVALID_VALUE", "LAUNCH_OUT_OF_RESOURCES", "NOT_FOUND", "INVALID_IMAGE", "NO_BINARY_FOR_GPU"]
)
def test_refusals_leave_the_process_sound(name: str) -> None:
    status = getattr(cuda.CUresult, f"CUDA_ERROR_{name}")
    found = driver.fault(status, "launching k")
    assert isinstance(found, LaunchFault) and str(found) == f"launching k: CUDA_ERROR_{name}"


@pytest.mark.parametrize(
    "name",
    [
        "ILLEGAL_ADDRESS",
        "MISALIGNED_ADDRESS",
        "ILLEGAL_INSTRUCTION",
        "LAUNCH_FAILED",
        "ECC_UNCORRECTABLE",
        "ASSERT",
        "LAUNCH_TIMEOUT",
        "UNKNOWN",
    ],
)
def test_a_spoilt_context_is_sticky(name: str) -> None:
    assert isinstance(driver.fault(getattr(cuda.CUresult, f"CUDA_ERROR_{name}"), "x"), StickyFault)


def test_an_error_of_a_newer_driver_is_sticky() -> None:
    assert isinstance(driver.fault(54321, "x"), StickyFault)


def test_errors_of_torch_are_mapped_and_others_pass() -> None:
    illegal = RuntimeError("CUDA error: an illegal memory access was encountered\nmore text")
    with pytest.raises(StickyFault) as found, driver.named_faults("verifying"):
        raise illegal
    assert str(found.value) == "verifying: CUDA error: an illegal memory access was encountered"
    with pytest.raises(RuntimeError, match="shape"), driver.named_faults("verifying"):
        raise RuntimeError("shape mismatch")
    with pytest.raises(torch.cuda.OutOfMemoryError), driver.named_faults("verifying"):
        raise torch.cuda.OutOfMemoryError("CUDA out of memory")


@pytest.mark.parametrize(
    "number, kind", [(1, LaunchFault), (9, LaunchFault), (701, LaunchFault), (700, StickyFault), (719, StickyFault)]
)
def test_torch_errors_with_a_number_go_by_the_number(number: int, kind: type) -> None:
    error = RuntimeError("CUDA error: something")
    error.error_code = number  # type: ignore[attr-defined]
    assert isinstance(driver.torch_fault(error, "x"), kind)


def unpack(arguments, sizes: list[int]) -> list[bytes]:
    """What a driver reads: an array of pointers, each to a value of its size."""
    pointers = (ctypes.c_void_p * len(sizes)).from_address(arguments.address)
    return [ctypes.string_at(pointer, size) for pointer, size in zip(pointers, sizes, strict=True)]


def test_arguments_are_packed_as_the_driver_reads_them() -> None:
    packed = driver.PackedArguments(
        ("x", Scalar(-7), Scalar(1 << 40, "int64"), Scalar(0.5, "float32"), Scalar(2**32 - 1, "uint32"), "y"),
        {"x": 0x7F00_1234_5600, "y": 0x7F00_0000_0100},
    )
    assert unpack(packed, [8, 4, 8, 4, 4, 8]) == [
        struct.pack("<Q", 0x7F00_1234_5600), struct.pack("<i", -7), struct.pack("<q", 1 << 40),
        struct.pack("<f", 0.5), struct.pack("<I", 2**32 - 1), struct.pack("<Q", 0x7F00_0000_0100),
    ]  # fmt: skip


def test_no_arguments_have_an_address_too() -> None:
    assert driver.PackedArguments((), {}).address != 0


def test_unknown_tensors_and_types_are_refused() -> None:
    with pytest.raises(FamilyError, match="'z', which is no tensor of the problem; it has x"):
        driver.PackedArguments(("z",), {"x": 1})
    with pytest.raises(FamilyError, match="int32, int64, uint32, uint64, float32, got 'half'"):
        driver.PackedArguments((Scalar(1, "half"),), {})


def test_a_cluster_launch_carries_its_dimensions() -> None:
    config = driver._extended(KernelLaunch("k", (8, 4, 2), (128, 1, 1), (), 1024, (4, 2, 1)))
    assert (config.gridDimX, config.gridDimY, config.gridDimZ, config.blockDimX) == (8, 4, 2, 128)
    assert config.sharedMemBytes == 1024 and config.numAttrs == 1
    cluster = config.attrs[0].value.clusterDim
    assert (cluster.x, cluster.y, cluster.z) == (4, 2, 1)


def test_a_missing_cubin_is_the_machines_fault(tmp_path) -> None:
    with pytest.raises(EnvironmentFault, match=r"cannot read the built kernel .*gone.cubin"):
        driver.Module(tmp_path / "gone.cubin")


def test_throttle_reasons_have_names_and_idle_is_none_of_them() -> None:
    assert nvml.reason_names(0x1) == ()
    assert nvml.reason_names(0x4 | 0x8 | 0x80) == ("sw_power_cap", "hw_slowdown", "hw_power_brake")
    assert nvml.reason_names(0x20 | 0x40) == ("sw_thermal", "hw_thermal")


class FakeNvml:
    """Two GPUs; the second answers nothing that is optional."""

    class NVMLError(Exception):
        pass

    class NVMLError_LibraryNotFound(NVMLError):
        pass

    NVML_CLOCK_SM, NVML_CLOCK_MEM = 1, 2

    def __init__(self, fails: Exception | None = None, count: int = 2) -> None:
        self.fails, self.count = fails, count

    def nvmlInit(self) -> None:
        if self.fails:
            raise self.fails

    def nvmlSystemGetDriverVersion(self) -> str:
        return "580.159.03"

    def nvmlSystemGetCudaDriverVersion(self) -> int:
        return 13000

    def nvmlDeviceGetCount(self) -> int:
        return self.count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> int:
        return {"GPU-1aaa": 0, "GPU-bbbb": 1}[uuid]

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "NVIDIA H200"

    def nvmlDeviceGetUUID(self, handle: int) -> bytes:
        return (b"GPU-1aaa", b"GPU-bbbb")[handle]

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:
        return self._optional(handle, 1980)

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: int) -> int:
        return self._optional(handle, 0x5)

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:
        return self._optional(handle, 12345)

    def nvmlDeviceGetEnforcedPowerLimit(self, handle: int) -> int:
        return self._optional(handle, 700_000)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:
        return self._optional(handle, 120_500)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> object:
        return self._optional(handle, SimpleNamespace(total=150, free=100))

    def nvmlDeviceGetCudaComputeCapability(self, handle: int) -> tuple[int, int]:
        return self._optional(handle, (9, 0))

    def nvmlDeviceGetComputeRunningProcesses(self, handle: int) -> list[object]:
        return self._optional(handle, [SimpleNamespace(pid=1), SimpleNamespace(pid=2)])

    def _optional(self, handle: int, value):
        if handle == 1:
            raise self.NVMLError("not supported")
        return value


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> FakeNvml:
    fake = FakeNvml()
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    return fake


def test_gpus_are_listed_and_what_is_not_known_is_none(two_gpus: FakeNvml) -> None:
    known, unknown = nvml.gpus()
    assert known == nvml.GpuInfo(0, "NVIDIA H200", "GPU-1aaa", "580.159.03", "13.0", (9, 0), 150, 100, 700.0, 2)
    assert unknown == nvml.GpuInfo(1, "NVIDIA H200", "GPU-bbbb", "580.159.03", "13.0")


def test_a_sensor_reads_figures_and_never_invents_a_zero(two_gpus: FakeNvml) -> None:
    known, unknown = nvml.Sensor("GPU-1aaa"), nvml.Sensor("GPU-bbbb")
    assert (known.sm_clock_mhz(), known.power_w(), known.power_limit_w(), known.energy_mj()) == (
        1980,
        120.5,
        700.0,
        12345,
    )
    assert known.throttle() == ("sw_power_cap",)
    assert (unknown.sm_clock_mhz(), unknown.power_w(), unknown.energy_mj(), unknown.foreign_processes()) == (None,) * 4
    assert unknown.throttle() == ()


def test_a_gpu_is_selected_by_index_or_uuid(two_gpus: FakeNvml) -> None:
    assert nvml.select_gpu("1").uuid == "GPU-bbbb"
    assert nvml.select_gpu("GPU-1a").index == 0
    assert nvml.select_gpu("0").uuid == "GPU-1aaa"
    with pytest.raises(UsageError, match=r"no GPU '2'; this machine has 0 \(GPU-1aaa\), 1 \(GPU-bbbb\)"):
        nvml.select_gpu("2")


def settings(visible: str | None) -> Settings:
    return Settings(cache_dir=None, cuda_home=None, path="", visible_devices=visible)  # type: ignore[arg-type]


@pytest.mark.parametrize("visible", ["", " ", "-1"])
def test_hidden_gpus_are_the_first_reason(two_gpus: FakeNvml, visible: str) -> None:
    assert "CUDA_VISIBLE_DEVICES" in nvml.reason_no_gpu(settings(visible))


@pytest.mark.parametrize(
    "fake, words",
    [
        (FakeNvml(FakeNvml.NVMLError_LibraryNotFound()), "no NVIDIA driver"),
        (FakeNvml(FakeNvml.NVMLError("Driver/library version mismatch")), "NVML says Driver/library version mismatch"),
        (FakeNvml(count=0), "NVML lists no GPU"),
    ],
)
def test_each_cause_of_no_gpu_is_named(monkeypatch: pytest.MonkeyPatch, fake: FakeNvml, words: str) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", fake)
    assert words in nvml.reason_no_gpu(settings(None))


@pytest.mark.parametrize(
    "built_for, words",
    [
        (None, "torch is not installed"),
        ("", "CPU-only"),
        ("14.0", "driver 580.159.03 supports CUDA 13.0, torch is built for 14.0"),
    ],
)
def test_a_torch_that_cannot_use_the_gpu_is_named(
    two_gpus: FakeNvml, monkeypatch: pytest.MonkeyPatch, built_for: str | None, words: str
) -> None:
    monkeypatch.setattr(nvml, "_torch_cuda", lambda: built_for)
    assert words in nvml.reason_no_gpu(settings(None))
    monkeypatch.setattr(nvml, "_torch_cuda", lambda: "13.0")
    assert nvml.reason_no_gpu(settings("0")) == ""


def test_the_release_torch_is_built_for_is_what_torch_says() -> None:
    assert nvml._torch_cuda() == (torch.version.cuda or "")


def test_shared_memory_that_was_allowed_is_not_taken_away_by_a_launch_that_needs_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    monkeypatch.setattr(driver.Kernel, "smem_static_bytes", property(lambda kernel: 1024))
    monkeypatch.setattr(driver.Kernel, "_set", lambda kernel, name, value, doing: asked.append(value))
    kernel = driver.Kernel(None, "k")
    for smem_bytes in (47 * 1024, 60_000, 165_440, 80_000, 0, 170_000, 165_440):
        kernel.allow(KernelLaunch("k", (1, 1, 1), (32, 1, 1), (), smem_bytes))
    assert asked == [60_000, 165_440, 170_000]
