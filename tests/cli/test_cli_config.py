"""`--config FILE.toml`: option names as keys; the command line wins, the family's defaults come last."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.core.loading import data_folder


def write(terminal: Terminal, text: str) -> Path:
    path = terminal.folder / "tune.toml"
    path.write_text(text)
    return path


def test_a_file_gives_the_options(ktune: Terminal, toy: Path) -> None:
    text = """
    trials = 5
    seed = 3
    study = "night"
    problem = { N = 5000 }
    set = { block_size = [64, 128], fast_math = true }
    """
    ktune("search", toy, "--config", write(ktune, text))
    assert (ktune.folder / "results" / "toy-N5000-Fake-H200-night").is_dir()
    searched = {
        (r.variant.configuration["block_size"], r.variant.configuration["fast_math"]) for r in ktune.evaluator.evaluated
    }
    assert searched <= {(64, True), (128, True)}


def test_values_may_be_spelled_as_on_the_command_line(ktune: Terminal, toy: Path) -> None:
    ktune(
        "search", toy, "--config", write(ktune, 'problem = "small"\nset = ["items=1", "block_size=32"]\ntrials = 2\n')
    )
    assert all(r.problem["N"] == 1000 and r.variant.configuration["items"] == 1 for r in ktune.evaluator.evaluated)


def test_the_command_line_wins(ktune: Terminal, toy: Path) -> None:
    out = ktune("search", toy, "--config", write(ktune, "trials = 5\n"), "--trials", "3", "--finalists", "0")
    assert "3 variants" in out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("trails = 5\n", "search has no option 'trails'; did you mean trials?"),
        ("zzz = 5\n", "search has no option 'zzz'; it has dry-run, finalists, gpu"),
        ("trials = \n", "is not TOML"),
        ("json = 3\n", "json must be true or false, got 3"),
        ("trials = true\n", "trials must be a value, not true or false"),
        ("trials = [1, 2]\n", "trials takes one value, got [1, 2]"),
        ("debug = true\n", "search has no option 'debug'"),
    ],
)
def test_a_broken_file_is_told_in_one_line(ktune: Terminal, toy: Path, text: str, message: str) -> None:
    ktune("search", toy, "--config", write(ktune, text), code=2)
    assert ktune.err.startswith("error: ") and message in ktune.err and ktune.err.count("\n") == 1


@pytest.mark.parametrize("text", ['trials = "many"\n', "trials = 1.5\n", 'sampler = "guess"\n', "trials = 0\n"])
def test_a_value_of_the_wrong_kind_is_usage(ktune: Terminal, toy: Path, text: str) -> None:
    ktune("search", toy, "--config", write(ktune, text), code=2)
    assert ktune.evaluator.evaluated == []


SHIPPED = sorted(data_folder("configs").glob("*.toml"))


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_a_shipped_file_is_understood_by_the_command_that_it_names(ktune: Terminal, path: Path) -> None:
    named = re.search(rf"ktune search (\w+) --config configs/{path.name}", path.read_text())
    assert named is not None
    assert "valid configurations" in ktune("search", named[1], "--config", path, "--dry-run")
