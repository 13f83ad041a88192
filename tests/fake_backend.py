"""A worker's backend without a GPU. A `behaviour` in the configuration says what a variant does to it.

Behaviours of whole processes come in the GPU's name: "dies_at_start", "raises_at_prepare", ..., each also
as "dies_at_start_once:/path", which happens only as long as nothing is at that path.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from fake_gpu import ENVIRONMENT, fake_peer_time_us, fake_time_us, fake_timing

from ktune.core.errors import EnvironmentFault
from ktune.core.model import Accuracy, Effort, Environment, Problem, Status
from ktune.gpu.protocol import Entrant, Job, LaunchFault, RaceResult, StickyFault, Timings, Verdict
from ktune.gpu.race import run_race
from ktune.gpu.timing import Reading

CULL_FACTOR = 1.4
RIGHT = Accuracy(1e-7, 1e-7, 1.0, 1e-8, 0.1, 0.0)
BAD = replace(RIGHT, worst_ratio=40.0, fraction_bad=0.5, first_bad=(0,), output="y", check="default")
NAN = replace(BAD, max_abs=math.nan, worst_ratio=math.nan)
WRONG = {
    "all_nan": Verdict(Status.WRONG, "y is NaN at 0", NAN),
    "last_nan": Verdict(Status.WRONG, "y is NaN at 999", NAN),
    "zeros": Verdict(Status.WRONG, "y is off by 40 times the tolerance", BAD),
    "writes_nothing": Verdict(Status.WRONG, "y is not written at 0", NAN),
    "writes_past_end": Verdict(Status.WRONG, "y[1000] was overwritten", RIGHT),
    "writes_before": Verdict(Status.WRONG, "y[-1] was overwritten", RIGHT),
    "changes_input": Verdict(Status.WRONG, "x was changed", RIGHT),
}


def fake_backend(family_folder: str, gpu: str) -> FakeBackend:
    if gpu == "none":
        raise EnvironmentFault("no GPU was found: the driver is not loaded")
    backend = FakeBackend(gpu)
    backend.misbehave("start")
    return backend


class FakeBackend:
    def __init__(self, gpu: str = "") -> None:
        self.gpu = gpu
        self.job: Job | None = None
        self.prepared: set[Problem] = set()

    def environment(self) -> Environment:
        return ENVIRONMENT

    def prepare(self, problem: Problem) -> None:
        self.misbehave("prepare")
        self.misbehave(f"prepare_{problem.label}")
        self.prepared.add(problem)

    def load(self, job: Job) -> None:
        assert job.problem in self.prepared, "a job came before its problem"
        self.job = job
        if self.behaviour == "too_much_shared_memory":
            raise LaunchFault("307200 bytes of shared memory, the GPU has 232448")

    def verify(self) -> Verdict:
        match self.behaviour:
            case "illegal_address":
                raise StickyFault("CUDA_ERROR_ILLEGAL_ADDRESS")
            case "endless_loop":
                spin()
            case "abort":
                os.abort()
            case "exits":
                os._exit(3)
            case "defect":
                raise ZeroDivisionError("planted")
            case "spoils_unload":
                return Verdict(Status.OK, "", RIGHT)
        return WRONG.get(self.behaviour, Verdict(Status.OK, "", RIGHT))

    def time(self) -> Timings:
        if self.behaviour == "endless_in_time":
            spin()
        if self.behaviour == "slow":
            time.sleep(0.1)
        if self.behaviour == "restless":
            return Timings(Status.UNSTABLE, "samples vary by 40 %", cold=fake_timing(100.0))
        median = fake_time_us(self.job)
        limit = self.job.cull_above_us
        if limit is not None and median > CULL_FACTOR * limit:
            return Timings(Status.CULLED, f"slower than {limit:.1f} us", bound_us=median)
        return Timings(Status.OK, "", cold=fake_timing(median), hot=fake_timing(0.9 * median, "hot"))

    def recheck(self) -> Verdict:
        if self.behaviour == "sometimes_right":
            return Verdict(Status.WRONG, "y[0] is off", BAD)
        if self.behaviour == "late_overrun":
            return Verdict(Status.WRONG, "y[1000] was overwritten", RIGHT)
        return Verdict(Status.OK, "", RIGHT)

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], seed: int, step: Callable[[str, str], None]
    ) -> list[RaceResult]:
        assert problem in self.prepared, "a race came before its problem"
        runners, results = [], {}
        for entrant in entrants:
            step("load", entrant.name)
            if entrant.peer == "missing":
                fault = "not installed: pip install missing"
                results[entrant.name] = RaceResult(entrant.name, Status.LAUNCH_FAILED, fault)
            else:
                runners.append(FakeRunner(self, problem, entrant))
        results |= {r.name: r for r in run_race(runners, FakeRaceTimer(), 0.0, seed, step)}
        return [results[entrant.name] for entrant in entrants]

    def unload(self) -> None:
        if self.behaviour == "spoils_unload":
            raise StickyFault("CUDA_ERROR_ILLEGAL_ADDRESS")

    def close(self) -> None:
        print("closed", flush=True)

    @property
    def behaviour(self) -> str:
        return str(self.job.variant.configuration.get("behaviour", "good"))

    def misbehave(self, step: str) -> None:
        wish, _, path = self.gpu.partition(":")
        if not wish.removesuffix("_once").endswith(f"_at_{step}"):
            return
        if wish.endswith("_once"):
            if Path(path).exists():
                return
            Path(path).touch()
        match wish.split("_")[0]:
            case "dies":
                os.abort()
            case "raises":
                raise RuntimeError("planted: out of memory")
            case "hangs":
                spin()


class FakeRunner:
    """An entrant that behaves as its configuration says, or as the peer's name does: "aborts", "hangs", "wrong"."""

    def __init__(self, backend: FakeBackend, problem: Problem, entrant: Entrant) -> None:
        self.name, self.compiles = entrant.name, entrant.variant is None
        self.backend, self.peer = backend, entrant.peer
        self.job = None
        if entrant.variant is not None:
            self.job = Job(0, entrant.variant, problem, entrant.cubin, Effort.FULL)

    def warm_up(self) -> None:
        if self.peer == "aborts":
            os.abort()

    def verify(self) -> Verdict:
        if self.job is None:
            return Verdict(Status.WRONG, "planted", BAD) if self.peer == "wrong" else Verdict(Status.OK, "", RIGHT)
        self.backend.load(self.job)
        return self.backend.verify()

    def poison(self) -> None:
        pass

    def run(self) -> None:
        pass

    def recheck(self) -> Verdict:
        if self.job is None:
            return Verdict(Status.OK)
        self.backend.job = self.job
        return self.backend.recheck()

    def time_us(self) -> float:
        if self.job is None:
            if self.peer == "hangs":
                spin()
            return fake_peer_time_us(str(self.peer))
        self.backend.job = self.job
        timings = self.backend.time()
        return timings.cold.median_us if timings.cold else 0.0


class FakeRaceTimer:
    """Reads the same time at each sample of an entrant."""

    def bind(self, run: Callable[[], None], pace: object) -> None:
        self.time_us = run.__self__.time_us()  # type: ignore[attr-defined]

    def cold(self, samples: int) -> Reading:
        return Reading((self.time_us,) * samples, 1980)

    def hot(self, samples: int, launches: int) -> Reading:
        return Reading((0.9 * self.time_us,) * samples, 1980)

    def method(self, regime: str, launches: int) -> str:
        return f"fake {regime}"


def spin() -> None:
    while True:
        pass
