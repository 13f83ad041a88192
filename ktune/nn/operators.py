"""The operators of the namespace `ktune`, as torch.compile and CUDA graphs see them."""

from __future__ import annotations

import math
from typing import Any, NoReturn

import torch

from ktune.core.errors import UsageError
from ktune.nn import plain
from ktune.nn.kernels import Wanted, run, unsuited, warn_once

ALIGNMENT = 16


@torch.library.custom_op("ktune::selective_scan", mutates_args=())
def selective_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
) -> torch.Tensor:
    """y [B, L, D], contiguous. x and delta [B, L, D], A [D, N], B and C [B, L, N], D [D] or None; all float32."""
    check_scan(x, delta, A, B, C, D)
    batch, length, channels = x.shape
    states = A.shape[1]
    if not x.is_cuda:
        warn_once("selective_scan", unsuited(x.device))
    elif x.numel() and states:
        y = torch.empty_like(x, memory_format=torch.contiguous_format)
        skip = x.new_zeros(channels) if D is None else D
        given = {"x": x, "delta": delta, "A": A, "B_t": B, "C_t": C, "skip": skip}
        sizes = (("B", batch), ("L", length), ("D", channels), ("N", states))
        if run(Wanted("selective_scan", sizes, x.device), {**_suitable(given), "y": y}):
            return y
    return plain.selective_scan(x, delta, A, B, C, D).contiguous()


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
        made = {**_suitable(given), "y": y.view(rows, features_out)}
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
        if run(Wanted("projections", sizes, x.device), {**_suitable(given), **outputs}):
            return made[0], made[1], made[2]
    delta, b, c = plain.projections(x, W_delta, W_B, W_C, bias)
    return delta.contiguous(), b.contiguous(), c.contiguous()


@selective_scan.register_fake
def _(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
) -> torch.Tensor:
    check_scan(x, delta, A, B, C, D)
    return torch.empty_like(x, memory_format=torch.contiguous_format)


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


def check_scan(
    x: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
) -> None:
    """UsageError for shapes, dtypes or devices that do not fit together."""
    if x.dim() != 3 or A.dim() != 2:
        raise UsageError(f"x must be [B, L, D] and A [D, N], got {_shape(x)} and {_shape(A)}")
    batch, length, channels = x.shape
    wanted = {
        "delta": (delta, (batch, length, channels)),
        "A": (A, (channels, A.shape[1])),
        "B": (B, (batch, length, A.shape[1])),
        "C": (C, (batch, length, A.shape[1])),
    }
    if D is not None:
        wanted["D"] = (D, (channels,))
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise UsageError(
                f"{name} must be [{', '.join(map(str, shape))}] beside x {_shape(x)} and A {_shape(A)}, "
                f'got {_shape(tensor)}; ktune.nn.selective_scan(..., layout="BDL") takes tensors with time last'
            )
    _check_alike(x, {name: tensor for name, (tensor, _) in wanted.items()})


def check_linear(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
    """UsageError for shapes, dtypes or devices that do not fit together."""
    if weight.dim() != 2 or x.dim() < 1 or x.shape[-1] != weight.shape[1]:
        raise UsageError(f"x must be [..., K] and weight [N, K], got {_shape(x)} and {_shape(weight)}")
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        raise UsageError(f"bias must be [{weight.shape[0]}] beside weight {_shape(weight)}, got {_shape(bias)}")
    _check_alike(x, {"weight": weight} if bias is None else {"weight": weight, "bias": bias})


def check_projections(
    x: torch.Tensor, W_delta: torch.Tensor, W_B: torch.Tensor, W_C: torch.Tensor, bias: torch.Tensor | None
) -> None:
    """UsageError for shapes, dtypes or devices that do not fit together."""
    if x.dim() < 1 or W_delta.dim() != 2 or x.shape[-1] != W_delta.shape[1]:
        raise UsageError(f"x must be [..., K] and W_delta [P, K], got {_shape(x)} and {_shape(W_delta)}")
    if W_B.dim() != 2 or W_B.shape[1] != x.shape[-1] or W_C.shape != W_B.shape:
        raise UsageError(
            f"W_B and W_C must be [S, {x.shape[-1]}] beside x {_shape(x)}, got {_shape(W_B)}, {_shape(W_C)}"
        )
    if bias is not None and tuple(bias.shape) != (W_delta.shape[0],):
        raise UsageError(f"bias must be [{W_delta.shape[0]}] beside W_delta {_shape(W_delta)}, got {_shape(bias)}")
    weights = {"W_delta": W_delta, "W_B": W_B, "W_C": W_C}
    _check_alike(x, weights if bias is None else {**weights, "bias": bias})


def _check_alike(x: torch.Tensor, others: dict[str, torch.Tensor]) -> None:
    for name, other in {"x": x, **others}.items():
        if other.dtype != torch.float32:
            raise UsageError(f"{name} must be float32, got {other.dtype}; call .float() on it, or use autocast")
        if other.device != x.device:
            raise UsageError(f"{name} is on {other.device}, x on {x.device}; move them to one device")


def _suitable(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Each tensor as kernels take it: dense, row-major, aligned to 16 bytes. What is not is copied."""
    return {name: _aligned(tensor.contiguous()) for name, tensor in tensors.items()}


def _aligned(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.data_ptr() % ALIGNMENT == 0 else tensor.clone()


def _shape(tensor: torch.Tensor) -> str:
    return f"[{', '.join(map(str, tensor.shape))}]"


def _refuse(name: str) -> Any:
    """The backward function of an operator that has none."""

    def refuse(context: Any, *gradients: torch.Tensor) -> NoReturn:
        raise UsageError(
            f"ktune.nn.{name} has no backward pass; call it under torch.no_grad(), or freeze its inputs "
            f"and parameters, or train with ktune.nn.plain.{name}, which PyTorch differentiates"
        )

    return refuse


for _operator, _name in (
    (selective_scan, "selective_scan"),
    (projections, "projections"),
    (linear_swish_scale, "linear_swish_scale"),
):
    _operator.register_autograd(_refuse(_name))
    for _device in ("cuda", "cpu"):
        _operator.register_autocast(_device, torch.float32)
