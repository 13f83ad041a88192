"""What the build alone tells about a plan: resources, occupancy and instructions of each of its kernels."""

from __future__ import annotations

import re
from pathlib import Path

from ktune.api import KernelLaunch, Plan, TorchOperation
from ktune.build.ptxas import KernelResources, parse_resources
from ktune.core.errors import FamilyError
from ktune.core.settings import Settings
from ktune.profile.loops import IrregularFlow, main_loop
from ktune.profile.mix import LOCAL_LOADS, LOCAL_STORES, Mix, count
from ktune.profile.model import KernelFacts, Missing, OperationFacts, StepFacts
from ktune.profile.occupancy import Footprint, Occupancy, known_targets, limits_of, occupancy
from ktune.profile.sass import Function
from ktune.profile.tools import disassemble

_ENTRY = re.compile(r"Compiling entry function '([^']+)'")
_BARRIERS = re.compile(r"Used \d+ registers, used (\d+) barriers")


def step_facts(plan: Plan, cubin: Path | None, log: Path | None, target: str, settings: Settings) -> list[StepFacts]:
    """One entry a step of the plan. `cubin` and `log` are None for a plan of torch operations alone."""
    text = log.read_text(errors="replace") if log is not None and log.is_file() else ""
    resources, barriers = parse_resources(text), parse_barriers(text)
    launched = frozenset(step.kernel for step in plan.launches if isinstance(step, KernelLaunch))
    functions: dict[str, Function] | Missing = {}
    if cubin is not None and launched:
        functions = disassemble(cubin, launched, settings)
    facts: list[StepFacts] = []
    for step in plan.launches:
        if isinstance(step, TorchOperation):
            facts.append(OperationFacts(step.function))
            continue
        if step.kernel not in resources:
            raise FamilyError(
                f"the plan launches {step.kernel!r}; its source defines {', '.join(sorted(resources)) or 'no kernel'}"
            )
        facts.append(kernel_facts(step, resources[step.kernel], barriers.get(step.kernel), functions, target))
    return facts


def kernel_facts(
    launch: KernelLaunch,
    resources: KernelResources,
    barriers: int | None,
    functions: dict[str, Function] | Missing,
    target: str,
) -> KernelFacts:
    """What is known of one launch without running it."""
    x, y, z = launch.block
    footprint = Footprint(
        x * y * z, resources.registers, resources.smem_static_bytes + launch.smem_bytes, barriers or 0
    )
    instructions, loop = _mixes(launch.kernel, functions)
    return KernelFacts(
        kernel=launch.kernel,
        grid=launch.grid,
        block=launch.block,
        cluster=launch.cluster,
        smem_dynamic_bytes=launch.smem_bytes,
        smem_static_bytes=resources.smem_static_bytes,
        registers=resources.registers,
        stack_bytes=resources.stack_bytes,
        spill_store_bytes=resources.spill_store_bytes,
        spill_load_bytes=resources.spill_load_bytes,
        barriers=barriers,
        occupancy=_occupancy(footprint, target),
        instructions=instructions,
        main_loop=loop,
    )


def parse_barriers(log: str) -> dict[str, int]:
    """{kernel: named barriers} of a log of `-Xptxas -v`; a kernel whose line does not tell is absent."""
    found: dict[str, int] = {}
    kernel = ""
    for line in log.splitlines():
        if entry := _ENTRY.search(line):
            kernel = entry[1]
        elif kernel and (used := _BARRIERS.search(line)):
            found.setdefault(kernel, int(used[1]))
    return found


def static_notes(steps: list[StepFacts]) -> list[str]:
    """What the build alone gives reason to look at."""
    notes = []
    for step in steps:
        if isinstance(step, OperationFacts):
            notes.append(f"{step.function} is a torch operation: its registers and instructions are the library's")
            continue
        spilled = step.spill_store_bytes + step.spill_load_bytes
        if spilled:
            notes.append(f"{step.kernel} spills: {spilled} bytes of stores and loads go to local memory")
        if isinstance(step.main_loop, Mix):
            local = sum(step.main_loop.counts.get(name, 0) for name in (LOCAL_LOADS, LOCAL_STORES))
            if local:
                notes.append(f"{step.kernel} has {local} local-memory accesses in its main loop")
        if isinstance(step.occupancy, Occupancy) and step.occupancy.blocks == 0:
            notes.append(f"{step.kernel} does not fit on an SM: one block takes too much of {step.occupancy.limiter}")
        if step.cluster != (1, 1, 1):
            notes.append(f"{step.kernel} runs in clusters, which may leave room on an SM unused: only a GPU can tell")
    return notes


def _occupancy(footprint: Footprint, target: str) -> Occupancy | Missing:
    limits = limits_of(target)
    if limits is None:
        return Missing(f"the limits of {target} are not in the table, which has {', '.join(known_targets())}")
    return occupancy(footprint, limits)


def _mixes(kernel: str, functions: dict[str, Function] | Missing) -> tuple[Mix | Missing, Mix | Missing]:
    """Of the whole kernel and of its main loop."""
    if isinstance(functions, Missing):
        return functions, functions
    function = functions[kernel]
    try:
        loop = main_loop(function)
    except IrregularFlow as irregular:
        return count(function.instructions), Missing(str(irregular))
    return count(function.instructions), count(loop) if loop else Missing("no loop")
