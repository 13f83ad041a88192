"""Makes a profile: build, time, look at the GPU, count, name the bound. What one step lacks, the others still tell."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter
from typing import Protocol

from ktune.build.builder import BuildResult
from ktune.core.errors import KtuneError, NothingPassed
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Measurement, Problem, Source, Status, Variant
from ktune.core.settings import Settings
from ktune.core.variant import make_variant
from ktune.profile.calibration import calibration_variant, load_peaks, save_peaks
from ktune.profile.evidence import plan_bound
from ktune.profile.messages import Order
from ktune.profile.model import (
    NEEDS_A_GPU,
    DeviceFacts,
    KernelCounters,
    KernelFacts,
    Missing,
    Peaks,
    Profile,
    StepFacts,
    Timed,
)
from ktune.profile.occupancy import Occupancy
from ktune.profile.rates import compute_rates
from ktune.profile.static import static_notes, step_facts

# After these the process that ran the variant was lost, or it never ran: it is not run again to be looked at.
_NOT_RUN_AGAIN = (Status.BUILD_FAILED, Status.LAUNCH_FAILED, Status.CRASHED, Status.TIMED_OUT)


@dataclass(frozen=True)
class Subject:
    """What is profiled. chosen: how it was chosen, in words. known: its measurement in a study, from `origin`."""

    loaded: LoadedFamily
    problem: Problem
    configuration: Configuration
    chosen: str
    known: Measurement | None = None
    origin: str = ""


class Gpu(Protocol):
    """The GPU at hand: measures a variant as a search does, and looks at it in processes of its own."""

    name: str
    uuid: str
    driver: str

    def measure(self, variant: Variant, problem: Problem) -> Measurement: ...

    def look(self, order: Order) -> DeviceFacts: ...

    def count(self, order: Order) -> tuple[KernelCounters, ...] | Missing: ...


class Builds(Protocol):
    """Builds one variant of any family; `key` is what the build depends on."""

    label: str

    def key(self, loaded: LoadedFamily, variant: Variant) -> str: ...

    def build(self, loaded: LoadedFamily, variant: Variant) -> BuildResult: ...


@dataclass(frozen=True)
class Machine:
    """gpu: None where there is none, and `no_gpu` says why. counters: whether ncu is asked. calibrate: peaks anew."""

    target: str
    builds: Builds
    settings: Settings
    gpu: Gpu | None
    no_gpu: str = ""
    counters: bool = True
    calibrate: bool = False
    tell: Callable[[str], None] = lambda sentence: None


def collect_profile(subject: Subject, machine: Machine) -> Profile:
    """The profile of one configuration; NothingPassed if it does not build."""
    seconds: dict[str, float] = {}
    clock = _Clock(seconds)
    loaded, problem = subject.loaded, subject.problem
    variant = make_variant(loaded.family, subject.configuration, problem, machine.target)
    identity = configuration_id(loaded.family, subject.configuration)
    machine.tell(f"building {identity}")
    built = machine.builds.build(loaded, variant)
    if built.facts is None and built.status is not Status.OK:
        raise NothingPassed(f"{identity} does not build: {built.detail}; log: {built.log}")
    clock.lap("build")
    plan = loaded.family.plan(subject.configuration, problem)
    steps = step_facts(plan, built.cubin, built.log, machine.target, machine.settings)
    clock.lap("disassemble")
    timed, timed_notes = _times(subject, variant, machine)
    clock.lap("time")
    device, peaks = _device(subject, variant, built.cubin, timed, machine)
    clock.lap("look")
    counters = _counters(subject, built.cubin, timed, machine)
    clock.lap("count")
    rates = compute_rates(loaded.family.cost(problem), timed, peaks, len(steps))
    return Profile(
        family=loaded.name,
        problem=problem,
        configuration_id=identity,
        configuration=subject.configuration,
        chosen=subject.chosen,
        target=machine.target,
        compiler=machine.builds.label,
        steps=tuple(steps),
        time=timed,
        rates=rates,
        device=device,
        peaks=peaks,
        counters=counters,
        bound=plan_bound(steps, rates, device, peaks, counters),
        made_at=datetime.now(UTC).isoformat(timespec="seconds"),
        notes=(*static_notes(steps), *timed_notes, *_gpu_notes(steps, device, peaks)),
        gpu=machine.gpu.name if machine.gpu else "",
        no_gpu="" if machine.gpu else machine.no_gpu,
        seconds=seconds,
    )


def _times(subject: Subject, variant: Variant, machine: Machine) -> tuple[Timed | Missing, list[str]]:
    """The study's measurement if it is of this build and this GPU, else one made now; with notes on what was left."""
    known, gpu = subject.known, machine.gpu
    notes: list[str] = []
    if known is not None and known.cold is not None:
        other = _why_not(known, machine.builds.key(subject.loaded, variant), gpu)
        if not other:
            return _timed(known, subject.origin), notes
        notes.append(f"the time in {subject.origin} is not used: {other}")
    if gpu is None:
        return Missing(NEEDS_A_GPU), notes
    machine.tell(f"measuring on {gpu.name}")
    return _timed(gpu.measure(variant, subject.problem), "measured now"), notes


def _why_not(known: Measurement, key: str, gpu: Gpu | None) -> str:
    """Why a study's measurement does not hold here; empty if it does."""
    if known.build is not None and known.build.key != key:
        return "it is of another build: the source or the compiler has changed"
    if gpu is not None and known.source is not Source.MEASURED:
        return f"it is {known.source}, and there is a GPU"
    if gpu is not None and known.gpu_uuid != gpu.uuid:
        return f"it was made on another GPU ({known.gpu_uuid or 'unknown'})"
    return ""


def _timed(m: Measurement, origin: str) -> Timed:
    source = "" if m.source is Source.MEASURED else f" ({m.source})"
    return Timed(m.cold, m.hot, m.status.value, m.detail, origin + source, m.environment)


def _device(
    subject: Subject, variant: Variant, cubin: Path | None, timed: Timed | Missing, machine: Machine
) -> tuple[DeviceFacts | Missing, Peaks | Missing]:
    """(what the GPU tells of the variant, the peaks that its rates are compared with)."""
    gpu = machine.gpu
    if gpu is None:
        return Missing(NEEDS_A_GPU), _peaks_of_study(timed, machine)
    cache_dir = machine.settings.cache_dir
    kernels, calibration = calibration_variant(variant.target)
    code = machine.builds.key(kernels, calibration)
    peaks = None if machine.calibrate else load_peaks(cache_dir, gpu.uuid, gpu.driver, code)
    lost = _lost(timed)
    if lost and peaks is not None:
        return Missing(lost), peaks
    order = _order(subject, cubin, gpu)
    if lost:
        order = replace(order, steady_s=0.0)
    if peaks is None:
        order = replace(order, calibration=_built_calibration(machine, kernels, calibration))
    machine.tell(f"watching {gpu.name} run it" + ("" if peaks else ", and measuring what the GPU can reach"))
    facts = gpu.look(order)
    if isinstance(facts.peaks, Peaks):
        peaks = replace(facts.peaks, driver=gpu.driver)
        if not peaks.shared_gpu:
            save_peaks(cache_dir, peaks, code)
    return (Missing(lost) if lost else facts), peaks or facts.peaks


def _built_calibration(machine: Machine, kernels: LoadedFamily, variant: Variant) -> str:
    built = machine.builds.build(kernels, variant)
    if built.cubin is None:
        raise KtuneError(f"the calibration kernels do not build for {variant.target}: {built.detail}; log: {built.log}")
    return str(built.cubin)


def _peaks_of_study(timed: Timed | Missing, machine: Machine) -> Peaks | Missing:
    """Peaks kept from the GPU that a study's time was measured on."""
    if isinstance(timed, Timed) and timed.environment is not None:
        known = load_peaks(machine.settings.cache_dir, timed.environment.gpu_uuid, timed.environment.driver)
        if known is not None:
            return known
    return Missing(NEEDS_A_GPU)


def _counters(
    subject: Subject, cubin: Path | None, timed: Timed | Missing, machine: Machine
) -> tuple[KernelCounters, ...] | Missing:
    if machine.gpu is None:
        return Missing(NEEDS_A_GPU)
    lost = _lost(timed)
    if lost:
        return Missing(lost)
    if not machine.counters:
        return Missing("not asked for")
    machine.tell("reading hardware counters")
    return machine.gpu.count(_order(subject, cubin, machine.gpu))


def _order(subject: Subject, cubin: Path | None, gpu: Gpu) -> Order:
    return Order(
        family_folder=str(subject.loaded.folder),
        gpu=gpu.uuid,
        problem=subject.problem,
        configuration=subject.configuration,
        cubin=None if cubin is None else str(cubin),
    )


def _lost(timed: Timed | Missing) -> str:
    """Why the variant is not run again; empty if it is."""
    if isinstance(timed, Timed) and timed.status in {status.value for status in _NOT_RUN_AGAIN}:
        return f"not run again: it ended as {timed.status}: {timed.detail}"
    return ""


def _gpu_notes(steps: Sequence[StepFacts], device: DeviceFacts | Missing, peaks: Peaks | Missing) -> list[str]:
    """Where the GPU disagrees with the rules, and what makes its figures doubtful."""
    notes = []
    if isinstance(device, DeviceFacts) and not isinstance(device.steps, Missing):
        for ours, theirs in zip(steps, device.steps, strict=True):
            if isinstance(ours, KernelFacts) and isinstance(ours.occupancy, Occupancy):
                rule, granted = ours.occupancy.blocks, theirs.blocks_per_sm
                if granted is not None and granted != rule:
                    notes.append(f"{ours.kernel}: the driver grants {granted} blocks per SM, the rules say {rule}")
    if isinstance(peaks, Peaks) and peaks.shared_gpu:
        notes.append("other processes computed on this GPU while its peaks were measured: they may be too low")
    if isinstance(peaks, Peaks) and peaks.throttle:
        notes.append(f"the clock was held down while the peaks were measured: {', '.join(peaks.throttle)}")
    return notes


class _Clock:
    """Wall time by part."""

    def __init__(self, seconds: dict[str, float]) -> None:
        self._seconds = seconds
        self._since = perf_counter()

    def lap(self, name: str) -> None:
        now = perf_counter()
        self._seconds[name] = round(now - self._since, 3)
        self._since = now
