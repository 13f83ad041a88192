"""Where measurements come from: the one place that a test replaces by a fake GPU."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ktune.core.loading import LoadedFamily
from ktune.core.model import Problem, Variant
from ktune.core.variant import HOPPER

if TYPE_CHECKING:
    from ktune.search.evaluator import Evaluator


@dataclass(frozen=True)
class EvaluatorOptions:
    """What a command was told about the machine. results, study: where the study of `problem` will lie."""

    problem: Problem
    results: Path
    study: str = ""
    gpu: str = ""
    jobs: int | None = None
    nvcc: Path | None = None
    on_event: Callable[[str], None] = lambda sentence: None


def make_evaluator(loaded: LoadedFamily, options: EvaluatorOptions) -> Evaluator:
    """The GPU of this machine, behind its builder and worker.

    Raises EnvironmentFault, in a moment, for whatever the machine lacks.
    """
    from ktune.build.toolchain import check_toolchain, find_toolchain
    from ktune.cli.machine import check_driver, require_gpu, target_of
    from ktune.core.settings import read_settings

    settings = read_settings()
    gpu = require_gpu(settings, options.gpu)
    toolchain = find_toolchain(settings, options.nvcc)
    check_driver(gpu, toolchain)
    check_toolchain(toolchain, target_of(gpu))

    from ktune.build.builder import Builder
    from ktune.cli.gpu_evaluator import GpuEvaluator
    from ktune.study.naming import study_folder

    folder = study_folder(options.results, loaded.name, options.problem, gpu.name, options.study or None)
    builder = Builder(loaded, toolchain, settings.cache_dir, jobs=options.jobs)
    return GpuEvaluator(loaded, builder, gpu, folder / "logs", options.on_event)


def make_cpu_evaluator(loaded: LoadedFamily, jobs: int | None, sanitize: bool) -> Evaluator:
    """This machine's CPU and C++ compiler. EnvironmentFault if it has none."""
    from ktune.core.settings import read_settings
    from ktune.cpu.evaluator import CpuEvaluator

    settings = read_settings()
    return CpuEvaluator(loaded, settings.cache_dir, settings.path, sanitize=sanitize, jobs=jobs)


def gpu_name_of(evaluator: Evaluator) -> str:
    """The GPU's model, known before its worker has started where that is possible."""
    name = getattr(evaluator, "gpu_name", None)
    return name if isinstance(name, str) else evaluator.environment.gpu_name


def target_of_evaluator(evaluator: Evaluator) -> str:
    """The architecture that this evaluator's variants are compiled for."""
    target = getattr(evaluator, "target", HOPPER)
    return target if isinstance(target, str) else HOPPER


def key_of(evaluator: Evaluator) -> Callable[[Variant], str] | None:
    """The build key that a variant has now; None where nothing is built."""
    key = getattr(evaluator, "build_key", None)
    return key if callable(key) else None
