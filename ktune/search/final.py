"""The final's races: the finalists and a second copy of the leader as control, in two processes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, cast

from ktune.core.model import Accuracy, Effort, Environment, Measurement, Problem, Source, Status, Timing, Variant
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.search.evaluator import Evaluator
from ktune.study.finals import NOISE_LIMIT_PERCENT, Finals, Lap, Pairs, RaceRecord
from ktune.study.ledger import timestamp
from ktune.study.ranking import Identify
from ktune.study.verdict import join_processes, paired_difference, spread_percent, usable

# SM clocks whose quotient is below this are the same clock.
STEADY_CLOCK = 1.015


class Racing(Protocol):
    """An evaluator that can time several variants in turn in one process."""

    source: Source

    @property
    def environment(self) -> Environment: ...

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], *, seed: int = 0, fresh: bool = False
    ) -> list[RaceResult]: ...

    def cubin_of(self, variant: Variant) -> str | None: ...


def racing(evaluator: Evaluator) -> Racing | None:
    """The evaluator as one that races; None if it can only answer requests."""
    return cast(Racing, evaluator) if hasattr(evaluator, "race") else None


@dataclass(frozen=True)
class Final:
    """What the races gave: full measurements of the finalists, and what to remember of the races.

    finals: None where a finalist failed. Then `measurements` holds the failures alone, and the race is to be run again.
    """

    measurements: tuple[Measurement, ...]
    finals: Finals | None = None


def race_finalists(evaluator: Racing, chosen: Sequence[Measurement], identify: Identify, seed: int = 0) -> Final:
    """Race the leader, its control and the others, then all of them again in a fresh process.

    chosen: short measurements, the leader's first. A full measurement holds the samples of both races, and its
    interval also the difference between the two.
    """
    entrants = _entrants(evaluator, chosen, identify)
    entrants.insert(1, replace(entrants[0], name=f"{entrants[0].name} (control)"))
    runs: list[list[RaceResult]] = [[] for _ in entrants]
    records = []
    for number, fresh in enumerate((False, True)):
        results = evaluator.race(chosen[0].problem, entrants, seed=seed + number, fresh=fresh)
        for run, result in zip(runs, results, strict=True):
            run.append(_with_time(result))
        laps = [_lap(run[-1], chosen[max(i - 1, 0)], identify, control=i == 1) for i, run in enumerate(runs)]
        records.append(RaceRecord(seed + number, fresh, tuple(laps)))
        # A control that fails is the leader's binary failing.
        found = zip(chosen, [runs[0] + runs[1], *runs[2:]], strict=True)
        failures = [_full(m, run, evaluator) for m, run in found if any(r.status is not Status.OK for r in run)]
        if failures:
            return Final(tuple(failures))
    times = [[r.cold for r in run if r.cold is not None] for run in runs]
    leader, control = times[:2]
    full = [_full(m, run, evaluator) for m, run in zip(chosen, [runs[0], *runs[2:]], strict=True)]
    noise = noise_percent(leader, control)
    told = noise_warnings(noise, [*leader, *control], evaluator.environment.foreign_processes)
    names = [identify(m.variant.configuration) for m in full]
    pairs = find_pairs(dict(zip(names, [leader, *times[2:]], strict=True)), control)
    return Final(tuple(full), Finals(noise, told, tuple(records), evaluator.environment.gpu_uuid, pairs=pairs))


def race_once(evaluator: Racing, chosen: Sequence[Measurement], identify: Identify, seed: int = 0) -> list[Measurement]:
    """Full measurements of all in one race, in the order given; nothing is said of the noise."""
    results = evaluator.race(chosen[0].problem, _entrants(evaluator, chosen, identify), seed=seed)
    return [_full(m, [_with_time(result)], evaluator) for m, result in zip(chosen, results, strict=True)]


def find_pairs(times: Mapping[str, Sequence[Timing]], control: Sequence[Timing]) -> Pairs | None:
    """How much longer each takes than the fastest, by pairs of samples; None where leader and control have no pairs.

    times: by configuration id the timings of each race, the leader's first; control: of the leader's second copy.
    """
    leader = next(iter(times.values()))
    same = paired_difference(control, leader)
    if same is None:
        return None
    fastest = min(times, key=lambda name: join_processes(times[name]).median_us)
    longer = {name: paired_difference(own, times[fastest]) for name, own in times.items()}
    return Pairs(fastest, {name: found for name, found in longer.items() if found is not None}, abs(same.percent))


def noise_percent(leader: Sequence[Timing], control: Sequence[Timing]) -> float | None:
    """The noise floor from a binary's times and its second copy's, race by race.

    The largest difference between the two copies in one race and between the races of one copy, in per cent.
    """
    pairs = [*zip(leader, control, strict=True), leader, control]
    return max((percent for pair in pairs if (percent := spread_percent(pair)) is not None), default=None)


def noise_warnings(noise: float | None, timings: Iterable[Timing], foreign_processes: int | None) -> tuple[str, ...]:
    """Why a noise floor above NOISE_LIMIT_PERCENT may be so high, as far as the timings of one binary show it."""
    if noise is None or noise <= NOISE_LIMIT_PERCENT:
        return ()
    clocks = [t.sm_clock_mhz for t in timings if t.sm_clock_mhz is not None]
    throttle = sorted({reason for t in timings for reason in t.throttle})
    reasons = []
    if clocks and max(clocks) > STEADY_CLOCK * min(clocks):
        reasons.append(f"the SM clock was between {min(clocks)} and {max(clocks)} MHz")
    if throttle:
        reasons.append(f"the GPU was throttled ({', '.join(throttle)})")
    if foreign_processes:
        reasons.append(f"other compute processes were on the GPU ({foreign_processes})")
    told = "; ".join(reasons) or "neither clocks, throttling nor other processes explain it"
    return (
        f"the noise floor is {noise:.2g} %, above {NOISE_LIMIT_PERCENT:g} %: {told}; "
        "smaller differences count as ties, a search on a quieter GPU tells more apart",
    )


def _entrants(evaluator: Racing, chosen: Sequence[Measurement], identify: Identify) -> list[Entrant]:
    return [Entrant(identify(m.variant.configuration), m.variant, evaluator.cubin_of(m.variant)) for m in chosen]


def _with_time(result: RaceResult) -> RaceResult:
    """The result, unstable if it passed without a time that is one."""
    if result.status is not Status.OK or usable(result.cold):
        return result
    return replace(result, status=Status.UNSTABLE, detail="the race gave it no time that is a positive number")


def _lap(result: RaceResult, m: Measurement, identify: Identify, *, control: bool) -> Lap:
    cold, hot = result.cold, result.hot
    return Lap(
        identify(m.variant.configuration),
        m.trial,
        result.status.value,
        control,
        cold.median_us if cold else None,
        cold.ci_low_us if cold else None,
        cold.ci_high_us if cold else None,
        hot.median_us if hot else None,
        cold.sm_clock_mhz if cold else None,
        cold.throttle if cold else (),
    )


def _full(m: Measurement, run: Sequence[RaceResult], evaluator: Racing) -> Measurement:
    """The full measurement that the results of one finalist make; the first failure, if there is any, is its status."""
    told = next((result for result in run if result.status is not Status.OK), run[-1])
    accuracies = [result.accuracy for result in run if result.accuracy is not None]
    return replace(
        m,
        status=told.status,
        detail=told.detail,
        source=evaluator.source,
        effort=Effort.FULL,
        accuracy=max(accuracies, key=_worst_ratio, default=m.accuracy),
        cold=_joined([result.cold for result in run]),
        hot=_joined([result.hot for result in run]),
        bound_us=None,
        environment=evaluator.environment,
        finished_at=timestamp(),
        seconds={},
    )


def _joined(timings: Sequence[Timing | None]) -> Timing | None:
    found = [t for t in timings if t is not None and usable(t)]
    return join_processes(found) if found else None


def _worst_ratio(accuracy: Accuracy) -> float:
    return math.inf if math.isnan(accuracy.worst_ratio) else accuracy.worst_ratio
