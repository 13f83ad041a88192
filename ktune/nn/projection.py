"""The three projections of the selective scan as one matrix product, as far as that changes nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import nn


class JoinedLinears:
    """Layers of the same input as one product: their weights one below the other, absent biases as zeros.

    `join` moves the layers' parameters into one buffer, of which each parameter is then a part, so that nothing is
    copied per call and nothing can be out of date. Where they are elsewhere (replaced since, under torch.compile, or
    while gradients are recorded) they are put together in each call. A captured graph reads parameters where they were,
    so that `join` belongs where torch moves them anyway.

    device_type: parameters on other devices are not moved.
    """

    def __init__(self, device_type: str = "cuda") -> None:
        self._device_type = device_type
        self._weight: torch.Tensor | None = None
        self._bias: torch.Tensor | None = None

    def join(self, layers: Sequence[nn.Linear]) -> None:
        """Move the parameters into one buffer; nothing happens where they are there, or are not alike."""
        if self.holds(layers):
            return
        self._weight = self._bias = None
        parameters = [parameter for layer in layers for parameter in layer.parameters()]
        alike = len({(p.device, p.dtype) for p in parameters}) == 1 and all(_is_ordinary(p) for p in parameters)
        if not alike or parameters[0].device.type != self._device_type:
            return
        with torch.no_grad():
            self._weight, self._bias = _together(layers)
            first = 0
            for layer in layers:
                rows = slice(first, first + layer.out_features)
                layer.weight.data = self._weight[rows]
                if layer.bias is not None:
                    layer.bias.data = self._bias[rows]
                first += layer.out_features

    def __call__(self, layers: Sequence[nn.Linear], x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Each layer's output, parts of one tensor [..., sum of out_features]."""
        if not torch.compiler.is_compiling() and not _recorded(layers) and self.holds(layers):
            assert self._weight is not None
            weight, bias = self._weight, self._bias
        else:
            weight, bias = _together(layers)
        y = F.linear(x, weight, bias)
        return tuple(torch.split_with_sizes(y, [layer.out_features for layer in layers], dim=-1))

    def holds(self, layers: Sequence[nn.Linear]) -> bool:
        """Whether every parameter lies where `join` put it."""
        if self._weight is None or self._bias is None:
            return False
        first = 0
        for layer in layers:
            if not _is_part(layer.weight, self._weight, first):
                return False
            if layer.bias is not None and not _is_part(layer.bias, self._bias, first):
                return False
            first += layer.out_features
        return True


def places(layers: Sequence[nn.Linear]) -> list[int]:
    """Where the parameters lie."""
    return [p.data_ptr() if _is_ordinary(p) else 0 for layer in layers for p in layer.parameters()]


def is_plain(layer: nn.Module) -> bool:
    """Whether a call of it would do nothing but the linear map: no subclass, no hooks."""
    return type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks


def _is_ordinary(parameter: torch.Tensor) -> bool:
    """Tensors of other classes (fake, distributed, of a transform) have no address."""
    return type(parameter) is nn.Parameter


def _is_part(parameter: torch.Tensor, whole: torch.Tensor, row: int) -> bool:
    return (
        _is_ordinary(parameter)
        and parameter.device == whole.device
        and parameter.dtype == whole.dtype
        and parameter.is_contiguous()
        and parameter.data_ptr() == whole.data_ptr() + row * whole.stride(0) * whole.element_size()
    )


def _recorded(layers: Sequence[nn.Linear]) -> bool:
    """Whether gradients of the layers' parameters are recorded, which parts of the buffer would not be."""
    return torch.is_grad_enabled() and any(p.requires_grad for layer in layers for p in layer.parameters())


def _together(layers: Sequence[nn.Linear]) -> tuple[torch.Tensor, torch.Tensor]:
    """(weight, bias) of the joined product, as new tensors."""
    weights: list[torch.Tensor] = [layer.weight for layer in layers]
    biases: list[torch.Tensor] = [
        layer.weight.new_zeros(layer.out_features) if layer.bias is None else layer.bias for layer in layers
    ]
    return torch.cat(weights), torch.cat(biases)
