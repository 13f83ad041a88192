"""Tuned kernels as drop-in PyTorch modules, functions and operators. Importing this builds nothing; see docs/nn.md."""

from __future__ import annotations

from ktune.nn import plain
from ktune.nn.functional import linear_swish_scale, projections, selective_scan
from ktune.nn.kernels import PlainPathWarning, prepare
from ktune.nn.modules import LinearSwishScale, SelectiveScan

__all__ = [
    "LinearSwishScale",
    "PlainPathWarning",
    "SelectiveScan",
    "linear_swish_scale",
    "plain",
    "prepare",
    "projections",
    "selective_scan",
]
