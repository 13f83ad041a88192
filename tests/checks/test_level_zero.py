"""Kernels that go wrong, each in its way, run as Python functions on real buffers: every one must be found out."""

import ctypes
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ktune.api import Tensor
from ktune.checks import verify as verification
from ktune.core.errors import FamilyError
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Status
from ktune.core.variant import input_kinds
from ktune.gpu.buffers import Region
from ktune.gpu.cases import BoundCase, Case, CaseCache, Draw
from ktune.gpu.protocol import Verdict

CPU = torch.device("cpu")
N = 1000
Kernel = Callable[[Case], None]


@pytest.fixture(scope="module")
def toy(families: Path) -> LoadedFamily:
    return load_family(families / "toy")


@pytest.fixture
def case(toy: LoadedFamily) -> Case:
    return Case(toy, Draw(toy.family.problem(N=N), 0), CPU)


def bound(case: Case, kernel: Kernel, workspace: tuple[Region, ...] = ()) -> BoundCase:
    return BoundCase(case, workspace, [lambda: kernel(case)])


def judged(case: Case, kernel: Kernel, workspace: tuple[Region, ...] = ()) -> Verdict:
    return verification.verify([bound(case, kernel, workspace)])


def x(case: Case) -> torch.Tensor:
    return case.regions["x"].tensor


def y(case: Case) -> torch.Tensor:
    return case.regions["y"].tensor


def right(case: Case) -> None:
    y(case).copy_(2.0 * x(case))


def poke(region: Region, element: int, value: float) -> None:
    """Write a float at an element's address, inside the tensor or not."""
    ctypes.c_float.from_address(region.pointer + 4 * element).value = value


def test_a_right_kernel_passes(case: Case) -> None:
    verdict = judged(case, right)
    assert verdict.status is Status.OK and verdict.detail == ""
    assert verdict.accuracy is not None and verdict.accuracy.worst_ratio == 0.0


def test_all_nan_is_wrong(case: Case) -> None:
    verdict = judged(case, lambda c: y(c).fill_(math.nan))
    assert verdict.status is Status.WRONG
    assert verdict.accuracy is not None and verdict.accuracy.fraction_bad == 1.0


def test_nan_in_the_last_element_alone_is_wrong_and_named(case: Case) -> None:
    def kernel(c: Case) -> None:
        right(c)
        y(c)[-1] = math.nan

    verdict = judged(case, kernel)
    assert verdict.status is Status.WRONG
    assert f"y[{N - 1}]" in verdict.detail


def test_zeros_are_wrong(case: Case) -> None:
    assert judged(case, lambda c: y(c).zero_()).status is Status.WRONG


def test_a_kernel_that_writes_nothing_does_not_live_on_the_one_before(case: Case) -> None:
    assert judged(case, right).status is Status.OK
    verdict = judged(case, lambda c: None)
    assert verdict.status is Status.WRONG
    assert verdict.accuracy is not None and math.isnan(verdict.accuracy.worst_ratio)


@pytest.mark.parametrize(
    "element, place", [(N, f"y[{N}]"), (-1, "y[-1]"), (-1024, "y[-1024]"), (N + 1023, f"y[{N + 1023}]")]
)
def test_a_write_outside_the_output_is_wrong_and_its_offset_is_told(case: Case, element: int, place: str) -> None:
    def kernel(c: Case) -> None:
        right(c)
        poke(c.regions["y"], element, 0.0)

    verdict = judged(case, kernel)
    assert verdict.status is Status.WRONG
    assert f"{place} was overwritten" in verdict.detail
    assert judged(case, right).status is Status.OK, "the next variant finds the canaries mended"


def test_of_a_long_overrun_the_element_nearest_to_the_output_is_told(case: Case) -> None:
    def kernel(c: Case) -> None:
        right(c)
        for element in (-3, -2, N + 1, N + 2):
            poke(c.regions["y"], element, 0.0)

    assert "y[-2] and y[1001] was overwritten" in judged(case, kernel).detail


def test_a_write_beside_an_input_or_the_workspace_is_found(case: Case) -> None:
    scratch = Region(Tensor("scratch", (8,)), CPU)

    def beside_input(c: Case) -> None:
        right(c)
        poke(c.regions["x"], N, 1.0)

    def beside_workspace(c: Case) -> None:
        right(c)
        poke(scratch, 8, 1.0)

    assert f"x[{N}]" in judged(case, beside_input).detail
    assert "scratch[8]" in judged(case, beside_workspace, (scratch,)).detail
    assert judged(case, right, (scratch,)).status is Status.OK


@pytest.mark.parametrize("value", [0.0, math.nan])
def test_a_changed_input_is_wrong_and_is_put_right_for_the_next_variant(case: Case, value: float) -> None:
    before = x(case).clone()

    def kernel(c: Case) -> None:
        right(c)
        x(c)[-1] = value

    verdict = judged(case, kernel)
    assert verdict.status is Status.WRONG
    assert "input x was changed" in verdict.detail
    assert torch.equal(x(case), before)
    assert judged(case, right).status is Status.OK


def test_an_input_that_is_permuted_in_place_is_wrong(case: Case) -> None:
    def kernel(c: Case) -> None:
        right(c)
        x(c).copy_(x(c).flip(0))

    assert "input x was changed" in judged(case, kernel).detail


def test_a_kernel_that_reaches_the_copy_of_the_reference_cannot_make_itself_right(case: Case) -> None:
    def kernel(c: Case) -> None:
        y(c).zero_()
        c.reference()["y"].zero_()

    verdict = judged(case, kernel)
    assert verdict.status is Status.WRONG
    assert "memory far from its buffers was overwritten" in verdict.detail
    assert verdict.accuracy is not None and verdict.accuracy.fraction_bad == 1.0
    assert judged(case, right).status is Status.OK


def test_a_kernel_that_reaches_the_copy_of_an_input_spoils_no_later_variant(case: Case) -> None:
    before = x(case).clone()

    def kernel(c: Case) -> None:
        right(c)
        c._pristine[0].device_copy.zero_()

    verdict = judged(case, kernel)
    assert verdict.status is Status.WRONG
    assert "memory far from its buffers was overwritten" in verdict.detail and "input" not in verdict.detail
    assert torch.equal(x(case), before)
    assert judged(case, right).status is Status.OK


def test_the_familys_bound_is_computed_before_a_kernel_runs_and_kept_out_of_its_reach(
    toy: LoadedFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"y": torch.full((N,), 1e-8, dtype=torch.float64)}
    monkeypatch.setattr(toy.module("reference"), "bound", lambda problem, inputs: limits, raising=False)
    case = Case(toy, Draw(toy.family.problem(N=N), 0), CPU)
    monkeypatch.undo()

    def beyond(c: Case) -> None:
        right(c)
        y(c)[17] = 2.0 * x(c)[17].double() + 3e-7

    def reaching(c: Case) -> None:
        beyond(c)
        c.bound()["y"].fill_(1.0)

    assert judged(case, right).status is Status.OK
    verdict = judged(case, beyond)
    assert verdict.status is Status.WRONG and "y[17]" in verdict.detail and "componentwise bound" in verdict.detail
    assert verdict.accuracy is not None and verdict.accuracy.worst_ratio < 1.0 < (verdict.accuracy.bound_ratio or 0.0)
    verdict = judged(case, reaching)
    assert verdict.status is Status.WRONG and "memory far from its buffers" in verdict.detail and verdict.damaged
    assert verdict.accuracy is not None and (verdict.accuracy.bound_ratio or 0.0) > 1.0
    assert judged(case, right).status is Status.OK


def test_right_but_different_each_time_is_unstable(case: Case) -> None:
    runs = iter(range(100))

    def kernel(c: Case) -> None:
        right(c)
        y(c)[3] *= 1.0 + 1e-7 * next(runs)

    verdict = judged(case, kernel)
    assert verdict.status is Status.UNSTABLE
    assert "differ in y" in verdict.detail
    assert verdict.accuracy is not None and verdict.accuracy.worst_ratio > 0.0


@pytest.mark.parametrize("bad_run", [0, 1])
def test_right_only_sometimes_is_wrong(case: Case, bad_run: int) -> None:
    runs = iter(range(100))

    def kernel(c: Case) -> None:
        right(c)
        if next(runs) == bad_run:
            y(c)[0] = 99.0

    assert judged(case, kernel).status is Status.WRONG


def test_a_kernel_right_at_the_measured_problem_and_wrong_at_a_tail_is_wrong(toy: LoadedFamily, case: Case) -> None:
    tail = Case(toy, Draw(toy.family.problem(N=33), 1), CPU)

    def kernel(c: Case) -> None:
        whole = c.problem["N"] // 8 * 8
        y(c)[:whole].copy_(2.0 * x(c)[:whole])

    verdict = verification.verify([bound(case, kernel), bound(tail, kernel)])
    assert N % 8 == 0
    assert verdict.status is Status.WRONG
    assert verdict.accuracy is not None
    assert verdict.accuracy.check == "N33" and verdict.accuracy.first_bad == (32,)


def test_the_check_problems_are_drawn_with_another_seed(toy: LoadedFamily) -> None:
    problem = toy.family.problem(N=5)
    assert not torch.equal(x(Case(toy, Draw(problem, 0), CPU)), x(Case(toy, Draw(problem, 1), CPU)))


def test_the_output_of_the_timed_launches_is_checked_again(case: Case) -> None:
    subject = bound(case, right)
    assert verification.verify([subject]).status is Status.OK
    subject.poison()
    subject.run()
    assert verification.recheck(subject).status is Status.OK
    subject.poison()
    assert verification.recheck(subject).status is Status.WRONG, "timed launches that wrote nothing"
    subject.run()
    y(case)[5] = torch.nextafter(y(case)[5], torch.tensor(math.inf))
    again = verification.recheck(subject)
    assert again.status is Status.UNSTABLE and "the timed and the verified run" in again.detail
    subject.run()
    poke(case.regions["y"], N, 0.0)
    assert "while timed" in verification.recheck(subject).detail


def test_cases_are_made_once_and_the_oldest_go_first(toy: LoadedFamily) -> None:
    made: list[Draw] = []

    def make(draw: Draw) -> Case:
        made.append(draw)
        return Case(toy, draw, CPU)

    problem = toy.family.problem(N=N)
    zero, one, two = Draw(problem, 0), Draw(problem, 1), Draw(problem, 0, "uniform")
    cache = CaseCache(make, limit_bytes=2 * Case(toy, zero, CPU).bytes)
    first = cache.get(zero)
    assert cache.get(zero) is first and made == [zero]
    cache.get(one)
    cache.get(two)
    cache.trim([first])
    assert len(cache) == 2
    assert cache.get(zero) is first, "a case in use is never dropped"
    cache.get(two)
    assert made == [zero, one, two], "the older of the others was dropped"


def test_a_kernel_right_for_usual_inputs_and_wrong_for_a_kind_of_them_is_wrong_and_the_kind_is_named(
    toy: LoadedFamily, case: Case
) -> None:
    other = Case(toy, Draw(toy.family.problem(N=33), 1, "uniform"), CPU)
    assert bool((x(other) >= 0.0).all()) and not bool((x(case) >= 0.0).all())

    def kernel(c: Case) -> None:
        y(c).copy_(2.0 * x(c) if bool((x(c) < 0.0).any()) else 2.5 * x(c))

    assert judged(case, kernel).status is Status.OK
    verdict = verification.verify([bound(case, kernel), bound(other, kernel)])
    assert verdict.status is Status.WRONG and "in check N33, inputs uniform" in verdict.detail
    assert verdict.accuracy is not None and verdict.accuracy.check == "N33, inputs uniform"


def test_the_errors_that_are_told_are_those_on_usual_inputs(toy: LoadedFamily, case: Case) -> None:
    other = Case(toy, Draw(toy.family.problem(N=33), 1, "uniform", 1e3), CPU)

    def kernel(c: Case) -> None:
        right(c)
        if c is other:
            y(c)[0] += 5e-6

    verdict = verification.verify([bound(case, kernel), bound(other, kernel)])
    assert verdict.status is Status.OK and verdict.accuracy is not None and verdict.accuracy.max_abs < 1e-6
    assert verification.verify([bound(other, kernel)]) == Verdict(Status.OK, "", None)
    varying = iter(range(100))

    def unstable(c: Case) -> None:
        right(c)
        if c is other:
            y(c)[0] += 5e-6 * next(varying)

    verdict = verification.verify([bound(case, unstable), bound(other, unstable)])
    assert verdict.status is Status.UNSTABLE and "N33, inputs uniform" in verdict.detail


def test_the_absolute_tolerance_of_a_kind_is_as_its_outputs_are(toy: LoadedFamily) -> None:
    plain = Case(toy, Draw(toy.family.problem(N=N), 0), CPU)
    small, large = (Case(toy, Draw(toy.family.problem(N=N), 0, scale=scale), CPU) for scale in (1e-4, 1e3))
    allowed = plain.tolerance.absolute
    assert [c.tolerance.absolute for c in (small, large)] == [allowed * 1e-4, allowed * 1e3]
    assert small.tolerance.relative == plain.tolerance.relative

    nearest_zero = int(x(plain).abs().argmin())

    def off(c: Case) -> None:
        right(c)
        y(c)[nearest_zero] += 0.8 * allowed

    assert judged(plain, off).status is Status.OK and judged(large, off).status is Status.OK
    assert judged(small, off).status is Status.WRONG


def test_kinds_that_are_not_drawn_are_the_familys_fault(toy: LoadedFamily, monkeypatch: pytest.MonkeyPatch) -> None:
    problem, module = toy.family.problem(N=N), toy.module("reference")
    with pytest.raises(FamilyError, match="draws the kind 'normal' of toy exactly as its usual inputs"):
        Case(toy, Draw(problem, 0, "normal"), CPU)
    drawn = module.inputs
    monkeypatch.setattr(module, "inputs", lambda problem, seed, device: drawn(problem, seed, device=device))
    with pytest.raises(FamilyError, match="must take `kind`, since toy names the kind 'uniform'"):
        Case(toy, Draw(problem, 0, "uniform"), CPU)


@pytest.mark.parametrize(("kind", "scale"), [("", 1.0), *(("large", s) for s in (0.0, -1.0, math.inf, math.nan))])
def test_a_kind_has_a_name_and_a_scale(toy: LoadedFamily, kind: str, scale: float) -> None:
    problem = toy.family.problem(N=N)
    assert input_kinds(toy.family, problem) == {}
    with pytest.raises(FamilyError, match="finite scales above 0"):
        input_kinds(replace(toy.family, kinds=lambda problem: {kind: scale}), problem)
