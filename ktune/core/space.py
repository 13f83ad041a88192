"""The valid configurations of a family for given problems: count, enumerate, complete, sample, neighbours."""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from ktune.api import DTYPE, Family, Parameter, Rule
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_id, space_digest, value_text
from ktune.core.model import Configuration, Problem, Value


class Space:
    """The configurations of `family` that keep every rule for each of `problems`.

    narrowing: {parameter: allowed values}, a subset of the family's.
    """

    def __init__(
        self,
        family: Family,
        problems: Sequence[Problem],
        narrowing: Mapping[str, tuple[Value, ...]] | None = None,
    ) -> None:
        self.family = family
        self.problems = tuple(family.completed(problem) for problem in problems)
        self.narrowing = {k: tuple(v) for k, v in (narrowing or {}).items()}
        for name, values in self.narrowing.items():
            parameter = find_parameter(family, name)
            for value in values:
                check_value(family, parameter, value)
            if not values:
                raise UsageError(f"{name} is narrowed to no value; give at least one of {_listed(parameter.values)}")

    @cached_property
    def digest(self) -> str:
        return space_digest(self.family, self.narrowing)

    def values(self, parameter: Parameter) -> tuple[Value, ...]:
        """The values of a parameter that the narrowing leaves, in the family's order."""
        allowed = self.narrowing.get(parameter.name)
        return parameter.values if allowed is None else tuple(v for v in parameter.values if v in allowed)

    def __iter__(self) -> Iterator[Configuration]:
        """Every valid configuration, in a fixed order."""
        return iter(self.points)

    @cached_property
    def points(self) -> tuple[Configuration, ...]:
        """Every valid configuration, in a fixed order: the parameters' values as nested loops, the first outermost."""
        partial: list[tuple[_Pair | None, ...]] = [()]
        for position in range(len(self.family.parameters)):
            partial = self._extended(partial, position)
        return tuple(Configuration(tuple(pair for pair in pairs if pair is not None)) for pairs in partial)

    @cached_property
    def index(self) -> dict[Configuration, int]:
        return {point: i for i, point in enumerate(self.points)}

    def __len__(self) -> int:
        return len(self.points)

    def __contains__(self, configuration: object) -> bool:
        return configuration in self.index

    @cached_property
    def default(self) -> Configuration:
        """The family's default where it is in the space, else the first valid point nearest to it."""
        wanted = default_values(self.family)
        point = Configuration(tuple(wanted.items()))
        narrowed = any(wanted.get(name) not in values for name, values in self.narrowing.items() if name in wanted)
        if not narrowed and self.broken_rule(point) is None:
            return point
        if not self.points:
            raise UsageError(self._why_empty())
        return max(self.points, key=lambda point: sum(wanted.get(n) == v for n, v in point.items()))

    def sample(self, rng: random.Random) -> Configuration:
        return rng.choice(self.points)

    def neighbours(self, configuration: Configuration) -> list[Configuration]:
        """Valid points one step away: an ordinal to an adjacent value, a categorical to any other."""
        return [point for _, point in self._varied(configuration, 1)]

    def variations(self, configuration: Configuration) -> list[Configuration]:
        """Valid points with another value of one parameter, whichever, the neighbours first."""
        found = sorted(self._varied(configuration, math.inf), key=lambda varied: varied[0] > 1)
        return [point for _, point in found]

    def _varied(self, configuration: Configuration, most: float) -> Iterator[tuple[int, Configuration]]:
        """(steps, a valid point so far away in one parameter), of at most so many; a categorical is a step from any."""
        for parameter in self.family.parameters:
            if parameter.name not in configuration:
                continue
            values = self.values(parameter)
            here = values.index(configuration[parameter.name])
            for place, value in enumerate(values):
                steps = abs(place - here) if parameter.ordinal else int(place != here)
                if not 0 < steps <= most:
                    continue
                point = self.changed(configuration, {parameter.name: value})
                if point is not None:
                    yield steps, point

    def changed(self, configuration: Configuration, changes: Mapping[str, Value]) -> Configuration | None:
        """The point with these changes; None if they lead out of the space.

        Parameters that no longer exist are dropped, those that exist only now have the family's defaults.
        """
        point = self._completed({**configuration, **changes})
        return point if point in self.index else None

    def broken_rule(self, configuration: Configuration) -> str | None:
        """The law that this configuration breaks for one of the problems, with its values; None if valid."""
        for problem in self.problems:
            for rule in self.family.rules:
                if not _keeps(rule, dict(configuration), problem):
                    values = {DTYPE: problem.dtype, **problem.by_name, **configuration}
                    shown = ", ".join(f"{a}={value_text(values[a])}" for a in rule.arguments)
                    return f"{rule.law}; got {shown} for {problem.label}"
        return None

    def complete(self, given: Mapping[str, Value]) -> Configuration:
        """The configuration with these values and the family's defaults elsewhere.

        Raises UsageError for an unknown parameter or value, an absent condition, or a broken rule.
        """
        given = self.family.without_retired(given)
        for name, value in given.items():
            check_value(self.family, find_parameter(self.family, name), value)
        point = self._completed(given)
        for name in given:
            if name not in point:
                when = self.family.parameter(name).when or {}
                need = " and ".join(f"{k} in {_listed(v)}" for k, v in when.items())
                raise UsageError(f"{name} exists only where {need}; leave it out or set that first")
        broken = self.broken_rule(point)
        if broken:
            raise UsageError(f"impossible configuration: {broken}; see `ktune list {self.family.name}`")
        return point

    def from_id(self, text: str) -> Configuration | None:
        """The point whose configuration id is `text`; None if there is none."""
        return self._by_id.get(text)

    @cached_property
    def _by_id(self) -> dict[str, Configuration]:
        return {configuration_id(self.family, point): point for point in self.points}

    def _completed(self, given: Mapping[str, Value]) -> Configuration:
        chosen: dict[str, Value] = {}
        for parameter in self.family.parameters:
            if _exists(parameter, chosen):
                chosen[parameter.name] = given.get(parameter.name, parameter.default)
        return Configuration(tuple(chosen.items()))

    @cached_property
    def _rules_at(self) -> list[list[Rule]]:
        """rules[i]: those whose last parameter is the i-th, to be checked as soon as it is assigned."""
        names = [p.name for p in self.family.parameters]
        at: list[list[Rule]] = [[] for _ in names]
        for rule in self.family.rules:
            known = [names.index(a) for a in rule.arguments if a in names]
            at[max(known, default=0)].append(rule)
        return at

    def _extended(self, partial: list[tuple[_Pair | None, ...]], position: int) -> list[tuple[_Pair | None, ...]]:
        """Each partial configuration with each value that its next parameter may have; None where that is absent.

        What is allowed depends on few of the values before: asked once for each combination of those.
        """
        names = [p.name for p in self.family.parameters]
        parameter = self.family.parameters[position]
        needed = {*(parameter.when or {}), *(a for rule in self._rules_at[position] for a in rule.arguments)}
        before = [i for i in range(position) if names[i] in needed]
        allowed: dict[tuple[_Pair | None, ...], list[tuple[_Pair | None]]] = {}
        found = []
        for pairs in partial:
            key = tuple([pairs[i] for i in before])
            if key not in allowed:
                chosen = dict(pair for pair in key if pair is not None)
                allowed[key] = [(pair,) for pair in self._allowed(position, chosen)]
            found += [pairs + last for last in allowed[key]]
        return found

    def _allowed(self, position: int, chosen: dict[str, Value]) -> list[_Pair | None]:
        """The values of a parameter beside `chosen`, which holds all that its condition and its rules ask for."""
        parameter = self.family.parameters[position]
        if not _exists(parameter, chosen):
            return [None] if self._kept(position, chosen) else []
        pairs = [(parameter.name, value) for value in self.values(parameter)]
        return [pair for pair in pairs if self._kept(position, {**chosen, pair[0]: pair[1]})]

    def _kept(self, position: int, chosen: dict[str, Value]) -> bool:
        return all(_keeps(rule, chosen, problem) for rule in self._rules_at[position] for problem in self.problems)

    def _why_empty(self) -> str:
        narrowed = ", ".join(f"{k}={_listed(v)}" for k, v in self.narrowing.items()) or "nothing"
        example = self._completed({k: v[0] for k, v in self.narrowing.items()})
        return f"no valid configuration is left with {narrowed} set: {self.broken_rule(example)}"


def default_values(family: Family) -> dict[str, Value]:
    """The family's default configuration, as {parameter: value}."""
    chosen: dict[str, Value] = {}
    for parameter in family.parameters:
        if _exists(parameter, chosen):
            chosen[parameter.name] = parameter.default
    return chosen


def find_parameter(family: Family, name: str) -> Parameter:
    """The parameter of that name; UsageError with the nearest name if there is none."""
    for parameter in family.parameters:
        if parameter.name == name:
            return parameter
    names = [p.name for p in family.parameters]
    near = difflib.get_close_matches(name, names, n=1)
    hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(names)}"
    raise UsageError(f"{family.name} has no parameter {name!r}; {hint}")


def parse_value(family: Family, parameter: Parameter, text: str) -> Value:
    """A value as typed by a user; booleans are 0/1, true/false, on/off."""
    for value in parameter.values:
        if value_text(value) == text or (isinstance(value, bool) and text.lower() in _SPELLED[value]):
            return value
    raise UsageError(
        f"{parameter.name} of {family.name} must be one of {_listed(parameter.values)}, got {text!r}; "
        f"see `ktune list {family.name}`"
    )


def check_value(family: Family, parameter: Parameter, value: Value) -> None:
    """UsageError unless the parameter has that value."""
    parse_value(family, parameter, value_text(value))


_SPELLED = {True: ("true", "on", "yes"), False: ("false", "off", "no")}


def _listed(values: Sequence[Value]) -> str:
    return ", ".join(value_text(v) for v in values)


def _exists(parameter: Parameter, chosen: Mapping[str, Value]) -> bool:
    return all(chosen.get(name, _ABSENT) in values for name, values in (parameter.when or {}).items())


_ABSENT = object()
_Pair = tuple[str, Value]


def _keeps(rule: Rule, chosen: Mapping[str, Value], problem: Problem) -> bool:
    arguments: dict[str, Value] = {}
    for name in rule.arguments:
        if name in chosen:
            arguments[name] = chosen[name]
        elif name in problem.by_name:
            arguments[name] = problem[name]
        elif name == DTYPE:
            arguments[name] = problem.dtype
        else:
            return True
    return bool(rule.holds(**arguments))
