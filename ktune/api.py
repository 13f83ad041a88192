"""The family contract, api 1: what a folder under `kernel_variants/` (or a user's own) is written against.

A family folder holds `family.py` (this contract, no torch), `reference.py` (inputs and the float64
reference), its `.cu` templates, and optionally `operations.py` and `peers.py`. `family.py` must define
`family = Family(...)`. These modules may import others of the folder: `from .plans import plan`. Loading a
family runs its Python. docs/family.md walks through each part.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Problem, Value

API = 1
# What a rule calls the problem's dtype.
DTYPE = "dtype"

Dim3 = tuple[int, int, int]


@dataclass(frozen=True)
class Parameter:
    """One tuning knob.

    values: all of them, in order; whole numbers are ordinal, strings and booleans categorical.
    when: {earlier parameter: values} under which this one exists at all; None is always.
    flags: {value: compiler flags}, for a parameter that changes how the kernel is compiled.
    label: the short name in configuration ids (`tpp` for threads_per_pair); the name if not given.
    """

    name: str
    values: tuple[Value, ...]
    default: Value
    help: str
    when: Mapping[str, tuple[Value, ...]] | None = None
    flags: Mapping[Value, tuple[str, ...]] | None = None
    label: str = ""

    @property
    def short(self) -> str:
        return self.label or self.name

    @property
    def ordinal(self) -> bool:
        return all(isinstance(v, int) and not isinstance(v, bool) for v in self.values)


@dataclass(frozen=True)
class Rule:
    """A law that every valid configuration keeps.

    law: the sentence shown to a user who breaks it.
    holds: a predicate whose arguments are named after parameters or sizes of the problem, or `dtype`, the problem's.
        The rule does not apply where one of its parameters does not exist.
    prunes: the kernels are right without it too; it keeps what can't be fast from being built. Verification on the CPU
        takes sizes that it rules out.
    """

    law: str
    holds: Callable[..., bool]
    prunes: bool = False

    @cached_property
    def arguments(self) -> tuple[str, ...]:
        return tuple(inspect.signature(self.holds).parameters)


@dataclass(frozen=True)
class Size:
    """A named dimension of the problem, or an option of it.

    default: None for a dimension, which every problem gives. A size with a default is an option: a problem that gives
        it its default is the same one as a problem that leaves it out.
    minimum: the smallest value; 0 for a flag.
    """

    name: str
    help: str
    minimum: int = 1
    default: int | None = None


@dataclass(frozen=True)
class Tensor:
    """A dense row-major tensor: an input, an output, or workspace."""

    name: str
    shape: tuple[int, ...]
    dtype: str = "float32"


@dataclass(frozen=True)
class Scalar:
    """A kernel argument passed by value. ctype: int32, int64, uint32, uint64 or float32."""

    value: int | float
    ctype: str = "int32"


@dataclass(frozen=True)
class TensorMap:
    """A kernel argument for TMA copies: 128 bytes by value that describe a tensor and the boxes taken from it.

    The kernel declares `const __grid_constant__` of a struct of 128 bytes aligned to 64, such as CUtensorMap. Where a
    box reaches beyond the tensor, zeros arrive. Strides must be multiples of 16 bytes.

    box: the extent of one copy along each dimension of the tensor, in the tensor's order; at most 256 each.
    swizzle_bytes: 0, 32, 64 or 128; a row of the box fits in it.
    promotion_bytes: what L2 fetches at once: 0 (as asked), 64, 128 or 256.
    """

    tensor: str
    box: tuple[int, ...]
    swizzle_bytes: int = 0
    promotion_bytes: int = 0


Argument = str | Scalar | TensorMap


@dataclass(frozen=True)
class KernelLaunch:
    """One launch of an `extern "C"` kernel of the family's source. A str argument is a tensor's pointer.

    programmatic: it may start before the launch before it has ended (programmatic dependent launch). Its kernel then
        waits with `griddepcontrol.wait` before it touches anything that launch writes.
    """

    kernel: str
    grid: Dim3
    block: Dim3
    arguments: tuple[Argument, ...]
    smem_bytes: int = 0
    cluster: Dim3 = (1, 1, 1)
    programmatic: bool = False


@dataclass(frozen=True)
class TorchOperation:
    """A call of a function in the family's `operations.py` with these tensors; it writes in place."""

    function: str
    arguments: tuple[str, ...]


@dataclass(frozen=True)
class Plan:
    """What runs for one configuration and problem, in order, and the scratch tensors it needs."""

    launches: tuple[KernelLaunch | TorchOperation, ...]
    workspace: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Cost:
    """Compulsory work of a problem: bytes read and written once, flops, special-function operations."""

    bytes_read: int
    bytes_written: int
    flops: int
    special: int = 0


@dataclass(frozen=True)
class Tolerance:
    """|y - ref| <= absolute + relative |ref| elementwise, and ||y - ref|| <= normwise ||ref||."""

    absolute: float
    relative: float
    normwise: float
    reason: str

    def scaled(self, factor: float) -> Tolerance:
        """What holds where outputs are `factor` times as large."""
        return replace(self, absolute=self.absolute * factor)


def _no_constants(configuration: Configuration, problem: Problem) -> Mapping[str, int]:
    return {}


def _no_kinds(problem: Problem) -> Mapping[str, float]:
    return {}


@dataclass(frozen=True)
class Family:
    """A kernel that can vary, and what is right for it.

    source: the `.cu` file, relative to the folder, that holds a configuration's kernels.
    inputs, outputs: the tensors of a problem, in a fixed order.
    plan: what is launched. It may not depend on anything but its arguments.
    constants: sizes compiled into the kernel; variants of other sizes are other variants.
    checks: small problems that the same binary must also get right (tails, length 1), at least one.
    kinds: of a problem {kind: scale}: kinds of inputs that `inputs` of reference.py draws besides its usual one, and
        how many times the absolute tolerance is its usual there, as outputs are. What may win is verified on these
        too, at `checks`; the errors that are reported are those on usual inputs.
    core: {parameter: values}: the declared sub-space that can be recorded completely.
    dtypes: what a problem's dtype may be; the first where it says none. Each tensor has a dtype of its own.
    tolerances: {dtype: tolerance} of problems for which `tolerance` is not right.
    retired: {a parameter that the family had once: whether a configuration with it is what the family now does without
        it}, so that results of then are still read.
    nearness: quantities above 0 of a problem, by whose ratios `ktune.nn` tells which searched shape is nearest to one
        that was not; the dimensions if not given.
    """

    name: str
    summary: str
    sizes: tuple[Size, ...]
    problems: Mapping[str, Mapping[str, int | str]]
    parameters: tuple[Parameter, ...]
    rules: tuple[Rule, ...]
    source: Callable[[Configuration], str]
    inputs: Callable[[Problem], Sequence[Tensor]]
    outputs: Callable[[Problem], Sequence[Tensor]]
    plan: Callable[[Configuration, Problem], Plan]
    checks: Callable[[Configuration, Problem], Sequence[Problem]]
    cost: Callable[[Problem], Cost]
    tolerance: Tolerance
    constants: Callable[[Configuration, Problem], Mapping[str, int]] = _no_constants
    kinds: Callable[[Problem], Mapping[str, float]] = _no_kinds
    core: Mapping[str, tuple[Value, ...]] = field(default_factory=dict)
    expected_wrong: Callable[[Configuration], str] = lambda configuration: ""
    dtypes: tuple[str, ...] = ("float32",)
    tolerances: Mapping[str, Tolerance] = field(default_factory=dict)
    retired: Mapping[str, Callable[[Mapping[str, Value]], bool]] = field(default_factory=dict)
    nearness: Callable[[Problem], Sequence[float]] | None = None
    api: int = API

    def __post_init__(self) -> None:
        # A problem read from a file does not know the defaults: the family's own code always sees them.
        for name in ("inputs", "outputs", "plan", "checks", "cost", "constants", "kinds") if self.defaults else ():
            object.__setattr__(self, name, _Completing(getattr(self, name), self.defaults))

    def parameter(self, name: str) -> Parameter:
        return self._parameters[name]

    @cached_property
    def _parameters(self) -> dict[str, Parameter]:
        return {p.name: p for p in self.parameters}

    @cached_property
    def defaults(self) -> tuple[tuple[str, int], ...]:
        """(option, default) of every size that may be left out."""
        return tuple((size.name, size.default) for size in self.sizes if size.default is not None)

    def problem(self, *, dtype: str = "", **sizes: int) -> Problem:
        """The problem of these sizes, in the family's order; only options may be left out.

        dtype: the family's first if not given. UsageError for sizes or a dtype that the family does not have.
        """
        return self.problem_of(sizes, dtype)

    def problem_of(self, sizes: Mapping[str, int], dtype: str = "") -> Problem:
        """What `problem` makes, from a mapping."""
        known, defaults = [size.name for size in self.sizes], dict(self.defaults)
        needed = [name for name in known if name not in defaults]
        if not set(needed) <= set(sizes) <= set(known):
            may = f" and may give {', '.join(defaults)}" if defaults else ""
            got = ", ".join(sizes) or "none"
            raise UsageError(f"a problem of {self.name} must give {', '.join(needed)}{may}, got {got}")
        for size in self.sizes:
            check_size(size, sizes.get(size.name, size.default))
        dtype = dtype or self.dtypes[0]
        if dtype not in self.dtypes:
            raise UsageError(f"dtype of {self.name} must be {' or '.join(self.dtypes)}, got {dtype!r}")
        given = tuple((name, int(sizes[name])) for name in known if name in sizes and sizes[name] != defaults.get(name))
        return Problem(self.name, given, dtype, self.defaults)

    def completed(self, problem: Problem) -> Problem:
        """The same problem, which knows the defaults of this family's options."""
        return _completed(problem, self.defaults)

    def without_retired(self, values: Mapping[str, Value]) -> dict[str, Value]:
        """A configuration's values without the retired parameters that say what the family now does anyway."""
        return {k: v for k, v in values.items() if k not in self.retired or not self.retired[k](values)}

    def tolerance_of(self, problem: Problem) -> Tolerance:
        """What is right for a problem of this dtype."""
        return self.tolerances.get(problem.dtype, self.tolerance)


def check_size(size: Size, value: object) -> None:
    """UsageError unless the value is a whole number that the size may have."""
    if not isinstance(value, int):
        raise UsageError(f"{size.name} must be a whole number, got {value!r}")
    if value < size.minimum:
        raise UsageError(f"{size.name} must be at least {size.minimum}, got {value}")


@dataclass(frozen=True)
class _Completing:
    """A function of a family, called with problems that know the defaults of its options."""

    function: Callable[..., Any]
    defaults: tuple[tuple[str, int], ...]

    def __post_init__(self) -> None:
        # `dataclasses.replace` of a family passes what is such a function already
        if isinstance(self.function, _Completing):
            object.__setattr__(self, "function", self.function.function)

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*(_completed(a, self.defaults) if isinstance(a, Problem) else a for a in arguments))


def _completed(problem: Problem, defaults: tuple[tuple[str, int], ...]) -> Problem:
    return problem if problem.defaults == defaults else replace(problem, defaults=defaults)


@dataclass(frozen=True)
class Peer:
    """A rival implementation, for comparison.

    missing: None if it can run here, else how to install it.
    prepare: (problem, inputs) -> a call without arguments that runs it once and returns {output: tensor}.
    """

    name: str
    missing: Callable[[], str | None]
    prepare: Callable[[Problem, dict[str, Any]], Callable[[], dict[str, Any]]]
