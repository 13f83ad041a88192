"""The nouns of ktune: problem, configuration, variant, measurement. Frozen values, no behaviour."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property

Value = bool | int | str


@dataclass(frozen=True)
class Problem:
    """Named sizes and a dtype, in the family's order: what a kernel is asked to compute. `Family.problem` makes one.

    sizes: without the optional ones that have their default, so that a problem is the same however it is spelled.
    defaults: of the family's optional sizes; looked up by name, no part of what the problem is.
    """

    family: str
    sizes: tuple[tuple[str, int], ...]
    dtype: str = "float32"
    defaults: tuple[tuple[str, int], ...] = field(default=(), compare=False, repr=False)

    @cached_property
    def by_name(self) -> dict[str, int]:
        """Every size, also the optional ones that have their default."""
        given = dict(self.sizes)
        return {**given, **{name: size for name, size in self.defaults if name not in given}}

    def __getitem__(self, name: str) -> int:
        return self.by_name[name]

    @property
    def label(self) -> str:
        """`B16-L2048-D256-N16`; options that differ from their default and other dtypes than float32 follow."""
        text = "-".join(f"{name}{size}" for name, size in self.sizes)
        return text if self.dtype == "float32" else f"{text}-{self.dtype}"


@dataclass(frozen=True)
class Configuration(Mapping[str, Value]):
    """Ordered parameter -> value. Parameters whose condition does not hold are absent."""

    values_: tuple[tuple[str, Value], ...]

    @cached_property
    def by_name(self) -> dict[str, Value]:
        return dict(self.values_)

    def __getitem__(self, name: str) -> Value:
        return self.by_name[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.by_name)

    def __len__(self) -> int:
        return len(self.values_)

    def integer(self, name: str) -> int:
        """The value of a whole-number or boolean parameter, as an int."""
        return int(self.by_name[name])


@dataclass(frozen=True)
class Variant:
    """One buildable kernel: a family's configuration, the sizes compiled in, the GPU target."""

    family: str
    configuration: Configuration
    constants: tuple[tuple[str, int], ...]
    target: str


class Status(StrEnum):
    """How a measurement ended. Only `ok` is eligible to win."""

    OK = "ok"
    INVALID = "invalid"
    BUILD_FAILED = "build_failed"
    SPILLED = "spilled"
    LAUNCH_FAILED = "launch_failed"
    CRASHED = "crashed"
    TIMED_OUT = "timed_out"
    WRONG = "wrong"
    UNSTABLE = "unstable"
    CULLED = "culled"


class Source(StrEnum):
    """Where a figure comes from. Only `measured` figures were read off a GPU in this study."""

    MEASURED = "measured"
    REPLAYED = "replayed"
    CPU = "cpu"
    FAKE = "fake"


class Effort(StrEnum):
    """How long a variant is timed: `search` is short and culls, `full` is the finalists' protocol."""

    SEARCH = "search"
    FULL = "full"


@dataclass(frozen=True)
class BuildFacts:
    """What the compiler said about one cubin, summed (bytes) or at most (registers) over its kernels."""

    key: str
    code_digest: str
    registers: int
    spill_store_bytes: int
    spill_load_bytes: int
    stack_bytes: int
    smem_static_bytes: int
    compile_s: float
    cached: bool
    compiler: str


@dataclass(frozen=True)
class Accuracy:
    """How far the outputs are from the float64 reference, worst over all checks and outputs.

    `worst_ratio` is max(|y - ref| / (abs + rel |ref|)): above 1 (or NaN) the variant is wrong. `bound_ratio` is the
    same over the family's componentwise bound; None where it states none.
    """

    max_abs: float
    max_rel: float
    max_ulp: float
    normwise: float
    worst_ratio: float
    fraction_bad: float
    first_bad: tuple[int, ...] = ()
    output: str = ""
    check: str = ""
    bound_ratio: float | None = None


@dataclass(frozen=True)
class Timing:
    """Samples of one launch plan's time in one cache regime, microseconds per execution.

    host_bound: the GPU waited for the host between launches, and the samples hold those gaps.
    """

    regime: str
    method: str
    samples_us: tuple[float, ...]
    median_us: float
    ci_low_us: float
    ci_high_us: float
    min_us: float
    q1_us: float
    q3_us: float
    mad_us: float
    sm_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    host_bound: bool = False


@dataclass(frozen=True)
class Environment:
    """The machine that a measurement was made on. `None` is "not known", never 0."""

    gpu_name: str
    gpu_uuid: str
    driver: str
    cuda_driver: str
    compiler: str
    torch: str
    ktune: str
    power_limit_w: float | None = None
    sm_count: int | None = None
    l2_bytes: int | None = None
    memory_bytes: int | None = None
    foreign_processes: int | None = None


@dataclass(frozen=True)
class Request:
    """One thing to measure. `trial` is the study's number for it; `cull_above_us` is the best known.

    patience: by what the best known time is multiplied before a slower variant is culled; a recording has more.
    thorough: verified on every kind of inputs, as with full effort.
    """

    trial: int
    variant: Variant
    problem: Problem
    effort: Effort = Effort.SEARCH
    cull_above_us: float | None = None
    patience: float = 1.0
    thorough: bool = False


@dataclass(frozen=True)
class Measurement:
    """Everything known about one variant on one problem, once its measurement has ended."""

    trial: int
    variant: Variant
    problem: Problem
    status: Status
    source: Source
    effort: Effort = Effort.SEARCH
    detail: str = ""
    build: BuildFacts | None = None
    accuracy: Accuracy | None = None
    cold: Timing | None = None
    hot: Timing | None = None
    bound_us: float | None = None
    environment: Environment | None = None
    finished_at: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def eligible(self) -> bool:
        """Right, and with a cold time: may win."""
        return self.status is Status.OK and self.cold is not None

    @property
    def gpu_uuid(self) -> str:
        """The GPU that it was made on; "" where none is known."""
        return self.environment.gpu_uuid if self.environment else ""

    @property
    def cold_us(self) -> float | None:
        return None if self.cold is None else self.cold.median_us
