"""A problem at one draw of inputs, ready to be run on: inputs, reference, output buffers, what was done to them."""

from __future__ import annotations

import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ktune.api import Family, Tensor
from ktune.checks.compare import bits
from ktune.core.errors import FamilyError
from ktune.core.loading import LoadedFamily
from ktune.core.model import Problem
from ktune.core.variant import input_kinds
from ktune.gpu.buffers import Pristine, Region, any_canary_broken, digest, dtype_of, flags


@dataclass(frozen=True)
class Draw:
    """What inputs are drawn for. kind: one of the family's `kinds`; "" is the usual one.

    scale: how many times the absolute tolerance is its usual.
    """

    problem: Problem
    seed: int
    kind: str = ""
    scale: float = 1.0


def draws_of_kinds(family: Family, problem: Problem, seed: int) -> list[Draw]:
    """One for each kind of inputs that the family names for `problem`."""
    return [Draw(problem, seed, kind, scale) for kind, scale in input_kinds(family, problem).items()]


class Case:
    """The tensors of one draw on `device`. References, and the family's bound if it states one, are computed here,
    before any variant runs on it."""

    def __init__(self, loaded: LoadedFamily, draw: Draw, device: torch.device) -> None:
        family = loaded.family
        self.problem = problem = family.completed(draw.problem)
        self.usual = not draw.kind
        self.label = problem.label if self.usual else f"{problem.label}, inputs {draw.kind}"
        self.tolerance = family.tolerance_of(problem).scaled(draw.scale)
        module = loaded.module("reference")
        with torch.no_grad():
            given = _drawn(module.inputs, problem, draw, str(device))
            self._inputs = [_filled(declared, given, device) for declared in family.inputs(problem)]
            truth = module.reference(problem, given)
            bound = module.bound(problem, given) if hasattr(module, "bound") else None
        self._pristine = [Pristine(region.tensor) for region in self._inputs]
        self._outputs = [Region(declared, device) for declared in family.outputs(problem)]
        self._kept = [torch.empty_like(region.tensor) for region in self._outputs]
        self._reference = self._kept_apart(truth, "reference", family)
        self._bound = {} if bound is None else self._kept_apart(bound, "bound", family)
        _check_bound(self._bound, family)

    @property
    def bytes(self) -> int:
        """Device memory that this case holds."""
        inputs = sum(region.bytes + copy.bytes for region, copy in zip(self._inputs, self._pristine, strict=True))
        truths = sum(pristine.bytes for pristine in self._truths())
        return inputs + sum(2 * r.bytes for r in self._outputs) + truths

    @property
    def regions(self) -> dict[str, Region]:
        """Inputs and outputs by name."""
        return {region.name: region for region in (*self._inputs, *self._outputs)}

    def inputs(self) -> dict[str, torch.Tensor]:
        """The tensors that a kernel reads, for a peer to read too."""
        return {region.name: region.tensor for region in self._inputs}

    def poison(self) -> None:
        for region in self._outputs:
            region.poison()

    def outputs(self) -> dict[str, torch.Tensor]:
        return {region.name: region.tensor for region in self._outputs}

    def keep(self) -> None:
        for region, copy in zip(self._outputs, self._kept, strict=True):
            copy.copy_(region.tensor)

    def kept(self) -> dict[str, torch.Tensor]:
        return {region.name: copy for region, copy in zip(self._outputs, self._kept, strict=True)}

    def reference(self) -> dict[str, torch.Tensor]:
        return {name: pristine.device_copy for name, pristine in self._reference.items()}

    def bound(self) -> dict[str, torch.Tensor]:
        return {name: pristine.device_copy for name, pristine in self._bound.items()}

    def digests(self) -> dict[str, int]:
        """Of each output as it is now. Synchronises."""
        return {region.name: int(digest(region.tensor)) for region in self._outputs}

    def damage(self, workspace: Sequence[Region] = ()) -> str:
        """What was changed that no variant may change, as a sentence, and put right again. Synchronises."""
        regions = [*self._inputs, *self._outputs, *workspace]
        changed = [
            (bits(region.tensor) != bits(copy.device_copy)).any()
            for region, copy in zip(self._inputs, self._pristine, strict=True)
        ]
        spoilt = [pristine.spoilt() for pristine in self._truths()]
        found = flags([any_canary_broken(regions), *changed, *spoilt])
        return self._describe_and_mend(regions, found[1 : 1 + len(changed)]) if any(found) else ""

    def _describe_and_mend(self, regions: Sequence[Region], changed: Sequence[bool]) -> str:
        told = [
            f"wrote outside its buffer: {place} was overwritten"
            for region in regions
            if (place := region.broken_canary())
        ]
        astray = False
        for region, copy, differs in zip(self._inputs, self._pristine, changed, strict=True):
            if not differs:
                continue
            if flags([copy.spoilt()])[0]:
                astray = True
                copy.restore()
            if flags([(bits(region.tensor) != bits(copy.device_copy)).any()])[0]:
                told.append(f"input {region.name} was changed")
                region.tensor.copy_(copy.device_copy)
        for pristine in self._truths():
            if flags([pristine.spoilt()])[0]:
                astray = True
                pristine.restore()
        for region in regions:
            region.mend_canaries()
        if astray:
            told.append("memory far from its buffers was overwritten")
        return "; ".join(told)

    def _truths(self) -> list[Pristine]:
        return [*self._reference.values(), *self._bound.values()]

    def _kept_apart(self, tensors: Any, function: str, family: Family) -> dict[str, Pristine]:
        """What `function` of reference.py gave for each output, which must be float64 of the output's shape."""
        kept = {}
        for region in self._outputs:
            tensor = _named(tensors, region.name, function)
            if tensor.dtype != torch.float64 or tensor.shape != region.tensor.shape:
                raise FamilyError(
                    f"{function}() of {family.name} must return {region.name} as float64 of shape "
                    f"{tuple(region.tensor.shape)}, got {tensor.dtype} of shape {tuple(tensor.shape)} "
                    f"for {self.problem.label}"
                )
            kept[region.name] = Pristine(tensor.to(region.tensor.device))
        return kept


class CaseCache:
    """Cases by what they are drawn for, the least recently used dropped first beyond `limit_bytes`."""

    def __init__(self, make: Callable[[Draw], Case], limit_bytes: int) -> None:
        self._make = make
        self._limit_bytes = limit_bytes
        self._cases: OrderedDict[Draw, Case] = OrderedDict()

    def get(self, draw: Draw) -> Case:
        if draw not in self._cases:
            self._cases[draw] = self._make(draw)
        self._cases.move_to_end(draw)
        return self._cases[draw]

    def trim(self, in_use: Iterable[Case]) -> None:
        """Drop what exceeds the limit, never a case in use."""
        needed = list(in_use)
        held = sum(case.bytes for case in self._cases.values())
        for draw, case in list(self._cases.items()):
            if held <= self._limit_bytes:
                return
            if all(case is not kept for kept in needed):
                held -= case.bytes
                del self._cases[draw]

    def __len__(self) -> int:
        return len(self._cases)


class BoundCase:
    """A case with a variant's plan bound to it: the `Subject` that verification drives."""

    def __init__(self, case: Case, workspace: Sequence[Region], steps: Sequence[Callable[[], None]]) -> None:
        self.label = case.label
        self.usual = case.usual
        self.tolerance = case.tolerance
        self._case = case
        self._workspace = workspace
        self._steps = steps

    def poison(self) -> None:
        self._case.poison()
        for region in self._workspace:
            region.poison()

    def run(self) -> None:
        for step in self._steps:
            step()

    def outputs(self) -> Mapping[str, torch.Tensor]:
        return self._case.outputs()

    def keep(self) -> None:
        self._case.keep()

    def kept(self) -> Mapping[str, torch.Tensor]:
        return self._case.kept()

    def damage(self) -> str:
        return self._case.damage(self._workspace)

    def reference(self) -> Mapping[str, torch.Tensor]:
        return self._case.reference()

    def bound(self) -> Mapping[str, torch.Tensor]:
        return self._case.bound()

    def digests(self) -> Mapping[str, int]:
        return self._case.digests()


def _drawn(inputs: Callable[..., Any], problem: Problem, draw: Draw, device: str) -> Any:
    """What `inputs` of reference.py gives; of a kind that differs from its usual one."""
    usual = inputs(problem, draw.seed, device=device)
    if not draw.kind:
        return usual
    takes = inspect.signature(inputs).parameters
    if "kind" not in takes and all(p.kind is not p.VAR_KEYWORD for p in takes.values()):
        raise FamilyError(
            f"inputs() of reference.py must take `kind`, since {problem.family} names the kind {draw.kind!r}"
        )
    given = inputs(problem, draw.seed, kind=draw.kind, device=device)
    if all(torch.equal(_named(given, name, "inputs"), usual[name]) for name in usual):
        raise FamilyError(
            f"inputs() of reference.py draws the kind {draw.kind!r} of {problem.family} exactly as its usual inputs; "
            "kinds must differ, see the family's `kinds`"
        )
    return given


def _named(tensors: Any, name: str, function: str) -> torch.Tensor:
    if name not in tensors:
        raise FamilyError(
            f"{function}() of reference.py must return {name!r}, got {', '.join(map(repr, tensors)) or 'nothing'}"
        )
    tensor: torch.Tensor = tensors[name]
    return tensor


def _check_bound(bound: Mapping[str, Pristine], family: Family) -> None:
    for name, pristine in bound.items():
        if bool((pristine.device_copy < 0.0).any()):
            raise FamilyError(f"bound() of {family.name} must not be negative anywhere, as that of {name} is")


def _filled(declared: Tensor, given: Any, device: torch.device) -> Region:
    tensor = _named(given, declared.name, "inputs")
    if tuple(tensor.shape) != declared.shape or tensor.dtype != dtype_of(declared):
        raise FamilyError(
            f"inputs() of reference.py must return {declared.name} as {declared.dtype} of shape {declared.shape}, "
            f"got {tensor.dtype} of shape {tuple(tensor.shape)}"
        )
    if tensor.is_floating_point() and tensor.numel() > 1 and not bool(tensor.any()):
        raise FamilyError(
            f"input {declared.name} must not be all zero: time and power depend on the data; draw it at random"
        )
    region = Region(declared, device)
    region.tensor.copy_(tensor)
    return region
