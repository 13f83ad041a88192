"""The library GEMM of `cublas_epilogue`, at full fp32 and in TF32."""

import torch

from ktune.precision import matmul_precision


def gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out [M, N] = x [M, K] weight [N, K]^T in fp32."""
    with matmul_precision("ieee"):
        torch.mm(x, weight.t(), out=out)


def gemm_tf32(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """The same product with both operands rounded to TF32: not within 1e-4."""
    with matmul_precision("tf32"):
        torch.mm(x, weight.t(), out=out)
