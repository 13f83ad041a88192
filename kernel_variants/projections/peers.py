"""Rivals of the projections: each runs once per call on the inputs it was prepared with and returns all outputs."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ktune.api import Peer
from ktune.precision import matmul_precision

Prepared = Callable[[], dict[str, Any]]


def layers(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As a PyTorch user writes them: (delta [R, P], B [R, S], C [R, S])."""
    return F.softplus(F.linear(x, W_delta, bias)), F.linear(x, W_B), F.linear(x, W_C)


def prepare_layers(inputs: dict[str, torch.Tensor], precision: str, compiled: bool) -> Prepared:
    """The layers through cuBLAS, eager or compiled, with matrix products in "ieee" fp32 or "tf32"."""
    run_layers = torch.compile(layers) if compiled else layers

    def run() -> dict[str, Any]:
        with matmul_precision(precision):
            delta, b, c = run_layers(**inputs)
        return {"delta": delta, "B": b, "C": c}

    return run


def triton_missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "pip install triton"


PEERS = (
    Peer("eager fp32", lambda: None, lambda problem, inputs: prepare_layers(inputs, "ieee", False)),
    Peer("eager TF32", lambda: None, lambda problem, inputs: prepare_layers(inputs, "tf32", False)),
    Peer("torch.compile fp32", triton_missing, lambda problem, inputs: prepare_layers(inputs, "ieee", True)),
)
