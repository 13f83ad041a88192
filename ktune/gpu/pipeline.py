"""The way of requests through the builder and the worker: one is measured while the next are compiled."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from time import monotonic
from typing import TYPE_CHECKING, Protocol

from ktune.core.errors import FamilyError, KtuneError
from ktune.core.identity import configuration_id, digest
from ktune.core.model import Effort, Measurement, Problem, Request, Source, Status, Variant
from ktune.gpu.assembly import measured, not_launched, same_code
from ktune.gpu.outcome import Outcome
from ktune.gpu.pool import WorkerPool
from ktune.gpu.protocol import Job

if TYPE_CHECKING:
    from ktune.api import Family
    from ktune.build.builder import BuildResult

# How long to look one way while something may come from the other.
GLANCE_S = 0.01
WAIT_S = 0.25


class Compiler(Protocol):
    """What is needed of `ktune.build.toolchain.Toolchain`."""

    @property
    def label(self) -> str: ...


class Builds(Protocol):
    """What is needed of `ktune.build.builder.Builder`."""

    @property
    def toolchain(self) -> Compiler: ...

    @property
    def jobs(self) -> int: ...

    def submit(self, variants: Sequence[Variant]) -> None: ...

    def next_result(self, timeout_s: float | None) -> BuildResult | None: ...


@dataclass(frozen=True)
class _Entry:
    """A request whose variant is built. `code` names what would run; "" where it must be measured itself."""

    request: Request
    built: BuildResult
    code: str = ""


class Pipeline:
    """Everything between a request that was added and its measurement in `finished`.

    fault: why no more will come, once that is so; what was finished before stays in `finished`.
    starved_s: seconds for which the worker could have measured but no build was ready.
    """

    def __init__(self, family: Family, builder: Builds, pool: WorkerPool, source: Source) -> None:
        self.finished: deque[Measurement] = deque()
        self.fault: KtuneError | None = None
        self.starved_s = 0.0
        self._family, self._builder, self._pool, self._source = family, builder, pool, source
        self._building: dict[Variant, list[Request]] = {}
        self._ready: deque[_Entry] = deque()
        self._measuring: deque[tuple[_Entry, Job]] = deque()
        self._known: dict[str, Measurement] = {}
        self._leaders: dict[str, _Entry] = {}
        self._followers: dict[str, list[_Entry]] = {}
        self._best_us: dict[Problem, float] = {}

    @property
    def open(self) -> int:
        """Requests without a measurement so far."""
        building = sum(len(requests) for requests in self._building.values())
        following = sum(len(entries) for entries in self._followers.values())
        return building + following + len(self._ready) + len(self._measuring)

    def expect(self, problem: Problem) -> None:
        """Have the worker prepare a problem whose requests are being collected."""
        try:
            self._pool.prepare(problem)
        except KtuneError as fault:
            self.fault = fault

    def add(self, requests: Sequence[Request]) -> None:
        """Start on requests: their variants are built. Their problems are `expect`ed."""
        new = []
        for request in requests:
            if request.variant not in self._building:
                new.append(request.variant)
            self._building.setdefault(request.variant, []).append(request)
        try:
            if new:
                self._builder.submit(new)
        except KtuneError as fault:
            self.fault = fault

    def advance(self, wait: bool) -> None:
        """Move everything on that can be; with `wait`, return after something happened or a moment."""
        try:
            self._take_builds(0.0)
            self._submit()
            starved = bool(self._building) and self._pool.idle and self._pool.ready
            began = monotonic()
            if wait and starved:
                self._take_builds(GLANCE_S)
            more_to_come = self._building and self._pool.room
            self._take_outcomes(0.0 if not wait or starved else GLANCE_S if more_to_come else WAIT_S)
            self.starved_s += monotonic() - began if starved else 0.0
            self._submit()
        except KtuneError as fault:
            self.fault = fault

    def _take_builds(self, timeout_s: float) -> None:
        while self._building:
            built = self._builder.next_result(timeout_s)
            if built is None:
                return
            timeout_s = 0.0
            for request in self._building.pop(built.variant, []):
                self._take_build(request, built)

    def _take_build(self, request: Request, built: BuildResult) -> None:
        if built.status is not Status.OK:
            self.finished.append(not_launched(request, built, built.status, built.detail, self._source))
            return
        entry = _Entry(request, built, self._code(request, built))
        known, leader = self._known.get(entry.code), self._leaders.get(entry.code)
        if known is not None and known.variant != request.variant:
            self._finish_twin(entry, known)
        elif leader is not None and leader.request.variant != request.variant:
            self._followers.setdefault(entry.code, []).append(entry)
        else:
            if entry.code:
                self._leaders[entry.code] = entry
            self._ready.append(entry)

    def _submit(self) -> None:
        while self._ready and self._pool.room:
            entry = self._ready.popleft()
            job = self._job(entry)
            self._measuring.append((entry, job))
            self._pool.submit(job)

    def _job(self, entry: _Entry) -> Job:
        request = entry.request
        limits = [request.cull_above_us, self._best_us.get(request.problem)]
        known = [limit for limit in limits if limit is not None]
        cull = request.patience * min(known) if known and request.effort is Effort.SEARCH else None
        cubin = None if entry.built.cubin is None else str(entry.built.cubin)
        thorough = request.thorough or request.effort is Effort.FULL
        return Job(request.trial, request.variant, request.problem, cubin, request.effort, cull, thorough)

    def _take_outcomes(self, timeout_s: float) -> None:
        for outcome in self._pool.poll(timeout_s):
            entry = self._entry_of(outcome)
            measurement = measured(entry.request, entry.built, outcome, self._source)
            if measurement.eligible and measurement.cold is not None:
                best = self._best_us.get(measurement.problem, measurement.cold.median_us)
                self._best_us[measurement.problem] = min(best, measurement.cold.median_us)
            self._finish(entry, measurement)

    def _entry_of(self, outcome: Outcome) -> _Entry:
        entry, job = self._measuring.popleft()
        assert job is outcome.job, "the pool answers in the order of its jobs"
        return entry

    def _finish(self, entry: _Entry, measurement: Measurement) -> None:
        self.finished.append(measurement)
        if self._leaders.get(entry.code) is entry:
            del self._leaders[entry.code]
            self._known[entry.code] = measurement
            for follower in self._followers.pop(entry.code, []):
                self._finish_twin(follower, measurement)

    def _finish_twin(self, entry: _Entry, twin: Measurement) -> None:
        self.finished.append(same_code(entry.request, entry.built, twin))

    def _code(self, request: Request, built: BuildResult) -> str:
        """A digest of the code and of all that it is launched with; "" where nothing can be reused.

        Full effort repeats a variant on purpose, for its noise: that is never answered by a twin.
        """
        facts = built.facts
        if request.effort is not Effort.SEARCH or facts is None or not facts.code_digest:
            return ""
        configuration = request.variant.configuration
        try:
            problems = [request.problem, *self._family.checks(configuration, request.problem)]
            plans = [repr(self._family.plan(configuration, problem)) for problem in problems]
        except Exception as error:
            name = configuration_id(self._family, configuration)
            raise FamilyError(
                f"{self._family.name} has no plan for {name}: {type(error).__name__}: {error}; "
                "`checks` and `plan` must answer for every valid configuration"
            ) from error
        return digest([facts.code_digest, request.variant.target, repr(request.thorough), *map(repr, problems), *plans])
