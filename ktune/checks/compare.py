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
    bound: torch.Tensor | None = None,
    output: str = "",
    check: str = "",
    chunk: int = _CHUNK,
) -> Accuracy:
    """The accuracy of `actual` against `reference64`, on whatever device they are; one synchronisation.

    NaN in the reference is matched by NaN alone, an infinity by the same infinity alone; matched elements
    have no error. `max_rel` is over elements whose reference exceeds the absolute tolerance. `max_ulp` counts
    in units in the last place of float32 at the reference. A NaN in `actual` makes every figure NaN.
    bound: float64, the largest |actual - reference| allowed beside the tolerance, element by element.
    Raises FamilyError where shapes differ or the reference or the bound is not float64.
    """
    for what, given in (("reference", reference64), *((("bound", bound),) if bound is not None else ())):
        if given.dtype != torch.float64 or actual.shape != given.shape:
            raise FamilyError(
                f"the {what} of {output or 'an output'} must be float64 of shape {tuple(actual.shape)}, "
                f"got {given.dtype} of shape {tuple(given.shape)}; mend reference.py"
            )
    if actual.numel() == 0:
        return Accuracy(0.0, 0.0, 0.0, 0.0, 0.0, 0.0, (), output, check, None if bound is None else 0.0)
    flat, truth = actual.reshape(-1), reference64.reshape(-1)
    limits = None if bound is None else bound.reshape(-1)

    def chunk_of(number: int) -> _Chunk:
        part = slice(number * chunk, (number + 1) * chunk)
        return _Chunk(flat[part], truth[part], None if limits is None else limits[part], tolerance)

    parts = [chunk_of(number).figures() for number in range(-(-flat.numel() // chunk))]
    rows: list[list[float]] = torch.stack(parts).tolist()
    columns = list(zip(*rows, strict=True))
    max_abs, max_rel, max_ulp, ratio, of_bound = (_worst(columns[i]) for i in range(5))
    error_norm, truth_norm, bad = math.sqrt(sum(columns[5])), math.sqrt(sum(columns[6])), sum(columns[7])
    first: tuple[int, ...] = ()
    if bad > 0:
        number = next(i for i, row in enumerate(rows) if row[7] > 0)
        first = _unravel(number * chunk + int(chunk_of(number).bad().to(torch.uint8).argmax()), actual.shape)
    return Accuracy(
        max_abs, max_rel, max_ulp, _quotient(error_norm, truth_norm), ratio, bad / flat.numel(), first, output, check,
        None if bound is None else of_bound,
    )  # fmt: skip


def passes(accuracy: Accuracy, tolerance: Tolerance) -> bool:
    """Every rule, each written so that a NaN fails it."""
    if not (accuracy.worst_ratio <= 1.0):
        return False
    if breaks_bound(accuracy):
        return False
    if not (accuracy.fraction_bad <= 0.0):
        return False
    return accuracy.normwise <= tolerance.normwise


def breaks_bound(accuracy: Accuracy) -> bool:
    """Whether an element is beyond the family's componentwise bound; a NaN is."""
    return accuracy.bound_ratio is not None and not (accuracy.bound_ratio <= 1.0)


def explain(accuracy: Accuracy, tolerance: Tolerance) -> str:
    """Why an accuracy does not pass, in one sentence; empty if it does."""
    if passes(accuracy, tolerance):
        return ""
    place = f"{accuracy.output}{list(accuracy.first_bad)}" if accuracy.first_bad else accuracy.output
    where = f" in check {accuracy.check}" if accuracy.check else ""
    if accuracy.worst_ratio <= 1.0 and breaks_bound(accuracy):
        return (
            f"{place} is the first of {accuracy.fraction_bad:.2%} of elements beyond the family's componentwise "
            f"bound{where}: max error {accuracy.max_abs:.3g}, {accuracy.bound_ratio:.3g} of the bound, "
            f"{accuracy.worst_ratio:.3g} of the tolerance"
        )
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
        ratio = _worst([accuracy.worst_ratio, accuracy.bound_ratio or 0.0])
        return not passes(accuracy, tolerance), math.inf if math.isnan(ratio) else ratio

    leader = max(found, key=badness)
    of_bounds = [accuracy.bound_ratio for accuracy in found if accuracy.bound_ratio is not None]

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
        bound_ratio=_worst(of_bounds) if of_bounds else None,
    )


def same_bits(one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """A boolean scalar on the tensors' device: equal bit for bit, NaN payloads and signs of zero included."""
    return (bits(one) == bits(other)).all()


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same memory as whole numbers of the element's width, one-dimensional."""
    return tensor.reshape(-1).view(_WHOLE[tensor.element_size()])


_WHOLE = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class _Chunk:
    """A run of elements of one output, all one-dimensional. `of_bound` is all zero without a bound."""

    def __init__(
        self, actual: torch.Tensor, truth: torch.Tensor, bound: torch.Tensor | None, tolerance: Tolerance
    ) -> None:
        self.truth, self.size = truth, truth.abs()
        self.floor = tolerance.absolute
        self.error = _error(actual, truth)
        allowed = torch.where(
            self.size.isfinite(), tolerance.absolute + tolerance.relative * self.size, torch.ones_like(self.size)
        )
        self.ratio = _over(self.error, allowed)
        self.of_bound = torch.zeros_like(self.error) if bound is None else _over(self.error, bound)

    def bad(self) -> torch.Tensor:
        """Where an element breaks a rule."""
        return ~(self.ratio <= 1.0) | ~(self.of_bound <= 1.0)

    def figures(self) -> torch.Tensor:
        """Eight: max abs, rel, ulp, ratio, ratio to the bound; sums of squared errors and truths, and of bad ones."""
        error, size, truth = self.error, self.size, self.truth
        relative = torch.where(size > self.floor, error / size, torch.zeros_like(error))
        # a NaN error must stay NaN where the reference is below the floor, too
        relative = torch.where(error.isnan(), error, torch.where(error == 0, torch.zeros_like(error), relative))
        single = size.to(torch.float32)
        ulp = (torch.nextafter(single, torch.full_like(single, math.inf)) - single).double()
        finite = torch.where(truth.isfinite(), truth, torch.zeros_like(truth))
        return torch.stack(
            [
                error.amax(), relative.amax(), _over(error, ulp).amax(), self.ratio.amax(), self.of_bound.amax(),
                error.square().sum(), finite.square().sum(), self.bad().sum().double(),
            ]
        )  # fmt: skip


def _error(actual: torch.Tensor, truth: torch.Tensor) -> torch.Tensor:
    """|actual - truth|; 0 where they match, infinite where the truth alone is infinite or NaN, NaN where actual is."""
    value = actual.to(torch.float64)
    matched = (value == truth) | (value.isnan() & truth.isnan())
    error = (value - truth).abs()
    error = torch.where(truth.isfinite() | value.isnan(), error, torch.full_like(error, math.inf))
    return torch.where(matched, torch.zeros_like(error), error)


def _over(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """error / allowed; 0 where there is no error, whatever is allowed."""
    return torch.where(error == 0, torch.zeros_like(error), error / allowed)


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
