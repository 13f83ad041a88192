"""Which configuration is tried first, and how the table is made from results."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from ktune.core.errors import UsageError
from ktune.core.loading import load_family, shipped_families
from ktune.core.model import Problem
from ktune.core.space import Space
from ktune.nn.collect import collect, table_text
from ktune.nn.winners import PATH, Recorded, Table, candidates, distance, read_winners, shipped_winners

ROOT = Path(__file__).resolve().parents[2]
SCAN = load_family("selective_scan").family
LINEAR = load_family("linear_swish_scale").family


def scan(**sizes: int) -> Problem:
    return SCAN.problem(**{"B": 16, "L": 2048, "D": 256, "N": 16, **sizes})


def won(problem: Problem, **values: Any) -> Recorded:
    return Recorded(dict(problem.sizes), dict(Space(SCAN, [problem]).complete({"threads_per_pair": 4, **values})))


def dimensions(family: Any) -> list[str]:
    return [size.name for size in family.sizes if size.default is None]


def blocks(problem: Problem, table: Table, gpu: str = "H200") -> list[int]:
    return [c.integer("block_size") for c in candidates(SCAN, gpu, problem, table)]


SHORT, LONG = scan(L=512), scan(L=8192)
TABLE: Table = {"selective_scan": {"H200": (won(SHORT, block_size=64), won(LONG, block_size=256))}}
DEFAULT = Space(SCAN, [SHORT]).default.integer("block_size")


def test_a_recorded_shape_comes_first_and_the_default_last() -> None:
    assert blocks(SHORT, TABLE) == [64, 256, DEFAULT]
    assert blocks(LONG, TABLE) == [256, 64, DEFAULT]


def test_the_nearest_shape_by_logarithms_comes_first() -> None:
    assert blocks(scan(L=1000), TABLE)[0] == 64
    assert blocks(scan(L=4000), TABLE)[0] == 256
    # half way between the logarithms: the one that is first in the table
    assert blocks(scan(L=2048), TABLE)[0] == 64
    assert distance(SCAN, SHORT, SHORT) == 0.0


def test_a_family_says_what_makes_shapes_near() -> None:
    """The scan: as many pairs of batch and channel, rather than the same length, batch or channels."""
    as_long, as_many = scan(L=8192, D=512), scan(L=512, B=1, D=4096)
    table = {"selective_scan": {"H200": (won(as_long, block_size=64), won(as_many, block_size=256))}}
    assert blocks(scan(L=8192), table)[0] == 256
    plain = replace(SCAN, nearness=None)
    assert next(candidates(plain, "H200", scan(L=8192), table)).integer("block_size") == 64
    assert distance(plain, scan(L=8), scan(L=2)) == pytest.approx(math.log(4))
    assert distance(SCAN, scan(L=8), scan(L=2)) == pytest.approx(math.log(4) / 10)


def test_a_winner_that_is_not_valid_at_the_shape_is_passed_over() -> None:
    table = {"selective_scan": {"H200": (won(SHORT, block_size=64, algorithm="staged", vector_width=4),)}}
    assert blocks(scan(D=255), table) == [DEFAULT]


def test_a_winner_of_another_version_of_the_family_is_passed_over() -> None:
    table = {
        "selective_scan": {
            "H200": (
                Recorded(dict(SHORT.sizes), {"algorithm": "direct", "warp_shape": 3}),
                Recorded({"L": 512}, {"algorithm": "direct", "block_size": 512}),
                won(LONG, block_size=256),
            )
        }
    }
    assert blocks(SHORT, table) == [256, DEFAULT]


def test_an_unknown_gpu_takes_winners_of_others_and_a_known_one_its_own() -> None:
    table = {"selective_scan": {"H100": (won(SHORT, block_size=32),), **TABLE["selective_scan"]}}
    assert blocks(SHORT, table, "H100") == [32, DEFAULT]
    # of equal distance: models in alphabetical order
    assert blocks(SHORT, table, "H20") == [32, 64, 256, DEFAULT]


SHIFTED = load_family(ROOT / "tests" / "families" / "shifted").family


def shifted(block_size: int, dtype: str = "float32", **sizes: int) -> Recorded:
    return Recorded(sizes, {"block_size": block_size, "fused": True}, dtype)


@pytest.mark.parametrize(
    ("problem", "order"),
    [
        (SHIFTED.problem(N=64), [128, 32, 64]),
        (SHIFTED.problem(N=64, shift=1), [32, 128, 64]),
        (SHIFTED.problem(N=1 << 20, dtype="bfloat16"), [64, 128, 32]),
    ],
    ids=lambda given: given.label if isinstance(given, Problem) else "",
)
def test_winners_of_the_same_options_and_dtype_come_first_then_others(problem: Problem, order: list[int]) -> None:
    known = (shifted(32, N=64, shift=1), shifted(128, N=1 << 20), shifted(64, "bfloat16", N=64))
    found = candidates(SHIFTED, "H200", problem, {"shifted": {"H200": known}})
    assert [c.integer("block_size") for c in found] == order


def test_an_option_is_the_same_whether_a_winner_gives_its_default_or_not() -> None:
    problem = Problem("shifted", (("N", 64),))
    known = (shifted(32, N=1 << 20, shift=0), shifted(128, N=64, shift=1), shifted(64, N=64, gate=1))
    found = candidates(SHIFTED, "H200", problem, {"shifted": {"H200": known}})
    # the last is of an option that the family does not have; 64 is the default
    assert [c.integer("block_size") for c in found] == [32, 128, 64]


def test_winners_of_options_and_dtypes_are_collected_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktune.core.loading.shipped_folder", lambda: ROOT / "tests" / "families")
    problems: list[tuple[dict[str, int], str]] = [
        ({"N": 64}, "float32"), ({"N": 64, "shift": 0}, "float32"), ({"N": 64, "shift": 1}, "float32"),
        ({"N": 64, "times": 1}, "bfloat16"),
    ]  # fmt: skip
    for number, (sizes, dtype) in enumerate(problems):
        stored = {"family": "shifted", "sizes": sizes, "dtype": dtype}
        configuration = {"block_size": 32, "fused": True}
        put(tmp_path, str(number), result(family="shifted", problem=stored, configuration=configuration))
    found, left_out = collect(tmp_path)
    assert [(won.sizes, won.dtype) for won in found] == [
        ({"N": 64}, "float32"), ({"N": 64, "shift": 1}, "float32"), ({"N": 64}, "bfloat16")
    ]  # fmt: skip
    assert left_out == []
    text = table_text(found)
    assert '{"sizes": {"N": 64}, "configuration": {"block_size": 32, "fused": true}}' in text
    path = tmp_path / "table.json"
    path.write_text(text)
    assert [won.dtype for won in read_winners(path)["shifted"]["H200"]] == ["float32", "float32", "bfloat16"]


def test_without_winners_the_default_is_left() -> None:
    assert blocks(SHORT, {}) == [DEFAULT]


@pytest.mark.parametrize(("family", "sizes"), [(SCAN, (3, 65, 33, 5)), (LINEAR, (19, 101, 251))])
def test_every_candidate_of_the_shipped_table_is_valid_for_an_odd_shape(family: Any, sizes: tuple[int, ...]) -> None:
    problem = family.problem(**dict(zip(dimensions(family), sizes, strict=True)))
    space = Space(family, [problem])
    found = list(candidates(family, "NVIDIA H200", problem, shipped_winners()))
    assert found and all(space.broken_rule(c) is None for c in found)


def test_the_shipped_table_names_winners_that_fit_the_shipped_families() -> None:
    table = shipped_winners()
    assert {"selective_scan", "linear_swish_scale"} <= set(table) <= set(shipped_families())
    for name, models in table.items():
        family = load_family(name).family
        for winners in models.values():
            for one in winners:
                problem = family.problem_of(one.sizes, one.dtype)
                assert dict(Space(family, [problem]).complete(one.configuration)) == dict(one.configuration)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"format": 2, "kind": "ktune winners by shape", "winners": {}}', '{"format": 1, "winners": {}}']
)
def test_a_file_that_is_no_table_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "winners.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"python -m ktune\.nn\.collect"):
        read_winners(path)


def test_a_garbled_table_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "winners.json"
    path.write_text('{"format": 1, "kind": "ktune winners by shape", "winners": {"f": {"H200": [{"sizes": {}}]}}}')
    with pytest.raises(UsageError, match="lacks or garbles"):
        read_winners(path)


def result(**changes: Any) -> dict[str, Any]:
    """A best.json of the scan, as far as a table is made of it."""
    return {
        "format": 1,
        "kind": "ktune winner",
        "family": "selective_scan",
        "family_folder": None,
        "problem": {"family": "selective_scan", "sizes": dict(SHORT.sizes), "dtype": "float32"},
        "configuration": dict(won(SHORT, block_size=64).configuration),
        "target": "sm_90a",
        "source": "measured",
        "environment": {"gpu_name": "H200"},
        "cold": {"median_us": 50.0},
        **changes,
    }


def put(folder: Path, study: str, data: dict[str, Any], name: str = "best.json") -> None:
    (folder / study).mkdir(exist_ok=True)
    (folder / study / name).write_text(json.dumps(data))


def test_the_faster_of_two_winners_of_one_shape_is_collected(tmp_path: Path) -> None:
    put(tmp_path, "a", result())
    put(tmp_path, "b", result(cold={"median_us": 40.0}, configuration=dict(won(SHORT, block_size=256).configuration)))
    put(tmp_path, "c", result(cold={"median_us": 60.0}, configuration=dict(won(SHORT, block_size=32).configuration)))
    (one,), left_out = collect(tmp_path)
    assert one.configuration["block_size"] == 256
    assert left_out == []


def test_winners_of_a_search_of_several_problems_are_collected(tmp_path: Path) -> None:
    other = {"family": "selective_scan", "sizes": dict(LONG.sizes), "dtype": "float32"}
    several = {
        "format": 1,
        "kind": "ktune winners",
        "problems": [{"winner": result()}, {"winner": result(problem=other)}, {"winner": None}],
    }
    put(tmp_path, "several", several, "winners.json")
    found, _ = collect(tmp_path)
    assert [one.sizes["L"] for one in found] == [512, 8192]


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"source": "replayed"}, "replayed"),
        ({"target": "sm_80"}, "sm_80"),
        ({"family_folder": "/home/me/selective_scan"}, "the user's own"),
        ({"configuration": {"algorithm": "gone"}}, "algorithm"),
        ({"problem": {"family": "selective_scan", "sizes": dict(SHORT.sizes), "dtype": "int8"}}, "int8"),
    ],
)
def test_what_does_not_belong_into_the_table_is_left_out_with_a_reason(
    tmp_path: Path, changes: dict[str, Any], reason: str
) -> None:
    put(tmp_path, "a", result(**changes))
    found, left_out = collect(tmp_path)
    assert found == []
    assert len(left_out) == 1 and reason in left_out[0]


def test_a_written_table_reads_back_and_does_not_depend_on_the_order_of_files(tmp_path: Path) -> None:
    put(tmp_path, "a", result())
    put(tmp_path, "b", result(problem={"family": "selective_scan", "sizes": dict(LONG.sizes), "dtype": "float32"}))
    text = table_text(collect(tmp_path)[0])
    path = tmp_path / "table.json"
    path.write_text(text)
    (short, long) = read_winners(path)["selective_scan"]["H200"]
    assert short.sizes == dict(SHORT.sizes) and long.sizes == dict(LONG.sizes)
    (tmp_path / "a").rename(tmp_path / "z")
    assert table_text(collect(tmp_path)[0]) == text


def test_the_command_writes_the_table_and_says_how_many(tmp_path: Path) -> None:
    put(tmp_path, "a", result())
    output = tmp_path / "table.json"
    command = [sys.executable, "-m", "ktune.nn.collect", str(tmp_path), "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "wrote 1 winners" in done.stdout
    assert read_winners(output)


def test_the_command_leaves_the_table_alone_where_there_is_no_winner(tmp_path: Path) -> None:
    before = PATH.read_text()
    command = [sys.executable, "-m", "ktune.nn.collect", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 2 and "no winner" in done.stderr
    assert PATH.read_text() == before
