"""The contract expresses a library GEMM with an epilogue, a split kernel with a main one, and two outputs."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
import torch

from ktune.api import KernelLaunch, TorchOperation
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.prelude import prelude, variant_flags
from ktune.core.space import Space
from ktune.core.variant import make_variant

FOLDER = Path(__file__).resolve().parent


@pytest.fixture
def loaded() -> LoadedFamily:
    return load_family(FOLDER)


@pytest.fixture
def space(loaded: LoadedFamily) -> Space:
    return Space(loaded.family, [loaded.named_problems["default"]])


def test_the_library_algorithm_is_a_torch_operation_and_an_epilogue(loaded: LoadedFamily, space: Space) -> None:
    problem = loaded.named_problems["default"]
    plan = loaded.family.plan(space.default, problem)
    gemm, epilogue = plan.launches
    assert gemm == TorchOperation("gemm", ("x", "weight", "z"))
    assert isinstance(epilogue, KernelLaunch) and epilogue.grid == (128, 1, 1) and epilogue.block == (128, 1, 1)
    assert [(t.name, t.shape) for t in plan.workspace] == [("z", (128, 512))]


def test_the_split_algorithm_has_two_kernels_and_a_workspace_of_its_splits(loaded: LoadedFamily, space: Space) -> None:
    problem = loaded.family.problem(M=17, N=33, K=100)
    configuration = space.complete({"algorithm": "split", "tile": 8, "splits": 2})
    plan = loaded.family.plan(configuration, problem)
    assert [launch.kernel for launch in plan.launches] == ["partial_products", "combine"]
    assert plan.launches[0].grid == (5, 3, 2) and plan.launches[0].block == (8, 8, 1)
    assert [(t.name, t.shape) for t in plan.workspace] == [("partials", (2, 17, 33))]


def test_each_algorithm_brings_its_own_parameters_and_source(loaded: LoadedFamily, space: Space) -> None:
    own = {"library": {"vector_width"}, "split": {"tile", "splits"}}
    shared = {"algorithm", "block_size", "fast_math", "registers"}
    for point in space:
        assert set(point) == shared | own[point["algorithm"]]
        assert (FOLDER / loaded.family.source(point)).is_file()


def test_every_argument_of_every_plan_is_a_tensor_of_the_problem(loaded: LoadedFamily, space: Space) -> None:
    problem = loaded.named_problems["default"]
    known = {t.name for t in (*loaded.family.inputs(problem), *loaded.family.outputs(problem))}
    for point in space:
        plan = loaded.family.plan(point, problem)
        names = known | {t.name for t in plan.workspace}
        for launch in plan.launches:
            assert {a for a in launch.arguments if isinstance(a, str)} <= names


def test_the_reference_has_both_outputs_in_float64(loaded: LoadedFamily) -> None:
    problem = loaded.named_problems["small"]
    module = loaded.module("reference")
    inputs = module.inputs(problem, seed=3)
    found = module.reference(problem, inputs)
    assert {t.name: t.shape for t in loaded.family.outputs(problem)} == {n: tuple(t.shape) for n, t in found.items()}
    assert all(t.dtype is torch.float64 for t in found.values())


def test_the_library_operation_writes_in_place(loaded: LoadedFamily) -> None:
    problem = loaded.named_problems["small"]
    tensors = loaded.module("reference").inputs(problem, seed=3)
    z = torch.full((problem["M"], problem["N"]), float("nan"))
    loaded.module("operations").gemm(tensors["x"], tensors["weight"], z)
    torch.testing.assert_close(z, tensors["x"] @ tensors["weight"].t())


@pytest.mark.build
@pytest.mark.parametrize(
    "given",
    [{}, {"vector_width": 4, "fast_math": True}, {"algorithm": "split", "tile": 8, "splits": 8, "registers": 64}],
    ids=["library", "library-float4-fast", "split-64-registers"],
)
def test_the_kernels_compile(loaded: LoadedFamily, space: Space, tmp_path: Path, given: dict[str, object]) -> None:
    problem = loaded.named_problems["default"]
    variant = make_variant(loaded.family, space.complete(given), problem)
    source = tmp_path / "variant.cu"
    template = FOLDER / loaded.family.source(variant.configuration)
    source.write_text(prelude(loaded.family, variant).replace("#pragma once\n", "") + template.read_text())
    flags = [
        "-gencode",
        "arch=compute_90a,code=sm_90a",
        "-std=c++17",
        f"-I{FOLDER}",
        *variant_flags(loaded.family, variant),
    ]
    cubin = tmp_path / "variant.cubin"
    done = subprocess.run(["nvcc", "-cubin", *flags, "-o", cubin, source], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    kernels = [
        x.kernel for x in loaded.family.plan(variant.configuration, problem).launches if isinstance(x, KernelLaunch)
    ]
    assert all(kernel.encode() in cubin.read_bytes() for kernel in kernels)
