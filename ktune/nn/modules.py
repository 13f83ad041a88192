"""Drop-in modules: parameters have the names of the plain PyTorch layers, so that a state_dict of theirs loads."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ktune.core.errors import UsageError
from ktune.nn.functional import linear_swish_scale, projections, selective_scan
from ktune.nn.kernels import prepare


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
    tuned_projections: delta, B and C by one kernel of ktune, at float32 accuracy, rather than a product of torch for
        each.
    """

    def __init__(
        self,
        d_model: int,
        d_state: int,
        batch: int | None = None,
        seq_len: int | None = None,
        *,
        tuned_projections: bool = True,
        device: torch.device | str | None = None,
    ) -> None:
        super().__init__()
        self.d_model, self.d_state, self.batch, self.seq_len = d_model, d_state, batch, seq_len
        self.tuned_projections = tuned_projections
        made: dict[str, Any] = {"device": device, "dtype": torch.float32}
        rates = torch.arange(1, d_state + 1, **made)
        self.A_log = nn.Parameter(torch.log(rates).repeat(d_model, 1))
        self.D = nn.Parameter(torch.ones(d_model, **made))
        self.proj_B = nn.Linear(d_model, d_state, bias=False, **made)
        self.proj_C = nn.Linear(d_model, d_state, bias=False, **made)
        self.proj_delta = nn.Linear(d_model, d_model, bias=True, **made)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if torch.is_autocast_enabled(x.device.type):
            with torch.autocast(x.device.type, enabled=False):
                return self.forward(x.float())
        delta, b, c = self._project(x)
        y = selective_scan(x, delta, -torch.exp(self.A_log), b, c, self.D)
        assert isinstance(y, torch.Tensor)
        return y

    def prepare(self, batch: int | None = None, seq_len: int | None = None) -> str:
        """Build and load the kernels for these sizes, else the constructor's; the id of the scan's configuration."""
        batch, seq_len = batch or self.batch, seq_len or self.seq_len
        if batch is None or seq_len is None:
            raise UsageError("a kernel is built for a batch and a length; give both to prepare or to the constructor")
        channels, states = self.A_log.shape
        device = self.A_log.device
        if self._uses_kernel:
            prepare("projections", device=device, R=batch * seq_len, P=channels, S=states, K=channels)
        return prepare("selective_scan", device=device, B=batch, L=seq_len, D=channels, N=states)

    def extra_repr(self) -> str:
        return f"d_model={self.d_model}, d_state={self.d_state}"

    @property
    def _uses_kernel(self) -> bool:
        """Whether calls of the three layers would do nothing but what the kernel does."""
        plain = all(is_plain(layer) for layer in (self.proj_delta, self.proj_B, self.proj_C))
        return self.tuned_projections and plain and self.proj_B.bias is None and self.proj_C.bias is None

    def _project(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """(delta, B, C)."""
        if self._uses_kernel:
            weights = self.proj_delta.weight, self.proj_B.weight, self.proj_C.weight
            return projections(x, *weights, self.proj_delta.bias)
        return F.softplus(self.proj_delta(x)), self.proj_B(x), self.proj_C(x)


def is_plain(layer: nn.Module) -> bool:
    """Whether a call of it would do nothing but the linear map: no subclass, no hooks."""
    return type(layer) is nn.Linear and not layer._forward_hooks and not layer._forward_pre_hooks
