"""The operator `ktune::linear_swish_scale` as torch.compile and CUDA graphs see it, and what operators share."""

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


@linear_swish_scale.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    check_linear(x, weight, bias)
    return x.new_empty(*x.shape[:-1], weight.shape[0])


def check_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """UsageError for shapes, dtypes or devices that do not fit together."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"x must be [..., K] and weight [N, K], got {shape_text(x)} and {shape_text(weight)}")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise UsageError(f"bias must be [{weight.shape[0]}] beside weight {shape_text(weight)}, got {shape_text(bias)}")
    check_alike(x, {"x": x, "weight": weight} if bias is None else {"x": x, "weight": weight, "bias": bias})


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
