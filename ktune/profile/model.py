"""What a profile holds. A part that is not known is `Missing` with its reason; a figure that is not known is None."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from ktune.core.model import Environment, Problem, Timing, Value
from ktune.profile.mix import Mix
from ktune.profile.occupancy import Occupancy

NEEDS_A_GPU = "needs a GPU"


@dataclass(frozen=True)
class Missing:
    """Why a part of the profile is not there."""

    reason: str


@dataclass(frozen=True)
class KernelFacts:
    """One kernel launch of the plan, as far as its build tells."""

    kernel: str
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    cluster: tuple[int, int, int]
    smem_dynamic_bytes: int
    smem_static_bytes: int
    registers: int
    stack_bytes: int
    spill_store_bytes: int
    spill_load_bytes: int
    barriers: int | None
    occupancy: Occupancy | Missing
    instructions: Mix | Missing
    main_loop: Mix | Missing

    @property
    def blocks(self) -> int:
        return self.grid[0] * self.grid[1] * self.grid[2]

    @property
    def threads(self) -> int:
        """Per block."""
        return self.block[0] * self.block[1] * self.block[2]


@dataclass(frozen=True)
class OperationFacts:
    """A torch operation of the plan: its kernels are the library's, so only a GPU can tell about them."""

    function: str


StepFacts = KernelFacts | OperationFacts


@dataclass(frozen=True)
class Timed:
    """The times that rates are computed from. origin: `measured now`, or the study and trial they come from."""

    cold: Timing | None
    hot: Timing | None
    status: str
    detail: str
    origin: str
    environment: Environment | None = None


@dataclass(frozen=True)
class Peaks:
    """What this GPU reached with the calibration kernels. None: not measured.

    launch_us: a launch that does nothing, timed like a variant. gap_us: each further one behind it.
    chain_ns: one multiply-add that waits for the one before it.
    """

    gpu_name: str
    gpu_uuid: str
    driver: str
    measured_at: str
    copy_gbps: float | None = None
    read_gbps: float | None = None
    fp32_gflops: float | None = None
    special_gops: float | None = None
    tensor_gflops: float | None = None
    launch_us: float | None = None
    gap_us: float | None = None
    chain_ns: float | None = None
    sm_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()
    shared_gpu: bool = False


@dataclass(frozen=True)
class Rate:
    """A rate by the family's cost over the measured cold time, and per cent of the peak measured on the GPU."""

    achieved: float
    unit: str
    peak: float | None
    percent: float | None


@dataclass(frozen=True)
class Rates:
    """memory: compulsory bytes. fp32, tensor: all flops against each unit's peak, whichever computes them."""

    memory: Rate
    fp32: Rate | None
    tensor: Rate | None
    special: Rate | None
    memory_peak: str
    launch_percent: float | None


@dataclass(frozen=True)
class Steady:
    """Read from NVML while the plan ran in a loop. energy_per_launch_mj: None where the counter did not move."""

    seconds: float
    executions: int
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    power_w: float | None
    power_limit_w: float | None
    throttle: tuple[str, ...]
    energy_per_launch_mj: float | None
    foreign_processes: int | None = None


@dataclass(frozen=True)
class StepOnGpu:
    """A step of the plan as the GPU sees it. blocks_per_sm: as the driver grants; None for a torch operation."""

    name: str
    blocks_per_sm: int | None
    hot_us: float | None


@dataclass(frozen=True)
class DeviceFacts:
    """What the isolated process found on the GPU."""

    sm_count: int | None
    steps: tuple[StepOnGpu, ...] | Missing
    steady: Steady | Missing
    peaks: Peaks | Missing


@dataclass(frozen=True)
class KernelCounters:
    """Hardware counters of one kernel, medians over its launches. values: {metric: ns, bytes or per cent}."""

    kernel: str
    launches: int
    values: Mapping[str, float]


class BoundKind(StrEnum):
    """What keeps a plan from being faster."""

    MEMORY = "memory"
    FP32 = "fp32"
    SPECIAL = "special functions"
    TENSOR = "tensor"
    SHARED = "shared memory"
    L2 = "L2 cache"
    LOAD_STORE = "load/store"
    INTEGER = "integer"
    ISSUE = "instruction issue"
    LATENCY = "latency"
    LAUNCH = "launch overhead"
    UNDETERMINED = "undetermined"


@dataclass(frozen=True)
class Bound:
    """percent: how busy the bounding unit is. near: what is almost as busy."""

    kind: BoundKind
    reason: str
    percent: float | None = None
    near: tuple[BoundKind, ...] = ()


@dataclass(frozen=True)
class Profile:
    """Everything `ktune profile` tells about one configuration and problem. gpu: its model, else no_gpu says why."""

    family: str
    problem: Problem
    configuration_id: str
    configuration: Mapping[str, Value]
    chosen: str
    target: str
    compiler: str
    steps: tuple[StepFacts, ...]
    time: Timed | Missing
    rates: Rates | Missing
    device: DeviceFacts | Missing
    peaks: Peaks | Missing
    counters: tuple[KernelCounters, ...] | Missing
    bound: Bound
    made_at: str
    notes: tuple[str, ...] = ()
    gpu: str = ""
    no_gpu: str = ""
    seconds: Mapping[str, float] = field(default_factory=dict)
