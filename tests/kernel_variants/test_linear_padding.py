"""padded.cuh of linear + swish + scale, executed on the CPU, and the plans that use it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from ktune.api import KernelLaunch, TensorMap
from ktune.core.loading import load_family
from ktune.core.model import Status
from ktune.core.space import Space
from ktune.core.tensor_map import map_layout
from ktune.core.variant import make_variant
from ktune.cpu.compiler import Check, ProgramStore, find_compiler
from ktune.cpu.execute import Executor

LINEAR = load_family("linear_swish_scale")

# A family of the two functions alone. `columns` reads as split_x does, 4 columns a thread.
FAMILY = """
from ktune.api import Cost, Family, KernelLaunch, Parameter, Plan, Scalar, Size, Tensor, Tolerance

def width(problem):
    return -(-problem["K"] // 4) * 4

def plan(configuration, problem):
    n, k = problem["N"], problem["K"]
    return Plan((
        KernelLaunch("pad_weight", (n, 1, 1), (256, 1, 1), ("weight", "padded", Scalar(k))),
        KernelLaunch("columns", (n, 1, 1), (64, 1, 1), ("weight", "read", Scalar(k))),
    ))

family = Family(
    name="padding", summary="padding", sizes=(Size("N", "rows"), Size("K", "columns")),
    problems={"default": {"N": 3, "K": 33}}, parameters=(Parameter("algorithm", ("pad",), "pad", "pad"),), rules=(),
    source=lambda configuration: "padding.cu",
    inputs=lambda problem: (Tensor("weight", (problem["N"], problem["K"])),),
    outputs=lambda problem: tuple(Tensor(name, (problem["N"], width(problem))) for name in ("padded", "read")),
    plan=plan, checks=lambda configuration, problem: (problem,), cost=lambda problem: Cost(1, 1, 1, 0),
    tolerance=Tolerance(0.0, 0.0, 0.0, "a copy"),
)
"""
REFERENCE = """
import torch

KINDS = ("normal",)

def inputs(problem, seed, kind="normal", device="cpu"):
    generator = torch.Generator().manual_seed(seed)
    return {"weight": torch.randn(problem["N"], problem["K"], generator=generator).to(device)}

def reference(problem, inputs):
    padded = torch.nn.functional.pad(inputs["weight"].double(), (0, -problem["K"] % 4))
    return {"padded": padded, "read": padded}
"""
KERNELS = """
#include "padded.cuh"

extern "C" __global__ void columns(const float* __restrict__ w, float* __restrict__ read, int k_size) {
  const int width = (k_size + 3) / 4 * 4;
  for (int column = 4 * threadIdx.x; column < width; column += 256) {
    float v[4] = {};
    linear::load_columns(v, w + static_cast<long long>(blockIdx.x) * k_size, column, k_size);
    for (int i = 0; i < 4; ++i) read[static_cast<long long>(blockIdx.x) * width + column + i] = v[i];
  }
}
"""


@pytest.fixture(scope="module")
def padding(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("padding") / "padding"
    folder.mkdir()
    for name, text in (("family.py", FAMILY), ("reference.py", REFERENCE), ("padding.cu", KERNELS)):
        (folder / name).write_text(text)
    for name in ("padded.cuh", "swish.cuh"):
        shutil.copy(LINEAR.folder / name, folder)
    return folder


def test_rows_are_padded_and_read_without_leaving_them(padding: Path, tmp_path: Path) -> None:
    loaded = load_family(padding)
    sizes = [(1, 1), (3, 2), (2, 4), (2, 7), (5, 33), (2, 255), (2, 256), (3, 257), (2, 2049)]
    problems = [loaded.family.problem(N=n, K=k) for n, k in sizes]
    executor = Executor(loaded, ProgramStore(find_compiler(os.environ["PATH"]), tmp_path))
    (point,) = Space(loaded.family, problems)
    found = executor.verify(make_variant(loaded.family, point, problems[0]), problems, tuple(Check))
    assert found.status is Status.OK and found.executable, found.detail


@pytest.mark.parametrize(("k", "width"), [(4096, None), (4097, 4100), (4098, 4100), (4099, 4100), (1, 4)])
def test_the_weight_is_padded_only_where_tma_cannot_copy_it(k: int, width: int | None) -> None:
    family = LINEAR.family
    problem = family.problem(M=128, N=4099, K=k)
    plan = family.plan(Space(family, [problem]).complete({"algorithm": "wgmma"}), problem)
    launches = [launch for launch in plan.launches if isinstance(launch, KernelLaunch)]
    main = next(launch for launch in launches if launch.kernel == "wgmma")
    (wanted,) = [a for a in main.arguments if isinstance(a, TensorMap)]
    declared = {tensor.name: tensor for tensor in (*family.inputs(problem), *plan.workspace)}
    assert declared[wanted.tensor].shape == (4099, width or k)
    assert map_layout(wanted, declared[wanted.tensor]).stride_bytes == (4 * (width or k),)
    assert ("pad_weight" in [launch.kernel for launch in launches]) == (width is not None)
    assert main.programmatic == (width is None)


def test_a_small_batch_does_not_pay_for_padding() -> None:
    def algorithms(m: int, k: int) -> set[object]:
        return {point["algorithm"] for point in Space(LINEAR.family, [LINEAR.family.problem(M=m, N=96, K=k)])}

    assert "wgmma" in algorithms(16, 128) and "wgmma" in algorithms(17, 129)
    assert algorithms(16, 129) == {"cublas_epilogue", "simt", "small_batch"}


def test_every_binary_of_wgmma_is_also_checked_at_an_odd_depth() -> None:
    family = LINEAR.family
    problem = LINEAR.named_problems["record"]
    configuration = Space(family, [problem]).complete({"algorithm": "wgmma"})
    assert {check["K"] % 4 != 0 for check in family.checks(configuration, problem)} == {True, False}
