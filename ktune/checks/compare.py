"""How far an output is from its float64 reference, and whether that is near enough."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

import torch

from ktune.api import Tolerance
from ktune.core.errors import FamilyError
from ktune.core.model import Accuracy

# One temporary of a chunk is 64 MB of float64; about ten live at once.
_CHUNK = 1 << 23


def compare(
    actual: torch.Tensor,
    reference64: torch.Tensor,
    tolerance: Tolerance,
    *,
    output: str = "",
    check: str = "",
    chunk: int = _CHUNK,
) -> Accuracy:
    """The accuracy of `actual` against `reference64`, on whatever device they are; one synchronisation.

    NaN in the reference is matched by NaN alone, an infinity by the same infinity alone; matched elements
    have no error. `max_rel` is over elements whose reference exceeds the absolute tolerance. `max_ulp` counts
    in units in the last place of float32 at the reference. A NaN in `actual` makes every figure NaN.
    Raises FamilyError where shapes differ or the reference is not float64.
    """
    if reference64.dtype != torch.float64 or actual.shape != reference64.shape:
        raise FamilyError(
            f"the reference of {output or 'an output'} must be float64 of shape {tuple(actual.shape)}, "
            f"got {reference64.dtype} of shape {tuple(reference64.shape)}; mend reference.py"
        )
    if actual.numel() == 0:
        return Accuracy(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), output, check)
    flat, truth = actual.reshape(-1), reference64.reshape(-1)
    parts = [
        _chunk_figures(flat[start : start + chunk], truth[start : start + chunk], tolerance)
        for start in range(0, flat.numel(), chunk)
    ]
    rows: list[list[float]] = torch.stack(parts).tolist()
    columns = list(zip(*rows, strict=True))
    max_abs, max_rel, max_ulp, ratio = (_worst(columns[i]) for i in range(4))
    error_norm, truth_norm, bad = math.sqrt(sum(columns[4])), math.sqrt(sum(columns[5])), sum(columns[6])
    first: tuple[int, ...] = ()
    if bad > 0:
        number = next(i for i, row in enumerate(rows) if row[6] > 0)
        part = slice(number * chunk, (number + 1) * chunk)
        where = number * chunk + int(_bad(flat[part], truth[part], tolerance).to(torch.uint8).argmax())
        first = _unravel(where, actual.shape)
    return Accuracy(
        max_abs, max_rel, max_ulp, _quotient(error_norm, truth_norm), ratio, bad / flat.numel(), first, output, check
    )


def passes(accuracy: Accuracy, tolerance: Tolerance) -> bool:
    """Every rule, each written so that a NaN fails it."""
    if not (accuracy.worst_ratio <= 1.0):
        return False
    if not (accuracy.fraction_bad <= 0.0):
        return False
    return accuracy.normwise <= tolerance.normwise


def explain(accuracy: Accuracy, tolerance: Tolerance) -> str:
    """Why an accuracy does not pass, in one sentence; empty if it does."""
    if passes(accuracy, tolerance):
        return ""
    place = f"{accuracy.output}{list(accuracy.first_bad)}" if accuracy.first_bad else accuracy.output
    where = f" in check {accuracy.check}" if accuracy.check else ""
    if not (accuracy.worst_ratio <= 1.0 and accuracy.fraction_bad <= 0.0):
        return (
            f"{place} is the first of {accuracy.fraction_bad:.2%} of elements beyond "
            f"{tolerance.absolute:g} + {tolerance.relative:g} |ref|{where}: "
            f"max error {accuracy.max_abs:.3g}, {accuracy.worst_ratio:.3g} of the tolerance"
        )
    return f"{place}: normwise error {accuracy.normwise:.3g} must be at most {tolerance.normwise:g}{where}"


def worst(accuracies: Iterable[Accuracy], tolerance: Tolerance) -> Accuracy | None:
    """The worst of each figure; output, check and index are those of the accuracy furthest beyond its rules."""
    found = list(accuracies)
    if not found:
        return None

    def badness(accuracy: Accuracy) -> tuple[bool, float]:
        ratio = accuracy.worst_ratio
        return not passes(accuracy, tolerance), math.inf if math.isnan(ratio) else ratio

    leader = max(found, key=badness)

    def figure(of: Callable[[Accuracy], float]) -> float:
        return _worst([of(accuracy) for accuracy in found])

    return replace(
        leader,
        max_abs=figure(lambda a: a.max_abs),
        max_rel=figure(lambda a: a.max_rel),
        max_ulp=figure(lambda a: a.max_ulp),
        normwise=figure(lambda a: a.normwise),
        worst_ratio=figure(lambda a: a.worst_ratio),
        fraction_bad=figure(lambda a: a.fraction_bad),
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A boolean scalar on the tensors' device: equal bit for bit, NaN payloads and signs of zero included."""
    return (bits(one) == bits(other)).all()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers of the element's width, one-dimensional."""
    return tensor.reshape(-1).view(_WHOLE[tensor.element_size()])


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def _chunk_figures(actual: torch.Tensor, truth: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    """float64 of 7: max abs, max rel, max ulp, max ratio, sum of squared errors, of squared truths, count of bad."""
    error = _error(actual, truth)
    size = truth.abs()
    ratio = _ratio(error, size, tolerance)
    above_floor = size > tolerance.absolute
    relative = torch.where(above_floor, error / size, torch.zeros_like(error))
    # a NaN error must stay NaN where the reference is below the floor, too
    relative = torch.where(error.isnan(), error, torch.where(error == 0, torch.zeros_like(error), relative))
    single = size.to(torch.float32)
    ulp = (torch.nextafter(single, torch.full_like(single, math.inf)) - single).double()
    ulps = torch.where(error == 0, torch.zeros_like(error), error / ulp)
    finite = torch.where(truth.isfinite(), truth, torch.zeros_like(truth))
    return torch.stack(
        [
            error.amax(), relative.amax(), ulps.amax(), ratio.amax(),
            error.square().sum(), finite.square().sum(), (~(ratio <= 1.0)).sum().double(),
        ]
    )  # fmt: skip


def _error(actual: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """|actual - truth|; 0 where they match, infinite where the truth alone is infinite or NaN, NaN where actual is."""
    value = actual.to(torch.float64)
    matched = (value == truth) | (value.isnan() & truth.isnan())
    error = (value - truth).abs()
    error = torch.where(truth.isfinite() | value.isnan(), error, torch.full_like(error, math.inf))
    return torch.where(matched, torch.zeros_like(error), error)


def _ratio(error: torch.Tensor, size: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    allowed = torch.where(size.isfinite(), tolerance.absolute + tolerance.relative * size, torch.ones_like(size))
    return torch.where(error == 0, torch.zeros_like(error), error / allowed)


def _bad(actual: torch.Tensor, truth: torch.Tensor, tolerance: Tolerance) -> torch.Tensor:
    return ~(_ratio(_error(actual, truth), truth.abs(), tolerance) <= 1.0)


def _worst(values: Sequence[float]) -> float:
    """The largest; NaN if any is."""
    return math.nan if any(math.isnan(v) for v in values) else max(values)


def _quotient(error: float, truth: float) -> float:
    if error == 0.0:
        return 0.0
    return error / truth if truth > 0.0 else (math.nan if math.isnan(error) else math.inf)


def _unravel(flat: int, shape: Sequence[int]) -> tuple[int, ...]:
    index = []
    for size in reversed(shape):
        index.append(flat % size)
        flat //= size
    return tuple(reversed(index))
