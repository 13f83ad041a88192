"""From a family's plan to calls that run it on a case's buffers."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

import torch

from ktune.api import KernelLaunch, Plan, Tensor, TensorMap, TorchOperation
from ktune.core.errors import FamilyError
from ktune.core.loading import LoadedFamily
from ktune.core.tensor_map import check_base, map_layout
from ktune.gpu import driver
from ktune.gpu.buffers import Region
from ktune.gpu.cases import BoundCase, Case
from ktune.gpu.protocol import LaunchFault

Step = Callable[[], None]


class LoadedPlans:
    """A variant's binary, loaded, and its plans bound to cases. Without a cubin only torch operations can run."""

    def __init__(self, loaded: LoadedFamily, cubin: str | None) -> None:
        self._loaded = loaded
        self._module = driver.Module(Path(cubin)) if cubin is not None else None
        self._kernels: dict[str, driver.Kernel] = {}

    def bind(self, plan: Plan, case: Case, workspace: Sequence[Region]) -> BoundCase:
        """LaunchFault where the driver refuses a launch; FamilyError for a plan that names what is not there."""
        regions = {**case.regions, **{region.name: region for region in workspace}}
        return BoundCase(case, workspace, [self._step(launch, regions) for launch in plan.launches])

    def unload(self) -> None:
        self._kernels.clear()
        module, self._module = self._module, None
        if module is not None:
            module.unload()

    def _step(self, launch: KernelLaunch | TorchOperation, regions: Mapping[str, Region]) -> Step:
        if isinstance(launch, KernelLaunch):
            return bind_launch(self._kernel(launch.kernel), launch, regions)
        return bind_operation(self._loaded, launch, {name: region.tensor for name, region in regions.items()})

    def _kernel(self, name: str) -> driver.Kernel:
        if self._module is None:
            raise FamilyError(
                f"{self._loaded.name} launches kernel {name!r} in a configuration whose source was not built"
            )
        if name not in self._kernels:
            self._kernels[name] = self._module.kernel(name)
        return self._kernels[name]


def bind_launch(kernel: driver.Kernel, launch: KernelLaunch, regions: Mapping[str, Region]) -> driver.BoundLaunch:
    """The launch on these regions, its tensor maps encoded for where they lie."""
    pointers = {name: region.pointer for name, region in regions.items()}
    maps = {argument: _encode(argument, regions) for argument in launch.arguments if isinstance(argument, TensorMap)}
    return driver.BoundLaunch(kernel, launch, pointers, maps)


def _encode(wanted: TensorMap, regions: Mapping[str, Region]) -> bytes:
    if wanted.tensor not in regions:
        raise FamilyError(
            f"the plan passes a tensor map of {wanted.tensor!r}, which is no tensor of the problem; "
            f"it has {', '.join(regions)}"
        )
    region = regions[wanted.tensor]
    check_base(wanted, region.pointer)
    return driver.encode_tensor_map(map_layout(wanted, region.declared), region.pointer)


def bind_operation(loaded: LoadedFamily, operation: TorchOperation, tensors: Mapping[str, torch.Tensor]) -> Step:
    """The family's function in operations.py with its tensors filled in."""
    function = getattr(loaded.module("operations"), operation.function, None)
    if not inspect.isroutine(function):
        raise FamilyError(f"{loaded.folder}/operations.py has no function {operation.function!r}, which the plan calls")
    missing = [name for name in operation.arguments if name not in tensors]
    if missing:
        raise FamilyError(
            f"the plan passes {missing[0]!r} to {operation.function}; the problem has {', '.join(tensors)}"
        )
    return partial(function, *[tensors[name] for name in operation.arguments])


class WorkspaceStore:
    """Workspace regions, reused from one variant to the next where the declaration is the same."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._held: dict[tuple[Tensor, ...], list[Region]] = {}
        self._used: set[tuple[Tensor, ...]] = set()

    def next_variant(self) -> None:
        """Drop what the last variant did not use."""
        self._held = {declared: regions for declared, regions in self._held.items() if declared in self._used}
        self._used.clear()

    def get(self, declared: tuple[Tensor, ...]) -> list[Region]:
        """LaunchFault where the GPU has no room for them."""
        self._used.add(declared)
        if declared not in self._held:
            try:
                self._held[declared] = [Region(tensor, self._device) for tensor in declared]
            except torch.cuda.OutOfMemoryError as error:
                raise LaunchFault(f"no room for the workspace: {str(error).splitlines()[0]}") from error
        return self._held[declared]
