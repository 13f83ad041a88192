"""The search: ask a sampler, let the evaluator measure, record, and settle the winner among the finalists."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing

from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Effort, Measurement, Request, Status
from ktune.core.space import Space
from ktune.core.variant import HOPPER, make_variant
from ktune.search.evaluator import Evaluator
from ktune.search.outcome import Outcome, nothing_passed
from ktune.search.progress import Progress, Silent, Snapshot
from ktune.search.samplers import SAMPLERS, Sampler, make_sampler
from ktune.study.claims import Refused
from ktune.study.ranking import eligible_time_us, latest, rank
from ktune.study.study import Study

FINALISTS = 5
# These may be the machine's fault: worth one more attempt.
RETRIED = (Status.CRASHED, Status.TIMED_OUT)


def search(
    study: Study,
    space: Space,
    evaluator: Evaluator,
    *,
    sampler: str = "tpe",
    trials: int | None,
    seed: int = 0,
    progress: Progress | None = None,
    seeds: Sequence[Configuration] = (),
    target: str = HOPPER,
    finalists: int = FINALISTS,
) -> Outcome:
    """Measure until the study has `trials` trials (None: every valid point), then settle the winner in full.

    seeds: configurations to try right after the default. Everything measured is in the study when this returns,
    also after Ctrl-C, which ends it with `interrupted`. A study that is complete returns at once.
    Raises NothingPassed if the search is complete and no variant is both right and timed.
    """
    if trials is not None and trials < 0:
        raise UsageError(f"--trials must be 0 or more, got {trials}")
    if sampler not in SAMPLERS:
        raise UsageError(f"no sampler {sampler!r}; there are {', '.join(SAMPLERS)}")
    total = len(space) if trials is None else trials
    run = _Run(study, space, evaluator, total, progress or Silent(), target, finalists)
    return run.carry_out(make_sampler_of(study, space, sampler, total, seed, seeds))


def make_sampler_of(
    study: Study, space: Space, name: str, total: int, seed: int, seeds: Sequence[Configuration]
) -> Sampler:
    """The sampler that goes on where the study stands: the default first, then the seeds."""
    known = list(latest(study.measurements(), Effort.SEARCH).values())
    first = [space.default, *seeds]
    return make_sampler(name, space, trials=total, seed=seed, first=first, measured=known)


class _Run:
    """One call of `search`."""

    def __init__(
        self,
        study: Study,
        space: Space,
        evaluator: Evaluator,
        total: int,
        progress: Progress,
        target: str,
        finalists: int,
    ) -> None:
        self._study = study
        self._space = space
        self._evaluator = evaluator
        self._total = total
        self._progress = progress
        self._target = target
        self._finalists = finalists
        self._begun = time.monotonic()
        self._counts = study.counts()
        self._incumbent: Measurement | None = None
        self._exhausted = False
        for m in study.measurements():
            if m.effort is Effort.SEARCH:
                self._consider(m)

    def carry_out(self, sampler: Sampler) -> Outcome:
        self._progress.on_start(self._total, min(self._study.trials_done, self._total))
        interrupted = False
        try:
            self._search(sampler)
            self._settle()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._study.release()
        outcome = self._outcome(sampler.name, interrupted)
        self._progress.on_end(outcome)
        if outcome.winner is None and self._counts and not interrupted:
            raise nothing_passed(self._study)
        return outcome

    def _search(self, sampler: Sampler) -> None:
        before = self._study.trials_done
        if before >= self._total:
            return
        self._progress.on_phase("search", self._total)
        begun = time.monotonic()
        with closing(self._measure(self._proposals(sampler))) as results:
            for m in results:
                self._learn(m, sampler)
                done = self._study.trials_done
                pace = (time.monotonic() - begun) / max(1, done - before)
                self._tell(m, "search", done, self._total, pace * max(0, self._total - done))

    def _proposals(self, sampler: Sampler) -> Iterator[Request]:
        """Requests as they are pulled, each for a point that no one has measured or is measuring."""
        while True:
            for m in self._study.refresh():
                if m.effort is Effort.SEARCH:
                    self._learn(m, sampler)
            point = sampler.ask()
            if point is None:
                self._exhausted = True
                return
            trial = self._study.claim(point, self._total)
            if trial is Refused.FULL:
                return
            if trial is Refused.TAKEN:
                sampler.drop(point)
                continue
            best_us = eligible_time_us(self._incumbent)
            variant = make_variant(self._space.family, point, self._study.problem, self._target)
            yield Request(trial, variant, self._study.problem, Effort.SEARCH, best_us)

    def _measure(self, requests: Iterator[Request]) -> Generator[Measurement, None, None]:
        """The recorded answers; one that may be the machine's fault is asked for once more and then stands."""
        asked: dict[tuple[int, Effort], Request] = {}
        again: deque[Request] = deque()
        retried: set[tuple[int, Effort]] = set()

        def pull() -> Iterator[Request]:
            while True:
                request = again.popleft() if again else next(requests, None)
                if request is None:
                    return
                asked[request.trial, request.effort] = request
                yield request

        while True:
            with closing(_closable(self._evaluator.evaluate(pull()))) as answers:
                for m in answers:
                    key = (m.trial, m.effort)
                    retry = m.status in RETRIED and key not in retried
                    self._study.record(m, keep_claim=retry)
                    if retry:
                        retried.add(key)
                        again.append(asked[key])
                    else:
                        yield m
            if not again:
                return

    def _settle(self) -> None:
        """Measure the fastest and the default in full, and further ones as long as those fail."""
        attempted: set[Configuration] = set()
        while missing := [m for m in self._unsettled() if m.variant.configuration not in attempted]:
            attempted.update(m.variant.configuration for m in missing)
            self._progress.on_phase("finalists", len(missing))
            begun = time.monotonic()
            requests = (
                Request(m.trial, m.variant, m.problem, Effort.FULL) for m in missing if self._study.claim_full(m)
            )
            with closing(self._measure(requests)) as results:
                for done, m in enumerate(results, 1):
                    pace = (time.monotonic() - begun) / done
                    self._tell(m, "finalists", done, len(missing), pace * (len(missing) - done))
            self._counts = self._study.counts()

    def _unsettled(self) -> list[Measurement]:
        """The search measurements of the finalists that are to be measured in full now.

        Full measurements of the same GPU stand; if any is missing, those made on other GPUs are made anew.
        """
        self._study.refresh()
        found = self._study.measurements()
        full = latest(found, Effort.FULL)
        ranked = rank(latest(found, Effort.SEARCH).values(), self._space.default, self._study.identify)
        for count in range(self._finalists, len(ranked) + self._finalists, self._finalists):
            chosen = ranked[:count]
            chosen += [m for m in ranked[count:] if m.variant.configuration == self._space.default]
            if any(m.variant not in full for m in chosen):
                here = self._evaluator.environment.gpu_uuid
                return [m for m in chosen if m.variant not in full or _gpu(full[m.variant]) != here]
            standing = self._study.standing()
            if standing is not None and standing.final:
                break
        return []

    def _learn(self, m: Measurement, sampler: Sampler) -> None:
        sampler.tell(m)
        self._counts[m.status] += 1
        self._consider(m)

    def _consider(self, m: Measurement) -> None:
        """Keep the fastest of the search as the incumbent."""
        rivals = [m] if self._incumbent is None else [m, self._incumbent]
        self._incumbent = next(iter(rank(rivals, self._space.default, self._study.identify)), None)

    def _tell(self, m: Measurement, phase: str, done: int, total: int, eta_s: float) -> None:
        elapsed_s = time.monotonic() - self._begun
        self._progress.on_result(m, Snapshot(phase, done, total, dict(self._counts), self._incumbent, elapsed_s, eta_s))

    def _outcome(self, sampler: str, interrupted: bool) -> Outcome:
        standing = self._study.standing()
        own = [m for m in self._study.measurements() if m.variant.configuration == self._space.default]
        return Outcome(
            winner=standing.winner if standing else None,
            default=own[-1] if own else None,
            tied=standing.tied if standing else (),
            final=standing.final if standing else False,
            counts=dict(self._study.counts()),
            trials_done=self._study.trials_done,
            trials_total=self._total,
            sampler=sampler,
            elapsed_s=time.monotonic() - self._begun,
            interrupted=interrupted,
            exhausted=self._exhausted,
            evaluator_stats=dict(getattr(self._evaluator, "stats", {})),
        )


def _gpu(m: Measurement) -> str:
    return m.environment.gpu_uuid if m.environment else ""


def _closable(answers: Iterator[Measurement]) -> Generator[Measurement, None, None]:
    """The same answers, as a generator, whose `close` reaches the evaluator."""
    yield from answers
