"""Inputs and the float64 reference of the selective scan, step by step."""

import math

import torch
import torch.nn.functional as F

from ktune.core.model import Problem

KINDS = ("normal", "uniform", "large", "small", "small_delta", "large_delta", "huge_delta")
# Drawing more on a host takes minutes.
MOST_DRAWN = 1 << 30
SHIFT = 97
# Steps that are widened together.
STEPS = 64


def inputs(problem: Problem, seed: int, kind: str = "normal", device: str = "cpu") -> dict[str, torch.Tensor]:
    """Random inputs, the same for the same seed on every machine.

    x and z [B, L, D], delta [B, L, D] (before bias and softplus, if the problem has them), A [D, N] (negative), B_t and
    C_t [B, L, N] or [B, L, G, N], skip and delta_bias [D], initial_state [B, D, N]; x, z, delta, B_t and C_t in the
    problem's dtype, the others fp32. A starts as Mamba's does, -1 to -N along the states, with some noise.
    Kinds: x from N(0, 1) (`normal`), U[0, 1) (`uniform`), N(0, 1) times 1e3 (`large`) or 1e-4 (`small`); delta before
    softplus in [-20, -3] (`small_delta`), near 20 (`large_delta`), at 100 and with x from N(0, 1) / 100 (`huge_delta`).
    Of problems beyond MOST_DRAWN elements, one batch's rows of x, delta and z are drawn, and the others have them SHIFT
    steps later each.
    """
    batch, length, channels, states = (problem[s] for s in "BLDN")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    drawn = batch if batch * length * channels <= MOST_DRAWN else 1
    rows = (drawn, length, channels)
    x = torch.rand(rows, generator=generator) if kind == "uniform" else normal(*rows)
    # delta x then is about as large as ever: beyond, sums that cancel would need a tolerance of their own
    x *= {"large": 1e3, "small": 1e-4, "huge_delta": 1e-2}.get(kind, 1.0)
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
    found = {name: tensor.to(device, dtype if name in narrow else tensor.dtype) for name, tensor in made.items()}
    for name in {"x", "delta", "z"} & set(found) if drawn < batch else ():
        found[name] = torch.cat([found[name].roll(i * SHIFT, dims=1) for i in range(batch)])
    return found


def reference(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """y [B, L, D], and final_state [B, D, N] if the problem has it, in float64, on the inputs' device.

    h_t = exp(delta A) h_{t-1} + delta x B, y = (h C + x skip) z sigmoid(z), delta after bias and softplus. Streams over
    time: beside y, the largest temporaries are STEPS steps of the inputs and one step's state, [B, D, N].
    """
    numbers = {name: inputs[name].double() for name in ("A", "skip", "delta_bias", "initial_state") if name in inputs}
    batch, length, channels, states = (problem[s] for s in "BLDN")
    groups = (batch, problem["G"], channels // problem["G"])
    device = inputs["x"].device
    if problem["initial"]:
        state = numbers["initial_state"].clone()
    else:
        state = torch.zeros(batch, channels, states, dtype=torch.float64, device=device)
    y = torch.empty(batch, length, channels, dtype=torch.float64, device=device)
    grouped = state.view(*groups, states)
    for start in range(0, length, STEPS):
        steps = slice(start, start + STEPS)
        x, delta, b, c = (inputs[name][:, steps].double() for name in ("x", "delta", "B_t", "C_t"))
        b, c = (rows.reshape(batch, -1, problem["G"], states) for rows in (b, c))
        if problem["bias"]:
            delta = delta + numbers["delta_bias"]
        if problem["softplus"]:
            delta = F.softplus(delta, threshold=math.inf)
        driven = delta * x
        for t in range(x.shape[1]):
            state *= torch.exp(delta[:, t, :, None] * numbers["A"])
            grouped += driven[:, t].reshape(*groups, 1) * b[:, t, :, None, :]
            y[:, start + t] = torch.einsum("bgdn,bgn->bgd", grouped, c[:, t]).reshape(batch, channels)
        if problem["skip"]:
            y[:, steps] += x * numbers["skip"]
        if problem["gate"]:
            y[:, steps] *= F.silu(inputs["z"][:, steps].double())
    return {"y": y, "final_state": state} if problem["final"] else {"y": y}
