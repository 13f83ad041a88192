"""What a profile is made of and with: the configuration that is meant, and this machine's compiler and GPU."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ktune.build.builder import Builder, BuildResult
from ktune.build.toolchain import Toolchain, find_toolchain
from ktune.cli.configurations import find_configuration
from ktune.cli.gpu_evaluator import GpuEvaluator
from ktune.cli.machine import check_driver, require_gpu, target_of
from ktune.cli.options import parse_problem, parse_space
from ktune.core.errors import UsageError
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Effort, Measurement, Problem, Request, Variant
from ktune.core.settings import Settings, read_settings
from ktune.core.space import Space
from ktune.core.variant import HOPPER
from ktune.gpu.nvml import GpuInfo, reason_no_gpu
from ktune.output.winner import load_winner
from ktune.profile.collect import Machine, Subject
from ktune.profile.device import Device
from ktune.profile.messages import Order
from ktune.profile.model import DeviceFacts, KernelCounters, Missing
from ktune.study.finding import find_study, latest_study
from ktune.study.study import Study


@dataclass(frozen=True)
class Wish:
    """What the command line says: which configuration of which problem, and where studies are."""

    loaded: LoadedFamily
    name: str
    problem: Sequence[str] | None
    narrowed: Sequence[str] | None
    study: str
    results: Path


@dataclass(frozen=True)
class Found:
    """folder: of the study that knows about it, None without one."""

    subject: Subject
    folder: Path | None


def find_subject(wish: Wish, say: Callable[[str], None]) -> Found:
    """The named configuration, else the winner of the study if `--set` allows it, else the default.

    The study is the one named, else the latest of the family and problem, if any. UsageError for what is not there.
    """
    past = _open_study(wish, say)
    if past is None:
        problem = _problem_of_file(wish) or parse_problem(wish.loaded, wish.problem)
        space = parse_space(wish.loaded, problem, wish.narrowed)
        configuration, chosen = _choose(wish, space, None)
        return Found(Subject(wish.loaded, problem, configuration, chosen), None)
    with past:
        problem = parse_problem(wish.loaded, wish.problem) if wish.problem else past.problem
        if problem != past.problem:
            raise UsageError(
                f"study {past.name} is of {past.problem.label}, --problem asks for {problem.label}; "
                "leave one of --study and --problem out"
            )
        space = parse_space(wish.loaded, problem, wish.narrowed)
        configuration, chosen = _choose(wish, space, past)
        known = _measurement_of(past, configuration)
        origin = "" if known is None else f"study {past.name}, #{known.trial}"
        return Found(Subject(wish.loaded, problem, configuration, chosen, known, origin), past.folder)


def open_machine(
    loaded: LoadedFamily,
    wanted_gpu: str,
    nvcc: Path | None,
    log_dir: Path,
    counters: bool,
    calibrate: bool,
    say: Callable[[str], None],
) -> Machine:
    """This machine's compiler, and its GPU if it has one; a GPU that was asked for and is not there is a fault."""
    settings = read_settings()
    toolchain = find_toolchain(settings, nvcc)
    builds = NvccBuilds(toolchain, settings)
    reason = "" if wanted_gpu else reason_no_gpu(settings)
    if reason:
        return Machine(HOPPER, builds, settings, None, reason, counters, calibrate, say)
    info = require_gpu(settings, wanted_gpu)
    check_driver(info, toolchain)
    gpu = LocalGpu(loaded, info, toolchain, settings, log_dir, say)
    return Machine(target_of(info), builds, settings, gpu, "", counters, calibrate, say)


class NvccBuilds:
    """Builds through the cache that searches use."""

    def __init__(self, toolchain: Toolchain, settings: Settings) -> None:
        self.label = toolchain.label
        self._toolchain = toolchain
        self._cache_dir = settings.cache_dir

    def key(self, loaded: LoadedFamily, variant: Variant) -> str:
        """ "" for a variant without kernels of its own."""
        with Builder(loaded, self._toolchain, self._cache_dir, jobs=1) as builder:
            return builder.key(variant)

    def build(self, loaded: LoadedFamily, variant: Variant) -> BuildResult:
        with Builder(loaded, self._toolchain, self._cache_dir, jobs=1) as builder:
            return next(builder.build([variant]))


class LocalGpu:
    """The GPU of this machine, through processes that each take its lock."""

    def __init__(
        self,
        loaded: LoadedFamily,
        info: GpuInfo,
        toolchain: Toolchain,
        settings: Settings,
        log_dir: Path,
        say: Callable[[str], None],
    ) -> None:
        self.name, self.uuid, self.driver = info.name, info.uuid, info.driver
        self._loaded, self._info, self._toolchain, self._settings = loaded, info, toolchain, settings
        self._log_dir, self._say = log_dir, say
        self._device = Device(info.uuid, log_dir / "profile.log", settings, say)

    def measure(self, variant: Variant, problem: Problem) -> Measurement:
        """By the full protocol, verified first, in an isolated worker."""
        builder = Builder(self._loaded, self._toolchain, self._settings.cache_dir, jobs=1)
        evaluator = GpuEvaluator(self._loaded, builder, self._info, self._log_dir, self._say)
        try:
            return next(iter(evaluator.evaluate(iter([Request(0, variant, problem, Effort.FULL)]))))
        finally:
            evaluator.close()

    def look(self, order: Order) -> DeviceFacts:
        return self._device.look(order)

    def count(self, order: Order) -> tuple[KernelCounters, ...] | Missing:
        return self._device.count(order)


def _open_study(wish: Wish, say: Callable[[str], None]) -> Study | None:
    loaded = wish.loaded
    if wish.study:
        past = find_study(wish.results, wish.study, loaded.family)
        if past.family == loaded.name:
            return past
        past.close()
        raise UsageError(f"study {past.name} is of {past.family}, not of {loaded.name}; name that family")
    problem = parse_problem(loaded, wish.problem) if wish.problem else _problem_of_file(wish)
    try:
        return latest_study(wish.results, loaded.name, problem, loaded.family, replays_last=True)
    except UsageError as none:
        if wish.name.startswith("#"):
            raise
        say(str(none))
        return None


def _problem_of_file(wish: Wish) -> Problem | None:
    """The problem of a configuration that is named by its JSON file, unless `--problem` says another."""
    if not wish.name.endswith(".json") or wish.problem:
        return None
    loaded, problem, _ = load_winner(Path(wish.name))
    return problem if loaded.name == wish.loaded.name else None


def _choose(wish: Wish, space: Space, past: Study | None) -> tuple[Configuration, str]:
    """(configuration, how it was chosen)."""
    if wish.name:
        where = wish.study if past is None else str(past.folder)
        return find_configuration(wish.name, space, where, wish.results), f"named {wish.name}"
    best = past.best() if past is not None else None
    if past is not None and best is not None and _allows(space, best.variant.configuration):
        return best.variant.configuration, f"winner #{best.trial} of study {past.name}"
    return space.default, "the default" + (", with --set" if wish.narrowed else "")


def _allows(space: Space, configuration: Configuration) -> bool:
    """Whether a configuration of an earlier day is valid still, and within `--set`."""
    narrowed = all(configuration.get(name) in values for name, values in space.narrowing.items())

    try:
        return narrowed and space.complete(configuration) == configuration
    except UsageError:
        return False


def _measurement_of(past: Study, configuration: Configuration) -> Measurement | None:
    """The study's time of a configuration, the full one if there is one."""
    found = [m for m in past.measurements() if m.variant.configuration == configuration and m.cold is not None]
    return max(found, key=lambda m: m.effort is Effort.FULL, default=None)
