"""Records the toy family's core on the fake GPU, without the command line."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fake_gpu import ENVIRONMENT, FakeEvaluator

from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Request, Source, Status
from ktune.core.space import Space
from ktune.recorded.record import make_table
from ktune.recorded.table import RecordedTable
from ktune.search.run import search
from ktune.study.study import Study

TOY = Path(__file__).resolve().parent.parent / "families" / "toy"
WRONG = {"algorithm": "unrolled", "block_size": 64, "items": 4, "unroll": 4, "fast_math": True}
CULLED = {"algorithm": "unrolled", "block_size": 64, "items": 4, "unroll": 1, "fast_math": True}


def toy() -> LoadedFamily:
    return load_family(TOY)


def toy_core() -> Space:
    loaded = toy()
    return Space(loaded.family, [loaded.named_problems["default"]], dict(loaded.family.core))


def planted(request: Request) -> Status:
    """One wrong point and one culled point, both far from the fastest."""
    chosen = dict(request.variant.configuration)
    return Status.WRONG if chosen == WRONG else Status.CULLED if chosen == CULLED else Status.OK


def point(values: dict[str, object]) -> Configuration:
    return Configuration(tuple(values.items()))  # type: ignore[arg-type]


def open_core(folder: Path) -> Study:
    space = toy_core()
    return Study.open_or_create(folder, toy().family, space.problems[0], space, ENVIRONMENT.gpu_name, Source.FAKE)


def record_toy(
    folder: Path, status_of: Callable[[Request], Status] = planted, evaluator: FakeEvaluator | None = None
) -> RecordedTable:
    """The complete recording, whose study lies below `folder`."""
    with open_core(folder) as study:
        search(study, toy_core(), evaluator or FakeEvaluator(status_of), sampler="exhaustive", trials=None)
        table = make_table(study, toy(), toy_core())
    assert table is not None
    return table
