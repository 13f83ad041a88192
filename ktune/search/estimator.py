"""Optuna's tree-structured Parzen estimator over the points of a space."""

from __future__ import annotations

import math
import warnings
from typing import TYPE_CHECKING

from ktune.api import Parameter
from ktune.core.identity import value_text
from ktune.core.model import Configuration, Measurement, Status, Value
from ktune.core.space import Space
from ktune.search.pool import Pool
from ktune.study.ranking import eligible_time_us

if TYPE_CHECKING:
    from optuna.distributions import BaseDistribution
    from optuna.trial import Trial


class Estimator:
    """An in-memory Optuna study with ktune's encoding, which takes what it suggests from `pool`.

    Ordinals are suggested as positions, a parameter only where it exists. A suggestion that keeps no rule or is out
    already becomes the nearest open point. Failures are told as pruned, with a constraint graded by how far from right
    they were. startup: so many trials are random.
    """

    def __init__(self, space: Space, pool: Pool, seed: int, startup: int) -> None:
        import optuna

        optuna.logging.set_verbosity(optuna.logging.ERROR)
        self.moved = 0
        self._optuna = optuna
        self._pool = pool
        self._running: dict[Configuration, Trial] = {}
        self._parameters = [(p, space.values(p)) for p in space.family.parameters]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            sampler = optuna.samplers.TPESampler(
                multivariate=True, group=True, constant_liar=True, seed=seed % 2**32, n_startup_trials=startup
            )
        self._study = optuna.create_study(direction="minimize", sampler=sampler)

    def suggest(self) -> Configuration | None:
        """Take a point; None if none is left."""
        trial = self._study.ask()
        chosen = self._read(trial)
        point = Configuration(tuple(chosen.items()))
        if self._pool.take(point):
            self._running[point] = trial
            return point
        self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)
        self.moved += 1
        nearest = self._pool.nearest(chosen)
        if nearest is not None:
            self.run(nearest)
        return nearest

    def run(self, point: Configuration) -> None:
        """Have a running trial with exactly these values."""
        self._study.enqueue_trial(self._suggestible(point))
        trial = self._study.ask()
        self._read(trial)
        self._running[point] = trial

    def tell(self, m: Measurement) -> None:
        """Learn of a point, once; it need not be running here."""
        time_us, states = objective(m), self._optuna.trial.TrialState
        trial = self._running.pop(m.variant.configuration, None)
        if trial is None:
            self._add(m)
        elif time_us is None:
            trial.set_constraint("failure", _severity(m))
            self._study.tell(trial, state=states.PRUNED)
        else:
            self._study.tell(trial, time_us)

    def drop(self, point: Configuration) -> None:
        """The point will not be measured here."""
        trial = self._running.pop(point, None)
        if trial is not None:
            self._study.tell(trial, state=self._optuna.trial.TrialState.FAIL)

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

    def _add(self, m: Measurement) -> None:
        """A finished trial that was never running."""
        optuna = self._optuna
        distributions: dict[str, BaseDistribution] = {}
        parameters = self._suggestible(m.variant.configuration)
        for parameter, values in self._parameters:
            if parameter.name in parameters and parameter.ordinal:
                distributions[parameter.name] = optuna.distributions.IntDistribution(0, len(values) - 1)
            elif parameter.name in parameters:
                texts = [value_text(value) for value in values]
                distributions[parameter.name] = optuna.distributions.CategoricalDistribution(texts)
        time_us, states = objective(m), optuna.trial.TrialState
        self._study.add_trial(
            optuna.trial.create_trial(
                params=parameters,
                distributions=distributions,
                value=time_us,
                state=states.PRUNED if time_us is None else states.COMPLETE,
                constraints={"failure": _severity(m)} if time_us is None else None,
            )
        )


def objective(m: Measurement) -> float | None:
    """Microseconds to minimise; a culled variant counts by its lower bound. None for a failure."""
    time_us = eligible_time_us(m)
    if time_us is None and m.status is Status.CULLED and m.bound_us is not None and math.isfinite(m.bound_us):
        return m.bound_us
    return time_us


def _exists(parameter: Parameter, chosen: dict[str, Value]) -> bool:
    return all(name in chosen and chosen[name] in values for name, values in (parameter.when or {}).items())


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
