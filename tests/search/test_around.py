"""What a search measures around its leader before the final."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ktune.core.model import Configuration, Measurement, Problem, Request, Source, Status, Timing
from ktune.core.space import Space
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.search.outcome import Outcome
from ktune.search.run import search
from ktune.study.study import Study
from tests.fake_gpu import FakeEvaluator
from tests.search.landscapes import landscape_family
from tests.search.toy_search import GPU, Watcher, search_toy, searched, timing, toy_problem, toy_space


class PlantedGpu(FakeEvaluator):
    """A fake GPU on which the points of `times_us` take so long, and all others `other_us`."""

    def __init__(self, times_us: Mapping[Configuration, float], other_us: float = 200.0) -> None:
        super().__init__()
        self.times_us = times_us
        self.other_us = other_us

    def answer(self, request: Request) -> Measurement:
        m = super().answer(request)
        return replace(m, cold=self._timing(request.variant.configuration) if m.cold else None)

    def raced(self, problem: Problem, entrant: Entrant, seed: int) -> RaceResult:
        assert entrant.variant is not None
        return replace(super().raced(problem, entrant, seed), cold=self._timing(entrant.variant.configuration))

    def _timing(self, configuration: Configuration) -> Timing:
        return timing(self.times_us.get(configuration, self.other_us))


def landscape_space() -> Space:
    return Space(landscape_family(), [toy_problem()])


# Points of the landscapes' family: two that differ in much; two changes of the first, and both at once.
LEFT = landscape_space().complete({"algorithm": "staged", "block": 32, "unroll": 1, "order": "tile", "depth": 1})
RIGHT = landscape_space().complete({"algorithm": "staged", "block": 256, "unroll": 8, "order": "column", "depth": 4})
ONE = landscape_space().complete({**LEFT, "unroll": 8})
OTHER = landscape_space().complete({**LEFT, "order": "row"})
BOTH = landscape_space().complete({**LEFT, "unroll": 8, "order": "row"})


def search_landscape(results: Path, evaluator: FakeEvaluator, trials: int = 60, **options: Any) -> Outcome:
    """A search of the landscapes' family by chance, which finds none of the points above itself."""
    space = landscape_space()
    problem = space.problems[0]
    with Study.open_or_create(results, space.family, problem, space, GPU, Source.FAKE, None) as study:
        return search(study, space, evaluator, sampler="random", trials=trials, **options)


def test_two_changes_win_together_though_neither_does_alone(tmp_path: Path) -> None:
    gpu, watcher = PlantedGpu({LEFT: 100.0, ONE: 103.0, OTHER: 104.0, BOTH: 95.0}), Watcher()
    outcome = search_landscape(tmp_path, gpu, seeds=[LEFT], progress=watcher)
    assert BOTH in searched(gpu)[outcome.trials_done :]
    assert outcome.winner is not None and outcome.winner.variant.configuration == BOTH
    phases = [phase for phase, _ in watcher.phases]
    assert phases.index("neighbours") < phases.index("pairs") < phases.index("finalists")


def test_changes_that_cost_more_than_10_percent_together_are_not_tried_at_once(tmp_path: Path) -> None:
    gpu = PlantedGpu({LEFT: 100.0, ONE: 105.0, OTHER: 106.0, BOTH: 95.0})
    search_landscape(tmp_path, gpu, seeds=[LEFT])
    assert BOTH not in searched(gpu)


def test_another_value_of_one_parameter_is_tried_however_far_it_is(tmp_path: Path) -> None:
    far = landscape_space().complete({**LEFT, "unroll": 8})
    gpu = PlantedGpu({LEFT: 100.0, far: 95.0})
    outcome = search_landscape(tmp_path, gpu, seeds=[LEFT])
    assert far not in landscape_space().neighbours(LEFT)
    assert outcome.winner is not None and outcome.winner.variant.configuration == far


def test_what_lies_around_the_second_fastest_is_measured_when_nothing_around_the_first_is_new(tmp_path: Path) -> None:
    beside = landscape_space().complete({**RIGHT, "share": 8})
    gpu = PlantedGpu({LEFT: 100.0, RIGHT: 101.0, beside: 95.0})
    outcome = search_landscape(tmp_path, gpu, seeds=[LEFT, RIGHT])
    assert beside in searched(gpu)[outcome.trials_done :]
    assert outcome.winner is not None and outcome.winner.variant.configuration == beside


def test_at_most_twice_as_many_as_the_trials_are_measured_around_the_fastest(tmp_path: Path) -> None:
    """Where all are as fast, new pairs never run out."""
    gpu, watcher = PlantedGpu({}), Watcher()
    outcome = search_landscape(tmp_path, gpu, progress=watcher)
    around = [total for phase, total in watcher.phases if phase in ("neighbours", "pairs")]
    assert 1.9 * outcome.trials_done < sum(around) <= 2 * outcome.trials_done
    assert len(searched(gpu)) == len(set(searched(gpu)))


def test_pairs_that_fail_are_not_tried_again(tmp_path: Path) -> None:
    gpu = PlantedGpu({LEFT: 100.0, ONE: 101.0, OTHER: 102.0, BOTH: 95.0})
    gpu.status_of = lambda request: Status.WRONG if request.variant.configuration == BOTH else Status.OK
    outcome = search_landscape(tmp_path, gpu, seeds=[LEFT])
    assert searched(gpu).count(BOTH) == 1
    assert outcome.winner is not None and outcome.winner.variant.configuration == LEFT


def test_a_search_that_is_interrupted_among_the_pairs_goes_on_with_those_that_lack(tmp_path: Path) -> None:
    first = PlantedGpu({LEFT: 100.0, ONE: 101.0, OTHER: 102.0, BOTH: 95.0})

    def stop(request: Request) -> Status:
        if request.variant.configuration == BOTH:
            raise KeyboardInterrupt
        return Status.OK

    first.status_of = stop
    assert search_landscape(tmp_path, first, seeds=[LEFT]).interrupted
    second = PlantedGpu(first.times_us)
    outcome = search_landscape(tmp_path, second, seeds=[LEFT])
    assert searched(first)[-1] == BOTH and BOTH in searched(second)
    assert not set(searched(first)[:-1]) & set(searched(second))
    assert outcome.winner is not None and outcome.winner.variant.configuration == BOTH


def test_what_each_gpu_found_is_looked_around_and_no_change_is_judged_by_another_gpus_time(tmp_path: Path) -> None:
    search_landscape(tmp_path, PlantedGpu({LEFT: 100.0}), seeds=[LEFT], finalists=0)
    slow = PlantedGpu({RIGHT: 5000.0, ONE: 5400.0, OTHER: 5400.0, BOTH: 95.0}, other_us=9000.0)
    slow.environment = replace(FakeEvaluator.environment, gpu_uuid="GPU-slow")
    search_landscape(tmp_path, slow, trials=80, seeds=[LEFT, RIGHT])
    assert {ONE, OTHER, landscape_space().complete({**RIGHT, "order": "row"})} <= set(searched(slow)[20:])
    assert BOTH not in searched(slow)


def test_a_space_of_one_point_has_nothing_around_it(tmp_path: Path) -> None:
    space = toy_space(algorithm=("simple",), block_size=(64,), items=(1,), fast_math=(False,))
    gpu = FakeEvaluator()
    outcome = search_toy(tmp_path, 1, gpu, space=space)
    assert searched(gpu) == list(space.points) and outcome.final


def test_the_default_has_a_time_however_slow_it_is(tmp_path: Path) -> None:
    """What the winner is compared with is not culled, whenever its turn comes."""
    gpu = FakeEvaluator()
    search_toy(tmp_path, 10, gpu)
    patience = {request.variant.configuration: request.patience for request in gpu.evaluated}
    assert patience.pop(toy_space().default) >= 1e6
    assert set(patience.values()) == {1.0}
