"""Inputs and the float64 reference of the selective scan, step by step."""

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
    """Random fp32 inputs, the same for the same seed on every machine.

    x [B, L, D], delta [B, L, D] (after softplus), A [D, N] (negative), B_t and C_t [B, L, N], skip [D].
    A starts as Mamba's does, -1 to -N along the states, with some noise. Kinds: x from N(0, 1) (`normal`), U[0, 1)
    (`uniform`), N(0, 1) times 1e3 (`large`) or 1e-4 (`small`); delta before softplus in [-20, -3] (`small_delta`),
    near 20 (`large_delta`), at 100 (`huge_delta`). Of problems beyond MOST_DRAWN elements, one batch's rows of x and
    delta are drawn, and the other batches have them SHIFT steps later each.
    """
    batch, length, channels, states = (problem[s] for s in "BLDN")
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    drawn = batch if batch * length * channels <= MOST_DRAWN else 1
    rows = (drawn, length, channels)
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
    found = {name: tensor.to(device) for name, tensor in made.items()}
    if drawn < batch:
        for name in ("x", "delta"):
            found[name] = torch.cat([found[name].roll(i * SHIFT, dims=1) for i in range(batch)])
    return found


def reference(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """y [B, L, D] in float64, on the inputs' device: h_t = exp(delta A) h_{t-1} + delta x B, y = h C + x skip.

    Streams over time: beside y, the largest temporaries are STEPS steps of the inputs and one step's state, [B, D, N].
    """
    a, skip = inputs["A"].double(), inputs["skip"].double()
    state = torch.zeros(problem["B"], problem["D"], problem["N"], dtype=torch.float64, device=a.device)
    y = torch.empty(inputs["x"].shape, dtype=torch.float64, device=a.device)
    for start in range(0, problem["L"], STEPS):
        steps = slice(start, start + STEPS)
        x, delta, b, c = (inputs[name][:, steps].double() for name in ("x", "delta", "B_t", "C_t"))
        driven = delta * x
        for t in range(x.shape[1]):
            state *= torch.exp(delta[:, t, :, None] * a)
            state += driven[:, t, :, None] * b[:, t, None, :]
            y[:, start + t] = torch.einsum("bdn,bn->bd", state, c[:, t])
        y[:, steps] += x * skip
    return {"y": y}
