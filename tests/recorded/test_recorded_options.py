"""Recordings of problems with options: the file knows no defaults, the family does."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest
from fake_gpu import ENVIRONMENT, FakeEvaluator

from ktune.core.errors import UsageError
from ktune.core.loading import load_family
from ktune.core.model import Source
from ktune.core.space import Space
from ktune.recorded.evaluator import recorded_space
from ktune.recorded.record import make_table
from ktune.recorded.table import RecordedTable, find_table, read_table, table_name, write_table
from ktune.search.run import search
from ktune.study.study import Study

SHIFTED = load_family(Path(__file__).resolve().parent.parent / "families" / "shifted")


def recorded(folder: Path, problem: str) -> RecordedTable:
    """The table as it is read from its file."""
    family, asked = SHIFTED.family, SHIFTED.named_problems[problem]
    space = Space(family, [asked], dict(family.core))
    with Study.open_or_create(folder / "study", family, asked, space, ENVIRONMENT.gpu_name, Source.FAKE) as study:
        search(study, space, FakeEvaluator(), sampler="exhaustive", trials=None)
        table = make_table(study, SHIFTED, space)
    assert table is not None
    return read_table(write_table(folder / table_name(family.name, asked, ENVIRONMENT.gpu_name), table))


@pytest.mark.parametrize(
    ("problem", "points", "label"),
    [("small", 2, "N1000"), ("small-shifted", 4, "N1000-shift1"), ("small-bf16", 2, "N1000-bfloat16")],
)
def test_a_table_is_of_its_options_and_its_space_obeys_their_rules(
    tmp_path: Path, problem: str, points: int, label: str
) -> None:
    table = recorded(tmp_path, problem)
    assert table.problem == SHIFTED.named_problems[problem] and len(table.measurements) == points
    assert len(recorded_space(table, SHIFTED.family, {})) == points
    (file,) = tmp_path.glob("*.json.gz")
    assert file.name == f"shifted-{label}-fake-h200.json.gz"
    others = [p for name, p in SHIFTED.named_problems.items() if name != problem]
    for other in others:
        with pytest.raises(UsageError, match=f"holds shifted {label}, not shifted {other.label}"):
            find_table(str(file), "shifted", other)


def test_a_table_of_the_defaults_says_nothing_of_options(tmp_path: Path) -> None:
    recorded(tmp_path, "small")
    (file,) = tmp_path.glob("*.json.gz")
    assert json.loads(gzip.decompress(file.read_bytes()))["problem"]["sizes"] == {"N": 1000}
