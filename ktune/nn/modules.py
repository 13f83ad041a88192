"""Drop-in modules: parameters have the names of the plain PyTorch layers, so that a state_dict of theirs loads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ktune.core.errors import UsageError
from ktune.nn.functional import linear_swish_scale, selective_scan
from ktune.nn.kernels import prepare
from ktune.nn.projection import JoinedLinears, is_plain, places


class LinearSwishScale(nn.Module):
    """scale z sigmoid(z) with z = matmul(x): [..., in_features] -> [..., out_features], float32, no backward pass."""

    def __init__(
        self, in_features: int, out_features: int, scale: float = 2.0, *, device: torch.device | str | None = None
    ) -> None:
        super().__init__()
        self.matmul = nn.Linear(in_features, out_features, device=device, dtype=torch.float32)
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if is_plain(self.matmul):
            return linear_swish_scale(x, self.matmul.weight, self.matmul.bias, self.scale)
        z: torch.Tensor = self.matmul(x)
        return z * torch.sigmoid(z) * self.scale

    def prepare(self, rows: int) -> str:
        """Build and load the kernel for inputs of so many rows; the configuration's id. See `ktune.nn.prepare`."""
        features_out, features_in = self.matmul.weight.shape
        sizes = {"M": rows, "N": features_out, "K": features_in}
        return prepare("linear_swish_scale", device=self.matmul.weight.device, scale=self.scale, **sizes)

    def extra_repr(self) -> str:
        return f"scale={self.scale}"


class SelectiveScan(nn.Module):
    """The S6 layer: x [B, L, d_model] -> y of the same shape, float32, no backward pass.

    delta = softplus(proj_delta(x)), B = proj_B(x), C = proj_C(x), A = -exp(A_log), then the scan with the skip D.

    batch, seq_len: what `prepare` builds for; `forward` takes any.
    join_projections: one matrix product for the three projections, rather than one for each.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        batch: int | None = None,
        seq_len: int | None = None,
        *,
        join_projections: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.batch, self.seq_len = d_model, d_state, batch, seq_len
        self.join_projections = join_projections
        made: dict[str, Any] = {"device": device, "dtype": torch.float32}
        rates = torch.arange(1, d_state + 1, **made)
        self.A_log = nn.Parameter(torch.log(rates).repeat(d_model, 1))
        self.D = nn.Parameter(torch.ones(d_model, **made))
        self.proj_B = nn.Linear(d_model, d_state, bias=False, **made)
        self.proj_C = nn.Linear(d_model, d_state, bias=False, **made)
        self.proj_delta = nn.Linear(d_model, d_model, bias=True, **made)
        self._joined = JoinedLinears()
        self._join()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.float())
        delta, b, c = self._project(x)
        y = selective_scan(x, F.softplus(delta), -torch.exp(self.A_log), b, c, self.D)
        assert isinstance(y, torch.Tensor)
        return y

    def prepare(self, batch: int | None = None, seq_len: int | None = None) -> str:
        """Build and load the kernel for these sizes, else the constructor's; its configuration's id."""
        batch, seq_len = batch or self.batch, seq_len or self.seq_len
        if batch is None or seq_len is None:
            raise UsageError("a kernel is built for a batch and a length; give both to prepare or to the constructor")
        channels, states = self.A_log.shape
        sizes = {"B": batch, "L": seq_len, "D": channels, "N": states}
        return prepare("selective_scan", device=self.A_log.device, **sizes)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, d_state={self.d_state}"

    @property
    def _projections(self) -> tuple[nn.Linear, ...]:
        return self.proj_delta, self.proj_B, self.proj_C

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """(delta before softplus, B, C)."""
        if self.join_projections and all(is_plain(layer) for layer in self._projections):
            return self._joined(self._projections, x)
        return tuple(layer(x) for layer in self._projections)

    def _join(self) -> None:
        if self.join_projections and all(is_plain(layer) for layer in self._projections):
            self._joined.join(self._projections)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> SelectiveScan:
        """What `.to()`, `.cuda()` and the like come down to. Where parameters move, they move together."""
        before = places(self._projections)
        move: Any = super()._apply
        move(fn, recurse)
        if places(self._projections) != before:
            self._join()
        return self

    def __setstate__(self, state: dict[str, Any]) -> None:
        """A copied or unpickled module has its parameters in new places."""
        restore: Any = super().__setstate__
        restore(state)
        self._join()
