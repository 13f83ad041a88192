"""A GPU that answers from a formula: drives search, ledger, report and every command without hardware."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from datetime import UTC, datetime

from ktune.core.model import (
    Accuracy,
    BuildFacts,
    Environment,
    Measurement,
    Problem,
    Request,
    Source,
    Status,
    Timing,
    Variant,
)
from ktune.gpu.protocol import Entrant, RaceResult

ENVIRONMENT = Environment(
    gpu_name="Fake H200",
    gpu_uuid="GPU-00000000-fake",
    driver="580.0",
    cuda_driver="13.0",
    compiler="nvcc 13.0.88",
    torch="2.11.0",
    ktune="0.1.0",
    power_limit_w=700.0,
    sm_count=132,
    l2_bytes=60 << 20,
    memory_bytes=140 << 30,
    foreign_processes=0,
)


def fake_time_us(request: Request) -> float:
    """A smooth bowl over the ordinals with a little deterministic noise; the same request, the same time."""
    total = 50.0
    for name, value in request.variant.configuration.items():
        seed = int(hashlib.sha256(f"{name}={value}".encode()).hexdigest()[:8], 16)
        total += seed / 0xFFFFFFFF * 40.0
    return total


def fake_timing(median: float, regime: str = "cold") -> Timing:
    samples = tuple(median * (1 + d) for d in (-0.002, -0.001, 0.0, 0.001, 0.002))
    return Timing(
        regime,
        "event",
        samples,
        median,
        samples[1],
        samples[3],
        samples[0],
        samples[1],
        samples[3],
        median * 0.001,
        1980,
        (),
    )


def fraction(*parts: object) -> float:
    """A number in [0, 1) that only its parts decide."""
    return int(hashlib.sha256(repr(parts).encode()).hexdigest()[:8], 16) / 2**32


def fake_peer_time_us(name: str) -> float:
    """Between 1.5 and 4.5 times 100 us, by the peer's name."""
    return 100.0 * (1.5 + 3.0 * fraction(name))


class FakeEvaluator:
    """Answers `evaluate` in the order asked. `status_of` plants failures; `lookahead` requests are pulled first.

    Races have a noise of 0.05 % that depends on the seed, on the process and on the entrant's name.
    peer_status_of: plants failures of peers; LAUNCH_FAILED is one that is not installed.
    """

    source = Source.FAKE
    environment = ENVIRONMENT

    def __init__(
        self,
        status_of: Callable[[Request], Status] = lambda request: Status.OK,
        lookahead: int = 4,
        peer_status_of: Callable[[str], Status] = lambda name: Status.OK,
    ) -> None:
        self.status_of = status_of
        self.peer_status_of = peer_status_of
        self.lookahead = lookahead
        self.evaluated: list[Request] = []
        self.races: list[tuple[Problem, tuple[Entrant, ...]]] = []
        self.processes = 1
        self.closed = False

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        waiting: list[Request] = []
        for request in requests:
            waiting.append(request)
            if len(waiting) >= self.lookahead:
                yield self.answer(waiting.pop(0))
        while waiting:
            yield self.answer(waiting.pop(0))

    def answer(self, request: Request) -> Measurement:
        self.evaluated.append(request)
        status = self.status_of(request)
        median = fake_time_us(request)
        code = hashlib.sha256(repr(request.variant).encode()).hexdigest()
        built = status is not Status.BUILD_FAILED
        timed = status in (Status.OK, Status.CULLED)
        return Measurement(
            trial=request.trial,
            variant=request.variant,
            problem=request.problem,
            status=status,
            source=self.source,
            effort=request.effort,
            detail="" if status is Status.OK else f"planted: {status}",
            build=BuildFacts(code, code, 40, 0, 0, 0, 0, 0.1, False, "nvcc 13.0.88") if built else None,
            accuracy=Accuracy(1e-6, 1e-6, 2.0, 1e-7, 0.02 if status is not Status.WRONG else 40.0, 0.0)
            if built
            else None,
            cold=fake_timing(median) if timed else None,
            hot=fake_timing(median * 0.9, "hot") if timed else None,
            bound_us=median if status is Status.CULLED else None,
            environment=self.environment,
            finished_at=datetime.now(UTC).isoformat(timespec="seconds"),
            seconds={"build": 0.1, "verify": 0.01, "time": 0.01},
        )

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], *, seed: int = 0, fresh: bool = False
    ) -> list[RaceResult]:
        self.processes += fresh
        self.races.append((problem, tuple(entrants)))
        return [self.raced(problem, entrant, seed) for entrant in entrants]

    def raced(self, problem: Problem, entrant: Entrant, seed: int) -> RaceResult:
        if entrant.variant is None:
            status, median = self.peer_status_of(entrant.peer or ""), fake_peer_time_us(entrant.peer or "")
            missing = f"not installed: pip install {entrant.peer}"
        else:
            request = Request(0, entrant.variant, problem)
            status, median, missing = self.status_of(request), fake_time_us(request), "planted: launch_failed"
        if status not in (Status.OK, Status.WRONG, Status.UNSTABLE):
            return RaceResult(entrant.name, status, missing if status is Status.LAUNCH_FAILED else f"planted: {status}")
        median *= 1.0 + 0.001 * (fraction(seed, self.processes, entrant.name) - 0.5)
        right = status is not Status.WRONG
        accuracy = Accuracy(1e-6, 1e-6, 2.0, 1e-7, 0.02 if right else 40.0, 0.0 if right else 0.5)
        detail = "" if status is Status.OK else f"planted: {status}"
        return RaceResult(entrant.name, status, detail, accuracy, fake_timing(median), fake_timing(0.9 * median, "hot"))

    def cubin_of(self, variant: Variant) -> str | None:
        built = self.status_of(Request(0, variant, Problem(variant.family, ()))) is not Status.BUILD_FAILED
        return f"{hashlib.sha256(repr(variant).encode()).hexdigest()}.cubin" if built else None

    def close(self) -> None:
        self.closed = True
