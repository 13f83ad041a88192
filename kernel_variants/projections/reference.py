"""Inputs, the float64 reference and the componentwise bound of the three projections."""

import math
from collections.abc import Callable

import torch

from ktune.core.model import Problem

KINDS = ("normal", "uniform", "large", "small", "cancelling", "wide")

# Rows of x that are widened to float64 at a time.
ROWS_AT_ONCE = 1 << 16

# Of softplus itself, relative, as a kernel evaluates it.
SOFTPLUS_ERROR = 1e-6


def inputs(problem: Problem, seed: int, kind: str = "normal", device: str = "cpu") -> dict[str, torch.Tensor]:
    """x [R, K]; W_delta [P, K], W_B and W_C [S, K] and bias [P] from U(-1/sqrt(K), 1/sqrt(K)), as torch.nn.Linear's.

    Drawn on `device`, so the same seed gives the same values on the same kind of device. Kinds: x from N(0, 1)
    (`normal`), U[0, 1) (`uniform`), N(0, 1) times 1e3 (`large`) or 1e-4 (`small`); `cancelling` has the second half of
    each row of x and the weights undo most of the first; in `wide` every second row of x is 1e-8, 1, 1e5 or 1e9 times
    N(0, 1), in turn.
    """
    rows, channels, states, k = (problem[s] for s in "RPSK")
    generator = torch.Generator(device=device).manual_seed(seed)
    limit = 1.0 / math.sqrt(k)
    half = k // 2 if kind == "cancelling" else 0

    def flat(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device).uniform_(-limit, limit, generator=generator)

    x = (
        torch.rand((rows, k), generator=generator, device=device)
        if kind == "uniform"
        else torch.randn((rows, k), generator=generator, device=device)
    )
    x *= {"large": 1e3, "small": 1e-4}.get(kind, 1.0)
    if kind == "wide":
        for first, factor in enumerate((1e-8, 1.0, 1e5, 1e9)):
            x[2 * first + 1 :: 8] *= factor
    x[:, half : 2 * half] = -x[:, :half]
    given = {
        "x": x,
        "W_delta": flat(channels, k),
        "W_B": flat(states, k),
        "W_C": flat(states, k),
        "bias": flat(channels),
    }
    for name in ("W_delta", "W_B", "W_C"):
        given[name][:, half : 2 * half] = given[name][:, :half] * (1.0 + 1e-3)
    return given


def reference(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """delta [R, P] = softplus(x W_delta^T + bias), B and C [R, S], in float64; x is widened a slab at a time."""
    x = inputs["x"]
    return {
        "delta": _product(x, inputs["W_delta"], lambda z: softplus(z + inputs["bias"].double())),
        "B": _product(x, inputs["W_B"]),
        "C": _product(x, inputs["W_C"]),
    }


def softplus(v: torch.Tensor) -> torch.Tensor:
    """log(1 + exp(v)) without overflow and without torch's threshold, beyond which it is v."""
    return v.clamp(min=0) + torch.log1p(torch.exp(-v.abs()))


def bound(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """How far each output may be from the reference, element by element, in float64.

    A sum of K products in fp32 errs by at most c 2^-24 (|x| |W|^T + |bias|), and softplus is at most 1 steep. What c a
    correct fp32 kernel needs falls with K, since rounding errors cancel: c = 8 + 1000 / sqrt(K), as in the family
    linear_swish_scale, lets every fp32 kernel pass and no TF32 one. Softplus itself may err by 1e-6 of its value.
    Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.5.
    """
    unit = (8.0 + 1000.0 / math.sqrt(problem["K"])) * 2.0**-24
    x = inputs["x"].abs()
    bias = inputs["bias"].double().abs()
    sizes = {name: _product(x, inputs[f"W_{name}"].abs()) * unit for name in ("delta", "B", "C")}
    exact = reference(problem, inputs)["delta"]
    sizes["delta"] += bias * unit + exact * SOFTPLUS_ERROR
    return sizes


def _product(
    x: torch.Tensor, weight: torch.Tensor, finish: Callable[[torch.Tensor], torch.Tensor] = lambda z: z
) -> torch.Tensor:
    """finish(x [R, K] weight [N, K]^T) in float64: [R, N]."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float64, device=x.device)
    wide = weight.double().t()
    for first in range(0, x.shape[0], ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        out[rows] = finish(x[rows].double() @ wide)
    return out
