"""From short times to a winner: look around the leader and simplify it, choose the finalists, measure them in full."""

from __future__ import annotations

import math
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from itertools import chain, zip_longest

from ktune.core.model import Configuration, Effort, Measurement, Request
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.search.estimator import objective
from ktune.search.final import Racing, race_finalists, race_once, racing
from ktune.search.pairs import paired_changes
from ktune.search.recorder import Recorder
from ktune.search.simplify import simplify
from ktune.study.claims import Refused
from ktune.study.finals import Finals
from ktune.study.ranking import eligible_time_us, latest, rank

MOST = 10
LEAST = 5
# How many points around the fastest are measured at most, as a share of the trials.
AROUND_SHARE = 2.0
# Of what is left of that, for the pairs of changes around one centre.
PAIRS_SHARE = 1 / 3
# Of the leader's short time; what is nearer is looked around.
LOOKED_AROUND = 1.02
# Of the leader's short time; what is nearer is for the races to tell.
NEAR = 1.10
# Short times that are further apart than this need no race to tell which is the faster.
DOUBTFUL = 1.05


class Finalists:
    """Settles the winner of a study. most: how many of the fastest take part; 0 settles nothing."""

    def __init__(self, recorder: Recorder, space: Space, target: str, most: int, seed: int) -> None:
        self._recorder = recorder
        self._study = recorder.study
        self._space = space
        self._target = target
        self._most = most
        self._seed = seed
        self._racing = racing(recorder.evaluator)
        # Of an evaluator that can't race but knows the noise of the times that it gives.
        self._known_noise_percent: float | None = getattr(recorder.evaluator, "noise_percent", None)

    def settle(self) -> None:
        """Measure in full what is missing for a winner; nothing if the study is settled."""
        if self._most == 0:
            return
        if self._missing(()):
            self._decide()
        if self._known_noise_percent is not None:
            gpu_uuid = self._recorder.evaluator.environment.gpu_uuid
            self._study.settle(Finals(self._known_noise_percent, (), (), gpu_uuid))

    def _decide(self) -> None:
        """A finalist that fails is out, the next fastest takes its place, and the races are run again."""
        always = (self._space.default, self._looked_around())
        attempted: set[Configuration] = set()
        while missing := self._missing(always):
            if self._racing is not None:
                if not self._race(self._racing, self._chosen(always)):
                    return
            else:
                missing = [m for m in missing if m.variant.configuration not in attempted]
                if not missing:
                    return
                attempted.update(m.variant.configuration for m in missing)
                self._measure_in_full(missing)
            self._recorder.counts = self._study.counts()

    def _ranked(self) -> list[Measurement]:
        """The short measurements of those that may still win, the fastest first."""
        self._study.refresh()
        found = self._study.measurements()
        failed = {v for v, m in latest(found, Effort.FULL).items() if eligible_time_us(m) is None}
        short = [m for v, m in latest(found, Effort.SEARCH).items() if v not in failed]
        return rank(short, self._space.default, self._study.identify)

    def _chosen(self, always: Collection[Configuration]) -> list[Measurement]:
        return choose_finalists(self._ranked(), always, self._most)

    def _missing(self, always: Collection[Configuration]) -> list[Measurement]:
        """The finalists without a full measurement that counts beside the others'; none if the study is settled.

        Full measurements of the same GPU stand; if any is missing, those made on other GPUs are made anew. Where
        finalists can race, those that did not are missing.
        """
        chosen = self._chosen({self._space.default, *always})
        full = latest(self._study.measurements(), Effort.FULL)
        if self._racing is not None and self._study.finals is None:
            return chosen
        if all(m.variant in full for m in chosen):
            return []
        here = self._recorder.evaluator.environment.gpu_uuid
        return [m for m in chosen if m.variant not in full or full[m.variant].gpu_uuid != here]

    def _looked_around(self) -> Configuration:
        """The leader without needless parameters, when what lies around it, the leader and the fastest is measured.

        In turn, the leader first, what differs from one of them in one parameter is measured, and then in two, by what
        each did alone, since values that are fast only together lie further apart. Pairs take a part of what is left,
        so that there is some for what lies around a leader found there.
        """
        point = self._simplified()
        left = int(AROUND_SHARE * self._study.trials_done)
        looked: set[Configuration] = set()
        while left > 0 and (centres := self._centres(point, looked)):
            looked.update(centres)
            leader = self._ranked()[0].variant
            around = {centre: self._space.variations(centre) for centre in centres}
            left -= self._measure_new(list(chain(*around.values())), left, "neighbours")
            pairs = [pair for centre, variations in around.items() for pair in self._pairs(centre, variations)]
            left -= self._measure_new(pairs, int(PAIRS_SHARE * left), "pairs")
            if self._ranked()[0].variant != leader:
                point = self._simplified()
        return point

    def _centres(self, point: Configuration, looked: Collection[Configuration]) -> list[Configuration]:
        """What to look around next: the leaders and `point`, then the next of the fastest; nothing twice."""
        ranked = self._ranked()
        leaders = [m.variant.configuration for m in leaders_of_gpus(ranked)]
        fastest = [m.variant.configuration for m in fastest_of_gpus(ranked, LOOKED_AROUND)]
        first = [centre for centre in (*leaders, point) if centre not in looked] if leaders else []
        return first or [centre for centre in fastest if centre not in looked][:1]

    def _pairs(self, centre: Configuration, variations: Sequence[Configuration]) -> list[Configuration]:
        """Two changes of a centre at once that may cost little, by what its variations took on the same GPU."""
        known = self._known()
        own = known.get(centre)
        own_us = None if own is None else objective(own)
        if own is None or own_us is None:
            return []
        here = [known[near] for near in variations if near in known and known[near].gpu_uuid == own.gpu_uuid]
        slowdowns = {m.variant.configuration: us / own_us for m in here if (us := objective(m)) is not None}
        return paired_changes(centre, slowdowns, self._space, NEAR)

    def _measure_new(self, points: Sequence[Configuration], most: int, phase: str) -> int:
        """Measure the first `most` of those of `points` that are not known; how many they are."""
        known = self._known()
        new = [point for point in dict.fromkeys(points) if point not in known][:most]
        if new:
            self._recorder.progress.on_phase(phase, len(new))
            self._measure(phase, self._extra_requests(new), len(new))
        return len(new)

    def _simplified(self) -> Configuration:
        """The leader without needless parameters; the default if there is no leader."""
        leader = next(iter(self._ranked()), None)
        if leader is None:
            return self._space.default
        return simplify(
            leader, self._space, lambda points: self._beside(leader, points), lambda point: point in self._known()
        )

    def _known(self) -> dict[Configuration, Measurement]:
        short = latest(self._study.measurements(), Effort.SEARCH)
        return {variant.configuration: m for variant, m in short.items()}

    def _beside(self, leader: Measurement, points: Sequence[Configuration]) -> Mapping[Configuration, Measurement]:
        """The measurements of points; those whose short times leave a doubt are raced with the leader where that goes.

        The leader was chosen for its shortest time of few samples, so that its equals would look slower than it.
        """
        found = dict(self._measure_extra(points))
        limit_us = DOUBTFUL * (eligible_time_us(leader) or math.inf)
        close = [m for m in found.values() if (eligible_time_us(m) or math.inf) <= limit_us]
        if self._racing is not None and close:
            raced = race_once(self._racing, [leader, *close], self._study.identify, self._seed)
            found.update((m.variant.configuration, m) for m in raced)
        return found

    def _measure_extra(self, points: Sequence[Configuration]) -> Mapping[Configuration, Measurement]:
        """The short measurements of points, those of new ones beyond the study's total; some may be lacking."""
        self._measure_new(points, len(points), "simplify")
        known = self._known()
        return {point: known[point] for point in points if point in known}

    def _extra_requests(self, points: Sequence[Configuration]) -> Iterator[Request]:
        for point in points:
            trial = self._study.claim_extra(point)
            if not isinstance(trial, Refused):
                variant = make_variant(self._space.family, point, self._study.problem, self._target)
                best_us = eligible_time_us(self._recorder.incumbent)
                yield Request(trial, variant, self._study.problem, Effort.SEARCH, best_us)

    def _measure_in_full(self, missing: Sequence[Measurement]) -> None:
        self._recorder.progress.on_phase("finalists", len(missing))
        requests = (Request(m.trial, m.variant, m.problem, Effort.FULL) for m in missing if self._study.claim_full(m))
        self._measure("finalists", requests, len(missing))

    def _measure(self, phase: str, requests: Iterator[Request], total: int) -> None:
        begun = time.monotonic()
        with closing(self._recorder.measure(requests)) as results:
            for done, m in enumerate(results, 1):
                if m.effort is Effort.SEARCH:
                    self._recorder.count(m)
                pace = (time.monotonic() - begun) / done
                self._recorder.tell(m, phase, done, total, pace * (total - done))

    def _race(self, evaluator: Racing, chosen: Sequence[Measurement]) -> bool:
        """Race them and record what that gave; False where another process is at it."""
        if not all([self._study.claim_full(m) for m in chosen]):
            return False
        self._recorder.progress.on_phase("finalists", len(chosen))
        final = race_finalists(evaluator, chosen, self._study.identify, self._seed)
        for m in final.measurements:
            self._study.record(m)
        # Those whose race is to be run again are still claimed.
        self._study.release()
        if final.finals is not None:
            self._study.settle(final.finals)
        for m in final.measurements:
            self._recorder.tell(m, "finalists", len(chosen), len(chosen), 0.0)
        return True


def choose_finalists(
    ranked: Sequence[Measurement], always: Collection[Configuration], most: int = MOST
) -> list[Measurement]:
    """The short measurements of those that take part in the final, the leader's first.

    ranked: those that may win, the fastest first. Of them, all near the leader, at least LEAST and at most `most`; and
    those of `always`, whatever their times. Where a search went on on another GPU, short times of the two are not
    compared: near is who is near the leader of the same GPU, and the GPUs' fastest take part in turn.
    """
    count = min(most, max(len(fastest_of_gpus(ranked, NEAR)), LEAST))
    in_turn = fastest_of_gpus(ranked)
    return [*in_turn[:count], *(m for m in in_turn[count:] if m.variant.configuration in always)]


def fastest_of_gpus(ranked: Sequence[Measurement], near: float = math.inf) -> list[Measurement]:
    """Each GPU's fastest, second fastest and so on; those within `near` times the time of the same GPU's leader."""
    by_gpu = [
        [m for m in of_gpu if (eligible_time_us(m) or math.inf) <= near * (eligible_time_us(of_gpu[0]) or math.inf)]
        for of_gpu in _by_gpu(ranked).values()
    ]
    return [m for row in zip_longest(*by_gpu) for m in row if m is not None]


def leaders_of_gpus(ranked: Sequence[Measurement]) -> list[Measurement]:
    """The fastest of those that each GPU measured."""
    return [of_gpu[0] for of_gpu in _by_gpu(ranked).values()]


def _by_gpu(measurements: Sequence[Measurement]) -> dict[str, list[Measurement]]:
    found: dict[str, list[Measurement]] = {}
    for m in measurements:
        found.setdefault(m.gpu_uuid, []).append(m)
    return found
