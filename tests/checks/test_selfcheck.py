"""A checker that lets known-bad outputs through is itself reported."""

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ktune.api import Tolerance
from ktune.checks.selfcheck import holes
from ktune.core.loading import load_family

FLOAT32 = {"y": torch.float32}


def test_the_toy_family_has_no_holes(families: Path) -> None:
    toy = load_family(families / "toy")
    for size in (1, 2, 1000):
        assert holes(toy.module("reference"), toy.family.problem(N=size), toy.family.tolerance, FLOAT32) == []


@pytest.mark.parametrize("sizes", [{"N": 1000}, {"N": 1000, "shift": 1}, {"N": 77, "times": 2}], ids=str)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_each_dtype_and_option_of_a_family_has_no_holes_with_its_own_tolerance(
    families: Path, sizes: dict[str, int], dtype: str
) -> None:
    shifted = load_family(families / "shifted")
    problem, written = shifted.family.problem_of(sizes, dtype), {"y": getattr(torch, dtype)}
    reference = shifted.module("reference")
    assert holes(reference, problem, shifted.family.tolerance_of(problem), written) == []
    if dtype == "bfloat16" and "shift" in sizes:
        # the sum is rounded, which float32's tolerance does not allow
        assert "rounded to torch.bfloat16 fails" in holes(reference, problem, shifted.family.tolerance, written)[0]


def test_without_a_normwise_bound_zeros_pass_for_small_inputs_and_are_reported(families: Path) -> None:
    toy = load_family(families / "toy")
    loose = Tolerance(1e-2, 1e-4, 2.0, "a test")
    found = holes(toy.module("reference"), toy.family.problem(N=100), loose, FLOAT32)
    assert len(found) == 1 and "an all-zero output with inputs x1e-4 passes for y" in found[0]


def test_a_tolerance_that_no_float32_kernel_can_meet_is_reported(families: Path) -> None:
    toy = load_family(families / "toy")
    module = SimpleNamespace(
        inputs=toy.module("reference").inputs, reference=lambda problem, inputs: {"y": inputs["x"].double() / 3.0}
    )
    found = holes(module, toy.family.problem(N=100), Tolerance(0.0, 0.0, 1e-6, "a test"), FLOAT32)
    assert len(found) == 1 and "the reference rounded to torch.float32 fails" in found[0]


def test_a_bound_that_no_float32_kernel_can_meet_is_reported(families: Path) -> None:
    toy = load_family(families / "toy")
    module = SimpleNamespace(
        inputs=toy.module("reference").inputs,
        reference=lambda problem, inputs: {"y": inputs["x"].double() / 3.0},
        bound=lambda problem, inputs: {"y": torch.full_like(inputs["x"], 1e-12, dtype=torch.float64)},
    )
    found = holes(module, toy.family.problem(N=100), toy.family.tolerance, FLOAT32)
    assert len(found) == 1 and "the reference rounded to torch.float32 fails" in found[0] and "bound" in found[0]


@pytest.mark.parametrize(
    "reference, hole",
    [
        (lambda x: torch.zeros_like(x), "an all-zero output passes"),
        (lambda x: torch.ones_like(x), "another seed's output passes"),
        (lambda x: x.sum().expand(x.shape).clone(), "a shuffled output passes"),
    ],
)
def test_a_reference_that_cannot_tell_is_reported(families: Path, reference, hole: str) -> None:
    toy = load_family(families / "toy")
    module = SimpleNamespace(
        inputs=toy.module("reference").inputs, reference=lambda problem, inputs: {"y": reference(inputs["x"].double())}
    )
    found = holes(module, toy.family.problem(N=50), toy.family.tolerance, FLOAT32)
    assert any(hole in sentence for sentence in found)
