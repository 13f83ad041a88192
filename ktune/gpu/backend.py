"""The CUDA backend of the isolated worker: one family on one GPU. Runs only in the worker's process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from ktune import __version__
from ktune.api import Family
from ktune.checks import verify as verification
from ktune.core.errors import EnvironmentFault
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Effort, Environment, Problem, Status, Variant
from ktune.core.variant import check_problems
from ktune.gpu import nvml, timing
from ktune.gpu.cases import BoundCase, Case, CaseCache, Draw, draws_of_kinds
from ktune.gpu.cuda_timer import CudaTimer
from ktune.gpu.driver import named_faults
from ktune.gpu.plans import LoadedPlans, WorkspaceStore
from ktune.gpu.protocol import Backend, Entrant, Job, LaunchFault, RaceResult, StickyFault, Timings, Verdict
from ktune.gpu.race import Runner, run_race
from ktune.gpu.runners import VariantRunner, prepare_peer

MEASURED_SEED = 0
CHECK_SEED = 1

# Of the GPU's memory, what cached cases of other problems may hold.
_CACHE_SHARE = 0.4

# Datasheet bandwidth in bytes a second, by a part of the GPU's name; the first that fits.
_BANDWIDTH = (
    ("GH200", 4.9e12), ("H200", 4.8e12), ("H100 PCIe", 2.04e12), ("H100 NVL", 3.94e12), ("H100", 3.36e12),
)  # fmt: skip

# Dense FP8 on a Hopper, the most operations a second of any kind.
_HOPPER_FLOPS = 1.98e15


def cuda_backend(family_folder: str, gpu: str) -> Backend:
    """A backend for the family of a folder, on a GPU given by UUID or NVML index, or on torch's first one if empty."""
    loaded = load_family(family_folder)
    if not torch.cuda.is_available():
        raise EnvironmentFault(nvml.reason_no_gpu() or "torch sees no GPU that it can use; try `nvidia-smi`")
    return CudaBackend(loaded, device_of(gpu))


def device_of(gpu: str) -> torch.device:
    """torch's device for an NVML index or UUID: torch counts visible devices in an order of its own."""
    if not gpu:
        return torch.device("cuda", 0)
    wanted = nvml.select_gpu(gpu).uuid
    for index in range(torch.cuda.device_count()):
        if uuid_of(torch.device("cuda", index)).lower() == wanted.lower():
            return torch.device("cuda", index)
    raise EnvironmentFault(f"GPU {gpu} ({wanted}) is not visible to torch; see CUDA_VISIBLE_DEVICES")


def uuid_of(device: torch.device) -> str:
    """As NVML spells it."""
    return f"GPU-{str(torch.cuda.get_device_properties(device).uuid).removeprefix('GPU-')}"


def floor_us(family: Family, problem: Problem, gpu_name: str) -> float:
    """The least a cold execution can take: compulsory reads at datasheet bandwidth, or arithmetic; 0 if unknown."""
    bandwidth = next((figure for part, figure in _BANDWIDTH if part in gpu_name), None)
    if bandwidth is None:
        return 0.0
    cost = family.cost(problem)
    return 1e6 * max(cost.bytes_read / bandwidth, cost.flops / _HOPPER_FLOPS)


@dataclass(frozen=True)
class _Loaded:
    """What `load` leaves for the steps after it."""

    job: Job
    plans: LoadedPlans
    measured: BoundCase
    checks: tuple[BoundCase, ...]


class CudaBackend:
    """Implements `ktune.gpu.protocol.Backend`."""

    def __init__(self, loaded: LoadedFamily, device: torch.device) -> None:
        self._loaded = loaded
        self._device = device
        self._properties = torch.cuda.get_device_properties(device)
        self._uuid = uuid_of(device)
        self._sensor = nvml.Sensor(self._uuid)
        # counted before this process has a context of its own, whatever its id is called outside of its container
        self._foreign_processes = self._sensor.foreign_processes()
        torch.cuda.set_device(device)
        torch.set_grad_enabled(False)
        torch.set_float32_matmul_precision("highest")
        torch.backends.cudnn.allow_tf32 = False
        with named_faults("starting on the GPU"):
            self._timer = CudaTimer(device, self._sensor)
        self._cases = CaseCache(self._make_case, int(_CACHE_SHARE * self._properties.total_memory))
        self._workspaces = WorkspaceStore(device)
        self._current: _Loaded | None = None

    def environment(self) -> Environment:
        """`compiler` is the parent's to fill in."""
        known = next((gpu for gpu in _gpus_or_none() if gpu.uuid == self._uuid), None)
        return Environment(
            gpu_name=self._properties.name,
            gpu_uuid=self._uuid,
            driver=known.driver if known else "",
            cuda_driver=known.cuda_driver if known else "",
            compiler="",
            torch=torch.__version__,
            ktune=__version__,
            power_limit_w=self._sensor.power_limit_w(),
            sm_count=self._properties.multi_processor_count,
            l2_bytes=self._properties.L2_cache_size,
            memory_bytes=self._properties.total_memory,
            foreign_processes=self._foreign_processes,
        )

    def prepare(self, problem: Problem) -> None:
        with named_faults(f"preparing {problem.label}"):
            case = self._cases.get(Draw(problem, MEASURED_SEED))
            self._cases.trim([case])
            torch.cuda.synchronize()

    def load(self, job: Job) -> None:
        """Also computes the references of check problems that are new, before the variant runs."""
        self.unload()
        with named_faults("loading"):
            cases = self._cases_of(job.variant, job.problem, job.thorough)
            self._cases.trim(cases)
            self._workspaces.next_variant()
            torch.cuda.synchronize()
            plans = LoadedPlans(self._loaded, job.cubin)
            try:
                measured, *checks = self._bind(plans, job.variant, cases)
            except BaseException:
                plans.unload()
                raise
            self._current = _Loaded(job, plans, measured, tuple(checks))

    def verify(self) -> Verdict:
        now = self._loaded_now()
        with named_faults("verifying"):
            return verification.verify((now.measured, *now.checks))

    def time(self) -> Timings:
        now = self._loaded_now()
        with named_faults("timing"):
            now.measured.poison()
            self._timer.bind(now.measured.run)
            least_us = floor_us(self._loaded.family, now.job.problem, self._properties.name)
            if now.job.effort is Effort.FULL:
                return timing.time_full(self._timer, least_us)
            return timing.time_search(self._timer, least_us, now.job.cull_above_us)

    def recheck(self) -> Verdict:
        now = self._loaded_now()
        with named_faults("checking after timing"):
            return verification.recheck(now.measured)

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], seed: int, step: Callable[[str, str], None]
    ) -> list[RaceResult]:
        self.unload()
        plans: dict[str, LoadedPlans] = {}
        try:
            with named_faults("racing"):
                return self._race(problem, entrants, plans, seed, step)
        except StickyFault:
            plans.clear()
            raise
        finally:
            for loaded in plans.values():
                with named_faults("unloading"):
                    torch.cuda.synchronize()
                    loaded.unload()

    def unload(self) -> None:
        current, self._current = self._current, None
        if current is not None:
            with named_faults("unloading"):
                torch.cuda.synchronize()
                current.plans.unload()

    def close(self) -> None:
        self.unload()

    def _loaded_now(self) -> _Loaded:
        assert self._current is not None, "verify, time and recheck come after load"
        return self._current

    def _race(
        self,
        problem: Problem,
        entrants: Sequence[Entrant],
        plans: dict[str, LoadedPlans],
        seed: int,
        step: Callable[[str, str], None],
    ) -> list[RaceResult]:
        """Fills `plans` with what it loads, for the caller to unload."""
        measured = self._cases.get(Draw(problem, MEASURED_SEED))
        cases = {e.name: self._cases_of(e.variant, problem, thorough=True) for e in entrants if e.variant is not None}
        self._cases.trim([measured, *(case for each in cases.values() for case in each)])
        self._workspaces.next_variant()
        runners: list[Runner] = []
        results: dict[str, RaceResult] = {}
        for entrant in entrants:
            step("load" if entrant.peer is None else "compile", entrant.name)
            try:
                if entrant.variant is None:
                    runners.append(prepare_peer(self._loaded, entrant.name, entrant.peer or "", measured))
                    continue
                plans[entrant.name] = LoadedPlans(self._loaded, entrant.cubin)
                first, *checks = self._bind(plans[entrant.name], entrant.variant, cases[entrant.name])
                runners.append(VariantRunner(entrant.name, first, checks))
            except LaunchFault as fault:
                results[entrant.name] = RaceResult(entrant.name, Status.LAUNCH_FAILED, str(fault))
        torch.cuda.synchronize()
        least_us = floor_us(self._loaded.family, problem, self._properties.name)
        results.update({r.name: r for r in run_race(runners, self._timer, least_us, seed, step)})
        return [results[entrant.name] for entrant in entrants]

    def _cases_of(self, variant: Variant, problem: Problem, thorough: bool) -> list[Case]:
        """The measured case, then the check cases that the same binary must serve; thorough: of each kind of inputs."""
        family = self._loaded.family
        checks = check_problems(family, variant, problem)
        draws = [Draw(problem, MEASURED_SEED), *(Draw(check, CHECK_SEED) for check in checks)]
        if thorough:
            draws += [draw for check in checks for draw in draws_of_kinds(family, check, CHECK_SEED)]
        return [self._cases.get(draw) for draw in draws]

    def _bind(self, plans: LoadedPlans, variant: Variant, cases: Sequence[Case]) -> list[BoundCase]:
        bound = []
        for case in cases:
            plan = self._loaded.family.plan(variant.configuration, case.problem)
            bound.append(plans.bind(plan, case, self._workspaces.get(plan.workspace)))
        return bound

    def _make_case(self, draw: Draw) -> Case:
        try:
            return Case(self._loaded, draw, self._device)
        except torch.cuda.OutOfMemoryError as error:
            raise EnvironmentFault(
                f"{draw.problem.label} of {self._loaded.name} needs more memory than {self._properties.name} has free: "
                f"{str(error).splitlines()[0]}; take a smaller problem or another GPU"
            ) from error


def _gpus_or_none() -> list[nvml.GpuInfo]:
    try:
        return nvml.gpus()
    except EnvironmentFault:
        return []
