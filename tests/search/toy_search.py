"""Studies and searches of the toy family on the fake GPU, for the tests of search and study."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Effort, Measurement, Problem, Request, Source, Status, Timing, Value
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.search.outcome import Outcome
from ktune.search.progress import Snapshot
from ktune.search.run import search
from ktune.study.study import Study
from tests.fake_gpu import ENVIRONMENT, FakeEvaluator, fake_timing

TOY = Path(__file__).parent.parent / "families" / "toy"
GPU = ENVIRONMENT.gpu_name


def toy() -> LoadedFamily:
    return load_family(TOY)


def toy_problem(name: str = "default") -> Problem:
    return toy().named_problems[name]


def toy_space(problem: Problem | None = None, **narrowing: tuple[Value, ...]) -> Space:
    return Space(toy().family, [problem or toy_problem()], narrowing)


def open_toy(results: Path, space: Space | None = None, name: str | None = None, **options: Any) -> Study:
    """The study of the toy's default problem on the fake GPU."""
    space = space or toy_space()
    return Study.open_or_create(results, toy().family, space.problems[0], space, GPU, Source.FAKE, name, **options)


def search_toy(
    results: Path, trials: int | None = 20, evaluator: Any = None, space: Space | None = None, **options: Any
) -> Outcome:
    """One `search` from opening the study to closing it."""
    space = space or toy_space()
    with open_toy(results, space) as study:
        return search(study, space, evaluator or FakeEvaluator(), trials=trials, **options)


def measure(configuration: Configuration, trial: int = 0, **changes: Any) -> Measurement:
    """What the fake GPU says about a configuration of the toy, with some fields changed."""
    request = Request(trial, make_variant(toy().family, configuration, toy_problem()), toy_problem())
    return replace(FakeEvaluator().answer(request), **changes)


def timing(median_us: float, half_interval_us: float = 0.01) -> Timing:
    made = fake_timing(median_us)
    return replace(made, ci_low_us=median_us - half_interval_us, ci_high_us=median_us + half_interval_us)


class ScriptedEvaluator(FakeEvaluator):
    """A fake GPU whose answers pass through `change(request, measurement)`."""

    def __init__(self, change: Callable[[Request, Measurement], Measurement], lookahead: int = 4) -> None:
        super().__init__(lookahead=lookahead)
        self.change = change

    def answer(self, request: Request) -> Measurement:
        return self.change(request, super().answer(request))

    def raced(self, problem: Problem, entrant: Entrant, seed: int) -> RaceResult:
        """What the same request in full would be answered, under the trial's number."""
        assert entrant.variant is not None
        trial = next((r.trial for r in self.evaluated if r.variant == entrant.variant), -1)
        m = self.answer(Request(trial, entrant.variant, problem, Effort.FULL))
        self.evaluated.pop()
        return RaceResult(entrant.name, m.status, m.detail, m.accuracy, m.cold, m.hot)


class AnsweringEvaluator:
    """A GPU that can't race: it only answers requests, with what `inner` says."""

    source = Source.FAKE
    environment = ENVIRONMENT

    def __init__(self, inner: FakeEvaluator) -> None:
        self.inner = inner

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        return self.inner.evaluate(requests)

    def close(self) -> None:
        self.inner.close()


class InterruptedEvaluator(FakeEvaluator):
    """Ctrl-C arrives once `after` answers have been given."""

    def __init__(self, after: int) -> None:
        super().__init__()
        self.after = after

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        for count, m in enumerate(super().evaluate(requests)):
            if count == self.after:
                raise KeyboardInterrupt
            yield m


class Watcher:
    """Keeps what a search tells."""

    def __init__(self) -> None:
        self.started: tuple[int, int] | None = None
        self.elsewhere = 0
        self.phases: list[tuple[str, int]] = []
        self.results: list[tuple[Measurement, Snapshot]] = []
        self.outcome: Outcome | None = None

    def on_start(self, total: int, resumed: int, elsewhere: int) -> None:
        self.started = (total, resumed)
        self.elsewhere = elsewhere

    def on_result(self, m: Measurement, snapshot: Snapshot) -> None:
        self.results.append((m, snapshot))

    def on_phase(self, phase: str, total: int) -> None:
        self.phases.append((phase, total))

    def on_end(self, outcome: Outcome) -> None:
        self.outcome = outcome


def searched(evaluator: FakeEvaluator) -> list[Configuration]:
    """The configurations that the search phase had measured, in order."""
    return [r.variant.configuration for r in evaluator.evaluated if r.effort is Effort.SEARCH]


def fails(status: Status) -> Callable[[Request], Status]:
    """Every variant ends that way."""
    return lambda request: status
