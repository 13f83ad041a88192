"""A plan that is loaded on a GPU and runs on whatever tensors it is given, on torch's current stream."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import cache, lru_cache, partial
from pathlib import Path
from typing import Any

import torch

from ktune.api import Argument, KernelLaunch, Plan, Scalar, Tensor, TensorMap, TorchOperation
from ktune.core.errors import EnvironmentFault
from ktune.core.loading import LoadedFamily
from ktune.core.tensor_map import check_base, map_layout
from ktune.gpu import driver
from ktune.gpu.buffers import dtype_of
from ktune.gpu.plans import bind_operation

# Sets of addresses whose launches stay packed. torch's allocator hands out the same few in a steady state.
_PACKED = 32

# A kernel's loop variable may step past the last element by a tile before it is compared.
_LARGEST = {"int32": 2**31 - 2**16, "uint32": 2**32 - 2**16, "int64": 2**63 - 2**16, "uint64": 2**64 - 2**16}
_LARGEST_GRID = (2**31 - 1, 65_535, 65_535)

_touched = threading.local()

# An operation may set torch's precision for the time of its call, which is one setting for all threads.
_operating = threading.Lock()


class Executable:
    """One plan for tensors of fixed shapes on one device. May be called from several threads at once.

    tensors: the inputs and outputs that the family declares. The caller's are contiguous and aligned to 16 bytes.
    Workspace comes from torch's allocator inside each call, so that it belongs to the stream, or to the graph that is
    captured.
    """

    def __init__(
        self, loaded: LoadedFamily, plan: Plan, tensors: Sequence[Tensor], cubin: Path | None, device: torch.device
    ) -> None:
        check_limits(plan)
        self._workspace = [(tensor.name, tensor.shape, dtype_of(tensor)) for tensor in plan.workspace]
        self._declared = {tensor.name: tensor for tensor in (*tensors, *plan.workspace)}
        self._names = tuple(self._declared)
        self._device = device
        self._steps: list[Callable[[Mapping[str, torch.Tensor]], None]] = []
        module = None if cubin is None else _module(cubin, device, _shared_memory(plan))
        for launch in plan.launches:
            if isinstance(launch, TorchOperation):
                self._steps.append(partial(_operate, loaded, launch))
            elif module is None:
                raise EnvironmentFault(f"{loaded.name} launches {launch.kernel}, and nothing was built for it")
            else:
                kernel = module.kernel(launch.kernel)
                kernel.allow(launch)
                self._steps.append(partial(self._launch, self._binder(kernel, launch)))

    def __call__(self, tensors: Mapping[str, torch.Tensor]) -> None:
        """Enqueue the plan on the current stream of the device, which is current."""
        scratch = {name: torch.empty(shape, dtype=dtype, device=self._device) for name, shape, dtype in self._workspace}
        given = {**tensors, **scratch}
        for step in self._steps:
            step(given)

    def _launch(self, bind: Callable[..., driver.BoundLaunch], given: Mapping[str, torch.Tensor]) -> None:
        # The stream is part of the key, since a packed launch holds the stream that it is enqueued on.
        stream = torch.cuda.current_stream(self._device).cuda_stream
        bind(stream, *[given[name].data_ptr() for name in self._names])()

    def _binder(self, kernel: driver.Kernel, launch: KernelLaunch) -> Callable[..., driver.BoundLaunch]:
        """(stream, the tensors' addresses) -> the packed launch, the last few of them kept."""

        @lru_cache(maxsize=_PACKED)
        def bind(stream: int, *pointers: int) -> driver.BoundLaunch:
            named = dict(zip(self._names, pointers, strict=True))
            maps = {wanted: self._encode(wanted, named) for wanted in launch.arguments if isinstance(wanted, TensorMap)}
            return driver.BoundLaunch(kernel, launch, named, maps)

        return bind

    def _encode(self, wanted: TensorMap, pointers: Mapping[str, int]) -> bytes:
        check_base(wanted, pointers[wanted.tensor])
        return driver.encode_tensor_map(map_layout(wanted, self._declared[wanted.tensor]), pointers[wanted.tensor])


@cache
def _module(cubin: Path, device: torch.device, smem_bytes: tuple[int, ...]) -> driver.Module:
    """The binary, loaded on `device`, which is current; for good, since a captured graph may hold its kernels.

    smem_bytes: what the launches ask for. A loaded kernel knows one such limit, so another set is another module.
    """
    return driver.Module(cubin)


def _shared_memory(plan: Plan) -> tuple[int, ...]:
    return tuple(launch.smem_bytes for launch in plan.launches if isinstance(launch, KernelLaunch))


def with_float(plan: Plan, value: float) -> Plan:
    """The plan with its float32 arguments, which in the family's plan are its own constant, set to `value`."""

    def changed(argument: Argument) -> Argument:
        return Scalar(value, "float32") if isinstance(argument, Scalar) and argument.ctype == "float32" else argument

    launches = tuple(
        replace(launch, arguments=tuple(changed(argument) for argument in launch.arguments))
        if isinstance(launch, KernelLaunch)
        else launch
        for launch in plan.launches
    )
    return replace(plan, launches=launches)


def check_limits(plan: Plan) -> None:
    """EnvironmentFault where a size does not fit in the argument or the grid that carries it."""
    for launch in plan.launches:
        if isinstance(launch, TorchOperation):
            continue
        for argument in launch.arguments:
            if isinstance(argument, Scalar) and argument.value > _LARGEST.get(argument.ctype, float("inf")):
                raise EnvironmentFault(
                    f"{launch.kernel} takes {argument.value} as {argument.ctype}, which is too small"
                )
        if any(extent > most for extent, most in zip(launch.grid, _LARGEST_GRID, strict=True)):
            raise EnvironmentFault(f"{launch.kernel} needs a grid of {launch.grid} blocks, the most is {_LARGEST_GRID}")


def make_current(device: torch.device) -> None:
    """Make the device's context this thread's, which a thread that only got cached memory from torch does not have.

    Allowed during capture: recording an event adds nothing to a graph.
    """
    devices: set[int] = _touched.__dict__.setdefault("devices", set())
    assert device.index is not None
    if device.index not in devices:
        make_event: Any = torch.cuda.Event
        make_event().record(torch.cuda.current_stream(device))
        devices.add(device.index)


def _operate(loaded: LoadedFamily, operation: TorchOperation, given: Mapping[str, torch.Tensor]) -> None:
    with _operating:
        bind_operation(loaded, operation, given)()
