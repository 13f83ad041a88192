"""The operators `ktune::linear_swish_scale` and `ktune::projections`, and what operators share."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch

from ktune.core.errors import UsageError
from ktune.nn import plain
from ktune.nn.kernels import Wanted, run, unsuited, warn_once

ALIGNMENT = 16


@torch.library.custom_op("ktune::linear_swish_scale", mutates_args=())
def linear_swish_scale(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    """scale z sigmoid(z) with z = x weight^T + bias: [..., N], contiguous. x [..., K], weight [N, K]; all float32."""
    check_linear(x, weight, bias)
    rows, (features_out, features_in) = math.prod(x.shape[:-1]), weight.shape
    if not x.is_cuda:
        warn_once("linear_swish_scale", unsuited(x.device))
    elif rows and weight.numel() and math.isfinite(scale):
        y = x.new_empty(*x.shape[:-1], features_out)
        given = {
            "x": x.reshape(rows, features_in),
            "weight": weight,
            "bias": x.new_zeros(features_out) if bias is None else bias,
        }
        sizes = (("M", rows), ("N", features_out), ("K", features_in))
        made = {**suitable(given), "y": y.view(rows, features_out)}
        if run(Wanted("linear_swish_scale", sizes, x.device, float(scale)), made):
            return y
    return plain.linear_swish_scale(x, weight, bias, scale).contiguous()


@torch.library.custom_op("ktune::projections", mutates_args=())
def projections(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(softplus(x W_delta^T + bias) [..., P], x W_B^T [..., S], x W_C^T [..., S]), contiguous; all float32.

    x [..., K], W_delta [P, K], W_B and W_C [S, K], bias [P].
    """
    check_projections(x, W_delta, W_B, W_C, bias)
    rows, (channels, features_in), states = math.prod(x.shape[:-1]), W_delta.shape, W_B.shape[0]
    if not x.is_cuda:
        warn_once("projections", unsuited(x.device))
    elif rows and channels and features_in and states:
        made = [x.new_empty(*x.shape[:-1], columns) for columns in (channels, states, states)]
        given = {
            "x": x.reshape(rows, features_in),
            "W_delta": W_delta,
            "W_B": W_B,
            "W_C": W_C,
            "bias": x.new_zeros(channels) if bias is None else bias,
        }
        outputs = {name: tensor.view(rows, -1) for name, tensor in zip(("delta", "B", "C"), made, strict=True)}
        sizes = (("R", rows), ("P", channels), ("S", states), ("K", features_in))
        if run(Wanted("projections", sizes, x.device), {**suitable(given), **outputs}):
            return made[0], made[1], made[2]
    delta, b, c = plain.projections(x, W_delta, W_B, W_C, bias)
    return delta.contiguous(), b.contiguous(), c.contiguous()


@linear_swish_scale.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    check_linear(x, weight, bias)
    return x.new_empty(*x.shape[:-1], weight.shape[0])


@projections.register_fake
def _(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    check_projections(x, W_delta, W_B, W_C, bias)
    delta, b, c = (x.new_empty(*x.shape[:-1], weight.shape[0]) for weight in (W_delta, W_B, W_C))
    return delta, b, c


def check_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """UsageError for shapes, dtypes or devices that do not fit together."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"x must be [..., K] and weight [N, K], got {shape_text(x)} and {shape_text(weight)}")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise UsageError(f"bias must be [{weight.shape[0]}] beside weight {shape_text(weight)}, got {shape_text(bias)}")
    check_alike(x, {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias})


def check_projections(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """UsageError for shapes, dtypes or devices that do not fit together."""
    if x.dim() < 1 or W_delta.dim() != 2 or x.shape[-1] != W_delta.shape[1]:
        raise UsageError(f"x must be [..., K] and W_delta [P, K], got {shape_text(x)} and {shape_text(W_delta)}")
    if W_B.dim() != 2 or W_B.shape[1] != x.shape[-1] or W_C.shape != W_B.shape:
        raise UsageError(
            f"W_B and W_C must be [S, {x.shape[-1]}] beside x {shape_text(x)}, got {shape_text(W_B)}, {shape_text(W_C)}"
        )
    if bias is not None and tuple(bias.shape) != (W_delta.shape[0],):
        raise UsageError(
            f"bias must be [{W_delta.shape[0]}] beside W_delta {shape_text(W_delta)}, got {shape_text(bias)}"
        )
    given = {"x": x, "W_delta": W_delta, "W_B": W_B, "W_C": W_C}
    check_alike(x, given if bias is None else {**given, "bias": bias})


def check_alike(x: torch.Tensor, others: dict[str, torch.Tensor], dtype: torch.dtype = torch.float32) -> None:
    """UsageError unless all are of the dtype and on x's device."""
    for name, other in others.items():
        if other.dtype != dtype:
            wanted = str(dtype).removeprefix("torch.")
            raise UsageError(f"{name} must be {wanted}, got {other.dtype}; call .to({dtype}) on it, or use autocast")
        if other.device != x.device:
            raise UsageError(f"{name} is on {other.device}, x on {x.device}; move them to one device")


def suitable(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor as kernels take it: dense, row-major, aligned to 16 bytes. What is not is copied."""
    return {name: _aligned(tensor.contiguous()) for name, tensor in tensors.items()}


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def shape_text(tensor: torch.Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _refuse(name: str) -> Any:
    """The backward function of an operator that has none."""

    def refuse(context: Any, *gradients: torch.Tensor) -> NoReturn:
        raise UsageError(
            f"ktune.nn.{name} has no backward pass; call it under torch.no_grad(), or freeze its inputs "
            f"and parameters, or train with ktune.nn.plain.{name}, which PyTorch differentiates"
        )

    return refuse


def register(operator: Any, name: str) -> None:
    """No backward pass, and float32 inputs under autocast."""
    operator.register_autograd(_refuse(name))
    for device in ("cuda", "cpu"):
        operator.register_autocast(device, torch.float32)


register(linear_swish_scale, "linear_swish_scale")
register(projections, "projections")
