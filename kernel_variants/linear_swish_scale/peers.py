"""Rivals of linear + swish + scale: each runs once per call on the inputs it was prepared with and returns {"y": y}."""

import importlib.util
from collections.abc import Callable
from functools import cache
from typing import Any

import torch

from ktune.api import Peer
from ktune.core.model import Problem
from ktune.precision import matmul_precision

SCALE = 2.0

Prepared = Callable[[], dict[str, Any]]


def layer(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    """x [M, K], weight [N, K], bias [N] -> [M, N], as a PyTorch user writes it."""
    z = torch.nn.functional.linear(x, weight, bias)
    return z * torch.sigmoid(z) * SCALE


def prepare_layer(inputs: dict[str, torch.Tensor], precision: str, compiled: bool) -> Prepared:
    """The layer through cuBLAS, eager or compiled, with matrix products in "ieee" fp32 or "tf32"."""
    run_layer = torch.compile(layer) if compiled else layer

    def run() -> dict[str, Any]:
        with matmul_precision(precision):
            return {"y": run_layer(inputs["x"], inputs["weight"], inputs["bias"])}

    return run


def prepare_transposed(problem: Problem, inputs: dict[str, torch.Tensor]) -> Prepared:
    """The product as W x^T, which some libraries tile better for few rows, then the epilogue."""
    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]

    def run() -> dict[str, Any]:
        with matmul_precision("ieee"):
            z = (weight @ x.t()).t() + bias
        return {"y": z * torch.sigmoid(z) * SCALE}

    return run


@cache
def triton_kernel() -> Any:
    """The fused Triton kernel. Three products of split operands: tf32x3 by Triton itself, bf16x3 by hand."""
    import triton
    import triton.language as tl

    tiles = [
        triton.Config({"BLOCK_N": n, "BLOCK_K": k}, num_warps=warps, num_stages=stages)
        for n, k, warps, stages in (
            (128, 32, 8, 3),
            (128, 32, 4, 4),
            (128, 64, 8, 3),
            (64, 64, 4, 3),
            (64, 32, 4, 4),
        )
    ]

    @triton.autotune(configs=tiles, key=["M", "N", "K", "BF16"])
    @triton.jit
    def fused(x, w, bias, y, M, N, K, scale, BF16: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
              BLOCK_K: tl.constexpr):  # fmt: skip
        m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
        n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)
        k = tl.arange(0, BLOCK_K)
        x_at = x + m[:, None].to(tl.int64) * K + k[None, :]
        w_at = w + n[None, :].to(tl.int64) * K + k[:, None]
        total = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for start in range(0, K, BLOCK_K):
            depth = K - start
            a = tl.load(x_at, mask=(m[:, None] < M) & (k[None, :] < depth), other=0.0)
            b = tl.load(w_at, mask=(n[None, :] < N) & (k[:, None] < depth), other=0.0)
            if BF16:
                a_hi = a.to(tl.bfloat16)
                b_hi = b.to(tl.bfloat16)
                a_lo = (a - a_hi.to(tl.float32)).to(tl.bfloat16)
                b_lo = (b - b_hi.to(tl.float32)).to(tl.bfloat16)
                slab = tl.dot(a_lo, b_hi)
                slab = tl.dot(a_hi, b_lo, slab)
                slab = tl.dot(a_hi, b_hi, slab)
                # A fresh accumulator per slab: tensor cores truncate as they add, which over all of K is too much.
                total += slab
            else:
                total += tl.dot(a, b, input_precision="tf32x3")
            x_at += BLOCK_K
            w_at += BLOCK_K
        z = total + tl.load(bias + n, mask=n < N, other=0.0)[None, :]
        y_at = y + m[:, None].to(tl.int64) * N + n[None, :]
        tl.store(y_at, scale * z * tl.sigmoid(z), mask=(m[:, None] < M) & (n[None, :] < N))

    return fused


def prepare_triton(problem: Problem, inputs: dict[str, torch.Tensor], bf16: bool) -> Prepared:
    """The fused kernel at its own autotuned tile; the first call tunes."""
    import triton

    x, weight, bias = inputs["x"], inputs["weight"], inputs["bias"]
    m, n, k = (problem[s] for s in "MNK")
    block_m = min(128, max(16, triton.next_power_of_2(m)))
    y = torch.empty((m, n), device=x.device)
    kernel = triton_kernel()

    def grid(options: dict[str, int]) -> tuple[int, int]:
        return triton.cdiv(n, options["BLOCK_N"]), triton.cdiv(m, block_m)

    def run() -> dict[str, Any]:
        kernel[grid](x, weight, bias, y, m, n, k, SCALE, BF16=bf16, BLOCK_M=block_m)
        return {"y": y}

    return run


def triton_missing() -> str | None:
    return None if importlib.util.find_spec("triton") else "pip install triton"


PEERS = (
    Peer("eager fp32", lambda: None, lambda problem, inputs: prepare_layer(inputs, "ieee", False)),
    Peer("eager TF32", lambda: None, lambda problem, inputs: prepare_layer(inputs, "tf32", False)),
    Peer("torch.compile fp32", triton_missing, lambda problem, inputs: prepare_layer(inputs, "ieee", True)),
    Peer("W @ x.T, eager fp32", lambda: None, prepare_transposed),
    Peer("Triton fused tf32x3", triton_missing, lambda problem, inputs: prepare_triton(problem, inputs, False)),
    Peer("Triton fused bf16x3", triton_missing, lambda problem, inputs: prepare_triton(problem, inputs, True)),
)
