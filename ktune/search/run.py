"""The search: ask a sampler, let the evaluator measure, record, and settle the winner among the finalists."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing

from ktune.core.errors import UsageError
from ktune.core.model import Configuration, Effort, Measurement, Request
from ktune.core.space import Space
from ktune.core.variant import HOPPER, make_variant
from ktune.search.evaluator import Evaluator
from ktune.search.finalists import MOST, Finalists
from ktune.search.outcome import Outcome, nothing_passed
from ktune.search.progress import Progress, Silent
from ktune.search.recorder import Recorder
from ktune.search.samplers import SAMPLERS, Sampler, make_sampler
from ktune.study.claims import Refused
from ktune.study.ranking import eligible_time_us, latest
from ktune.study.study import Study

FINALISTS = MOST
# The default is what the winner is compared with: however slow it is, it has a time.
PATIENCE_WITH_DEFAULT = 1e6
# Fewer results tell no pace.
PACED_AFTER = 8


def search(
    study: Study,
    space: Space,
    evaluator: Evaluator,
    *,
    sampler: str = "gp",
    trials: int | None,
    seed: int = 0,
    progress: Progress | None = None,
    seeds: Sequence[Configuration] = (),
    target: str = HOPPER,
    finalists: int = FINALISTS,
    patience: Callable[[float | None], float] = lambda best_us: 1.0,
) -> Outcome:
    """Measure until the study has `trials` trials (None: every valid point), then settle the winner in full.

    seeds: configurations to try right after the default. finalists: how many of the fastest take part in the final, at
    most; 0 leaves it out, and the search's own times decide. patience: of the requests, by the best time so far (see
    `Request`). Everything measured is in the study when this returns,
    also after Ctrl-C, which ends it with `interrupted`. A study that is complete returns at once.
    Raises NothingPassed if the search is complete and no variant is both right and timed.
    """
    if trials is not None and trials < 0:
        raise UsageError(f"--trials must be 0 or more, got {trials}")
    if sampler not in SAMPLERS:
        raise UsageError(f"no sampler {sampler!r}; there are {', '.join(SAMPLERS)}")
    total = len(space) if trials is None else trials
    recorder = Recorder(study, evaluator, progress or Silent(), space.default)
    final = Finalists(recorder, space, target, finalists, seed)
    run = _Run(recorder, space, total, target, patience)
    return run.carry_out(make_sampler_of(study, space, sampler, total, seed, seeds), final)


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
        recorder: Recorder,
        space: Space,
        total: int,
        target: str,
        patience: Callable[[float | None], float],
    ) -> None:
        self._recorder = recorder
        self._study = recorder.study
        self._space = space
        self._total = total
        self._target = target
        self._patience = patience
        self._stats_before = _stats(recorder.evaluator)
        self._exhausted = False

    def carry_out(self, sampler: Sampler, final: Finalists) -> Outcome:
        progress = self._recorder.progress
        progress.on_start(self._total, min(self._study.trials_done, self._total), self._timed_elsewhere())
        interrupted = False
        try:
            self._search(sampler)
            final.settle()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            self._study.release()
        outcome = self._outcome(sampler.name, interrupted)
        progress.on_end(outcome)
        if outcome.winner is None and outcome.counts and not interrupted:
            raise nothing_passed(self._study)
        return outcome

    def _timed_elsewhere(self) -> int:
        """How many short times are of another GPU."""
        here = self._recorder.evaluator.environment.gpu_uuid
        short = latest(self._study.measurements(), Effort.SEARCH).values()
        return sum(m.gpu_uuid not in ("", here) for m in short)

    def _search(self, sampler: Sampler) -> None:
        if self._study.trials_done >= self._total:
            return
        self._recorder.progress.on_phase("search", self._total)
        first: tuple[float, int] | None = None
        with closing(self._recorder.measure(self._proposals(sampler))) as results:
            for m in results:
                self._learn(m, sampler)
                now, done = time.monotonic(), self._study.trials_done
                # From the first result on: it waited for a worker and for compilers, as no other will.
                first = first or (now, done)
                since_s, told = now - first[0], done - first[1]
                eta_s = None if told < PACED_AFTER else since_s / told * max(0, self._total - done)
                self._recorder.tell(m, "search", done, self._total, eta_s)

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
            best_us = eligible_time_us(self._recorder.incumbent)
            variant = make_variant(self._space.family, point, self._study.problem, self._target)
            patience = PATIENCE_WITH_DEFAULT if point == self._space.default else self._patience(best_us)
            yield Request(trial, variant, self._study.problem, Effort.SEARCH, best_us, patience)

    def _learn(self, m: Measurement, sampler: Sampler) -> None:
        sampler.tell(m)
        self._recorder.count(m)

    def _outcome(self, sampler: str, interrupted: bool) -> Outcome:
        standing, finals = self._study.standing(), self._study.finals
        before, after = self._stats_before, _stats(self._recorder.evaluator)
        own = [m for m in self._study.measurements() if m.variant.configuration == self._space.default]
        return Outcome(
            winner=standing.winner if standing else None,
            default=own[-1] if own else None,
            tied=standing.tied if standing else (),
            final=standing.final if standing else False,
            noise_percent=finals.noise_percent if finals else None,
            warnings=finals.warnings if finals else (),
            counts=dict(self._study.counts()),
            trials_done=self._study.trials_done,
            trials_total=self._total,
            sampler=sampler,
            elapsed_s=self._recorder.elapsed_s,
            interrupted=interrupted,
            exhausted=self._exhausted,
            evaluator_stats={name: seconds - before.get(name, 0.0) for name, seconds in after.items()},
        )


def _stats(evaluator: Evaluator) -> dict[str, float]:
    """Seconds by phase so far, of every search that this evaluator served."""
    return dict(getattr(evaluator, "stats", {}))
