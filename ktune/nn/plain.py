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
) -> torch.Tensor:
    """y [B, L, D]: h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t, y_t = h_t C_t + x_t D, step by step.

    x and delta [B, L, D], A [D, N], B and C [B, L, N], D [D]. The largest temporary is one step's state, [B, D, N].
    """
    driven = delta * x
    state = x.new_zeros(x.shape[0], x.shape[2], A.shape[1])
    rows = []
    for t in range(x.shape[1]):
        state = torch.exp(delta[:, t, :, None] * A) * state + driven[:, t, :, None] * B[:, t, None, :]
        rows.append((state * C[:, t, None, :]).sum(-1))
    y = torch.stack(rows, dim=1) if rows else torch.zeros_like(x)
    return y if D is None else y + x * D


def last_state(x: torch.Tensor, delta: torch.Tensor, A: torch.Tensor, B: torch.Tensor) -> torch.Tensor:
    """The state after the last step, [B, D, N], without a loop over time.

    h_L = sum_t exp(A sum_{s > t} delta_s) delta_t x_t B_t. One pass over [B, L, D] for each of the N states.
    """
    # summed from the end, where terms that still matter are small sums
    later = torch.flip(torch.cumsum(torch.flip(delta, (1,)), dim=1), (1,)) - delta
    driven = delta * x
    states = [
        torch.einsum("bld,bl->bd", torch.exp(later * A[:, n]) * driven, B[:, :, n].contiguous())
        for n in range(A.shape[1])
    ]
    return torch.stack(states, dim=-1) if states else x.new_zeros(x.shape[0], x.shape[2], 0)


def projections(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None = None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(softplus(x W_delta^T + bias), x W_B^T, x W_C^T). The products obey torch's own TF32 setting."""
    return F.softplus(F.linear(x, W_delta, bias)), F.linear(x, W_B), F.linear(x, W_C)


def linear_swish_scale(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    """scale z sigmoid(z) with z = x weight^T + bias. The product obeys torch's own TF32 setting."""
    z = F.linear(x, weight, bias)
    return z * torch.sigmoid(z) * scale
