"""A configuration's plan on a problem's own inputs, ready to be run. Runs only in a process that owns the GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from ktune.api import KernelLaunch, Plan, Tensor, TorchOperation
from ktune.core.errors import FamilyError
from ktune.core.loading import LoadedFamily
from ktune.gpu import driver
from ktune.gpu.buffers import Region
from ktune.gpu.plans import bind_launch, bind_operation
from ktune.profile.messages import Order


class Subject:
    """Buffers, binary and steps of one plan. No reference is computed: what is profiled has been verified before."""

    def __init__(self, loaded: LoadedFamily, order: Order, device: torch.device) -> None:
        """Raises LaunchFault where the driver refuses the plan, FamilyError for inputs that are not as declared."""
        self.plan: Plan = loaded.family.plan(order.configuration, order.problem)
        self._loaded = loaded
        self._regions = _inputs(loaded, order, device)
        for declared in (*loaded.family.outputs(order.problem), *self.plan.workspace):
            self._regions[declared.name] = Region(declared, device)
            self._regions[declared.name].poison()
        self._module = driver.Module(Path(order.cubin)) if order.cubin is not None else None
        self.kernels: dict[str, driver.Kernel] = {}
        self.steps: list[Callable[[], None]] = [self._bind(launch) for launch in self.plan.launches]

    def run(self) -> None:
        """The whole plan, enqueued on the current stream."""
        for step in self.steps:
            step()

    def close(self) -> None:
        torch.cuda.synchronize()
        self.kernels.clear()
        if self._module is not None:
            self._module.unload()

    def _bind(self, launch: KernelLaunch | TorchOperation) -> Callable[[], None]:
        if isinstance(launch, TorchOperation):
            tensors = {name: region.tensor for name, region in self._regions.items()}
            return bind_operation(self._loaded, launch, tensors)
        if self._module is None:
            raise FamilyError(f"{self._loaded.name} launches kernel {launch.kernel!r} without a source to build")
        if launch.kernel not in self.kernels:
            self.kernels[launch.kernel] = self._module.kernel(launch.kernel)
        return bind_launch(self.kernels[launch.kernel], launch, self._regions)


def _inputs(loaded: LoadedFamily, order: Order, device: torch.device) -> dict[str, Region]:
    with torch.no_grad():
        given: Mapping[str, torch.Tensor] = loaded.module("reference").inputs(
            loaded.family.completed(order.problem), order.seed, device=str(device)
        )
    return {declared.name: _filled(declared, given, device) for declared in loaded.family.inputs(order.problem)}


def _filled(declared: Tensor, given: Mapping[str, torch.Tensor], device: torch.device) -> Region:
    if declared.name not in given or tuple(given[declared.name].shape) != declared.shape:
        raise FamilyError(f"inputs() of reference.py must return {declared.name} of shape {declared.shape}")
    region = Region(declared, device)
    region.tensor.copy_(given[declared.name])
    return region
