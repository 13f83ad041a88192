"""A GPU that answers from a formula: drives search, ledger, report and every command without hardware."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator
from datetime import UTC, datetime

from ktune.core.model import (
    Accuracy,
    BuildFacts,
    Environment,
    Measurement,
    Request,
    Source,
    Status,
    Timing,
)

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


class FakeEvaluator:
    """Answers `evaluate` in the order asked. `status_of` plants failures; `lookahead` requests are pulled first."""

    source = Source.FAKE
    environment = ENVIRONMENT

    def __init__(self, status_of: Callable[[Request], Status] = lambda request: Status.OK, lookahead: int = 4) -> None:
        self.status_of = status_of
        self.lookahead = lookahead
        self.evaluated: list[Request] = []
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

    def close(self) -> None:
        self.closed = True
