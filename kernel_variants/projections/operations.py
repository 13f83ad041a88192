"""The library's products, at full fp32 whatever torch is set to."""

import torch

from ktune.precision import matmul_precision


def gemm(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out [R, N] = x [R, K] weight [N, K]^T in fp32."""
    with matmul_precision("ieee"):
        torch.mm(x, weight.t(), out=out)


def join(first: torch.Tensor, second: torch.Tensor, third: torch.Tensor, out: torch.Tensor) -> None:
    """The three weights one below the other."""
    torch.cat((first, second, third), out=out)


def gemm_bf16(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor) -> None:
    """out [R, N] = x [R, K] weight [N, K]^T, bf16 to fp32."""
    if x.is_cuda:
        torch.mm(x, weight.t(), out_dtype=torch.float32, out=out)
    else:
        torch.mm(x.float(), weight.float().t(), out=out)
