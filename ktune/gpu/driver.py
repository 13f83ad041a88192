"""The CUDA driver, as far as ktune needs it: load a cubin, get a kernel, launch it. In torch's primary context.

The only module that knows cuda.bindings. Faults come out as LaunchFault or StickyFault.
"""

from __future__ import annotations

import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from cuda.bindings import driver as cuda

from ktune.api import Argument, KernelLaunch, Scalar, TensorMap
from ktune.core.errors import EnvironmentFault, FamilyError
from ktune.core.tensor_map import MapLayout
from ktune.gpu.protocol import LaunchFault, StickyFault

# What a kernel may use of shared memory, static and dynamic together, without asking.
_SMEM_WITHOUT_OPT_IN = 48 * 1024
_PORTABLE_CLUSTER = 8
_TENSOR_MAP_BYTES = 128

# Errors of the call itself: the context lives on. Everything else is taken to have spoilt it.
_HARMLESS = frozenset(
    {
        "INVALID_VALUE", "OUT_OF_MEMORY", "INVALID_IMAGE", "NO_BINARY_FOR_GPU", "UNSUPPORTED_LIMIT", "INVALID_PTX",
        "JIT_COMPILER_NOT_FOUND", "UNSUPPORTED_PTX_VERSION", "JIT_COMPILATION_DISABLED", "INVALID_SOURCE",
        "FILE_NOT_FOUND", "SHARED_OBJECT_SYMBOL_NOT_FOUND", "SHARED_OBJECT_INIT_FAILED", "INVALID_HANDLE", "NOT_FOUND",
        "LAUNCH_OUT_OF_RESOURCES", "LAUNCH_INCOMPATIBLE_TEXTURING", "COOPERATIVE_LAUNCH_TOO_LARGE", "NOT_PERMITTED",
        "NOT_SUPPORTED", "INVALID_CLUSTER_SIZE", "FUNCTION_NOT_LOADED", "INVALID_RESOURCE_TYPE",
        "INVALID_RESOURCE_CONFIGURATION",
    }
)  # fmt: skip

# cudaError numbers of harmless errors, for torch's exceptions: value, configuration, resources, cooperative, cluster.
_HARMLESS_RUNTIME = frozenset({1, 9, 701, 720, 912})

_CTYPES: Mapping[str, Any] = {
    "int32": ctypes.c_int32,
    "int64": ctypes.c_int64,
    "uint32": ctypes.c_uint32,
    "uint64": ctypes.c_uint64,
    "float32": ctypes.c_float,
}


def fault(status: int, doing: str) -> LaunchFault | StickyFault:
    """The exception for a CUresult: which call, the error's name, and what the driver says about it."""
    name = _status_name(status)
    sentence = f"{doing}: {name}"
    if name.removeprefix("CUDA_ERROR_") in _HARMLESS:
        return LaunchFault(sentence)
    return StickyFault(sentence)


@contextmanager
def named_faults(doing: str) -> Iterator[None]:
    """Turn torch's CUDA errors into LaunchFault or StickyFault; other exceptions pass."""
    try:
        yield
    except torch.cuda.OutOfMemoryError:
        raise
    except RuntimeError as error:
        found = torch_fault(error, doing)
        if found is None:
            raise
        raise found from error


def torch_fault(error: RuntimeError, doing: str) -> LaunchFault | StickyFault | None:
    """The fault that a RuntimeError of torch stands for; None if it is not one of CUDA's."""
    text = str(error)
    number = getattr(error, "error_code", None)
    if not re.search(r"CUDA (driver )?error|CUBLAS_STATUS|device-side assert", text) and not isinstance(number, int):
        return None
    sentence = f"{doing}: {text.strip().splitlines()[0] if text.strip() else repr(error)}"
    if isinstance(number, int) and number in _HARMLESS_RUNTIME:
        return LaunchFault(sentence)
    return StickyFault(sentence)


class Module:
    """A cubin loaded into the current context. Close it before another takes its place."""

    def __init__(self, cubin: Path) -> None:
        try:
            image = cubin.read_bytes()
        except OSError as error:
            raise EnvironmentFault(
                f"cannot read the built kernel {cubin}: {error.strerror}; run the command again"
            ) from error
        self._handle = _call(cuda.cuModuleLoadData(image), f"loading {cubin.name}")

    def kernel(self, name: str) -> Kernel:
        return Kernel(_call(cuda.cuModuleGetFunction(self._handle, name.encode()), f"finding kernel {name}"), name)

    def unload(self) -> None:
        """Wait for nothing: the caller has synchronised."""
        _call(cuda.cuModuleUnload(self._handle), "unloading")


class Kernel:
    """A function of a loaded module."""

    def __init__(self, handle: Any, name: str) -> None:
        self.handle = handle
        self.name = name
        # One limit serves every launch of the kernel, and a launch for a small problem may follow one for a large one.
        self._smem_allowed = 0

    @property
    def registers(self) -> int:
        """Per thread."""
        return self._attribute("NUM_REGS")

    @property
    def smem_static_bytes(self) -> int:
        return self._attribute("SHARED_SIZE_BYTES")

    def allow(self, launch: KernelLaunch) -> None:
        """Opt in to the dynamic shared memory and the cluster size that a launch needs. LaunchFault if refused.

        What earlier launches were allowed stays allowed.
        """
        wanted = launch.smem_bytes
        if wanted > self._smem_allowed and wanted + self.smem_static_bytes > _SMEM_WITHOUT_OPT_IN:
            what = f"asking for {wanted} bytes of dynamic shared memory for {self.name}"
            self._set("MAX_DYNAMIC_SHARED_SIZE_BYTES", wanted, what)
            self._smem_allowed = wanted
        x, y, z = launch.cluster
        if x * y * z > _PORTABLE_CLUSTER:
            self._set(
                "NON_PORTABLE_CLUSTER_SIZE_ALLOWED", 1, f"asking for clusters of {x * y * z} blocks for {self.name}"
            )

    def blocks_per_sm(self, threads: int, smem_bytes: int) -> int:
        """The occupancy that the driver grants, in resident blocks."""
        found = cuda.cuOccupancyMaxActiveBlocksPerMultiprocessor(self.handle, threads, smem_bytes)
        return int(_call(found, f"occupancy of {self.name}"))

    def _attribute(self, name: str) -> int:
        attribute = getattr(cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        return int(_call(cuda.cuFuncGetAttribute(attribute, self.handle), f"{name} of {self.name}"))

    def _set(self, name: str, value: int, doing: str) -> None:
        attribute = getattr(cuda.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
        _call(cuda.cuFuncSetAttribute(self.handle, attribute, value), doing)


class BoundLaunch:
    """A launch whose arguments are packed once; calling it enqueues it on torch's current stream.

    pointers: {tensor name: device address}. maps: each tensor map of the launch, encoded.
    """

    def __init__(
        self,
        kernel: Kernel,
        launch: KernelLaunch,
        pointers: Mapping[str, int],
        maps: Mapping[TensorMap, bytes] | None = None,
    ) -> None:
        kernel.allow(launch)
        self._kernel = kernel
        self._launch = launch
        self._doing = f"launching {launch.kernel} grid {launch.grid} block {launch.block} smem {launch.smem_bytes}"
        self._arguments = PackedArguments(launch.arguments, pointers, maps or {})
        self._extended = _extended(launch) if launch.programmatic or launch.cluster != (1, 1, 1) else None

    def __call__(self) -> None:
        stream = _stream(torch.cuda.current_stream().cuda_stream)
        launch = self._launch
        if self._extended is not None:
            self._extended.hStream = stream
            done = cuda.cuLaunchKernelEx(self._extended, self._kernel.handle, self._arguments.address, 0)
        else:
            done = cuda.cuLaunchKernel(
                self._kernel.handle, *launch.grid, *launch.block, launch.smem_bytes, stream, self._arguments.address, 0
            )
        if done[0] != cuda.CUresult.CUDA_SUCCESS:
            raise fault(done[0], self._doing)


class PackedArguments:
    """The array of pointers to argument values that a launch takes; `address` is valid while this object lives."""

    def __init__(
        self, arguments: Sequence[Argument], pointers: Mapping[str, int], maps: Mapping[TensorMap, bytes] | None = None
    ) -> None:
        self._values = [_pack(argument, pointers, maps or {}) for argument in arguments]
        # one element more, so that a kernel without arguments has an address too
        self._pointers = (ctypes.c_void_p * (len(self._values) + 1))(
            *[ctypes.addressof(value) for value in self._values]
        )
        self.address = ctypes.addressof(self._pointers)


def encode_tensor_map(layout: MapLayout, pointer: int) -> bytes:
    """The 128 bytes that a kernel takes for a tensor at this device address. LaunchFault where the driver refuses."""
    rank = len(layout.dimensions)
    encoded = _call(
        cuda.cuTensorMapEncodeTiled(
            getattr(cuda.CUtensorMapDataType, f"CU_TENSOR_MAP_DATA_TYPE_{layout.type_name}"),
            rank,
            pointer,
            [cuda.cuuint64_t(extent) for extent in layout.dimensions],
            [cuda.cuuint64_t(stride) for stride in layout.stride_bytes],
            [cuda.cuuint32_t(extent) for extent in layout.box],
            [cuda.cuuint32_t(1)] * rank,
            cuda.CUtensorMapInterleave.CU_TENSOR_MAP_INTERLEAVE_NONE,
            getattr(cuda.CUtensorMapSwizzle, f"CU_TENSOR_MAP_SWIZZLE_{layout.swizzle_name}"),
            getattr(cuda.CUtensorMapL2promotion, f"CU_TENSOR_MAP_L2_PROMOTION_{layout.promotion_name}"),
            cuda.CUtensorMapFloatOOBfill.CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        ),
        f"encoding a tensor map of dimensions {layout.dimensions} and box {layout.box}",
    )
    return ctypes.string_at(encoded.getPtr(), _TENSOR_MAP_BYTES)


def reset_persisting_l2() -> None:
    """Give back the L2 lines that a kernel may have pinned; does nothing where the driver has none."""
    status = cuda.cuCtxResetPersistingL2Cache()[0]
    if status != cuda.CUresult.CUDA_SUCCESS:
        found = fault(status, "resetting persisting L2")
        if isinstance(found, StickyFault):
            raise found


def _pack(argument: Argument, pointers: Mapping[str, int], maps: Mapping[TensorMap, bytes]) -> Any:
    if isinstance(argument, TensorMap):
        return (ctypes.c_char * _TENSOR_MAP_BYTES).from_buffer_copy(maps[argument])
    if isinstance(argument, Scalar):
        if argument.ctype not in _CTYPES:
            raise FamilyError(f"a scalar's ctype must be one of {', '.join(_CTYPES)}, got {argument.ctype!r}")
        return _CTYPES[argument.ctype](argument.value)
    if argument not in pointers:
        raise FamilyError(
            f"the plan passes {argument!r}, which is no tensor of the problem; it has {', '.join(pointers)}"
        )
    return ctypes.c_void_p(pointers[argument])


def _extended(launch: KernelLaunch) -> Any:
    """The launch with its attributes: clusters, and leave to start before its predecessor has ended."""
    attributes = []
    if launch.cluster != (1, 1, 1):
        clustered = cuda.CUlaunchAttribute()
        clustered.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
        extent = clustered.value.clusterDim
        extent.x, extent.y, extent.z = launch.cluster
        attributes.append(clustered)
    if launch.programmatic:
        early = cuda.CUlaunchAttribute()
        early.id = cuda.CUlaunchAttributeID.CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
        early.value.programmaticStreamSerializationAllowed = 1
        attributes.append(early)
    config = cuda.CUlaunchConfig()
    config.gridDimX, config.gridDimY, config.gridDimZ = launch.grid
    config.blockDimX, config.blockDimY, config.blockDimZ = launch.block
    config.sharedMemBytes = launch.smem_bytes
    config.attrs = attributes
    config.numAttrs = len(attributes)
    return config


@lru_cache(maxsize=16)
def _stream(address: int) -> Any:
    return cuda.CUstream(address)


def _call(result: tuple[Any, ...], doing: str) -> Any:
    """The value of a cuda.bindings call, which returns (status, value...)."""
    if result[0] != cuda.CUresult.CUDA_SUCCESS:
        raise fault(result[0], doing)
    return result[1] if len(result) > 1 else None


def _status_name(status: int) -> str:
    try:
        return str(cuda.CUresult(int(status)).name)
    except ValueError:
        return f"CUDA error {int(status)}"
