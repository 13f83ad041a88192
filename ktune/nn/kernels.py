"""From sizes and a device to a loaded kernel, or to the reason why there is none: built once, kept for the process."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, cast

import torch

from ktune.core.errors import EnvironmentFault, KtuneError, UsageError
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Problem

if TYPE_CHECKING:
    from ktune.nn.executable import Executable

# Shapes whose plans are kept. Plans are small, and share the loaded kernels.
_MOST_KEPT = 1024
_HOPPER = (9, 0)


class PlainPathWarning(UserWarning):
    """A layer is computed by plain PyTorch operations, since no kernel can run; the message says why."""


@dataclass(frozen=True)
class Wanted:
    """A kernel for these sizes on this device.

    sizes: as `Problem.sizes` has them, options at their default left out.
    number: replaces the float32 arguments of the family's plan.
    """

    family: str
    sizes: tuple[tuple[str, int], ...]
    device: torch.device
    number: float | None = None
    dtype: str = "float32"


@dataclass(frozen=True)
class Ready:
    """A kernel that can be called, and the id of its configuration."""

    executable: Executable
    identity: str


_found: dict[Wanted, Ready | str] = {}
_lock = threading.RLock()
_warned: set[str] = set()


def prepare(
    family: str,
    *,
    device: torch.device | str = "cuda",
    scale: float | None = None,
    **sizes: int | str | torch.dtype,
) -> str:
    """Choose, build and load the kernel for these sizes now, rather than in the first call; the configuration's id.

    family: "selective_scan" (sizes B, L, D, N, options as `ktune list selective_scan` names them, such as softplus=1,
        and dtype), "projections" (R, P, S, K) or "linear_swish_scale" (M, N, K; scale 2.0 if not given).
    EnvironmentFault where the layer would be computed by plain PyTorch operations, with the reason.
    """
    dtype = str(sizes.pop("dtype", "")).removeprefix("torch.")
    problem = load_family(family).family.problem_of(cast(dict[str, int], sizes), dtype)
    if family == "linear_swish_scale":
        scale = 2.0 if scale is None else scale
    wanted = Wanted(family, problem.sizes, _indexed(torch.device(device)), scale, problem.dtype)
    with _lock:
        if isinstance(_found.get(wanted), str):
            # what was missing may have been installed since
            del _found[wanted]
    found = find(wanted)
    if isinstance(found, str):
        raise EnvironmentFault(f"{family} has no kernel here: {found}")
    return found.identity


def find(wanted: Wanted) -> Ready | str:
    """The kernel, made on the first call, or why there is none.

    UsageError during capture of a CUDA graph if the kernel has not been made, since it can't be loaded then.
    """
    found = _found.get(wanted)
    if found is not None:
        return found
    with _lock:
        if wanted not in _found:
            if len(_found) >= _MOST_KEPT:
                _forget_oldest()
            _found[wanted] = _make(wanted)
        return _found[wanted]


def run(wanted: Wanted, tensors: Mapping[str, torch.Tensor]) -> bool:
    """Enqueue the kernel on the current stream; False, with a warning once, where plain operations must do.

    Tensors are contiguous, aligned and on the device. Raises StickyFault where an earlier kernel spoilt the context.
    """
    found = find(wanted)
    if isinstance(found, str):
        warn_once(wanted.family, found)
        return False
    from ktune.gpu.protocol import LaunchFault
    from ktune.nn.executable import make_current

    try:
        with torch.cuda.device(wanted.device):
            make_current(wanted.device)
            found.executable(tensors)
    except LaunchFault as fault:
        _found[wanted] = f"the driver refused {found.identity}: {fault}"
        warn_once(wanted.family, str(_found[wanted]))
        return False
    return True


def warn_once(family: str, reason: str) -> None:
    """Once in the process for each reason."""
    text = f"{family} is computed by plain PyTorch operations, which is slow: {reason}"
    with _lock:
        if text in _warned:
            return
        _warned.add(text)
    warnings.warn(text, PlainPathWarning, stacklevel=2)


def unsuited(device: torch.device) -> str:
    """Why no kernel can run on this device; empty if one can."""
    if device.type != "cuda":
        return f"the tensors are on the device {device.type!r}; kernels need an NVIDIA GPU"
    if torch.version.cuda is None:
        return "this torch was not built for CUDA"
    if not torch.cuda.is_available():
        return "torch sees no GPU; `ktune doctor` says why"
    capability = torch.cuda.get_device_capability(device)
    if capability != _HOPPER:
        name = torch.cuda.get_device_name(device)
        return f"kernels are tuned for Hopper (compute capability 9.0), {name} has {capability[0]}.{capability[1]}"
    return ""


def _make(wanted: Wanted) -> Ready | str:
    reason = unsuited(wanted.device)
    if reason:
        return reason
    if torch.cuda.is_current_stream_capturing():
        sizes = ", ".join(f"{name}={size}" for name, size in wanted.sizes)
        raise UsageError(
            f"{wanted.family} for {sizes} is not loaded, and nothing can be loaded while a CUDA graph is captured; "
            f'run it once before, or call ktune.nn.prepare("{wanted.family}", {sizes})'
        )
    try:
        import cuda.bindings.driver  # noqa: F401
    except ImportError as error:
        return f"cuda.bindings does not load ({error}); pip install cuda-bindings"
    loaded = load_family(wanted.family)
    problem = loaded.family.problem_of(dict(wanted.sizes), wanted.dtype)
    with torch.cuda.device(wanted.device):
        return _first_that_loads(wanted, loaded, problem)


def _first_that_loads(wanted: Wanted, loaded: LoadedFamily, problem: Problem) -> Ready | str:
    from ktune.gpu.protocol import LaunchFault
    from ktune.nn.executable import Executable, make_current, with_float

    make_current(wanted.device)
    tensors = (*loaded.family.inputs(problem), *loaded.family.outputs(problem))
    reason = "no configuration of the family is valid for these sizes"
    for configuration in _choices(loaded, wanted.device, problem):
        identity = configuration_id(loaded.family, configuration)
        plan = loaded.family.plan(configuration, problem)
        if wanted.number is not None:
            plan = with_float(plan, wanted.number)
        try:
            cubin = _build(loaded, configuration, problem)
            return Ready(Executable(loaded, plan, tensors, cubin, wanted.device), identity)
        except (KtuneError, LaunchFault) as error:
            reason = str(error)
    return reason


def _choices(loaded: LoadedFamily, device: torch.device, problem: Problem) -> Iterator[Configuration]:
    from ktune.nn.winners import candidates, shipped_winners

    return candidates(loaded.family, torch.cuda.get_device_name(device), problem, shipped_winners())


def _build(loaded: LoadedFamily, configuration: Configuration, problem: Problem) -> Path | None:
    """The cubin, from the cache if it is there; None for a plan of torch operations alone."""
    from ktune.build.builder import Builder
    from ktune.build.toolchain import find_toolchain
    from ktune.core.model import Status
    from ktune.core.settings import read_settings
    from ktune.core.variant import make_variant

    settings = read_settings()
    variant = make_variant(loaded.family, configuration, problem)
    with Builder(loaded, find_toolchain(settings), settings.cache_dir, jobs=1) as builder:
        (result,) = builder.build([variant])
    if result.status is not Status.OK:
        raise EnvironmentFault(f"{configuration_id(loaded.family, configuration)} does not build: {result.detail}")
    return result.cubin


def _indexed(device: torch.device) -> torch.device:
    """With the index that torch means by "cuda" alone."""
    if device.type != "cuda" or device.index is not None or not torch.cuda.is_available():
        return device
    return torch.device("cuda", torch.cuda.current_device())


def _forget_oldest() -> None:
    """Drop a quarter of what is kept. A thread that is in the middle of a call still holds what it uses."""
    for wanted in list(_found)[: _MOST_KEPT // 4]:
        del _found[wanted]
