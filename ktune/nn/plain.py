"""The layers' arithmetic in plain PyTorch, on any device: the way out where no kernel can run, and differentiable."""

from __future__ import annotations

import torch
import torch.nn.functional as F


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
    """y [B, L, D] of x's dtype: the first of what `selective_scan_with_state` returns."""
    return selective_scan_with_state(x, delta, A, B, C, D, z, delta_bias, delta_softplus, initial_state)[0]


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
    """(y [B, L, D], the state after the last step [B, D, N]), step by step, from initial_state [B, D, N] or 0.

    h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t, y_t = (h_t C_t + x_t D) silu(z_t); delta is delta + delta_bias, then
    softplus of it, where these are asked for. x, delta and z [B, L, D], A [D, N], B and C [B, L, N], or [B, L, G, N]
    where each D / G neighbouring channels have rows of their own, D and delta_bias [D]. Narrow inputs are widened to
    float32, the state is not narrowed. The largest temporary is one step's state.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    inputs, steps = x.to(wide), delta.to(wide)
    steps = steps if delta_bias is None else steps + delta_bias
    steps = F.softplus(steps) if delta_softplus else steps
    driven = steps * inputs
    batch, length, channels = x.shape
    state = inputs.new_zeros(batch, channels, A.shape[1]) if initial_state is None else initial_state.to(wide)
    rows = []
    for t in range(length):
        state = torch.exp(steps[:, t, :, None] * A) * state + driven[:, t, :, None] * _row(B, t, channels).to(wide)
        rows.append((state * _row(C, t, channels).to(wide)).sum(-1))
    y = torch.stack(rows, dim=1) if rows else torch.zeros_like(inputs)
    y = y if D is None else y + inputs * D
    y = y if z is None else y * F.silu(z.to(wide))
    return y.to(x.dtype), state


def _row(tensor: torch.Tensor, t: int, channels: int) -> torch.Tensor:
    """One step of B or C for each channel: [B, D, N], or [B, 1, N] where all have the same."""
    row = tensor[:, t]
    return row[:, None] if row.dim() == 2 else row.repeat_interleave(channels // row.shape[1], dim=1)


def projections(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(softplus(x W_delta^T + bias), x W_B^T, x W_C^T). The products obey torch's own TF32 setting."""
    return F.softplus(F.linear(x, W_delta, bias)), F.linear(x, W_B), F.linear(x, W_C)


def linear_swish_scale(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    """scale z sigmoid(z) with z = x weight^T + bias. The product obeys torch's own TF32 setting."""
    z = F.linear(x, weight, bias)
    return z * torch.sigmoid(z) * scale
