"""Inputs, the float64 reference and the componentwise bound of linear + swish + scale."""

import math
from collections.abc import Callable

import torch

from ktune.core.model import Problem

KINDS = ("normal", "uniform", "large", "small", "cancelling", "outliers")
SCALE = 2.0

# Rows of the weight that are widened to float64 at a time.
ROWS_AT_ONCE = 1024

OUTLIER_EVERY = 500

# The steepest slope of swish, at z = 2.4.
STEEPEST = 1.1


def inputs(problem: Problem, seed: int, kind: str = "normal", device: str = "cpu") -> dict[str, torch.Tensor]:
    """x [M, K] and, as torch.nn.Linear draws them, weight [N, K] and bias [N] from U(-1/sqrt(K), 1/sqrt(K)).

    Drawn on `device`, so the same seed gives the same values on the same kind of device. Kinds: x from N(0, 1)
    (`normal`), U[0, 1) (`uniform`), N(0, 1) times 1e3 (`large`) or 1e-4 (`small`); `cancelling` has the second half of
    each row of x and weight undo most of the first; `outliers` has every 500th column of x a thousand times as large.
    """
    m, n, k = (problem[s] for s in "MNK")
    generator = torch.Generator(device=device).manual_seed(seed)
    limit = 1.0 / math.sqrt(k)

    def flat(*shape: int) -> torch.Tensor:
        return torch.empty(shape, device=device).uniform_(-limit, limit, generator=generator)

    x = (
        torch.rand((m, k), generator=generator, device=device)
        if kind == "uniform"
        else torch.randn((m, k), generator=generator, device=device)
    )
    x *= {"large": 1e3, "small": 1e-4}.get(kind, 1.0)
    weight, bias = flat(n, k), flat(n)
    if kind == "outliers":
        x[:, ::OUTLIER_EVERY] *= 1e3
    if kind == "cancelling" and k > 1:
        half = k // 2
        x[:, half : 2 * half] = -x[:, :half]
        weight[:, half : 2 * half] = weight[:, :half] * (1.0 + 1e-3)
    return {"x": x, "weight": weight, "bias": bias}


def reference(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """y [M, N] = scale z sigmoid(z), z = x weight^T + bias, in float64; the weight is widened a slab at a time."""
    z = _product(inputs["x"].double(), inputs["weight"], torch.Tensor.double) + inputs["bias"].double()
    return {"y": SCALE * z * torch.sigmoid(z)}


def bound(problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """How far y [M, N] may be from the reference, element by element, in float64.

    A sum of K products in fp32 errs by at most c 2^-24 (|x| |weight|^T + |bias|); swish is at most 1.1 steep. What c
    a correct fp32 kernel needs falls with K, since rounding errors cancel: c = 8 + 1000 / sqrt(K) lets every fp32
    kernel pass and no TF32 one. Source: Higham, Accuracy and Stability of Numerical Algorithms, section 3.5.
    """
    size = _product(inputs["x"].double().abs(), inputs["weight"], lambda w: w.double().abs())
    size += inputs["bias"].double().abs()
    constant = 8.0 + 1000.0 / math.sqrt(problem["K"])
    return {"y": SCALE * STEEPEST * constant * 2.0**-24 * size}


def _product(x: torch.Tensor, weight: torch.Tensor, widen: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """x [M, K] float64 times the widened weight [N, K], transposed: [M, N]."""
    out = torch.empty((x.shape[0], weight.shape[0]), dtype=torch.float64, device=x.device)
    for first in range(0, weight.shape[0], ROWS_AT_ONCE):
        rows = slice(first, first + ROWS_AT_ONCE)
        out[:, rows] = x @ widen(weight[rows]).t()
    return out
