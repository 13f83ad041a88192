"""The checker checked: outputs that are known to be wrong must fail a family's own reference and tolerance."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import torch

from ktune.api import Tolerance
from ktune.checks.compare import compare, explain, passes
from ktune.core.model import Problem

Tensors = Mapping[str, torch.Tensor]


class ReferenceModule(Protocol):
    """What a family's reference.py offers; `bound`, called as `reference` is, may be there too."""

    def inputs(self, problem: Problem, seed: int, *, device: str) -> dict[str, torch.Tensor]: ...

    def reference(self, problem: Problem, inputs: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]: ...


def holes(
    module: Any, problem: Problem, tolerance: Tolerance, dtypes: Mapping[str, torch.dtype], device: str = "cpu"
) -> list[str]:
    """What the checks of a family would let through at this problem, one sentence each; empty is sound.

    module: the family's reference.py. dtypes: {output: the dtype that kernels write}.
    """
    reference: ReferenceModule = module
    bound_of: Callable[[Problem, dict[str, torch.Tensor]], Tensors] = getattr(module, "bound", lambda *given: {})
    given = reference.inputs(problem, 0, device=device)
    scaled = {name: _scaled(tensor) for name, tensor in given.items()}
    truth, bound = reference.reference(problem, given), bound_of(problem, given)
    other = reference.reference(problem, reference.inputs(problem, 1, device=device))
    small, small_bound = reference.reference(problem, scaled), bound_of(problem, scaled)
    found = []
    for name, dtype in dtypes.items():
        right = truth[name]
        zeros = torch.zeros_like(right)
        limit, small_limit = bound.get(name), small_bound.get(name)
        trials = [
            ("an all-zero output", zeros, right, limit),
            ("an all-zero output with inputs x1e-4", zeros, small[name], small_limit),
            ("another seed's output", other[name], right, limit),
        ]
        if right.numel() > 1:
            trials.append(("a shuffled output", _shuffled(right), right, limit))
        accuracy = compare(right.to(dtype), right, tolerance, bound=limit, output=name)
        if not passes(accuracy, tolerance):
            found.append(f"{problem.label}: the reference rounded to {dtype} fails: {explain(accuracy, tolerance)}")
        for what, wrong, against, allowed in trials:
            if passes(compare(wrong.to(dtype), against, tolerance, bound=allowed), tolerance):
                found.append(f"{problem.label}: {what} passes for {name}; the tolerance or the inputs tell nothing")
    return found


def _scaled(tensor: torch.Tensor) -> torch.Tensor:
    return tensor * 1e-4 if tensor.is_floating_point() else tensor


def _shuffled(tensor: torch.Tensor) -> torch.Tensor:
    """The elements one place further: every one moves, whatever their number."""
    return tensor.reshape(-1).roll(1).reshape(tensor.shape)
