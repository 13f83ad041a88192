"""Inputs and the float64 reference of the selective scan, step by step."""

import math

import torch
import torch.nn.functional as F

from ktune.core.model import Problem

KINDS = ("normal", "uniform", "large", "small", "small_delta", "large_delta", "huge_delta")


def inputs(problem: Problem, seed: int, kind: str = "normal", device: str = "cpu") -> dict[str, torch.Tensor]:
    """Random inputs, the same for the same seed on every machine.

    x and z [B, L, D], delta [B, L, D] (before bias and softplus, if the problem has them), A [D, N] (negative), B_t and
    C_t [B, L, N] or [B, L, G, N], skip and delta_bias [D], initial_state [B, D, N]; x, z, delta, B_t and C_t in the
    problem's dtype, the others fp32. A starts as Mamba's does, -1 to -N along the states, with some noise.
    Kinds: x from N(0, 1) (`normal`), U[0, 1) (`uniform`), N(0, 1) times 1e3 (`large`) or 1e-4 (`small`); delta before
    softplus in [-20, -3] (`small_delta`), near 20 (`large_delta`), at 100 (`huge_delta`).
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
    shared = (batch, length, states) if problem["G"] == 1 else (batch, length, problem["G"], states)
    made = {
        "x": x,
        "delta": raw if problem["softplus"] else F.softplus(raw),
        "A": -torch.exp(a_log),
        "B_t": normal(*shared),
        "C_t": normal(*shared),
    }
    if problem["skip"]:
        made["skip"] = normal(channels)
    if problem["bias"]:
        # without softplus delta must stay positive
        made["delta_bias"] = normal(channels) if problem["softplus"] else torch.rand(channels, generator=generator)
    if problem["gate"]:
        made["z"] = 4 * normal(*rows)
    if problem["initial"]:
        made["initial_state"] = normal(batch, channels, states)
    dtype = getattr(torch, problem.dtype)
    narrow = {"x", "delta", "B_t", "C_t", "z"}
    return {name: tensor.to(device, dtype if name in narrow else tensor.dtype) for name, tensor in made.items()}


def reference(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """y [B, L, D], and final_state [B, D, N] if the problem has it, in float64, on the inputs' device.

    h_t = exp(delta A) h_{t-1} + delta x B, y = (h C + x skip) z sigmoid(z), delta after bias and softplus. Streams over
    time: the largest temporary is one step's state, [B, D, N].
    """
    given = {name: tensor.double() for name, tensor in inputs.items()}
    x, delta = given["x"], given["delta"]
    batch, length, channels, states = (problem[s] for s in "BLDN")
    groups = (batch, problem["G"], channels // problem["G"])
    if problem["bias"]:
        delta = delta + given["delta_bias"]
    if problem["softplus"]:
        delta = F.softplus(delta, threshold=math.inf)
    if problem["initial"]:
        state = given["initial_state"].clone()
    else:
        state = torch.zeros(batch, channels, states, dtype=torch.float64, device=x.device)
    y = torch.empty_like(x)
    driven = delta * x
    b, c = (given[name].view(batch, length, problem["G"], states) for name in ("B_t", "C_t"))
    grouped = state.view(*groups, states)
    for t in range(length):
        state *= torch.exp(delta[:, t, :, None] * given["A"])
        grouped += driven[:, t].view(*groups, 1) * b[:, t, :, None, :]
        y[:, t] = torch.einsum("bgdn,bgn->bgd", grouped, c[:, t]).reshape(batch, channels)
    if problem["skip"]:
        y += x * given["skip"]
    if problem["gate"]:
        y *= F.silu(given["z"])
    return {"y": y, "final_state": state} if problem["final"] else {"y": y}
