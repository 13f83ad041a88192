"""A worker pool without a GPU: the bad family on the fake backend, with deadlines of a second."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_builder import FakeBuilder
from workers import BACKEND, DEADLINES_S

from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Effort, Problem, Request, Source, Value
from ktune.core.variant import make_variant
from ktune.gpu.cuda_evaluator import CudaEvaluator
from ktune.gpu.protocol import Job


@pytest.fixture(scope="session")
def bad(families: Path) -> LoadedFamily:
    return load_family(families / "bad")


@pytest.fixture
def problem(bad: LoadedFamily) -> Problem:
    return bad.named_problems["small"]


@pytest.fixture
def ask(bad: LoadedFamily, problem: Problem) -> Callable[..., Request]:
    """ask(trial, behaviour, block_size=...) -> Request"""

    def make(
        trial: int,
        behaviour: str = "good",
        *,
        effort: Effort = Effort.SEARCH,
        on: Problem = problem,
        cull_above_us: float | None = None,
        **values: Value,
    ) -> Request:
        configuration = Configuration((("behaviour", behaviour), *values.items()))
        return Request(trial, make_variant(bad.family, configuration, on), on, effort, cull_above_us)

    return make


@pytest.fixture
def evaluator(bad: LoadedFamily, tmp_path: Path) -> Iterator[Callable[..., CudaEvaluator]]:
    """evaluator(builder=..., gpu=..., ...) -> CudaEvaluator, closed at the end; at most one a test is open."""
    made: list[CudaEvaluator] = []

    def make(builder: FakeBuilder | None = None, **options: object) -> CudaEvaluator:
        options = {
            "backend": BACKEND,
            "log_dir": tmp_path / "logs",
            "lock_folder": tmp_path,
            "step_deadlines_s": DEADLINES_S,
            "source": Source.FAKE,
            **options,
        }
        made.append(CudaEvaluator(bad, builder or FakeBuilder(), **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture
def job(ask: Callable[..., Request]) -> Callable[..., Job]:
    def make(trial: int, behaviour: str = "good", **values: Value) -> Job:
        request = ask(trial, behaviour, **values)
        return Job(trial, request.variant, request.problem, "kernel.cubin")

    return make
