"""benchmarks/linear_stress.py: its judges with layers in torch, and the quick checks with the kernels on a GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from ktune.gpu.nvml import reason_no_gpu

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))
import linear_stress as stress
from stress import runs

NO_GPU = reason_no_gpu()
PROBLEM = stress.FAMILY.problem(**stress.STRESS)


def layer(given: stress.Tensors, found: stress.Tensors) -> None:
    """In fp32, as a kernel of the family computes it."""
    z = given["x"] @ given["weight"].t() + given["bias"]
    found["y"].copy_(2.0 * z / (1.0 + torch.exp(-z)))


def clamped(given: stress.Tensors, found: stress.Tensors) -> None:
    layer({name: tensor.clamp(-1e30, 1e30) for name, tensor in given.items()}, found)


def without_the_minus(given: stress.Tensors, found: stress.Tensors) -> None:
    """sigmoid by exp(z), which is Inf / Inf for a large z; and no zero for a very negative one."""
    z = given["x"] @ given["weight"].t() + given["bias"]
    torch.add(2.0 * z * torch.sigmoid(z.clamp(min=-20.0)), 0.0, out=found["y"])


class Sometimes:
    """Differs in one bit of one element every 50th time."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, given: stress.Tensors, found: stress.Tensors) -> None:
        layer(given, found)
        self.calls += 1
        if self.calls % 50 == 0:
            found["y"].view(torch.int32)[3, 5] ^= 1


def lines(check: str, run: stress.Run) -> list[stress.Line]:
    subject = stress.configured("simt", PROBLEM)
    assert subject is not None
    return list(stress.judge(check, subject, run, 100, "cpu"))


@pytest.mark.parametrize("check", ["repeat", "negative", "special", "kinds", "small", "far"])
def test_a_right_layer_passes_every_check(check: str) -> None:
    assert [str(line) for line in lines(check, layer) if not line.right] == []


def test_each_check_finds_what_it_is_for() -> None:
    assert "2 of 100 launches differ" in lines("repeat", Sometimes())[0].detail
    assert not lines("negative", without_the_minus)[0].right
    found = {line.problem: line for line in lines("special", clamped)}
    assert "Inf became finite" in found["Inf in x"].detail and not found["Inf in weight"].right
    assert found["NaN in bias"].right


def test_corrections_of_a_fixed_step_are_found_by_the_outliers_alone() -> None:
    """Of fp16 with 8-bit corrections, steps as wide as the largest number of a row asks for."""

    def stepped(given: stress.Tensors, found: stress.Tensors) -> None:
        parts = {}
        for name in ("x", "weight"):
            wide = given[name] / given[name].abs().amax(1, keepdim=True).double() * 127.0
            high = wide.half().double()
            parts[name] = (high, wide.round(), ((wide - high) * 4064.0).round().clamp(-128, 127) / 4064.0)
        (high, whole, rest), (w_high, w_whole, w_rest) = parts["x"], parts["weight"]
        z = high @ w_high.t() + whole @ w_rest.t() + rest @ w_whole.t()
        z *= given["x"].abs().amax(1).double()[:, None] * given["weight"].abs().amax(1).double() / 127.0**2
        layer({"x": z, "weight": torch.eye(len(w_high), dtype=torch.float64), "bias": given["bias"].double()}, found)

    found = {line.problem: line.right for line in lines("kinds", stepped)}
    assert not found.pop("outliers") and all(found.values())


def test_differences_that_the_readme_states_are_told_and_not_wrong() -> None:
    subject = stress.configured("wgmma fp16_e5m2", PROBLEM)
    assert subject is not None
    found = [line for line in stress.judge("special", subject, clamped, 1, "cpu") if not line.right]
    assert found and all(line.told for line in found)


@pytest.mark.parametrize("check", ["negative", "special", "kinds", "small", "far"])
def test_every_subject_is_run_somewhere(check: str) -> None:
    assert {subject.name for subject in stress.subjects_of(check, "")} == set(stress.SUBJECTS)


def test_the_far_problems_have_weights_beyond_2_to_the_31_elements() -> None:
    assert all(n * k > 2**31 and (n - stress.LAST_ROWS) * k > 2**30 for _, n, k in stress.FAR)


@pytest.mark.gpu
@pytest.mark.build
@pytest.mark.skipif(bool(NO_GPU), reason=f"needs a CUDA GPU: {NO_GPU}")
@pytest.mark.parametrize("name", stress.SUBJECTS)
@pytest.mark.parametrize("check", ["negative", "special", "kinds", "small"])
def test_the_kernels_stand_it(check: str, name: str) -> None:
    with torch.no_grad():
        made = [stress.configured(name, problem) for problem in stress.problems_of(check)]
        found = [
            line
            for subject, run in runs(stress.LOADED, [subject for subject in made if subject is not None])
            for line in stress.judge(check, subject, run, 1, "cuda")
        ]
    assert found
    assert [str(line) for line in found if not (line.right or line.told)] == []
