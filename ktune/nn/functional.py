"""The layers as functions, with the options of the usual interfaces around the kernels."""

from __future__ import annotations

from typing import Any, Literal

import torch

from ktune.core.errors import UsageError
from ktune.nn import operators, scan

Layout = Literal["BLD", "BDL"]


def selective_scan(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None = None,
    z: torch.Tensor | None = None,
    delta_bias: torch.Tensor | None = None,
    delta_softplus: bool = False,
    return_last_state: bool = False,
    *,
    initial_state: torch.Tensor | None = None,
    layout: Layout = "BLD",
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """The selective scan: y of u's dtype, or (y, last state [B, D, N] float32). All options are part of the kernel.

    layout: "BLD" has u, delta, z and y [B, L, D], B and C [B, L, N] or, with groups of channels, [B, L, G, N], and
    copies nothing. "BDL", with time last, has u, delta, z and y [B, D, L], B and C [B, N, L] or [B, G, N, L], and is
    copied to the other one. A is [D, N], D and delta_bias [D], initial_state (the last state before) [B, D, N].
    delta_bias and delta_softplus come before the scan; z gates it: y silu(z). u, delta, B, C and z are float32 or all
    bfloat16, the others float32, as is the state within. There is no backward pass.
    """
    if layout not in ("BLD", "BDL"):
        raise UsageError(f'layout must be "BLD" or "BDL", got {layout!r}')
    if torch.is_autocast_enabled(u.device.type):
        u, delta, A, B, C, D, z, delta_bias, initial_state = _widened(
            u, delta, A, B, C, D, z, delta_bias, initial_state
        )  # fmt: skip
        with torch.autocast(u.device.type, enabled=False):
            return selective_scan(
                u, delta, A, B, C, D, z, delta_bias, delta_softplus, return_last_state,
                initial_state=initial_state, layout=layout,
            )  # fmt: skip
    if layout == "BDL":
        u, delta, B, C = _turned(u), _turned(delta), _time_second(B), _time_second(C)
        z = None if z is None else _turned(z)
    given = (u, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)
    y: torch.Tensor
    if return_last_state:
        y, state = scan.selective_scan_with_state(*given)
        return (_turned(y) if layout == "BDL" else y), state
    y = scan.selective_scan(*given)
    return _turned(y) if layout == "BDL" else y


def projections(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """What the selective scan takes: (softplus(x W_delta^T + bias), x W_B^T, x W_C^T), float32 and contiguous.

    x [..., K], W_delta [P, K], W_B and W_C [S, K], bias [P]. Under autocast inputs are widened and the results are
    float32. There is no backward pass.
    """
    if torch.is_autocast_enabled(x.device.type):
        x, W_delta, W_B, W_C, bias = _widened(x, W_delta, W_B, W_C, bias)
        with torch.autocast(x.device.type, enabled=False):
            return projections(x, W_delta, W_B, W_C, bias)
    delta, b, c = operators.projections(x, W_delta, W_B, W_C, bias)
    return delta, b, c


def linear_swish_scale(
    x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None = None, scale: float = 2.0
) -> torch.Tensor:
    """scale z sigmoid(z) with z = x weight^T + bias, float32: [..., N]. x [..., K], weight [N, K], bias [N].

    Under autocast inputs are widened and the result is float32. There is no backward pass.
    """
    if torch.is_autocast_enabled(x.device.type):
        x, weight, bias = _widened(x, weight, bias)
        with torch.autocast(x.device.type, enabled=False):
            return linear_swish_scale(x, weight, bias, scale)
    y: torch.Tensor = operators.linear_swish_scale(x, weight, bias, scale)
    return y


def _widened(*tensors: torch.Tensor | None) -> list[Any]:
    """float32 copies of what autocast may have narrowed."""
    return [None if tensor is None else tensor.float() for tensor in tensors]


def _turned(tensor: torch.Tensor) -> torch.Tensor:
    """Its last two dimensions exchanged."""
    if tensor.dim() != 3:
        raise UsageError(f"u, delta and z have three dimensions, got {list(tensor.shape)}")
    return tensor.transpose(1, 2)


def _time_second(tensor: torch.Tensor) -> torch.Tensor:
    """[B, N, L] as [B, L, N], [B, G, N, L] as [B, L, G, N]."""
    if tensor.dim() not in (3, 4):
        raise UsageError(f"B and C have three dimensions, or four with groups, got {list(tensor.shape)}")
    return tensor.movedim(-1, 1)
