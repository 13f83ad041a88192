"""Searches of a completely recorded space, without a GPU: how soon each sampler is near the best."""

from __future__ import annotations

import math
import tempfile
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from ktune.core.model import Configuration, Measurement, Source
from ktune.core.space import Space
from ktune.recorded.evaluator import ReplayEvaluator
from ktune.recorded.table import RecordedTable
from ktune.search.run import search
from ktune.search.samplers import LearningSampler, Sampler, make_sampler
from ktune.study.ranking import eligible_time_us
from ktune.study.study import Study

KTUNE = "ktune"
SAMPLERS = ("random", "tpe", KTUNE)
NEAR_PERCENT = (5.0, 2.0, 1.0)


@dataclass(frozen=True)
class Run:
    """One simulated search. slowdowns[i]: the best time among the first i + 1 results over the recorded optimum.

    duplicates, invalid: proposals that were out before, and that are no point of the space. moved: suggestions of the
    estimator that would have been either, and became the nearest open point.
    """

    table: str
    sampler: str
    seed: int
    slowdowns: tuple[float, ...]
    duplicates: int
    invalid: int
    moved: int
    seconds: float

    def evaluations_to(self, percent: float) -> float:
        """How many results it took to be that near the optimum; infinite if it never was."""
        limit = 1 + percent / 100
        return next((float(i) for i, slowdown in enumerate(self.slowdowns, 1) if slowdown <= limit), math.inf)


@dataclass(frozen=True)
class Ending:
    """How a whole search ended, finalists included: how much slower than the optimum its winner is."""

    table: str
    seed: int
    winner: Configuration
    above_percent: float
    noise_percent: float

    @property
    def tied(self) -> bool:
        return self.above_percent <= self.noise_percent


def sampler_called(name: str, space: Space, trials: int, seed: int) -> Sampler:
    """One of SAMPLERS. The default configuration, and nothing else, is what each begins with."""
    first = [space.default]
    return make_sampler("gp" if name == KTUNE else name, space, trials=trials, seed=seed, first=first)


def simulate(
    label: str,
    space: Space,
    measurements: Mapping[Configuration, Measurement],
    sampler_name: str,
    *,
    seed: int,
    trials: int,
    in_flight: int,
) -> Run:
    """Search with that many proposals always on their way; they are answered in their order."""
    began = time.perf_counter()
    sampler = sampler_called(sampler_name, space, trials, seed)
    optimum = min(time_us for m in measurements.values() if (time_us := eligible_time_us(m)) is not None)
    asked: set[Configuration] = set()
    waiting: deque[Configuration] = deque()
    proposals = duplicates = invalid = 0
    best, slowdowns = math.inf, []
    while True:
        while proposals < trials and len(waiting) < in_flight and (point := sampler.ask()) is not None:
            proposals += 1
            duplicates += point in asked
            invalid += point not in measurements
            asked.add(point)
            if point in measurements:
                waiting.append(point)
        if not waiting:
            break
        m = measurements[waiting.popleft()]
        sampler.tell(m)
        best = min(best, eligible_time_us(m) or math.inf)
        slowdowns.append(best / optimum)
    moved = sampler.moved if isinstance(sampler, LearningSampler) else 0
    seconds = time.perf_counter() - began
    return Run(label, sampler_name, seed, tuple(slowdowns), duplicates, invalid, moved, seconds)


def search_to_the_end(
    label: str, space: Space, table: RecordedTable, *, seed: int, trials: int, in_flight: int, noise_percent: float
) -> Ending:
    """`ktune search --replay` with ktune's own sampler, in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="ktune-simulate-") as folder:
        gpu = table.environment.gpu_name
        with Study.open_or_create(Path(folder), space.family, table.problem, space, gpu, Source.REPLAYED) as study:
            outcome = search(study, space, ReplayEvaluator(table, in_flight), trials=trials, seed=seed)
    assert outcome.winner is not None, "a search whose end is not a winner raises"
    winner = outcome.winner.variant.configuration
    return Ending(label, seed, winner, above_optimum_percent(table, winner), noise_percent)


def above_optimum_percent(table: RecordedTable, point: Configuration) -> float:
    """How much slower than the recorded optimum a point is, like with like.

    By full measurements where the point has one and by short ones where it has not.
    """
    rivals = table.full if point in table.full else table.measurements
    times = [time_us for m in rivals.values() if (time_us := eligible_time_us(m)) is not None]
    return 100 * ((eligible_time_us(rivals[point]) or math.inf) / min(times) - 1)


@dataclass(frozen=True)
class Summary:
    """The runs of one sampler on one table, by how near the optimum they came."""

    table: str
    sampler: str
    percent: float
    median: float
    percentile_90: float
    never: int
    runs: int


def summarise(runs: Sequence[Run], percent: float) -> Summary:
    """Of runs of one sampler on one table. A search that never came so near counts as infinitely long."""
    counts = sorted(run.evaluations_to(percent) for run in runs)
    middle = len(counts) // 2
    median = counts[middle] if len(counts) % 2 else (counts[middle - 1] + counts[middle]) / 2
    tenth = counts[math.ceil(0.9 * len(counts)) - 1]
    never = sum(math.isinf(count) for count in counts)
    return Summary(runs[0].table, runs[0].sampler, percent, median, tenth, never, len(runs))


@dataclass(frozen=True)
class Band:
    """Regret in per cent after each result: the median of the runs, and where the middle 80 % of them are."""

    median: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


def regret_band(runs: Sequence[Run]) -> Band:
    """Infinite until something passed. Shorter runs, of spaces that ended, keep their last regret."""
    longest = max(len(run.slowdowns) for run in runs)
    bands = []
    for i in range(longest):
        regrets = sorted(100 * (run.slowdowns[min(i, len(run.slowdowns) - 1)] - 1) for run in runs)
        at = [(len(regrets) - 1) * share for share in (0.5, 0.1, 0.9)]
        bands.append(tuple(regrets[round(place)] for place in at))
    median, low, high = zip(*bands, strict=True)
    return Band(median, low, high)


def judge(summaries: Sequence[Summary]) -> list[str]:
    """What ktune's sampler owes and does not give, a sentence each.

    At most half of random's evaluations to within 2 % where random's median is 40 or more, and nowhere more than
    random's at the 90th percentile.
    """
    found = []
    by = {(s.table, s.sampler, s.percent): s for s in summaries}
    for (table, sampler, percent), own in by.items():
        chance = by.get((table, "random", percent))
        if sampler != KTUNE or chance is None:
            continue
        if percent == 2.0 and chance.median >= 40 and own.median > chance.median / 2:
            found.append(f"{table}: {own.median:g} evaluations to within 2 %, over half of random's {chance.median:g}")
        if own.percentile_90 > chance.percentile_90:
            found.append(
                f"{table}: {own.percentile_90:g} evaluations to within {percent:g} % at the 90th percentile, "
                f"over random's {chance.percentile_90:g}"
            )
    return found
