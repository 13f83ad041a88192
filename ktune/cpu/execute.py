"""Verification of a variant on the CPU: its plan on small problems, under several schedules and checks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import cycle, groupby
from pathlib import Path

import torch

from ktune.api import KernelLaunch, Plan, TorchOperation
from ktune.checks.verify import verify
from ktune.core.loading import LoadedFamily
from ktune.core.model import Accuracy, Problem, Status, Variant
from ktune.cpu.compiler import Check, CompileFault, ProgramStore
from ktune.cpu.process import ExecutionFault, Order, Schedule, run_ends, run_program
from ktune.cpu.source import host_source
from ktune.gpu.buffers import Region
from ktune.gpu.cases import BoundCase, Case, CaseCache, Draw, draws_of_kinds
from ktune.gpu.plans import bind_operation
from ktune.gpu.protocol import Verdict

CPU = torch.device("cpu")
SEED = 1
_OLDEST, _NEWEST = Schedule(Order.OLDEST_FIRST), Schedule(Order.NEWEST_FIRST)
# A pair of runs is compared bit for bit: what depends on the order of threads shows.
SCHEDULES = {
    Check.PLAIN: ((_OLDEST, _NEWEST), (Schedule(Order.RANDOM, 1), Schedule(Order.RANDOM, 2))),
    Check.ADDRESS: ((_NEWEST, Schedule(Order.RANDOM, 3)),),
    Check.RACES: ((_OLDEST, Schedule(Order.RANDOM, 4)),),
}
_CASES_BYTES = 1 << 28


@dataclass(frozen=True)
class Execution:
    """How a variant did on the CPU. `executable` is False where it can't run there, and nothing is known of it."""

    status: Status
    detail: str = ""
    accuracy: Accuracy | None = None
    executable: bool = True
    log: Path | None = None

    @property
    def right(self) -> bool:
        return self.status is Status.OK


class Executor:
    """Executes the variants of one family. Not for use from several threads, but for `compile`."""

    def __init__(self, loaded: LoadedFamily, store: ProgramStore, *, timeout_s: float = 120.0) -> None:
        self._loaded = loaded
        self._store = store
        self._timeout_s = timeout_s
        self._cases = CaseCache(lambda draw: Case(loaded, draw, CPU), _CASES_BYTES)

    def compile(self, variant: Variant, check: Check, source: str | None = None) -> Path | None:
        """The program of a variant, None for one without kernels. Raises CompileFault.

        source: C++ in place of the variant's own, as `host_source` makes it.
        """
        source = host_source(self._loaded, variant) if source is None else source
        return self._store.program(source, check, variant.family) if source else None

    def verify(
        self,
        variant: Variant,
        problems: Sequence[Problem],
        checks: Iterable[Check] = (Check.PLAIN,),
        source: str | None = None,
        *,
        kinds_at: Problem | None = None,
    ) -> Execution:
        """Each check in turn, on every problem and under every schedule, up to the first fault.

        kinds_at: a problem on which every kind of the family's inputs is tried, too.
        """
        found = Verdict(Status.OK)
        draws = [Draw(problem, SEED) for problem in problems]
        if kinds_at is not None:
            draws += draws_of_kinds(self._loaded.family, kinds_at, SEED)
        try:
            for check in checks:
                program = self.compile(variant, check, source)
                verdict = verify(self._subjects(variant, program, draws, SCHEDULES[check]))
                found = verdict if found.accuracy is None else Verdict(verdict.status, verdict.detail, found.accuracy)
                if found.status is not Status.OK:
                    break
        except CompileFault as fault:
            return _of_compile_fault(fault)
        except ExecutionFault as fault:
            if fault.status is None:
                return Execution(Status.INVALID, str(fault), executable=False)
            return Execution(fault.status, str(fault))
        return Execution(found.status, found.detail, found.accuracy)

    def verify_far(self, variant: Variant, problems: Sequence[Problem], *, source: str | None = None) -> Execution:
        """The ends of each problem's grid stay within tensors of more than 2^31 elements. Values are not looked at."""
        family = self._loaded.family
        try:
            program = self.compile(variant, Check.PLAIN, source)
        except CompileFault as fault:
            return _of_compile_fault(fault)
        for problem in problems:
            plan = family.plan(variant.configuration, problem)
            launches = [launch for launch in plan.launches if isinstance(launch, KernelLaunch)]
            if program is None or not launches:
                continue
            tensors = [*family.inputs(problem), *family.outputs(problem), *plan.workspace]
            try:
                run_ends(program, launches, tensors, self._timeout_s)
            except ExecutionFault as fault:
                if fault.status is None:
                    return Execution(Status.INVALID, str(fault), executable=False)
                if fault.status is not Status.LAUNCH_FAILED:
                    return Execution(fault.status, f"{fault} at {problem.label}")
        return Execution(Status.OK)

    def _subjects(
        self,
        variant: Variant,
        program: Path | None,
        draws: Sequence[Draw],
        schedules: Sequence[Sequence[Schedule]],
    ) -> Iterator[BoundCase]:
        for draw in draws:
            case = self._cases.get(draw)
            self._cases.trim([case])
            plan = self._loaded.family.plan(variant.configuration, draw.problem)
            workspace = [Region(tensor, CPU) for tensor in plan.workspace]
            regions = {**case.regions, **{region.name: region for region in workspace}}
            for pair in schedules:
                subject = BoundCase(case, workspace, [self._steps(plan, program, regions, draw.problem, pair)])
                subject.label = f"{case.label} ({', '.join(schedule.label for schedule in pair)})"
                yield subject

    def _steps(
        self,
        plan: Plan,
        program: Path | None,
        regions: dict[str, Region],
        problem: Problem,
        schedules: Sequence[Schedule],
    ) -> Callable[[], None]:
        """One call runs the plan once, under the next of the schedules."""
        turns = cycle(schedules)

        def run() -> None:
            schedule = next(turns)
            for are_kernels, group in groupby(plan.launches, lambda launch: isinstance(launch, KernelLaunch)):
                if not are_kernels:
                    for operation in group:
                        assert isinstance(operation, TorchOperation)
                        tensors = {name: region.tensor for name, region in regions.items()}
                        bind_operation(self._loaded, operation, tensors)()
                    continue
                launches = [launch for launch in group if isinstance(launch, KernelLaunch)]
                assert program is not None, "a plan that launches kernels has a source"
                try:
                    run_program(program, launches, regions, schedule, self._timeout_s)
                except ExecutionFault as fault:
                    where = f"{fault} in check {problem.label} ({schedule.label})"
                    raise ExecutionFault(fault.status, str(fault) if fault.status is None else where) from fault

        return run


def _of_compile_fault(fault: CompileFault) -> Execution:
    """The source's own laws fail a build; all else is something of CUDA that this machine's compiler lacks."""
    if "static assertion failed" in str(fault) or "static_assert" in str(fault):
        return Execution(Status.BUILD_FAILED, str(fault), log=fault.log)
    return Execution(Status.INVALID, f"not executable on the CPU: {fault}", executable=False, log=fault.log)
