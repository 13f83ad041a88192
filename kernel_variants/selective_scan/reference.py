"""Inputs and the float64 reference of the selective scan, step by step."""

import torch
import torch.nn.functional as F

from ktune.core.model import Problem

KINDS = ("normal", "uniform", "large", "small", "small_delta", "large_delta", "huge_delta")


def inputs(problem: Problem, seed: int, kind: str = "normal", device: str = "cpu") -> dict[str, torch.Tensor]:
    """Random fp32 inputs, the same for the same seed on every machine.

    x [B, L, D], delta [B, L, D] (after softplus), A [D, N] (negative), B_t and C_t [B, L, N], skip [D].
    A starts as Mamba's does, -1 to -N along the states, with some noise. Kinds: x from N(0, 1) (`normal`), U[0, 1)
    (`uniform`), N(0, 1) times 1e3 (`large`) or 1e-4 (`small`); delta before softplus in [-20, -3] (`small_delta`),
    near 20 (`large_delta`), at 100 (`huge_delta`).
    """
    batch, length, channels, states = (problem[s] for s in "BLDN")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    rows = (batch, length, channels)
    x = torch.rand(rows, generator=generator) if kind == "uniform" else normal(*rows)
    x *= {"large": 1e3, "small": 1e-4}.get(kind, 1.0)
    raw = normal(*rows)
    if kind == "small_delta":
        raw = torch.rand(rows, generator=generator) * 17 - 20
    elif kind == "large_delta":
        raw = raw + 20
    elif kind == "huge_delta":
        raw = torch.full(rows, 100.0)
    a_log = torch.log(torch.arange(1, states + 1, dtype=torch.float32)) + 0.1 * normal(channels, states)
    made = {
        "x": x,
        "delta": F.softplus(raw),
        "A": -torch.exp(a_log),
        "B_t": normal(batch, length, states),
        "C_t": normal(batch, length, states),
        "skip": normal(channels),
    }
    return {name: tensor.to(device) for name, tensor in made.items()}


def reference(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """y [B, L, D] in float64, on the inputs' device: h_t = exp(delta A) h_{t-1} + delta x B, y = h C + x skip.

    Streams over time: the largest temporary is one step's state, [B, D, N].
    """
    x, delta, a, b, c, skip = (inputs[k].double() for k in ("x", "delta", "A", "B_t", "C_t", "skip"))
    state = torch.zeros(problem["B"], problem["D"], problem["N"], dtype=torch.float64, device=x.device)
    y = torch.empty_like(x)
    driven = delta * x
    for t in range(problem["L"]):
        state *= torch.exp(delta[:, t, :, None] * a)
        state += driven[:, t, :, None] * b[:, t, None, :]
        y[:, t] = torch.einsum("bdn,bn->bd", state, c[:, t])
    y += x * skip
    return {"y": y}
