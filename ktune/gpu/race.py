"""A race: several entrants timed in turn on one GPU, so that what changes meanwhile changes for all. No CUDA here."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ktune.core.model import Status, Timing
from ktune.gpu.assembly import demoted
from ktune.gpu.protocol import LaunchFault, RaceResult, Timings, Verdict
from ktune.gpu.timing import (
    BACK_OFFS_S,
    FULL_LIMIT,
    POWER_LIMIT,
    REST_S,
    Collector,
    Pace,
    Reading,
    Timer,
    joined,
    launches_per_sample,
    precise,
    rested,
    summarise,
)

# Of each regime, in each turn of an entrant.
TURN_SAMPLES = 5
LIMIT_S = 1.0

# An entrant slower than this takes one sample of each regime a turn, and may stop after three.
SLOW_US = 50_000.0
SLOW_SAMPLES = 3

Announce = Callable[[str, str], None]


class Runner(Protocol):
    """An entrant that is loaded. Each method may raise LaunchFault, which ends its race, or StickyFault.

    compiles: its first execution may take minutes, and is made by `warm_up`.
    """

    name: str
    compiles: bool

    def warm_up(self) -> None: ...

    def verify(self) -> Verdict: ...

    def poison(self) -> None:
        """Fill what it is to write with NaN."""
        ...

    def run(self) -> None:
        """Execute once; need not wait for it."""
        ...

    def recheck(self) -> Verdict:
        """What the last executions left behind. `damaged` is told whatever `verify` said; it is put right again."""
        ...


class RaceTimer(Timer, Protocol):
    """A timer that goes from one entrant to the next and back."""

    def bind(self, run: Callable[[], None], pace: Pace) -> None: ...


def run_race(
    runners: Sequence[Runner],
    timer: RaceTimer,
    floor_us: float,
    seed: int,
    announce: Announce,
    *,
    limit_s: float = LIMIT_S,
    now: Callable[[], float] = time.monotonic,
    pause: Callable[[float], None] = time.sleep,
) -> list[RaceResult]:
    """Verify each, then time all in rounds, in a new order each; one result per runner, in the order given.

    Rounds end when both medians of everyone are `precise`, or everyone who is not has spent `limit_s` seconds. What a
    turn's launches left behind is checked before the next one's turn. A wrong entrant is timed unless it changed
    memory that is not its own to write. Where a round meets the power limit, all samples so far are dropped, and every
    turn from then on begins after a rest of REST_S seconds. `announce(step, name)` is called before each step.
    """
    back_offs = list(BACK_OFFS_S)
    racers = []
    for runner in runners:
        verdict = _verified(runner, announce)
        # a wrong result may be had in less time than a right one
        least_us = 0.0 if verdict.status is Status.WRONG else floor_us
        racers.append(_Racer(runner, verdict, Collector(timer, least_us, pause, back_offs)))
    order = random.Random(seed)
    rest_s = 0.0
    while any(racer.wants_more(limit_s) for racer in racers):
        round_ = [racer for racer in racers if not racer.spent(limit_s)]
        order.shuffle(round_)
        for racer in round_:
            if rest_s:
                pause(rest_s)
            racer.take_turn(timer, announce, now)
        if not rest_s and any(racer.at_power_limit for racer in racers):
            rest_s = REST_S
            for racer in racers:
                racer.start_again(rest_s)
    return [racer.result() for racer in racers]


def _verified(runner: Runner, announce: Announce) -> Verdict:
    """LAUNCH_FAILED where it cannot run."""
    try:
        if runner.compiles:
            announce("compile", runner.name)
            runner.warm_up()
        announce("verify", runner.name)
        return runner.verify()
    except LaunchFault as fault:
        return Verdict(Status.LAUNCH_FAILED, str(fault))


def _nothing_read() -> Reading:
    return Reading(())


@dataclass
class _Racer:
    """A runner, what is known of it, and its samples so far."""

    runner: Runner
    verdict: Verdict
    collector: Collector
    pace: Pace = field(default_factory=Pace)
    cold: Reading = field(default_factory=_nothing_read)
    hot: Reading = field(default_factory=_nothing_read)
    launches: int = 1
    spent_s: float = 0.0
    rest_s: float = 0.0
    methods: tuple[str, str] = ("", "")
    failed: Verdict | None = None

    @property
    def out(self) -> bool:
        """Not timed, or not any more."""
        return self.failed is not None or self.verdict.damaged or self.verdict.status is Status.LAUNCH_FAILED

    @property
    def slow(self) -> bool:
        return bool(self.cold.samples_us) and statistics.median(self.cold.samples_us) >= SLOW_US

    @property
    def at_power_limit(self) -> bool:
        return POWER_LIMIT in self.cold.throttle or POWER_LIMIT in self.hot.throttle

    def start_again(self, rest_s: float) -> None:
        """Drop all samples; those to come are taken after rests of `rest_s` seconds."""
        self.cold = self.hot = _nothing_read()
        self.spent_s = 0.0
        self.rest_s = rest_s

    def spent(self, limit_s: float) -> bool:
        """Out, or has had its time or its samples."""
        fewest = min(len(self.cold.samples_us), len(self.hot.samples_us))
        return self.out or fewest >= FULL_LIMIT or (fewest >= SLOW_SAMPLES and self.spent_s >= limit_s)

    def wants_more(self, limit_s: float) -> bool:
        return not self.spent(limit_s) and not (precise(self.cold.samples_us) and precise(self.hot.samples_us))

    def take_turn(self, timer: RaceTimer, announce: Announce, now: Callable[[], float]) -> None:
        """A few samples of each regime, then the check of what they left behind."""
        announce("time", self.runner.name)
        try:
            self.runner.poison()
            began = now()
            timer.bind(self.runner.run, self.pace)
            self._sample()
            self.spent_s += now() - began
            self.methods = timer.method("cold", 1), timer.method("hot", self.launches)
            announce("recheck", self.runner.name)
            self._judge(self.runner.recheck())
        except LaunchFault as fault:
            self.failed = Verdict(Status.LAUNCH_FAILED, str(fault))

    def result(self) -> RaceResult:
        found = self.failed or self.verdict
        accuracy = found.accuracy or self.verdict.accuracy
        if self.out or not self.cold.samples_us or not self.hot.samples_us:
            return RaceResult(self.runner.name, found.status, found.detail, accuracy)
        cold, hot = (
            self._timing(regime, method, reading)
            for regime, method, reading in zip(("cold", "hot"), self.methods, (self.cold, self.hot), strict=True)
        )
        return RaceResult(self.runner.name, found.status, found.detail, accuracy, cold, hot)

    def _sample(self) -> None:
        if self.cold.samples_us:
            self._add_cold(self._portion)
        else:
            # how slow it is shows at the first sample
            self._add_cold(1)
            if not self.out and not self.slow:
                self._add_cold(TURN_SAMPLES - 1)
            if not self.out:
                self.launches = launches_per_sample(statistics.median(self.cold.samples_us))
        if not self.out:
            self._add_hot(self._portion)
        if self.hot.host_bound and not self.cold.host_bound:
            # it turned host-bound after the cold samples: the next turn takes them anew
            self.cold = _nothing_read()

    @property
    def _portion(self) -> int:
        return 1 if self.slow else TURN_SAMPLES

    def _add_cold(self, samples: int) -> None:
        more = self.collector.cold(samples)
        if isinstance(more, Timings):
            self._refuse(more)
        else:
            self.cold = joined(self.cold, more)

    def _add_hot(self, samples: int) -> None:
        more = self.collector.hot(samples, self.launches)
        if isinstance(more, Timings):
            self._refuse(more)
        else:
            self.hot = joined(self.hot, more)

    def _refuse(self, timings: Timings) -> None:
        """No usable time: that is all there is to say of a right entrant, and comes second for a wrong one."""
        if self.verdict.status is Status.OK:
            self.failed = Verdict(timings.status, timings.detail)
        else:
            self.failed = replace(self.verdict, detail=f"{self.verdict.detail}; {timings.detail}")

    def _judge(self, recheck: Verdict) -> None:
        if recheck.damaged:
            self.failed = recheck if self.verdict.status is Status.OK else replace(self.verdict, damaged=True)
        elif recheck.status is not Status.OK and self.verdict.status is Status.OK:
            status, detail = demoted(recheck)
            self.verdict = replace(recheck, status=status, detail=detail)

    def _timing(self, regime: str, method: str, reading: Reading) -> Timing:
        method = rested(method, self.rest_s)
        if self.slow:
            count, call_ms = len(reading.samples_us), statistics.median(reading.samples_us) / 1000.0
            method = f"{method}, only {count} samples since one takes {call_ms:.3g} ms"
        return summarise(regime, method, reading)
