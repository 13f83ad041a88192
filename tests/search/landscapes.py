"""Invented spaces with times for every point: effects of single parameters, of pairs, own to each point, failures."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import combinations

from ktune.api import Family, Parameter, Rule
from ktune.core.model import Configuration, Measurement, Status
from ktune.core.space import Space
from tests.fake_gpu import fake_timing
from tests.search.toy_search import measure, toy, toy_problem, toy_space

# Slower than the best by this factor, a point is culled and only its bound is known.
CULLED = 1.8


@dataclass(frozen=True)
class Landscape:
    """measurements: one for every point of the space; best_us: the fastest time that may win."""

    space: Space
    measurements: Mapping[Configuration, Measurement]
    best_us: float

    def time_us(self, point: Configuration) -> float:
        """Also of a culled point, by its bound; long for one that is wrong."""
        m = self.measurements[point]
        return m.cold_us or m.bound_us or 20 * self.best_us

    def near(self, percent: float) -> int:
        """How many points are that near the best."""
        limit = self.best_us * (1 + percent / 100)
        return sum(m.status is Status.OK and (m.cold_us or math.inf) <= limit for m in self.measurements.values())


def landscape_family() -> Family:
    """About a thousand points: ordinals, a categorical, a switch, and a parameter of one algorithm alone."""
    parameters = (
        Parameter("algorithm", ("plain", "staged"), "plain", "how"),
        Parameter("block", (32, 64, 128, 256), 128, "threads"),
        Parameter("share", (1, 2, 4, 8), 1, "threads of a pair"),
        Parameter("order", ("row", "column", "tile"), "row", "order"),
        Parameter("unroll", (1, 2, 4, 8), 1, "steps"),
        Parameter("depth", (1, 2, 3, 4), 2, "stages", when={"algorithm": ("staged",)}),
        Parameter("fast", (False, True), False, "fast"),
    )
    law = Rule("a block has 16 shares or more", lambda block, share: block >= 16 * share)
    return replace(toy().family, name="landscape", parameters=parameters, rules=(law,), core={})


def landscape(seed: int, *, pairs: float = 0.06, own: float = 0.01, failing: float = 0.15) -> Landscape:
    """One of many by its seed. pairs, own: the spread of log time by two parameters together and by a point alone.

    failing: the part of the points that is wrong: half of it scattered, the other half where two values meet.
    """
    space = Space(landscape_family(), [toy_problem()])
    rng = random.Random(seed)
    singles: dict[object, float] = {}
    weights = {p.name: rng.choice([0.02, 0.08, 0.2]) for p in space.family.parameters}
    bad = {
        (name, rng.choice(space.values(space.family.parameter(name))))
        for name in rng.sample(["block", "order", "unroll"], 2)
    }

    def effect(key: object, spread: float) -> float:
        if key not in singles:
            singles[key] = rng.gauss(0, spread)
        return singles[key]

    logs = {}
    for point in space.points:
        items = list(point.items())
        total = sum(effect(item, weights[item[0]]) for item in items)
        total += sum(effect(pair, pairs) for pair in combinations(items, 2) if pair[0][0] < pair[1][0])
        logs[point] = total + rng.gauss(0, own)
    wrong = {p for p in space.points if rng.random() < failing / 2 or bad <= set(p.items())}
    least = min(log for point, log in logs.items() if point not in wrong)
    # Nothing beats a bound, so that several points are near the best.
    floor = {point: 0.05 * math.log1p(math.exp(min(600.0, (log - least) / 0.05 - 2))) for point, log in logs.items()}
    lowest = min(value for point, value in floor.items() if point not in wrong)
    times = {point: 60.0 * math.exp(value - lowest) for point, value in floor.items()}
    template = measure(toy_space().default)
    found = {}
    for trial, (point, time_us) in enumerate(times.items()):
        made = replace(template, trial=trial, variant=replace(template.variant, configuration=point))
        if point in wrong:
            found[point] = replace(made, status=Status.WRONG, cold=None, bound_us=None)
        elif time_us > CULLED * 60.0:
            found[point] = replace(made, status=Status.CULLED, cold=None, bound_us=0.99 * time_us)
        else:
            found[point] = replace(made, cold=fake_timing(time_us))
    return Landscape(space, found, 60.0)
