"""Several problems together: what the cross phase measures, and what the matrix says, on the fake GPU."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from ktune.api import Rule
from ktune.core.model import Effort, Measurement, Problem, Request, Source, Status
from ktune.core.space import Space
from ktune.search.matrix import Matrix, Searched, candidates, read_matrix
from ktune.search.progress import Silent
from ktune.search.run import search
from ktune.search.several import measure_crossing
from ktune.study.study import Study
from tests.fake_gpu import ENVIRONMENT, FakeEvaluator
from tests.search.toy_search import GPU, ScriptedEvaluator, Watcher, timing, toy

BLOCKS = (32, 64, 128, 256)
NARROW = {"algorithm": ("simple",), "items": (1,), "fast_math": (False,)}
# The block size that each problem likes best; every step away from it costs 10 %.
LIKES = {"N1000": 32, "N2000": 256, "N3000": 64}


def always_ok(request: Request) -> Status:
    return Status.OK


def shaped_gpu(status_of: Callable[[Request], Status] = always_ok) -> FakeEvaluator:
    """A fake GPU on which every problem has a favourite block size."""

    def change(request: Request, m: Measurement) -> Measurement:
        block = int(request.variant.configuration["block_size"])
        steps = abs(BLOCKS.index(block) - BLOCKS.index(LIKES[request.problem.label]))
        return m if m.cold is None else replace(m, cold=timing(100.0 * (1 + 0.1 * steps)))

    gpu = ScriptedEvaluator(change)
    gpu.status_of = status_of
    return gpu


def level_gpu(half_interval_us: float) -> FakeEvaluator:
    """A fake GPU on which all are equally fast."""
    return ScriptedEvaluator(lambda request, m: replace(m, cold=timing(100.0, half_interval_us)))


@dataclass
class Bench:
    """Opened studies of the toy at N = 1000, 2000, 3000, each searched with one finalist."""

    searched: list[Searched]
    gpu: FakeEvaluator

    def cross(self) -> int:
        return measure_crossing(self.searched, self.gpu, Silent())

    @property
    def matrix(self) -> Matrix:
        return read_matrix(self.searched)

    def blocks(self, requests: list[Request]) -> set[tuple[str, object]]:
        return {(r.problem.label, r.variant.configuration["block_size"]) for r in requests}


@contextmanager
def searched(
    results: Path, gpu: FakeEvaluator, *, trials: int | None = None, rule: Rule | None = None
) -> Iterator[Bench]:
    """Each problem's search goes its own way if it has fewer `trials` than there are points."""
    family = toy().family
    if rule is not None:
        family = replace(family, rules=(*family.rules, rule))
    with ExitStack() as opened:
        found = []
        for seed, label in enumerate(LIKES):
            problem = Problem("toy", (("N", int(label[1:])),))
            space = Space(family, [problem], NARROW)
            study = Study.open_or_create(results, family, problem, space, GPU, Source.FAKE)
            found.append(Searched(label, opened.enter_context(study), space))
            search(study, space, gpu, sampler="random", trials=trials, seed=seed, finalists=1)
        gpu.evaluated.clear()
        yield Bench(found, gpu)


def row_of(matrix: Matrix, block: int) -> list[float | None]:
    """The losses of a block size on each problem, in whole per cent."""
    row = next(row for row in matrix.rows if row.configuration["block_size"] == block)
    return [None if cell.loss_percent is None else round(cell.loss_percent, 6) for cell in row.cells]


def test_the_matrix_has_the_loss_of_every_winner_on_every_problem(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        bench.cross()
        matrix = bench.matrix
    assert [row.configuration["block_size"] for row in matrix.rows if row.wins] == [32, 256, 64]
    assert row_of(matrix, 32) == pytest.approx([0, 30, 10])
    assert row_of(matrix, 256) == pytest.approx([30, 0, 20])
    assert row_of(matrix, 64) == pytest.approx([10, 20, 0])
    assert row_of(matrix, 128) == pytest.approx([20, 10, 10])


def test_the_best_compromise_has_the_least_mean_slowdown(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        bench.cross()
        compromise = bench.matrix.compromise
    assert compromise is not None and compromise.configuration["block_size"] == 64
    assert compromise.mean_slowdown == pytest.approx((1.1 * 1.2 * 1.0) ** (1 / 3))


def test_only_what_is_not_known_in_full_is_measured_and_never_again(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        known = {(one.name, m.variant) for one in bench.searched for m in one.study.measurements() if in_full(m)}
        assert bench.cross() == len(bench.gpu.evaluated) > 0
        asked = [(r.problem.label, r.variant) for r in bench.gpu.evaluated]
        assert len(asked) == len(set(asked)) and not known & set(asked)
        assert all(r.effort is Effort.FULL for r in bench.gpu.evaluated)
        assert bench.cross() == 0


def test_what_was_not_tried_on_a_problem_gets_a_number_and_is_no_trial_of_its(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu(), trials=2) as bench:
        before = [one.study.trials_done for one in bench.searched]
        bench.cross()
        assert [one.study.trials_done for one in bench.searched] == before == [2, 2, 2]
        for one in bench.searched:
            numbers = {m.trial: m.variant for m in one.study.measurements()}
            assert len(numbers) == len(set(numbers.values())) > 2
            assert all(cell.measurement for row in bench.matrix.rows for cell in row.cells)


def test_a_candidate_that_beats_a_problems_winner_takes_its_place(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu(), trials=2) as bench:
        bench.cross()
        matrix = bench.matrix
        losses = [cell.loss_percent for row in matrix.rows for cell in row.cells if cell.loss_percent is not None]
        assert min(losses) == 0
        assert bench.cross() == 0


def test_a_rule_of_one_problem_makes_a_cell_invalid_and_is_never_measured(tmp_path: Path) -> None:
    rule = Rule("a thread has seven elements or more", lambda block_size, N: 7 * block_size <= N)
    with searched(tmp_path, shaped_gpu(), rule=rule) as bench:
        bench.cross()
        assert ("N1000", 256) not in bench.blocks(bench.gpu.evaluated)
        matrix = bench.matrix
        assert row_of(matrix, 256)[0] is None
        (wide,) = (row for row in matrix.rows if row.configuration["block_size"] == 256)
        assert wide.cells[0].law.startswith("a thread has seven elements or more; got block_size=256, N=1000")
        assert wide.mean_slowdown is None and matrix.compromise is not wide


def test_what_is_wrong_on_a_problem_serves_no_compromise(tmp_path: Path) -> None:
    def status_of(request: Request) -> Status:
        wrong = request.problem.label == "N2000" and request.variant.configuration["block_size"] == 64
        return Status.WRONG if wrong else Status.OK

    with searched(tmp_path, shaped_gpu(status_of)) as bench:
        bench.cross()
        matrix = bench.matrix
        assert ("N2000", 64) not in bench.blocks(bench.gpu.evaluated), "the search found it wrong already"
    assert row_of(matrix, 64)[1] is None
    assert matrix.compromise is not None and matrix.compromise.configuration["block_size"] == 32


def test_without_a_configuration_that_serves_all_there_is_no_compromise(tmp_path: Path) -> None:
    def status_of(request: Request) -> Status:
        liked = request.variant.configuration["block_size"] == LIKES.get(request.problem.label)
        return Status.OK if liked else Status.WRONG

    with searched(tmp_path, shaped_gpu(status_of)) as bench:
        assert bench.cross() == 0
        assert bench.matrix.compromise is None and len(bench.matrix.columns) == 3


def test_a_problem_where_nothing_passed_is_left_out(tmp_path: Path) -> None:
    with ExitStack() as opened:
        gpu = shaped_gpu(lambda request: Status.WRONG if request.problem.label == "N2000" else Status.OK)
        found = []
        for label in LIKES:
            problem = Problem("toy", (("N", int(label[1:])),))
            space = Space(toy().family, [problem], NARROW)
            study = opened.enter_context(Study.open_or_create(tmp_path, toy().family, problem, space, GPU, Source.FAKE))
            found.append(Searched(label, study, space))
            if label != "N2000":
                search(study, space, gpu, trials=None, finalists=1)
        measure_crossing(found, gpu, Silent())
        matrix = read_matrix(found)
        assert [one.name for one in matrix.columns] == ["N1000", "N3000"]
        assert [one.name for one in matrix.without] == ["N2000"]
        assert matrix.compromise is not None


@pytest.mark.parametrize(("crashes", "status"), [(1, Status.OK), (2, Status.CRASHED)])
def test_a_crash_is_tried_once_more_and_then_stands(tmp_path: Path, crashes: int, status: Status) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        left = [crashes]

        def status_of(request: Request) -> Status:
            if request.problem.label == "N1000" and request.variant.configuration["block_size"] == 256 and left[0]:
                left[0] -= 1
                return Status.CRASHED
            return Status.OK

        bench.gpu.status_of = status_of
        bench.cross()
        (wide,) = (row for row in bench.matrix.rows if row.configuration["block_size"] == 256)
        assert wide.cells[0].measurement is not None and wide.cells[0].measurement.status is status
        assert bench.cross() == 0


def test_an_interruption_keeps_what_was_measured_and_gives_the_claims_back(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        whole = len(missing(bench))

        def status_of(request: Request) -> Status:
            if len(bench.gpu.evaluated) > 2:
                raise KeyboardInterrupt
            return Status.OK

        bench.gpu.status_of = status_of
        with pytest.raises(KeyboardInterrupt):
            bench.cross()
        bench.gpu.status_of = always_ok
        assert bench.cross() == whole - 2
        assert missing(bench) == []


def test_full_times_of_another_gpu_are_made_anew_where_one_is_missing(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        bench.gpu.environment = replace(ENVIRONMENT, gpu_uuid="GPU-another")
        bench.cross()
        for row in bench.matrix.rows:
            for cell in row.cells:
                assert cell.measurement is not None and cell.measurement.environment is not None
                assert cell.measurement.environment.gpu_uuid == "GPU-another"


def test_progress_is_told_of_the_phase_and_of_each_result(tmp_path: Path) -> None:
    with searched(tmp_path, shaped_gpu()) as bench:
        watcher = Watcher()
        count = measure_crossing(bench.searched, bench.gpu, watcher)
    assert watcher.phases == [("cross", count)]
    assert [snapshot.done for _, snapshot in watcher.results] == list(range(1, count + 1))


def test_a_problem_gives_at_most_four_candidates_and_each_only_once(tmp_path: Path) -> None:
    with ExitStack() as opened:
        problem = Problem("toy", (("N", 1000),))
        space = Space(toy().family, [problem])
        study = opened.enter_context(Study.open_or_create(tmp_path, toy().family, problem, space, GPU, Source.FAKE))
        search(study, space, level_gpu(5.0), trials=20)
        standing = study.standing()
        assert standing is not None and len(standing.tied) >= 3
        found = candidates([Searched("a", study, space), Searched("b", study, space)])
    assert len(found) == len(set(found)) <= 4


def test_equal_compromises_are_decided_by_the_default_then_the_id(tmp_path: Path) -> None:
    with searched(tmp_path, level_gpu(0.01)) as bench:
        bench.cross()
        compromise = bench.matrix.compromise
        assert compromise is not None and compromise.configuration == bench.searched[0].space.default
        assert math.isclose(compromise.mean_slowdown or 0.0, 1.0)


def missing(bench: Bench) -> list[tuple[str, object]]:
    """The cells without a measurement."""
    return [
        (one.name, row.identity)
        for row in bench.matrix.rows
        for one, cell in zip(bench.matrix.columns, row.cells, strict=True)
        if cell.measurement is None and not cell.law
    ]


def in_full(m: Measurement) -> bool:
    return m.effort is Effort.FULL
