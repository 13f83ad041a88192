"""What to measure next. Every sampler proposes each point of the space at most once, and None when all are out."""

from __future__ import annotations

import math
import warnings
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

from ktune.api import Parameter
from ktune.core.errors import UsageError
from ktune.core.identity import value_text
from ktune.core.model import Configuration, Measurement, Status, Value
from ktune.core.space import Space
from ktune.search.pool import Pool
from ktune.search.refine import Refiner
from ktune.study.ranking import eligible_time_us

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial

SAMPLERS = ("tpe", "random", "exhaustive")


class Sampler(Protocol):
    """Proposes points and learns from their measurements, in any order."""

    name: str

    def ask(self) -> Configuration | None:
        """A point that was not proposed before; None when there is none left."""
        ...

    def tell(self, m: Measurement) -> None:
        """Learn how a proposed point did."""
        ...

    def drop(self, configuration: Configuration) -> None:
        """A proposed point will not be measured here."""
        ...


def make_sampler(
    name: str,
    space: Space,
    *,
    trials: int,
    seed: int,
    first: Sequence[Configuration] = (),
    measured: Sequence[Measurement] = (),
) -> Sampler:
    """The sampler called `name`, one of SAMPLERS; exhaustive whatever the name if `trials` covers the space.

    first: points to propose before any other; those outside the space are skipped. measured: what is known already.
    """
    if name not in SAMPLERS:
        raise UsageError(f"no sampler {name!r}; there are {', '.join(SAMPLERS)}")
    if len(space) <= trials:
        name = "exhaustive"
    if name == "tpe":
        return TpeSampler(space, trials, seed, first, measured)
    return WalkSampler(name, space, seed, first, measured)


class WalkSampler:
    """Random without replacement: the seed's walk over the space. With the whole space as budget it is exhaustive."""

    def __init__(
        self,
        name: str,
        space: Space,
        seed: int,
        first: Sequence[Configuration] = (),
        measured: Sequence[Measurement] = (),
    ) -> None:
        self.name = name
        self._pool = Pool(space, seed)
        self._first = deque(first)
        for m in measured:
            self._pool.take(m.variant.configuration)

    def ask(self) -> Configuration | None:
        while self._first:
            point = self._first.popleft()
            if self._pool.take(point):
                return point
        return self._pool.walk()

    def tell(self, m: Measurement) -> None:
        self._pool.take(m.variant.configuration)

    def drop(self, configuration: Configuration) -> None:
        self._pool.take(configuration)


class TpeSampler:
    """Optuna's tree-structured Parzen estimator over an in-memory study, then steps around the best points.

    The estimator has the first half of the trials and finds the region; the Refiner has the second half and searches
    it out, so that searches with other seeds end at the same points.

    Ordinals are suggested as positions, a parameter only where it exists. A suggestion that keeps no rule or is out
    already becomes the nearest open point. The first `startup` points are the seed's walk, which is uniform over
    the valid points where Optuna's own start is not. Failures are told as pruned, with a constraint graded by how
    far from right they were.
    """

    name = "tpe"

    def __init__(
        self,
        space: Space,
        trials: int,
        seed: int,
        first: Sequence[Configuration] = (),
        measured: Sequence[Measurement] = (),
    ) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self._optuna = optuna
        self._space = space
        self._pool = Pool(space, seed)
        self._first = deque(first)
        self._startup = max(5, min(20, trials // 10))
        self._refine_from = max(self._startup, trials // 2)
        self._refiner = Refiner(space, self._pool)
        self._running: dict[Configuration, Trial] = {}
        self._parameters = [(p, space.values(p)) for p in space.family.parameters]
        # Another seed after a resumption, or the same suggestions would come again.
        sampler_seed = (seed * 1_000_003 + len(measured)) % 2**32
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=True, seed=sampler_seed, n_startup_trials=self._startup
            )
        self._study = optuna.create_study(direction="minimize", sampler=sampler)
        self._told: set[Configuration] = set()
        self._asked = 0
        for m in measured:
            self._learn_from_outside(m)

    def ask(self) -> Configuration | None:
        while self._first:
            point = self._first.popleft()
            if self._pool.take(point):
                return self._run(point)
        if self._asked < self._startup:
            point_or_none = self._pool.walk()
            return None if point_or_none is None else self._run(point_or_none)
        if self._asked >= self._refine_from:
            refined = self._refiner.propose()
            if refined is not None:
                self._asked += 1
                return refined
        return self._suggest() if len(self._pool) else None

    def tell(self, m: Measurement) -> None:
        trial = self._running.pop(m.variant.configuration, None)
        if trial is None:
            self._learn_from_outside(m)
            return
        objective = _objective(m)
        self._told.add(m.variant.configuration)
        self._refiner.learn(m.variant.configuration, objective)
        if objective is None:
            trial.set_constraint("failure", _severity(m))
            self._study.tell(trial, state=self._optuna.trial.TrialState.PRUNED)
        else:
            self._study.tell(trial, objective)

    def drop(self, configuration: Configuration) -> None:
        trial = self._running.pop(configuration, None)
        if trial is not None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

    def _suggest(self) -> Configuration | None:
        trial = self._study.ask()
        chosen = self._read(trial)
        point = Configuration(tuple(chosen.items()))
        if self._pool.take(point):
            self._running[point] = trial
            self._asked += 1
            return point
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        nearest = self._pool.nearest(chosen)
        return None if nearest is None else self._run(nearest)

    def _run(self, point: Configuration) -> Configuration:
        """Give the estimator a running trial with exactly these values."""
        self._study.enqueue_trial(self._suggestible(point))
        trial = self._study.ask()
        self._read(trial)
        self._running[point] = trial
        self._asked += 1
        return point

    def _read(self, trial: Trial) -> dict[str, Value]:
        """The values that a trial suggests, parameter by parameter in the family's order."""
        chosen: dict[str, Value] = {}
        for parameter, values in self._parameters:
            if not _exists(parameter, chosen):
                continue
            if len(values) == 1:
                chosen[parameter.name] = values[0]
            elif parameter.ordinal:
                chosen[parameter.name] = values[trial.suggest_int(parameter.name, 0, len(values) - 1)]
            else:
                texts = [value_text(value) for value in values]
                chosen[parameter.name] = values[texts.index(trial.suggest_categorical(parameter.name, texts))]
        return chosen

    def _suggestible(self, point: Configuration) -> dict[str, int | str]:
        found: dict[str, int | str] = {}
        for parameter, values in self._parameters:
            if parameter.name in point and len(values) > 1:
                value = point[parameter.name]
                found[parameter.name] = values.index(value) if parameter.ordinal else value_text(value)
        return found

    def _learn_from_outside(self, m: Measurement) -> None:
        """Add a finished trial for a point that the estimator did not suggest: refined, resumed, another process's."""
        point = m.variant.configuration
        if point not in self._space or point in self._told:
            return
        if self._pool.take(point):
            self._asked += 1
        self._told.add(point)
        optuna = self._optuna
        distributions: dict[str, BaseDistribution] = {}
        parameters = self._suggestible(point)
        for parameter, values in self._parameters:
            if parameter.name in parameters and parameter.ordinal:
                distributions[parameter.name] = optuna.distributions.IntDistribution(0, len(values) - 1)
            elif parameter.name in parameters:
                texts = [value_text(value) for value in values]
                distributions[parameter.name] = optuna.distributions.CategoricalDistribution(texts)
        objective = _objective(m)
        self._refiner.learn(point, objective)
        states = optuna.trial.TrialState
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters,
                distributions=distributions,
                value=objective,
                state=states.PRUNED if objective is None else states.COMPLETE,
                constraints={"failure": _severity(m)} if objective is None else None,
            )
        )


def _exists(parameter: Parameter, chosen: dict[str, Value]) -> bool:
    return all(name in chosen and chosen[name] in values for name, values in (parameter.when or {}).items())


def _objective(m: Measurement) -> float | None:
    """Microseconds to minimise; a culled variant counts by its lower bound. None for a failure."""
    time_us = eligible_time_us(m)
    if time_us is None and m.status is Status.CULLED and m.bound_us is not None and math.isfinite(m.bound_us):
        return m.bound_us
    return time_us


# How far a failure is from a working variant: the estimator prefers smaller violations.
_SEVERITY = {
    Status.UNSTABLE: 1.0,
    Status.WRONG: 2.0,
    Status.SPILLED: 3.0,
    Status.TIMED_OUT: 8.0,
    Status.CRASHED: 8.0,
    Status.LAUNCH_FAILED: 9.0,
    Status.BUILD_FAILED: 10.0,
    Status.INVALID: 11.0,
}


def _severity(m: Measurement) -> float:
    """A positive violation, finer within wrong and spilled variants by how wrong and how much."""
    grade = _SEVERITY.get(m.status, 1.0)
    if m.status is Status.WRONG and m.accuracy is not None:
        ratio = m.accuracy.worst_ratio
        grade += min(4.0, math.log10(ratio)) if math.isfinite(ratio) and ratio > 1 else 4.0
    if m.status is Status.SPILLED and m.build is not None:
        grade += min(4.0, math.log10(1 + m.build.spill_store_bytes + m.build.spill_load_bytes))
    return grade
