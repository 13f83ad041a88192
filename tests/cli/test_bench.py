"""`ktune bench` races the winner with the default and the peers, and says how they compare."""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
from cli_terminal import Terminal
from fake_gpu import FakeEvaluator, fake_time_us, fake_timing

from ktune.core.model import Accuracy, Problem, Request, Status, Variant
from ktune.gpu.protocol import Entrant, RaceResult

PEERS = """
from ktune.api import Peer

PEERS = (
    Peer("eager", lambda: None, lambda problem, inputs: None),
    Peer("rounded", lambda: None, lambda problem, inputs: None),
    Peer("library", lambda: "pip install library", lambda problem, inputs: None),
    Peer("handmade", lambda: None, lambda problem, inputs: None),
)
"""


@dataclass
class Ran:
    """One race as it was asked for."""

    problem: Problem
    entrants: list[Entrant]
    seed: int
    fresh: bool


class RacingGpu(FakeEvaluator):
    """A fake GPU on which everyone's status and time can be planted by name."""

    def __init__(self) -> None:
        super().__init__()
        self.status: dict[str, Status] = {"rounded": Status.WRONG}
        self.time_us: dict[str, float] = {"eager": 900.0, "rounded": 10.0, "handmade": 20.0}
        self.unbuildable: set[int] = set()
        self.asked: list[Ran] = []

    def cubin_of(self, variant: Variant) -> str | None:
        return None if variant.configuration["block_size"] in self.unbuildable else "toy.cubin"

    def race(
        self, problem: Problem, entrants: Sequence[Entrant], *, seed: int = 0, fresh: bool = False
    ) -> list[RaceResult]:
        self.asked.append(Ran(problem, list(entrants), seed, fresh))
        return [self.result(entrant, problem, seed) for entrant in entrants]

    def result(self, entrant: Entrant, problem: Problem, seed: int) -> RaceResult:
        status = self.status.get(entrant.name, Status.OK)
        if status not in (Status.OK, Status.WRONG):
            return RaceResult(entrant.name, status, f"planted: {status}")
        time_us = self.time_us.get(entrant.name)
        if time_us is None:
            assert entrant.variant is not None
            time_us = fake_time_us(Request(0, entrant.variant, problem))
        cold = fake_timing(time_us * (1 + 0.001 * (seed % 2)))
        ratio = 0.02 if status is Status.OK else 40.0
        detail = "" if status is Status.OK else "planted: wrong"
        accuracy = Accuracy(1e-6, 1e-6, 2.0, 1e-7, ratio, 0.0)
        return RaceResult(entrant.name, status, detail, accuracy, cold, fake_timing(time_us * 0.9, "hot"))


@pytest.fixture
def gpu(ktune: Terminal) -> RacingGpu:
    made = RacingGpu()
    ktune.evaluator = made
    return made


@pytest.fixture
def rivalled(tmp_path: Path, toy: Path) -> Path:
    """The toy family with peers: a slow one, a wrong one, a missing one, a fast one."""
    folder = tmp_path / "toy"
    shutil.copytree(toy, folder)
    (folder / "peers.py").write_text(PEERS)
    return folder


@pytest.fixture
def searched(ktune: Terminal, gpu: RacingGpu, rivalled: Path) -> Path:
    """The folder of a study of the toy's small problem."""
    ktune("search", rivalled, "--problem", "small", "--trials", "12")
    gpu.evaluated.clear()
    gpu.asked.clear()
    return ktune.folder / "results" / "toy-N1000-Fake-H200"


def rows_of(folder: Path) -> list[dict[str, Any]]:
    found = json.loads((folder / "bench.json").read_text())
    assert found["format"] == 1
    return list(found["rows"])


def names_of(rows: list[dict[str, Any]]) -> list[str]:
    return [row["name"] for row in rows]


def test_the_winner_races_the_default_and_every_peer_in_fresh_processes(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path
) -> None:
    winner = json.loads((searched / "best.json").read_text())
    out = ktune("bench", rivalled)
    assert [(ran.seed, ran.fresh, ran.problem["N"]) for ran in gpu.asked] == [(0, True, 1000), (1, True, 1000)]
    name = f"winner #{winner['trial']}"
    assert [entrant.name for entrant in gpu.asked[0].entrants] == [name, "default", "eager", "rounded", "handmade"]
    raced = gpu.asked[0].entrants[0]
    assert raced.variant is not None and dict(raced.variant.configuration) == winner["configuration"]
    assert raced.cubin == "toy.cubin" and gpu.asked[0].entrants[2].peer == "eager"
    rows = rows_of(searched)
    assert names_of(rows) == [name, "handmade", "default", "eager", "rounded", "library"]
    assert [row["verdict"] for row in rows[1:]] == ["faster", "slower", "slower", "wrong", "not installed"]
    assert "not installed: pip install library" in out and "rounded: wrong: planted: wrong" in out
    assert f"best rival that is right: handmade; {name} is slower, 0." in out
    assert "toy at N1000" in out and "fake: from a formula, not from a GPU" in out
    assert gpu.closed


def test_where_all_are_right_only_the_missing_peer_has_no_status(ktune: Terminal, rivalled: Path) -> None:
    ktune("bench", rivalled, "simple.block_64.items_2.fast_math_0")
    found = rows_of(ktune.folder / "results" / "toy-N1048576-Fake-H200")
    assert [row["status"] for row in found] == ["ok"] * 5 + [None]
    assert [row["role"] for row in found] == ["subject", "default", "peer", "peer", "peer", "peer"]


def test_it_writes_json_and_csv_into_the_study(ktune: Terminal, rivalled: Path, searched: Path) -> None:
    before = {path.name for path in searched.iterdir()}
    ktune("bench", rivalled)
    assert {"bench.json", "bench.csv"} <= {path.name for path in searched.iterdir()} - before
    assert f"wrote {searched}/bench.json".replace(f"{ktune.folder}/", "") in ktune.err.replace(f"{ktune.folder}/", "")
    found = json.loads((searched / "bench.json").read_text())
    assert found["source"] == "fake" and found["study"] == searched.name and found["environment"]["driver"] == "580.0"
    with (searched / "bench.csv").open() as stream:
        table = list(csv.DictReader(stream))
    assert [row["name"] for row in table] == names_of(found["rows"])
    assert {row["source"] for row in table} == {"fake"}


def test_output_and_json_go_where_they_are_sent(ktune: Terminal, rivalled: Path, searched: Path) -> None:
    out = ktune("bench", rivalled, "--json", "--output", "elsewhere", "--repeat", "1", "--seed", "7")
    assert json.loads(out) == json.loads((ktune.folder / "elsewhere" / "bench.json").read_text())
    assert json.loads(out)["processes"] == 1 and json.loads(out)["seed"] == 7
    assert not (searched / "bench.json").exists()


def test_peers_can_be_chosen_or_left_out(ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path) -> None:
    ktune("bench", rivalled, "--peer", "library", "--peer", "eager", "--peer", "eager")
    assert names_of(rows_of(searched))[2:] == ["eager", "library"]
    ktune("bench", rivalled, "--no-peers")
    assert [row["role"] for row in rows_of(searched)] == ["subject", "default"]


def test_named_configurations_race_instead_of_the_winner(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path
) -> None:
    best = json.loads((searched / "best.json").read_text())
    identity = "unrolled.block_256.items_4.unroll_4.fast_math_1"
    ktune("bench", rivalled, identity, searched / "best.json", best["digests"]["configuration"][:12], "--no-peers")
    rows = rows_of(searched)
    assert rows[0]["configuration_id"] == identity and rows[0]["role"] == "subject"
    assert {row["name"]: row["role"] for row in rows[1:]} == {"best.json": "configuration", "default": "default"}
    assert len(rows[0]["name"]) <= 24
    ktune("bench", rivalled, f"#{best['trial']}", "--no-peers")
    assert names_of(rows_of(searched))[0] == f"#{best['trial']}"
    assert rows_of(searched)[0]["configuration_id"] == best["configuration_id"]


def test_the_default_is_not_raced_against_itself(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path
) -> None:
    ktune("bench", rivalled, "simple.block_128.items_1.fast_math_0", "--no-peers", "--problem", "small")
    assert len(rows_of(searched)) == 1 and rows_of(searched)[0]["role"] == "subject"


def test_without_a_study_a_named_configuration_makes_a_folder_of_its_own(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path
) -> None:
    ktune("bench", rivalled, "simple.block_64.items_2.fast_math_0", "--problem", "N=77")
    assert [ran.problem["N"] for ran in gpu.asked] == [77, 77]
    assert names_of(rows_of(ktune.folder / "results" / "toy-N77-Fake-H200"))[-1] == "library"


def test_a_file_brings_its_own_problem(ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path) -> None:
    kept = shutil.move(searched / "best.json", ktune.folder / "kept.json")
    shutil.rmtree(searched)
    ktune("bench", rivalled, kept, "--repeat", "1")
    assert gpu.asked[0].problem["N"] == 1000


def test_a_study_made_on_another_gpu_keeps_its_files(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path
) -> None:
    gpu.environment = replace(gpu.environment, gpu_name="Fake H100")
    ktune("bench", rivalled)
    assert "was made on Fake H200; all times below are from Fake H100" in ktune.err
    assert not (searched / "bench.json").exists()
    assert (ktune.folder / "results" / "toy-N1000-Fake-H100" / "bench.json").exists()


@pytest.mark.parametrize("status", [Status.WRONG, Status.CRASHED, Status.TIMED_OUT])
def test_a_winner_that_is_not_right_exits_with_4_and_leaves_the_files(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path, status: Status
) -> None:
    name = f"winner #{json.loads((searched / 'best.json').read_text())['trial']}"
    gpu.status[name] = status
    out = ktune("bench", rivalled, code=4)
    assert f"{name} is not right at N1000: planted: {status}" in ktune.err
    assert "nothing is compared with it" in out
    rows = rows_of(searched)
    assert rows[0]["status"] == status and all(row["speed_up"] is None for row in rows)


def test_a_configuration_that_does_not_build_is_a_row(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path
) -> None:
    gpu.unbuildable = {64}
    words = ["simple.block_128.items_2.fast_math_0", "simple.block_64.items_1.fast_math_0", "--problem", "small"]
    ktune("bench", rivalled, *words)
    assert all("block_64" not in str(entrant.variant) for entrant in gpu.asked[0].entrants)
    failed = next(row for row in rows_of(searched) if row["verdict"] == "build failed")
    assert failed["configuration"]["block_size"] == 64 and failed["cold"] is None


def test_a_peer_that_hangs_or_crashes_is_a_row(ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path) -> None:
    gpu.status |= {"eager": Status.TIMED_OUT, "handmade": Status.CRASHED}
    out = ktune("bench", rivalled)
    assert "eager: timed_out: planted: timed_out" in out and "handmade: crashed: planted: crashed" in out
    assert names_of(rows_of(searched))[1] == "default"


def test_a_family_without_peers_compares_configurations(ktune: Terminal, gpu: RacingGpu, toy: Path) -> None:
    ktune("bench", toy, "simple.block_64.items_2.fast_math_0")
    assert "toy has no peers" in ktune.err and len(gpu.asked[0].entrants) == 2


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--peer", "eagre"], 2, "did you mean 'eager'?"),
        (["--peer", "eager", "--no-peers"], 2, "leave one of them out"),
        (["--repeat", "0"], 2, "--repeat"),
        (["simple.block_65.items_1.fast_math_0"], 2, "no valid configuration"),
        (["#999"], 2, "no configuration"),
        (["none.json"], 2, "cannot read none.json"),
        (["--problem", "N=5"], 2, "no study of toy N5"),
        (["--problem", "M=5"], 2, "no size 'M'"),
        (["--study", "nowhere"], 2, "no study is called 'nowhere'"),
        (["--study", "toy-N1000-Fake-H200", "--problem", "N=5"], 2, "leave one of --study and --problem out"),
        (["--output", "taken"], 2, "not written by ktune"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else None,
)
def test_bad_input_is_refused_before_anything_is_raced(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path, words: list[str], code: int, said: str
) -> None:
    (ktune.folder / "taken").mkdir()
    (ktune.folder / "taken" / "bench.csv").write_text("someone else's")
    ktune("bench", rivalled, *words, code=code)
    assert said in ktune.err and not gpu.asked
    assert (ktune.folder / "taken" / "bench.csv").read_text() == "someone else's"


def test_force_replaces_a_foreign_file(ktune: Terminal, rivalled: Path, searched: Path) -> None:
    (ktune.folder / "bench.csv").write_text("someone else's")
    ktune("bench", rivalled, "--output", ".", "--force")
    assert (ktune.folder / "bench.csv").read_text().startswith("name,role")


def test_without_any_study_the_remedy_is_named(ktune: Terminal, gpu: RacingGpu, rivalled: Path) -> None:
    ktune("bench", rivalled, code=2)
    assert "`ktune search toy` makes one" in ktune.err


def test_a_study_without_a_winner_exits_with_4(ktune: Terminal, gpu: RacingGpu, rivalled: Path) -> None:
    ktune.plant(lambda request: Status.WRONG)
    ktune("search", rivalled, "--trials", "3", code=4)
    ktune("bench", rivalled, code=4)
    assert "has no winner to compare" in ktune.err and not gpu.asked


def test_a_study_of_another_family_is_refused(ktune: Terminal, rivalled: Path, searched: Path) -> None:
    ktune("bench", "selective_scan", "--study", searched, code=2)
    assert f"study {searched.name} is of toy, not of selective_scan" in ktune.err


@pytest.mark.parametrize(
    ("peers", "said"),
    [
        ("PEERS = 3", "must define `PEERS"),
        ("PEERS = ('eager',)", "must define `PEERS"),
        ("raise RuntimeError('torn')", "does not load"),
        (PEERS.replace('"rounded"', '"eager"'), "two peers one name"),
        (PEERS.replace('"rounded"', '"default"'), "rename it"),
        (PEERS.replace('lambda: "pip install library"', "lambda: 1 / 0"), "it raised ZeroDivisionError"),
    ],
    ids=["not-peers", "names-alone", "broken", "same-name", "name-of-a-configuration", "missing-raises"],
)
def test_a_broken_peers_file_is_named(
    ktune: Terminal, gpu: RacingGpu, rivalled: Path, searched: Path, peers: str, said: str
) -> None:
    (rivalled / "peers.py").write_text(peers)
    ktune("bench", rivalled, code=2)
    assert said in ktune.err and "peers.py" in ktune.err and not gpu.asked and gpu.closed


def test_without_a_gpu_it_exits_with_3(bare: Terminal, rivalled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bare("bench", rivalled, "simple.block_64.items_2.fast_math_0", code=3)
    assert "hides every GPU" in bare.err
