"""What counts as near enough, and what never does."""

import math
from dataclasses import replace

import pytest
import torch

from ktune.api import Tolerance
from ktune.checks.compare import compare, explain, passes, same_bits, worst
from ktune.core.errors import FamilyError

TOLERANCE = Tolerance(1e-4, 1e-4, 1e-5, "a test")
NAN, INF = math.nan, math.inf


def reference(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def passed(actual: torch.Tensor, truth: torch.Tensor, tolerance: Tolerance = TOLERANCE) -> bool:
    accuracy = compare(actual, truth, tolerance)
    assert passes(accuracy, tolerance) == (explain(accuracy, tolerance) == "")
    return passes(accuracy, tolerance)


def test_the_reference_rounded_to_float32_passes_with_half_an_ulp() -> None:
    truth = reference(7, 33)
    accuracy = compare(truth.float(), truth, TOLERANCE)
    assert passes(accuracy, TOLERANCE)
    assert 0.0 < accuracy.max_ulp <= 0.5
    assert 0.0 < accuracy.normwise < 1e-7
    assert accuracy.fraction_bad == 0.0 and accuracy.first_bad == ()


def test_figures_are_those_of_the_definition() -> None:
    truth = torch.tensor([1.0, -2.0, 1e-6, 0.0], dtype=torch.float64)
    actual = torch.tensor([1.0 + 2.0**-20, -2.0, 1.5e-6, 0.0])
    accuracy = compare(actual, truth, TOLERANCE)
    assert accuracy.max_abs == 2.0**-20
    assert accuracy.max_rel == 2.0**-20, "elements below the floor have no relative error"
    # 1.5e-6 against 1e-6: an ulp there is 2^-43
    assert accuracy.max_ulp == pytest.approx(0.5e-6 / 2.0**-43, rel=1e-3)
    assert accuracy.worst_ratio == pytest.approx(0.5e-6 / (1e-4 + 1e-10), rel=1e-6)
    assert accuracy.normwise == pytest.approx(math.hypot(2.0**-20, 0.5e-6) / math.sqrt(5.0), rel=1e-6)


def test_an_output_of_nan_fails() -> None:
    truth = reference(100)
    accuracy = compare(torch.full((100,), NAN), truth, TOLERANCE)
    assert not passes(accuracy, TOLERANCE)
    assert math.isnan(accuracy.worst_ratio) and math.isnan(accuracy.max_abs) and math.isnan(accuracy.normwise)
    assert accuracy.fraction_bad == 1.0 and accuracy.first_bad == (0,)


def test_one_nan_in_the_last_element_fails_and_is_named() -> None:
    truth = reference(5, 20)
    actual = truth.float()
    actual[-1, -1] = NAN
    accuracy = compare(actual, truth, TOLERANCE, output="y", check="N100")
    assert not passes(accuracy, TOLERANCE)
    assert accuracy.first_bad == (4, 19)
    assert explain(accuracy, TOLERANCE).startswith("y[4, 19] is the first of 1.00% of elements")
    assert "N100" in explain(accuracy, TOLERANCE)


def test_zeros_fail_even_where_every_element_is_below_the_absolute_tolerance() -> None:
    truth = reference(1000) * 1e-6
    accuracy = compare(torch.zeros(1000), truth, TOLERANCE)
    assert accuracy.worst_ratio < 1.0
    assert accuracy.normwise == 1.0
    assert not passes(accuracy, TOLERANCE)
    assert "normwise error 1 must be at most 1e-05" in explain(accuracy, TOLERANCE)


@pytest.mark.parametrize("value", [NAN, INF, -INF])
def test_nan_and_infinities_of_the_reference_are_matched_by_themselves_alone(value: float) -> None:
    truth = torch.tensor([1.0, value, 2.0], dtype=torch.float64)
    assert passed(truth.float(), truth)
    for other in (NAN, INF, -INF, 0.0, 3e38):
        if other == value or (math.isnan(other) and math.isnan(value)):
            continue
        actual = torch.tensor([1.0, other, 2.0])
        assert not passed(actual, truth), f"{other} for {value}"
        assert compare(actual, truth, TOLERANCE).first_bad == (1,)


def test_an_infinite_output_for_a_finite_reference_fails() -> None:
    assert not passed(torch.tensor([1.0, INF]), torch.tensor([1.0, 2.0], dtype=torch.float64))


def test_a_tolerance_of_zero_accepts_equality_alone() -> None:
    exact = Tolerance(0.0, 0.0, 0.0, "whole numbers")
    truth = torch.tensor([0.0, 3.0], dtype=torch.float64)
    assert passed(torch.tensor([0.0, 3.0]), truth, exact)
    assert not passed(torch.tensor([1e-30, 3.0]), truth, exact)
    assert passed(torch.tensor([0, 3], dtype=torch.int32), truth, exact)


def test_an_all_zero_reference_is_met_by_zeros_and_by_nothing_else() -> None:
    truth = torch.zeros(4, dtype=torch.float64)
    assert passed(torch.zeros(4), truth)
    assert compare(torch.full((4,), 1e-6), truth, TOLERANCE).normwise == INF


def test_chunks_change_no_figure() -> None:
    truth = reference(3, 1001)
    actual = truth.float()
    actual[1, 500] += 1.0
    actual[2, 7] = INF
    whole, chunked = (compare(actual, truth, TOLERANCE, chunk=size) for size in (1 << 20, 64))
    assert whole.first_bad == chunked.first_bad == (1, 500)
    assert replace(chunked, normwise=whole.normwise) == whole
    assert chunked.normwise == whole.normwise or math.isclose(chunked.normwise, whole.normwise)


def test_an_empty_output_has_no_error() -> None:
    assert passed(torch.zeros(0), torch.zeros(0, dtype=torch.float64))


def test_a_reference_of_another_shape_or_precision_is_refused() -> None:
    with pytest.raises(FamilyError, match="must be float64 of shape"):
        compare(torch.zeros(2, 3), torch.zeros(3, 2, dtype=torch.float64), TOLERANCE)
    with pytest.raises(FamilyError, match="must be float64"):
        compare(torch.zeros(2), torch.zeros(2), TOLERANCE)


def test_the_worst_of_several_keeps_nan_and_the_place_of_the_failure() -> None:
    truth = reference(10)
    good = compare(truth.float(), truth, TOLERANCE, output="y", check="a")
    bad = compare(torch.full((10,), NAN), truth, TOLERANCE, output="y", check="b")
    for order in ([good, bad], [bad, good]):
        found = worst(order, TOLERANCE)
        assert found is not None
        assert found.check == "b" and math.isnan(found.worst_ratio) and found.fraction_bad == 1.0
    assert worst([], TOLERANCE) is None


def test_an_element_beyond_the_bound_fails_though_it_is_within_the_tolerance() -> None:
    truth = reference(5, 20)
    actual = truth.float()
    actual[3, 7] += 2e-5
    bound = torch.full((5, 20), 1e-5, dtype=torch.float64)
    assert passed(actual, truth)
    accuracy = compare(actual, truth, TOLERANCE, bound=bound, output="y", check="N100")
    assert not passes(accuracy, TOLERANCE)
    assert accuracy.bound_ratio == pytest.approx(2.0, rel=0.01) and accuracy.worst_ratio < 1.0
    assert accuracy.first_bad == (3, 7) and accuracy.fraction_bad == 0.01
    assert explain(accuracy, TOLERANCE).startswith(
        "y[3, 7] is the first of 1.00% of elements beyond the family's componentwise bound in check N100: max error"
    )
    assert " of the bound, " in explain(accuracy, TOLERANCE)


def test_the_bound_is_taken_element_by_element() -> None:
    truth = torch.tensor([1.0, 1.0, 1.0], dtype=torch.float64)
    actual = torch.tensor([1.0, 1.0 + 2.0**-20, 1.0 - 2.0**-20])
    bound = torch.tensor([0.0, 2.0**-20, 2.0**-19], dtype=torch.float64)
    accuracy = compare(actual, truth, TOLERANCE, bound=bound)
    assert passes(accuracy, TOLERANCE) and accuracy.bound_ratio == 1.0
    tighter = compare(actual, truth, TOLERANCE, bound=bound / 2)
    assert (tighter.bound_ratio, tighter.fraction_bad, tighter.first_bad) == (2.0, pytest.approx(1 / 3), (1,))


def test_without_a_bound_there_is_no_ratio_to_it() -> None:
    truth = reference(10)
    assert compare(truth.float(), truth, TOLERANCE).bound_ratio is None
    empty = torch.zeros(0, dtype=torch.float64)
    assert compare(empty.float(), empty, TOLERANCE, bound=empty).bound_ratio == 0.0


@pytest.mark.parametrize("value", [NAN, INF, -INF, 2.0])
@pytest.mark.parametrize("bound", [NAN, 0.0, INF])
def test_an_element_that_matches_passes_whatever_the_bound(value: float, bound: float) -> None:
    truth = torch.tensor([1.0, value], dtype=torch.float64)
    limits = torch.tensor([1.0, bound], dtype=torch.float64)
    accuracy = compare(truth.float(), truth, TOLERANCE, bound=limits)
    assert passes(accuracy, TOLERANCE) and accuracy.bound_ratio == 0.0


@pytest.mark.parametrize("actual, bound", [(2.0 + 2.0**-20, 0.0), (2.0 + 2.0**-20, NAN), (NAN, 1.0), (NAN, INF)])
def test_an_element_that_differs_passes_no_bound_of_nothing_or_nan(actual: float, bound: float) -> None:
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    limits = torch.tensor([1.0, bound], dtype=torch.float64)
    accuracy = compare(torch.tensor([1.0, actual]), truth, TOLERANCE, bound=limits)
    assert not passes(accuracy, TOLERANCE) and explain(accuracy, TOLERANCE)
    assert accuracy.first_bad == (1,) and not accuracy.bound_ratio <= 1.0


def test_chunks_change_no_figure_of_the_bound() -> None:
    truth = reference(3, 1001)
    bound = truth.abs() * 2.0**-26 + 1e-12
    whole, chunked = (compare(truth.float(), truth, TOLERANCE, bound=bound, chunk=size) for size in (1 << 20, 64))
    assert whole.bound_ratio is not None and whole.bound_ratio > 1.0
    assert replace(chunked, normwise=whole.normwise) == whole


def test_a_bound_of_another_shape_or_precision_is_refused() -> None:
    truth = reference(4)
    for bound in (torch.ones(4), torch.ones(5, dtype=torch.float64)):
        with pytest.raises(FamilyError, match="the bound of y must be float64 of shape"):
            compare(truth.float(), truth, TOLERANCE, bound=bound, output="y")


def test_the_worst_of_several_keeps_the_largest_ratio_to_a_bound_and_its_place() -> None:
    truth = reference(10)
    tight, wide = (torch.full((10,), size, dtype=torch.float64) for size in (1e-12, 1.0))
    plain = compare(truth.float(), truth, TOLERANCE, check="plain")
    beyond = compare(truth.float(), truth, TOLERANCE, bound=tight, check="beyond")
    within = compare(truth.float(), truth, TOLERANCE, bound=wide, check="within")
    for order in ([plain, beyond, within], [within, beyond, plain]):
        found = worst(order, TOLERANCE)
        assert found is not None and found.check == "beyond"
        assert found.bound_ratio == beyond.bound_ratio and not passes(found, TOLERANCE)
    only = worst([plain], TOLERANCE)
    assert only is not None and only.bound_ratio is None


def test_bits_tell_negative_zero_from_zero_and_accept_the_same_nan() -> None:
    one = torch.tensor([0.0, NAN])
    assert bool(same_bits(one, one.clone()))
    assert not bool(same_bits(one, torch.tensor([-0.0, NAN])))
