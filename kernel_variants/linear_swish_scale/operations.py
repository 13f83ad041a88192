"""The library GEMM of `cublas_epilogue`, at full fp32 and in TF32."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def matmul_precision(precision: str) -> Iterator[None]:
    """fp32 matrix products of cuBLAS in "ieee" or "tf32", then as they were before."""
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = precision
    try:
        yield
    finally:
        torch.backends.cuda.matmul.fp32_precision = before


def gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out [M, N] = x [M, K] weight [N, K]^T in fp32."""
    with matmul_precision("ieee"):
        torch.mm(x, weight.t(), out=out)


def gemm_tf32(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """The same product with both operands rounded to TF32: not within 1e-4."""
    with matmul_precision("tf32"):
        torch.mm(x, weight.t(), out=out)
