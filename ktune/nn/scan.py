"""The operators `ktune::selective_scan` and `ktune::selective_scan_with_state`, as torch.compile sees them.

x, delta, z and y [B, L, D], B and C [B, L, N] or [B, L, G, N] are float32 or all bfloat16; A [D, N], D and delta_bias
[D], initial_state and the last state [B, D, N] are float32. What is None or False is left out of the kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ktune.core.errors import UsageError
from ktune.nn import plain
from ktune.nn.kernels import Wanted, run, unsuited, warn_once
from ktune.nn.operators import check_alike, register, shape_text, suitable


@torch.library.custom_op("ktune::selective_scan", mutates_args=())
def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: torch.Tensor | None = None,
) -> torch.Tensor:
    """y, contiguous."""
    given = Given(x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    given.check()
    y = torch.empty_like(x, memory_format=torch.contiguous_format)
    if _computed(given, {"y": y}):
        return y
    return plain.selective_scan(x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state).contiguous()


@torch.library.custom_op("ktune::selective_scan_with_state", mutates_args=())
def selective_scan_with_state(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(y, the state after the last step), contiguous."""
    given = Given(x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    given.check()
    y, state = torch.empty_like(x, memory_format=torch.contiguous_format), given.new_state()
    if _computed(given, {"y": y, "final_state": state}):
        return y, state
    y, state = plain.selective_scan_with_state(
        x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state
    )  # fmt: skip
    # an output of an operator is none of its inputs
    return y.contiguous(), state.clone(memory_format=torch.contiguous_format)


@selective_scan.register_fake
def _(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: torch.Tensor | None = None,
) -> torch.Tensor:
    Given(x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state).check()
    return torch.empty_like(x, memory_format=torch.contiguous_format)


@selective_scan_with_state.register_fake
def _(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    initial_state: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    given = Given(x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    given.check()
    return torch.empty_like(x, memory_format=torch.contiguous_format), given.new_state()


_Expected = dict[str, tuple[torch.Tensor, tuple[int, ...]]]
"""{name: (tensor, the shape that it must have)}."""


@dataclass(frozen=True)
class Given:
    """The arguments of a scan."""

    x: torch.Tensor
    delta: torch.Tensor
    A: torch.Tensor
    B: torch.Tensor
    C: torch.Tensor
    D: torch.Tensor | None
    z: torch.Tensor | None
    delta_bias: torch.Tensor | None
    delta_softplus: bool
    initial_state: torch.Tensor | None

    @property
    def groups(self) -> int:
        return self.B.shape[2] if self.B.dim() == 4 else 1

    def new_state(self) -> torch.Tensor:
        batch, _, channels = self.x.shape
        return self.x.new_empty(batch, channels, self.A.shape[1], dtype=torch.float32)

    def check(self) -> None:
        """UsageError for shapes, dtypes or devices that do not fit together."""
        x, a = self.x, self.A
        if x.dim() != 3 or a.dim() != 2:
            raise UsageError(f"x must be [B, L, D] and A [D, N], got {shape_text(x)} and {shape_text(a)}")
        batch, length, channels = x.shape
        states, groups = a.shape[1], self.groups
        if groups < 1 or channels % groups:
            raise UsageError(f"the groups of B and C must divide the {channels} channels, got {groups}")
        rows = (batch, length, channels)
        shared = (batch, length, groups, states) if self.B.dim() == 4 else (batch, length, states)
        elements: _Expected = {
            "x": (x, rows),
            "delta": (self.delta, rows),
            "B": (self.B, shared),
            "C": (self.C, shared),
        }
        numbers: _Expected = {"A": (a, (channels, states))}
        for name, tensor, shape, among in (
            ("z", self.z, rows, elements),
            ("D", self.D, (channels,), numbers),
            ("delta_bias", self.delta_bias, (channels,), numbers),
            ("initial_state", self.initial_state, (batch, channels, states), numbers),
        ):
            if tensor is not None:
                among[name] = (tensor, shape)
        for name, (tensor, expected) in {**elements, **numbers}.items():
            if tuple(tensor.shape) != expected:
                raise UsageError(
                    f"{name} must be [{', '.join(map(str, expected))}] beside x {shape_text(x)} and A {shape_text(a)}, "
                    f'got {shape_text(tensor)}; ktune.nn.selective_scan(..., layout="BDL") takes tensors with time last'
                )
        if x.dtype not in (torch.float32, torch.bfloat16):
            raise UsageError(f"x must be float32 or bfloat16, got {x.dtype}; call .float() on it, or use autocast")
        check_alike(x, {name: tensor for name, (tensor, _) in elements.items()}, x.dtype)
        check_alike(x, {name: tensor for name, (tensor, _) in numbers.items()})


def _computed(given: Given, outputs: dict[str, torch.Tensor]) -> bool:
    """Whether a kernel writes the outputs; False, perhaps with a warning, where plain operations must do."""
    if not given.x.is_cuda:
        warn_once("selective_scan", unsuited(given.x.device))
        return False
    if not given.x.numel() or not given.A.shape[1]:
        return False
    named = {
        "x": given.x,
        "delta": given.delta,
        "A": given.A,
        "B_t": given.B,
        "C_t": given.C,
        "skip": given.D,
        "delta_bias": given.delta_bias,
        "z": given.z,
        "initial_state": given.initial_state,
    }
    present = {name: tensor for name, tensor in named.items() if tensor is not None}
    return run(wanted(given, "final_state" in outputs), {**suitable(present), **outputs})


def wanted(given: Given, final: bool) -> Wanted:
    """The kernel for these arguments. Options come in the family's order, those at their default are left out."""
    batch, length, channels = given.x.shape
    options = (
        ("G", given.groups, 1),
        ("bias", int(given.delta_bias is not None), 0),
        ("softplus", int(given.delta_softplus), 0),
        ("gate", int(given.z is not None), 0),
        ("skip", int(given.D is not None), 1),
        ("initial", int(given.initial_state is not None), 0),
        ("final", int(final), 0),
    )
    chosen = tuple((name, value) for name, value, default in options if value != default)
    sizes = (("B", batch), ("L", length), ("D", channels), ("N", given.A.shape[1]), *chosen)
    return Wanted("selective_scan", sizes, given.x.device, dtype=str(given.x.dtype).removeprefix("torch."))


register(selective_scan, "selective_scan")
register(selective_scan_with_state, "selective_scan")
