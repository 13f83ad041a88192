"""The two layers as a PyTorch user writes them, independent of ktune: what the drop-in modules replace."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class PlainScan(nn.Module):
    """S6: everything for all steps at once, then a loop over time."""

    def __init__(self, d_model: int, d_state: int) -> None:
        super().__init__()
        self.A_log = nn.Parameter(torch.randn(d_model, d_state) * 0.5)
        self.proj_B = nn.Linear(d_model, d_state, bias=False)
        self.proj_C = nn.Linear(d_model, d_state, bias=False)
        self.proj_delta = nn.Linear(d_model, d_model, bias=True)
        self.D = nn.Parameter(torch.randn(d_model))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        delta = F.softplus(self.proj_delta(x))
        b, c = self.proj_B(x), self.proj_C(x)
        decay = torch.exp(delta[..., None] * -torch.exp(self.A_log))
        driven = (delta * x)[..., None] * b[:, :, None, :]
        h = torch.zeros_like(decay[:, 0])
        rows = []
        for t in range(x.shape[1]):
            h = decay[:, t] * h + driven[:, t]
            rows.append((h * c[:, t, None, :]).sum(-1))
        return torch.stack(rows, 1) + x * self.D


class PlainSwish(nn.Module):
    def __init__(self, in_features: int, out_features: int, scale: float = 2.0) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        z = self.matmul(x)
        return z * torch.sigmoid(z) * self.scale


def scan_tensors(
    batch: int, length: int, channels: int, states: int, device: str = "cpu", seed: int = 0
) -> dict[str, torch.Tensor]:
    """Arguments of `ktune.nn.selective_scan` in its own layout; delta is positive, A negative."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=device)

    return {
        "u": normal(batch, length, channels),
        "delta": F.softplus(normal(batch, length, channels)),
        "A": -torch.exp(normal(channels, states) * 0.5),
        "B": normal(batch, length, states),
        "C": normal(batch, length, states),
        "D": normal(channels),
    }


def scan_options(given: dict[str, torch.Tensor], groups: int = 1, seed: int = 5) -> dict[str, torch.Tensor]:
    """The same arguments with all options: bias, gate, initial state, and B and C in groups."""
    u, states = given["u"], given["A"].shape[1]
    batch, length, channels = u.shape
    generator = torch.Generator(device=u.device).manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator, device=u.device)

    found = {
        "delta": normal(batch, length, channels),
        "z": 3 * normal(batch, length, channels),
        "delta_bias": normal(channels),
        "initial_state": normal(batch, channels, states),
    }
    if groups > 1:
        found |= {"B": normal(batch, length, groups, states), "C": normal(batch, length, groups, states)}
    return {**given, **found}


def narrowed(given: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """u, delta, B, C and z in bfloat16."""
    return {
        name: tensor.bfloat16() if name in ("u", "delta", "B", "C", "z") else tensor for name, tensor in given.items()
    }


def scan_in_float64(u, delta, A, B, C, D=None, z=None, delta_bias=None, delta_softplus=False, initial_state=None):
    """(y, last state) by the definition, in float64."""
    u, delta, A, B, C = (tensor.double() for tensor in (u, delta, A, B, C))
    batch, length, channels = u.shape
    if B.dim() == 3:
        B, C = B[:, :, None], C[:, :, None]
    group = torch.arange(channels, device=u.device) // (channels // B.shape[2])
    if delta_bias is not None:
        delta = delta + delta_bias.double()
    if delta_softplus:
        delta = torch.log1p(torch.exp(delta))
    h = torch.zeros(batch, channels, A.shape[1], dtype=torch.float64, device=u.device)
    if initial_state is not None:
        h = initial_state.double()
    y = torch.empty_like(u)
    for t in range(length):
        h = torch.exp(delta[:, t, :, None] * A) * h + (delta * u)[:, t, :, None] * B[:, t, group]
        y[:, t] = (h * C[:, t, group]).sum(-1)
    if D is not None:
        y = y + u * D.double()
    if z is not None:
        y = y * z.double() / (1 + torch.exp(-z.double()))
    return y, h


def swish_in_float64(x, weight, bias, scale):
    z = x.double() @ weight.double().t() + (0.0 if bias is None else bias.double())
    return scale * z * torch.sigmoid(z)


def projection_tensors(
    rows: int, channels: int, states: int, features: int, device: str = "cpu", seed: int = 0
) -> dict[str, torch.Tensor | None]:
    """Arguments of `ktune.nn.projections`; weights as torch.nn.Linear draws them."""
    generator = torch.Generator(device=device).manual_seed(seed)

    def flat(*shape: int) -> torch.Tensor:
        return (torch.rand(shape, generator=generator, device=device) * 2 - 1) / features**0.5

    return {
        "x": torch.randn(rows, features, generator=generator, device=device),
        "W_delta": flat(channels, features),
        "W_B": flat(states, features),
        "W_C": flat(states, features),
        "bias": flat(channels),
    }


def projections_in_float64(x, W_delta, W_B, W_C, bias):
    delta, b, c = (x.double() @ weight.double().t() for weight in (W_delta, W_B, W_C))
    return F.softplus(delta if bias is None else delta + bias.double()), b, c


def assert_within_tolerance(found: torch.Tensor, expected: torch.Tensor) -> None:
    """|y - ref| <= 1e-4 + 1e-4 |ref|, elementwise; for bfloat16, which is rounded to at the end, 2^-8 |ref| more."""
    assert found.dtype in (torch.float32, torch.bfloat16)
    rounding = 2**-8 if found.dtype == torch.bfloat16 else 0.0
    torch.testing.assert_close(found.double(), expected, rtol=1e-4 + rounding, atol=1e-4)
