"""The simulation counts right, and what it finds on invented landscapes is what the default sampler promises."""

from __future__ import annotations

import math
import xml.etree.ElementTree as ElementTree
from dataclasses import replace

import pytest

from benchmarks.regret_plot import regret_plot
from benchmarks.simulated_search import KTUNE, SAMPLERS, Run, Summary, judge, regret_band, simulate, summarise
from ktune.core.model import Status
from tests.fake_gpu import fake_timing
from tests.search.landscapes import Landscape, landscape
from tests.search.toy_search import measure, toy_space


def run_of(*slowdowns: float, sampler: str = KTUNE) -> Run:
    return Run("toy", sampler, 0, slowdowns, 0, 0, 0, 0.0)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_a_whole_space_is_answered_once_and_the_optimum_is_reached(sampler: str) -> None:
    space = toy_space()
    table = {p: replace(measure(p, i), cold=fake_timing(100.0 + i)) for i, p in enumerate(space.points)}
    run = simulate("toy", space, table, sampler, seed=1, trials=len(space), in_flight=8)
    assert len(run.slowdowns) == len(space)
    assert run.slowdowns[-1] == 1 and list(run.slowdowns) == sorted(run.slowdowns, reverse=True)
    assert run.duplicates == run.invalid == 0


def test_the_evaluations_to_a_point_are_counted_from_the_first_result() -> None:
    """Random search from a default that is the optimum is there with its first result."""
    space = toy_space()
    table = {p: replace(measure(p), cold=fake_timing(50.0 if p == space.default else 100.0)) for p in space.points}
    run = simulate("toy", space, table, "random", seed=1, trials=20, in_flight=8)
    assert run.evaluations_to(5) == 1 and set(run.slowdowns) == {1.0}


def test_failures_and_culled_points_are_results_but_never_the_best() -> None:
    space = toy_space()
    table = {p: measure(p, status=Status.CULLED, cold=None, bound_us=10.0) for p in space.points}
    table[space.points[3]] = measure(space.points[3], status=Status.WRONG)
    table[space.points[5]] = replace(measure(space.points[5]), cold=fake_timing(80.0))
    run = simulate("toy", space, table, "random", seed=0, trials=len(space), in_flight=4)
    at = next(i for i, slowdown in enumerate(run.slowdowns) if slowdown == 1)
    assert all(math.isinf(slowdown) for slowdown in run.slowdowns[:at])


def test_as_many_proposals_as_are_in_flight_are_made_blind() -> None:
    """The first proposals are the same whatever the answers are, and so many only."""
    lands = [landscape(seed) for seed in (0, 1)]
    orders = [asked_of(land, in_flight=24, trials=60) for land in lands]
    same = next(i for i, (a, b) in enumerate(zip(*orders, strict=True)) if a != b)
    assert 24 <= same < 60


def asked_of(land: Landscape, in_flight: int, trials: int) -> list[object]:
    order: list[object] = []

    class Noting(dict):  # type: ignore[type-arg]
        def __contains__(self, point: object) -> bool:
            order.append(point)
            return super().__contains__(point)

    simulate("land", land.space, Noting(land.measurements), KTUNE, seed=3, trials=trials, in_flight=in_flight)
    return order[::2]


def test_evaluations_and_their_summary() -> None:
    runs = [run_of(2.0, 1.04, 1.0), run_of(1.015, 1.0), run_of(3.0, 2.0), run_of(2.0, 1.02, 1.02)]
    assert [run.evaluations_to(5) for run in runs] == [2, 1, math.inf, 2]
    assert [run.evaluations_to(2) for run in runs] == [3, 1, math.inf, 2]
    assert summarise(runs, 5.0) == Summary("toy", KTUNE, 5.0, 2.0, math.inf, 1, 4)
    assert summarise(runs[:3], 2.0).median == 3


def test_the_band_is_the_median_and_the_middle_of_the_runs() -> None:
    runs = [run_of(1 + i / 100, 1.0) for i in range(11)] + [run_of(math.inf)]
    band = regret_band(runs[:11])
    assert [round(v, 6) for v in (band.median[0], band.low[0], band.high[0])] == [5, 1, 9]
    assert band.median[1] == band.high[1] == 0
    assert math.isinf(regret_band(runs[11:]).median[0])


def summary(sampler: str, percent: float, median: float, percentile_90: float) -> Summary:
    return Summary("toy", sampler, percent, median, percentile_90, 0, 50)


@pytest.mark.parametrize(
    ("chance", "own", "faults"),
    [
        ((40, 100), (20, 100), 0),
        ((40, 100), (21, 100), 1),
        ((39, 100), (39, 100), 0),
        ((40, 100), (20, 101), 1),
        ((math.inf, math.inf), (60, math.inf), 0),
    ],
)
def test_the_judgement_is_of_half_of_chance_and_of_the_90th_percentile(
    chance: tuple[float, float], own: tuple[float, float], faults: int
) -> None:
    assert len(judge([summary("random", 2.0, *chance), summary(KTUNE, 2.0, *own)])) == faults


def test_ktune_needs_less_than_half_of_chance_on_invented_landscapes() -> None:
    """The sums over landscapes of the median evaluations to within 2 %; chance has many seeds, which cost nothing."""
    trials = 100
    sums = {"random": 0.0, KTUNE: 0.0}
    for number in range(4):
        land = landscape(number, own=0.02)
        for sampler, seeds in (("random", 31), (KTUNE, 1)):
            runs = [
                simulate("land", land.space, land.measurements, sampler, seed=seed, trials=trials, in_flight=8)
                for seed in range(seeds)
            ]
            assert all(run.duplicates == run.invalid == 0 for run in runs)
            sums[sampler] += min(summarise(runs, 2.0).median, trials)
    assert sums[KTUNE] < sums["random"] / 2


def test_the_plot_is_one_svg_with_every_sampler() -> None:
    curve = ([math.inf, 10.0, 1.0], [5.0, 2.0, 0.0], [math.inf, math.inf, 3.0])
    text = regret_plot({"scan & co": {"random": curve, KTUNE: curve}, "linear": {"random": curve}})
    root = ElementTree.fromstring(text)
    assert root.tag.endswith("svg") and text.count("<polyline") == 3 and "scan &amp; co" in text
    assert "inf" not in text and "nan" not in text
