"""Studies made by the fake GPU, for the tests of tables, reports and exports."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Effort, Measurement, Request, Status, Value
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.output.summary import Finding
from ktune.output.winner import Winner
from tests.fake_gpu import ENVIRONMENT, FakeEvaluator

FAMILIES = Path(__file__).parent.parent / "families"


def toy() -> LoadedFamily:
    return load_family(FAMILIES / "toy")


def toy_study(
    trials: int = 60,
    status_of: Callable[[Request], Status] = lambda request: Status.OK,
    problem: str = "default",
    seed: int = 1,
) -> list[Measurement]:
    """The default configuration first, then distinct random ones; the fastest of them once more in full."""
    loaded = toy()
    size = loaded.named_problems[problem]
    space = Space(loaded.family, [size])
    others = [point for point in space.points if point != space.default]
    random.Random(seed).shuffle(others)
    requests = [
        Request(trial, make_variant(loaded.family, point, size), size)
        for trial, point in enumerate([space.default, *others][:trials])
    ]
    evaluator = FakeEvaluator(status_of)
    found = list(evaluator.evaluate(requests))
    right = sorted((m for m in found if m.eligible), key=lambda m: m.cold_us or 0.0)
    finalists = [
        replace(request, trial=trials + i, effort=Effort.FULL)
        for i, request in enumerate(requests[m.trial] for m in right[:3])
    ]
    return [*found, *evaluator.evaluate(finalists)]


def mixed_status(request: Request) -> Status:
    """A fixed pattern of failures; trial 0, the default, is right."""
    pattern = {3: Status.WRONG, 5: Status.BUILD_FAILED, 7: Status.CULLED, 8: Status.CRASHED, 9: Status.SPILLED}
    return pattern.get(request.trial % 10, Status.OK)


def row_sums() -> LoadedFamily:
    return load_family(Path(__file__).parent / "families" / "row_sums")


def toy_winner(problem: str = "default", **given: Value) -> Winner:
    return winner_of(toy(), problem, given)


def row_sums_winner(problem: str = "default", **given: Value) -> Winner:
    return winner_of(row_sums(), problem, given)


def winner_of(loaded: LoadedFamily, problem: str, given: dict[str, Value], gpu: str = "NVIDIA H200") -> Winner:
    """A winner with the given values and the defaults elsewhere, measured by the fake GPU under another's name."""
    size = loaded.named_problems[problem]
    configuration = Space(loaded.family, [size]).complete(given)
    request = Request(7, make_variant(loaded.family, configuration, size), size, Effort.FULL)
    (found,) = FakeEvaluator().evaluate([request])
    named = replace(found, environment=replace(ENVIRONMENT, gpu_name=gpu), finished_at="2026-01-02T03:04:05+00:00")
    return Winner(loaded, Finding(named, noise_percent=0.4), "ktune search ./family --set 'a=\"*/b??/\"'")
