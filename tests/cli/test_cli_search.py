"""`ktune search` from the command line to the files, with a fake GPU."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_terminal import Terminal
from fake_gpu import FakeEvaluator

from ktune.core.model import Effort, Request, Status
from ktune.search.simplify import MOST_EXTRA
from ktune.study.study import Study

FOLDER = "toy-N1048576-Fake-H200"
FILES = ("ledger.sqlite", "measurements.csv", "report.html", "best.h", "best.json")


def test_a_search_leaves_its_files_and_says_what_is_next(ktune: Terminal, toy: Path) -> None:
    out = ktune("search", toy, "--trials", "20")
    folder = ktune.folder / "results" / FOLDER
    assert all((folder / name).is_file() for name in FILES)
    measured = len({r.variant for r in ktune.evaluator.evaluated})
    assert measured >= 20 and f"{measured} variants: {measured} ok" in out and "winner #" in out and "fake" in out
    assert f"next: ktune report {FOLDER} | ktune export {FOLDER} --with-kernel" in ktune.err
    assert "default " in ktune.err and "20/20" in ktune.err
    assert ktune.evaluator.closed


def test_the_default_is_measured_first(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "5")
    first = ktune.evaluator.evaluated[0].variant.configuration
    assert dict(first) == {"algorithm": "simple", "block_size": 128, "items": 1, "fast_math": False}


def test_searching_again_says_that_the_study_is_complete_and_measures_nothing(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "10")
    measured = len(ktune.evaluator.evaluated)
    out = ktune("search", toy, "--trials", "10")
    assert "complete: 10 of 10 trials are on record" in ktune.err
    assert "winner #" in out and len(ktune.evaluator.evaluated) == measured


def test_more_trials_go_on_where_the_study_stands(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "10")
    ktune("search", toy, "--trials", "15")
    assert "resuming: 10 of 15" in ktune.err
    asked = [r.variant for r in ktune.evaluator.evaluated if r.effort is Effort.SEARCH]
    # what the end of a search measures to simplify its winner is beyond its trials
    assert 15 <= len(asked) == len(set(asked)) <= 15 + MOST_EXTRA
    assert "15/15" in ktune.err


def test_an_exhaustive_search_measures_every_valid_point(ktune: Terminal, toy: Path) -> None:
    out = ktune("search", toy, "--sampler", "exhaustive", "--set", "algorithm=simple")
    assert "24 variants: 24 ok" in out


def test_narrowing_and_problem_reach_the_variants(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--problem", "N=5000", "--set", "block_size=64", "--set", "fast_math=1", "--trials", "4")
    for request in ktune.evaluator.evaluated:
        assert request.problem["N"] == 5000
        assert request.variant.configuration["block_size"] == 64
        assert request.variant.configuration["fast_math"] is True


def test_json_is_alone_on_stdout(ktune: Terminal, toy: Path) -> None:
    found = json.loads(ktune("search", toy, "--trials", "6", "--json"))
    assert found["format"] == 1 and found["trials_done"] == 6 and found["source"] == "fake"
    assert found["winner"]["family"] == "toy"


def test_a_dry_run_counts_and_measures_nothing(ktune: Terminal, toy: Path) -> None:
    out = ktune("search", toy, "--dry-run", "--trials", "30")
    assert "72 valid configurations" in out and "30 of them, chosen by gp" in out and "estimated time: about" in out
    assert ktune.evaluator.evaluated == [] and not (ktune.folder / "results").exists()
    facts = json.loads(ktune("search", toy, "--dry-run", "--json"))
    assert facts["valid_points"] == 72 and facts["trials"] == 72 and facts["sampler"] == "exhaustive"


def test_a_named_study_lies_beside_the_default_one(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "3")
    ktune("search", toy, "--trials", "3", "--study", "night")
    assert sorted(p.name for p in (ktune.folder / "results").iterdir()) == [FOLDER, f"{FOLDER}-night"]


def test_the_winner_of_another_problem_is_tried_right_after_the_default(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "72")
    winner = json.loads((ktune.folder / "results" / FOLDER / "best.json").read_text())["configuration_id"]
    before = len(ktune.evaluator.evaluated)
    ktune("search", toy, "--problem", "small", "--trials", "3", "--sampler", "random")
    with Study.open_existing(ktune.folder / "results" / "toy-N1000-Fake-H200") as study:
        second = study.identify(ktune.evaluator.evaluated[before + 1].variant.configuration)
    assert second == winner


def test_failures_are_counted_and_never_win(ktune: Terminal, toy: Path) -> None:
    def status_of(request: Request) -> Status:
        return Status.OK if request.variant.configuration["block_size"] == 32 else Status.WRONG

    ktune.plant(status_of)
    out = ktune("search", toy, "--trials", "72")
    assert "18 ok, 54 wrong" in out and "block_32" in out.split("winner")[1]


def test_nothing_right_exits_with_4_and_still_writes_the_report(ktune: Terminal, toy: Path) -> None:
    ktune.plant(lambda request: Status.WRONG)
    ktune("search", toy, "--trials", "5", code=4)
    folder = ktune.folder / "results" / FOLDER
    assert "planted: wrong" in ktune.err and "ktune verify" in ktune.err
    assert (folder / "measurements.csv").is_file() and not (folder / "best.json").exists()


class Interrupted(FakeEvaluator):
    """Ctrl-C comes while the 8th variant is measured."""

    def answer(self, request: Request):  # type: ignore[no-untyped-def]
        if len(self.evaluated) == 7:
            self.evaluated.append(request)
            raise KeyboardInterrupt
        return super().answer(request)


def test_ctrl_c_keeps_everything_and_the_same_command_resumes(ktune: Terminal, toy: Path) -> None:
    ktune.evaluator = Interrupted()
    ktune("search", toy, "--trials", "20", code=130)
    folder = ktune.folder / "results" / FOLDER
    assert "7 of 20 trials are on record; the same command resumes" in ktune.err
    assert all((folder / name).is_file() for name in FILES) and ktune.evaluator.closed
    ktune.evaluator = FakeEvaluator()
    out = ktune("search", toy, "--trials", "20")
    assert "resuming: 7 of 20" in ktune.err and "20/20" in ktune.err and "variants: " in out
    asked = [r for r in ktune.evaluator.evaluated if r.effort is Effort.SEARCH and r.trial < 20]
    assert len(asked) == 13


class Broken(FakeEvaluator):
    """The machine breaks after five measurements."""

    def answer(self, request: Request):  # type: ignore[no-untyped-def]
        from ktune.core.errors import EnvironmentFault

        if len(self.evaluated) == 5:
            raise EnvironmentFault("the GPU fell off the bus; reboot")
        return super().answer(request)


def test_a_machine_that_breaks_ends_with_3_and_loses_nothing(ktune: Terminal, toy: Path) -> None:
    ktune.evaluator = Broken()
    ktune("search", toy, "--trials", "20", code=3)
    assert ktune.err.strip().splitlines()[-1] == "error: the GPU fell off the bus; reboot"
    assert len((ktune.folder / "results" / FOLDER / "measurements.csv").read_text().splitlines()) == 6


def test_a_defect_is_one_line_unless_debug_is_asked_for(ktune: Terminal, toy: Path) -> None:
    class Defective(FakeEvaluator):
        def answer(self, request: Request):  # type: ignore[no-untyped-def]
            raise ZeroDivisionError("oops")

    ktune.evaluator = Defective()
    ktune("search", toy, "--trials", "3", code=1)
    assert "error: a defect of ktune: ZeroDivisionError: oops" in ktune.err
    with pytest.raises(ZeroDivisionError):
        ktune("search", toy, "--trials", "3", "--debug")


def test_what_the_user_chose_reaches_the_evaluator(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "2", "--gpu", "1", "--jobs", "3", "--nvcc", "/opt/nvcc", "--results", "elsewhere")
    assert ktune.told is not None
    assert (ktune.told.gpu, ktune.told.jobs, ktune.told.nvcc) == ("1", 3, Path("/opt/nvcc"))
    assert (ktune.folder / "elsewhere" / FOLDER / "best.h").is_file()
    assert "next: ktune report elsewhere/" in ktune.err
