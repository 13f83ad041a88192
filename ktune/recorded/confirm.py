"""What needs no GPU, done for real: the replayed winner is built with nvcc and executed on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ktune.api import KernelLaunch
from ktune.core.errors import EnvironmentFault
from ktune.core.loading import LoadedFamily
from ktune.core.model import BuildFacts, Measurement, Request, Status
from ktune.core.settings import Settings


@dataclass(frozen=True)
class Confirmation:
    """One of the two. done: it was tried here, else `text` says what is missing; right: no fault was found."""

    what: str
    text: str
    done: bool = True
    right: bool = True

    @property
    def line(self) -> str:
        return f"{self.what if self.done else 'left out':<9} {self.text}"


def build_winner(winner: Measurement, loaded: LoadedFamily, settings: Settings, nvcc: Path | None) -> Confirmation:
    """Build the winner with this machine's nvcc and compare with what was built when it was recorded."""
    from ktune.build.builder import Builder
    from ktune.build.toolchain import find_toolchain

    try:
        toolchain = find_toolchain(settings, nvcc)
        with Builder(loaded, toolchain, settings.cache_dir, jobs=1) as builder:
            built = next(builder.build([winner.variant]))
    except EnvironmentFault as fault:
        return Confirmation("built", f"building the winner: {fault}", done=False)
    if built.status is not Status.OK:
        return Confirmation("built", f"fails with {toolchain.label}: {built.detail}; log: {built.log}", right=False)
    if built.facts is None:
        return Confirmation("built", "nothing: this configuration has no kernel of its own")
    parts = [_resources(built.facts, winner, loaded), *_instructions(winner, loaded, built.cubin, built.log, settings)]
    return Confirmation("built", f"{', '.join(parts)} ({toolchain.label}); {_compared(built.facts, winner.build)}")


def execute_winner(winner: Measurement, loaded: LoadedFamily, settings: Settings) -> Confirmation:
    """Execute the winner on the CPU, on small problems, against the float64 reference."""
    try:
        from ktune.cpu.evaluator import CpuEvaluator
        from ktune.cpu.execute import SCHEDULES
    except ImportError as error:
        install = f"{sys.executable} -m pip install {error.name or 'torch'} (torch's build for CPUs is enough)"
        missing = f"executing it on the CPU needs {error.name or 'torch'}, which is not installed; {install}"
        return Confirmation("executed", missing, done=False)
    from ktune.cpu.compiler import Check
    from ktune.cpu.problems import small_problems

    try:
        evaluator = CpuEvaluator(loaded, settings.cache_dir, settings.path, jobs=1)
    except EnvironmentFault as fault:
        return Confirmation("executed", f"executing it on the CPU: {fault}", done=False)
    try:
        found = next(iter(evaluator.evaluate([Request(0, winner.variant, winner.problem)])))
    finally:
        evaluator.close()
    if found.status is Status.INVALID:
        return Confirmation("executed", f"executing the winner: {found.detail}", done=False)
    if found.status is not Status.OK:
        return Confirmation("executed", f"on the CPU: {found.status}: {found.detail}", right=False)
    problems = len(small_problems(loaded, winner.variant, winner.problem))
    schedules = sum(map(len, SCHEDULES[Check.PLAIN]))
    worst = f", error {found.accuracy.worst_ratio:.2g} of tolerance" if found.accuracy else ""
    return Confirmation(
        "executed",
        f"on the CPU: right on {problems} small problems under {schedules} schedules{worst} "
        "(not a verification on a GPU)",
    )


def confirmations(
    winner: Measurement, loaded: LoadedFamily, settings: Settings, nvcc: Path | None, say: Callable[[str], None]
) -> list[Confirmation]:
    """Both, with a word before each that may take a while."""
    say("building the winner ...")
    built = build_winner(winner, loaded, settings, nvcc)
    say("executing the winner on the CPU ...")
    return [built, execute_winner(winner, loaded, settings)]


def _resources(facts: BuildFacts, winner: Measurement, loaded: LoadedFamily) -> str:
    spilled = facts.spill_store_bytes + facts.spill_load_bytes
    launches = loaded.family.plan(winner.variant.configuration, winner.problem).launches
    dynamic = max((x.smem_bytes for x in launches if isinstance(x, KernelLaunch)), default=0)
    spills = f"{spilled} bytes of spills" if spilled else "no spills"
    return f"{facts.registers} registers, {spills}, {facts.smem_static_bytes + dynamic:,} bytes of shared memory"


def _instructions(
    winner: Measurement, loaded: LoadedFamily, cubin: Path | None, log: Path | None, settings: Settings
) -> list[str]:
    """The number of SASS instructions of all kernels, where a disassembler is installed."""
    from ktune.profile.mix import Mix
    from ktune.profile.model import KernelFacts
    from ktune.profile.static import step_facts
    from ktune.profile.tools import INSTALL_DISASSEMBLERS

    plan = loaded.family.plan(winner.variant.configuration, winner.problem)
    steps = [s for s in step_facts(plan, cubin, log, winner.variant.target, settings) if isinstance(s, KernelFacts)]
    counts = [step.instructions.total for step in steps if isinstance(step.instructions, Mix)]
    if not steps or len(counts) < len(steps):
        return [f"instructions not counted (no disassembler: {INSTALL_DISASSEMBLERS})"]
    return [f"{sum(counts):,} SASS instructions"]


def _compared(built: BuildFacts, recorded: BuildFacts | None) -> str:
    if recorded is None:
        return "what was recorded does not say what was built"
    if built.code_digest == recorded.code_digest:
        return "the machine code that was recorded"
    if built.compiler != recorded.compiler:
        why = f"it was built with {recorded.compiler}"
    elif built.key != recorded.key:
        why = "the kernel or its flags changed since"
    else:
        why = "the compiler is the same, its output is not"
    registers = "" if built.registers == recorded.registers else f", which has {recorded.registers} registers"
    return f"not the machine code that was recorded{registers}: {why}"
