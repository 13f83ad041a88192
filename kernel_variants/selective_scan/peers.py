"""Rivals of the selective scan: each runs once per call on the inputs it was prepared with and returns its outputs."""

import importlib.util
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

from ktune.api import Peer
from ktune.core.errors import UsageError
from ktune.core.model import Problem

Inputs = dict[str, torch.Tensor]
Prepared = Callable[[], dict[str, Any]]


def step_sizes(problem: Problem, inputs: Inputs) -> torch.Tensor:
    """delta [B, L, D] as the recurrence takes it, fp32."""
    delta = inputs["delta"].float()
    delta = delta + inputs["delta_bias"] if problem["bias"] else delta
    return F.softplus(delta) if problem["softplus"] else delta


def of_channels(problem: Problem, rows: torch.Tensor) -> torch.Tensor:
    """B_t or C_t for each channel, fp32: [B, L, D, N], or [B, L, 1, N] where all have the same."""
    if problem["G"] == 1:
        return rows.float()[:, :, None, :]
    return rows.float().repeat_interleave(problem["D"] // problem["G"], dim=2)


def first_state(problem: Problem, inputs: Inputs) -> torch.Tensor:
    if problem["initial"]:
        return inputs["initial_state"]
    return torch.zeros(problem["B"], problem["D"], problem["N"], device=inputs["x"].device)


def finished(problem: Problem, inputs: Inputs, y: torch.Tensor, state: torch.Tensor) -> dict[str, Any]:
    """The outputs, from y without skip and gate."""
    y = y + inputs["x"] * inputs["skip"] if problem["skip"] else y
    y = y * F.silu(inputs["z"].float()) if problem["gate"] else y
    y = y.to(inputs["x"].dtype)
    return {"y": y, "final_state": state} if problem["final"] else {"y": y}


def scan_step(
    state: torch.Tensor, x: torch.Tensor, delta: torch.Tensor, a: torch.Tensor, b: torch.Tensor, c: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """One time step: state [B, D, N], x and delta [B, D], a [D, N], b and c [B, D or 1, N] -> (state, y [B, D])."""
    state = torch.exp(delta[:, :, None] * a) * state + (x * delta)[:, :, None] * b
    return state, (state * c).sum(-1)


def prepare_eager(problem: Problem, inputs: Inputs) -> Prepared:
    """PyTorch as it is usually written: exp(delta A) and delta x B for all steps at once, then a loop over L."""

    def run() -> dict[str, Any]:
        delta = step_sizes(problem, inputs)
        decay = torch.exp(delta[..., None] * inputs["A"])
        driven = (delta * inputs["x"])[..., None] * of_channels(problem, inputs["B_t"])
        c = of_channels(problem, inputs["C_t"])
        state = first_state(problem, inputs)
        rows = []
        for t in range(problem["L"]):
            state = decay[:, t] * state + driven[:, t]
            rows.append((state * c[:, t]).sum(-1))
        return finished(problem, inputs, torch.stack(rows, 1), state)

    return run


def prepare_compiled(problem: Problem, inputs: Inputs) -> Prepared:
    """A loop over L of `scan_step` compiled by torch.compile: one fused kernel a step."""
    step = torch.compile(scan_step)

    def run() -> dict[str, Any]:
        x, delta = inputs["x"].float(), step_sizes(problem, inputs)
        b, c = of_channels(problem, inputs["B_t"]), of_channels(problem, inputs["C_t"])
        state = first_state(problem, inputs)
        rows = []
        for t in range(problem["L"]):
            state, row = step(state, x[:, t], delta[:, t], inputs["A"], b[:, t], c[:, t])
            rows.append(row)
        return finished(problem, inputs, torch.stack(rows, 1), state)

    return run


def prepare_mamba(problem: Problem, inputs: Inputs, own_layout: bool) -> Prepared:
    """mamba_ssm's CUDA kernel, which wants time last; with own_layout the copies are made outside the call."""
    from mamba_ssm.ops.selective_scan_interface import selective_scan_fn

    if problem["initial"]:
        raise UsageError("mamba_ssm's kernel starts from a state of 0; leave initial out of the problem")
    names = [name for name in ("x", "delta", "B_t", "C_t", "z") if name in inputs]

    def turned(name: str) -> torch.Tensor:
        return inputs[name].movedim(1, -1).contiguous()

    ready = {name: turned(name) for name in names} if own_layout else {}

    def run() -> dict[str, Any]:
        given = ready if own_layout else {name: turned(name) for name in names}
        found = selective_scan_fn(
            given["x"], given["delta"], inputs["A"], given["B_t"], given["C_t"], D=inputs.get("skip"), z=given.get("z"),
            delta_bias=inputs.get("delta_bias"), delta_softplus=bool(problem["softplus"]),
            return_last_state=bool(problem["final"]),
        )  # fmt: skip
        y, *state = found if problem["final"] else (found,)
        y = y.transpose(1, 2) if own_layout else y.transpose(1, 2).contiguous()
        return {"y": y, "final_state": state[0]} if problem["final"] else {"y": y}

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
