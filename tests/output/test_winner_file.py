"""best.json: what it says, and what reading it back accepts."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.errors import UsageError
from ktune.core.model import Status
from ktune.output.provenance import provenance
from ktune.output.summary import Finding
from ktune.output.winner import Winner, load_winner, read_winner, winner_json, workspace_layout, write_winner
from tests.output.studies import row_sums_winner, toy, toy_winner

SAMPLES = Path(__file__).parent / "samples"


def edited(tmp_path: Path, **changes: object) -> Path:
    data = {**winner_json(toy_winner()), **changes}
    path = tmp_path / "best.json"
    path.write_text(json.dumps(data))
    return path


def test_a_winner_reads_back_as_the_same_family_problem_and_configuration(tmp_path: Path):
    winner = toy_winner(algorithm="unrolled", items=4, unroll=2, fast_math=True)
    path = write_winner(winner, tmp_path / "best.json")
    family, problem, configuration = read_winner(path)
    assert (Path(family), problem, configuration) == (toy().folder, winner.problem, winner.configuration)
    assert load_winner(path) == (winner.loaded, winner.problem, winner.configuration)


def test_it_says_what_is_launched_and_how_it_must_be_compiled():
    data = winner_json(row_sums_winner(clustered=True))
    first, second = data["launches"]
    assert first["kernel"] == "row_sums_partial"
    assert (first["grid"], first["block"], first["cluster"]) == ([4, 1000, 1], [128, 1, 1], [4, 1, 1])
    assert first["smem_bytes"] == 65536 and second["grid"] == [32, 1, 1]
    assert "--use_fast_math" in data["nvcc_flags"] and "-cubin" not in data["nvcc_flags"]
    assert data["constants"] == {"columns": 777} and data["target"] == "sm_90a"
    assert data["workspace_bytes"] == 2 * 63 * 256


def test_it_says_how_it_was_measured_and_with_what_error():
    data = winner_json(toy_winner())
    assert data["source"] == "fake" and data["effort"] == "full" and data["noise_percent"] == 0.4
    assert data["cold"]["regime"] == "cold" and data["cold"]["ci_low_us"] < data["cold"]["median_us"]
    assert data["cold"]["samples"] == 5 and "samples_us" not in data["cold"]
    assert data["accuracy"]["worst_ratio"] == 0.02
    assert data["environment"]["gpu_name"] == "NVIDIA H200"
    assert len(data["digests"]["source"]) == 64 and data["digests"]["code"]
    assert data["command"].startswith("ktune search")


def test_the_source_digest_depends_on_the_configuration_and_a_torch_plan_has_none():
    digests = [winner_json(w)["digests"]["source"] for w in (toy_winner(), toy_winner(items=2))]
    assert digests[0] != digests[1]
    assert winner_json(row_sums_winner(algorithm="torch"))["digests"]["source"] is None
    assert winner_json(row_sums_winner(algorithm="torch"))["launches"][0]["torch_operation"] == "sum_rows"


def test_the_tied_set_is_named(tmp_path: Path):
    first, second = toy_winner(), toy_winner(items=2)
    tied = Winner(first.loaded, Finding(first.measurement, (second.measurement,)))
    assert [other["configuration_id"] for other in winner_json(tied)["tied"]] == [second.identity]


def test_the_verdict_against_the_default_and_the_warnings_are_in_the_file_and_its_provenance():
    default, winner = toy_winner(), toy_winner(block_size=256)
    finding = Finding(winner.measurement, default=default.measurement, noise_percent=1.5, warnings=("the clock fell",))
    told = Winner(winner.loaded, finding)
    data = winner_json(told)
    assert data["default"]["configuration_id"] == default.identity
    assert data["verdict"] in ("faster", "slower") and data["warnings"] == ["the clock fell"]
    rows = dict(provenance(told))
    assert f"{data['verdict']} than the default" in rows["against the default"] and rows["warning"] == "the clock fell"
    alone = winner_json(winner)
    assert (alone["default"], alone["verdict"], alone["warnings"]) == (None, None, [])


def test_a_figure_that_is_not_a_number_is_null_in_strict_json(tmp_path: Path):
    winner = toy_winner()
    odd = replace(winner.measurement, accuracy=replace(winner.measurement.accuracy, max_rel=math.inf, max_ulp=math.nan))
    path = write_winner(Winner(winner.loaded, Finding(odd)), tmp_path / "best.json")

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    data = json.loads(path.read_text(), parse_constant=refuse)
    assert data["accuracy"]["max_rel"] is None and data["accuracy"]["max_ulp"] is None


@pytest.mark.parametrize(
    "spoil",
    [
        lambda m: replace(m, status=Status.WRONG, detail="error 40 of tolerance"),
        lambda m: replace(m, cold=replace(m.cold, median_us=math.nan)),
        lambda m: replace(m, cold=None),
    ],
)
def test_what_is_not_right_and_timed_cannot_be_exported(spoil):
    winner = toy_winner()
    with pytest.raises(UsageError, match=rf"cannot export #7 {winner.identity}: it ended as .*choose one that is ok"):
        Winner(winner.loaded, Finding(spoil(winner.measurement)))


def test_a_file_of_format_1_can_be_read():
    family, problem, configuration = read_winner(SAMPLES / "best-format-1.json")
    assert (family, problem.sizes) == ("toy", (("N", 1048576),))
    assert dict(configuration) == {
        "algorithm": "unrolled",
        "block_size": 64,
        "items": 4,
        "unroll": 2,
        "fast_math": True,
    }
    assert configuration["fast_math"] is True


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is not JSON"),
        ("{", "is not JSON"),
        ("[1, 2]", 'without "kind": "ktune winner"'),
        ("{}", 'without "kind": "ktune winner"'),
        ('{"kind": "ktune winner"}', "must say format = 1"),
        ('{"kind": "ktune winner", "format": 2}', "format 2, this ktune reads up to format 1"),
        ('{"kind": "ktune winner", "format": 1}', "lacks or garbles 'problem'"),
    ],
)
def test_any_other_file_is_refused_with_the_reason(tmp_path: Path, text: str, said: str):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(UsageError) as raised:
        read_winner(path)
    assert said in str(raised.value) and "other.json" in str(raised.value)


def test_a_missing_or_binary_file_is_refused_with_the_remedy(tmp_path: Path):
    with pytest.raises(UsageError, match=r"No such file.*`ktune export` writes such files"):
        read_winner(tmp_path / "none.json")
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match="is not text"):
        read_winner(tmp_path / "binary")


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"problem": {"family": "toy", "sizes": {"N": "many"}, "dtype": "float32"}}, "size N must be a whole number"),
        ({"problem": {"family": "toy", "sizes": {"M": 4}, "dtype": "float32"}}, "another version of the family"),
        ({"configuration": {"block_size": 1.5}}, "block_size must be a number, text or boolean, got 1.5"),
        ({"configuration": {"block_size": 96}}, "block_size of toy must be one of 32, 64, 128, 256, got '96'"),
        ({"configuration": {"blocks": 96}}, "no parameter 'blocks'"),
        ({"configuration": {"algorithm": "unrolled", "items": 1, "unroll": 8}}, "unroll may not exceed items"),
        ({"configuration": [1]}, "lacks or garbles"),
        ({"family_folder": "/nowhere/at/all"}, "/nowhere/at/all holds no family.py"),
    ],
)
def test_a_file_that_does_not_fit_its_family_is_refused(tmp_path: Path, changes: dict, said: str):
    with pytest.raises(UsageError) as raised:
        load_winner(edited(tmp_path, **changes))
    assert said in str(raised.value)


def test_scratch_tensors_lie_apart_at_aligned_offsets():
    winner = row_sums_winner(splits=2)
    offsets, total = workspace_layout(winner.plan.workspace)
    assert offsets == {"part_total": 0, "part_largest": 8192} and total == 16384
