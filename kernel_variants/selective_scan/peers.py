"""Rivals of the selective scan: each runs once per call on the inputs it was prepared with and returns {"y": y}."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch

from ktune.api import Peer
from ktune.core.model import Problem

Prepared = Callable[[], dict[str, Any]]


def scan_step(
    state: torch.Tensor, x: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One time step: state [B, D, N], x and delta [B, D], a [D, N], b and c [B, N] -> (state, y [B, D])."""
    state = torch.exp(delta[:, :, None] * a) * state + (x * delta)[:, :, None] * b[:, None, :]
    return state, (state * c[:, None, :]).sum(-1)


def prepare_eager(problem: Problem, inputs: dict[str, torch.Tensor]) -> Prepared:
    """PyTorch as it is usually written: exp(delta A) and delta x B for all steps at once, then a loop over L."""
    x, delta, a, b, c, skip = (inputs[k] for k in ("x", "delta", "A", "B_t", "C_t", "skip"))

    def run() -> dict[str, Any]:
        decay = torch.exp(delta[..., None] * a)
        driven = (delta * x)[..., None] * b[:, :, None, :]
        state = torch.zeros_like(decay[:, 0])
        rows = []
        for t in range(problem["L"]):
            state = decay[:, t] * state + driven[:, t]
            rows.append((state * c[:, t, None, :]).sum(-1))
        return {"y": torch.stack(rows, 1) + x * skip}

    return run


def prepare_compiled(problem: Problem, inputs: dict[str, torch.Tensor]) -> Prepared:
    """A loop over L of `scan_step` compiled by torch.compile: one fused kernel a step."""
    x, delta, a, b, c, skip = (inputs[k] for k in ("x", "delta", "A", "B_t", "C_t", "skip"))
    step = torch.compile(scan_step)

    def run() -> dict[str, Any]:
        state = torch.zeros(problem["B"], problem["D"], problem["N"], device=x.device)
        rows = []
        for t in range(problem["L"]):
            state, row = step(state, x[:, t], delta[:, t], a, b[:, t], c[:, t])
            rows.append(row)
        return {"y": torch.stack(rows, 1) + x * skip}

    return run


def prepare_mamba(problem: Problem, inputs: dict[str, torch.Tensor], own_layout: bool) -> Prepared:
    """mamba_ssm's CUDA kernel, which wants [B, D, L]; with own_layout the copies are made outside the call."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    def turned(name: str) -> torch.Tensor:
        return inputs[name].transpose(1, 2).contiguous()

    ready = {name: turned(name) for name in ("x", "delta", "B_t", "C_t")} if own_layout else {}

    def run() -> dict[str, Any]:
        x, delta, b, c = (ready[k] if own_layout else turned(k) for k in ("x", "delta", "B_t", "C_t"))
        y = selective_scan_fn(x, delta, inputs["A"], b, c, D=inputs["skip"])
        return {"y": y.transpose(1, 2) if own_layout else y.transpose(1, 2).contiguous()}

    return run


def mamba_missing() -> str | None:
    return None if importlib.util.find_spec("mamba_ssm") else "pip install mamba-ssm (builds a CUDA extension)"


def compile_missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "pip install triton, which torch.compile generates code for"


PEERS = (
    Peer("eager", lambda: None, prepare_eager),
    Peer("compiled step", compile_missing, prepare_compiled),
    Peer("mamba_ssm, own layout", mamba_missing, lambda problem, inputs: prepare_mamba(problem, inputs, True)),
    Peer("mamba_ssm with layout copies", mamba_missing, lambda problem, inputs: prepare_mamba(problem, inputs, False)),
)
