"""Options and dtypes of a problem, as a user spells, reads and finds them again."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.core.loading import is_family_module


@pytest.fixture(scope="session")
def shifted(families: Path) -> Path:
    return families / "shifted"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shfit=1", "shifted has no size 'shfit'; did you mean shift?"),
        ("shift=yes", "shift must be a whole number, got 'yes'; write --problem shift=0"),
        ("shift=-1", "shift must be at least 0, got -1"),
        ("times=0", "times must be at least 1, got 0"),
        ("shift=1,shift=1", "shift is given twice in --problem shift=1,shift=1; give it once"),
        ("shift=2", "shift is a flag, 0 or 1; got shift=2 for N1048576-shift2"),
        ("dtype=float16", "dtype of shifted must be float32 or bfloat16, got 'float16' in --problem dtype=float16"),
        ("dtype=bfloat16,dtype=float32", "dtype is given twice"),
    ],
)
@pytest.mark.parametrize("command", ["search", "verify", "list"])
def test_a_bad_option_or_dtype_is_told_with_the_way_out(
    ktune: Terminal, shifted: Path, command: str, text: str, message: str
) -> None:
    assert ktune(command, shifted, "--problem", text, code=2) == ""
    assert ktune.err.startswith("error: ") and message in ktune.err
    assert ktune.evaluator.evaluated == []


def test_a_family_of_one_dtype_refuses_another(ktune: Terminal, toy: Path) -> None:
    ktune("verify", toy, "--problem", "dtype=bfloat16", code=2)
    assert "dtype of toy must be float32, got 'bfloat16'" in ktune.err


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("N=64", "N64"),
        ("N=64,shift=0,times=1,dtype=float32", "N64"),
        ("shift=1,N=64", "N64-shift1"),
        ("times=2", "N1048576-times2"),
        ("N=64,shift=1,dtype=bfloat16", "N64-shift1-bfloat16"),
        ("small-bf16", "N1000-bfloat16"),
    ],
)
def test_a_problem_is_labelled_alike_however_it_is_spelled(
    ktune: Terminal, shifted: Path, text: str, label: str
) -> None:
    assert f"shifted at {label}" in ktune("verify", shifted, "--problem", text)
    assert {request.problem.label for request in ktune.evaluator.evaluated} == {label}


def test_the_study_of_a_spelled_default_is_the_study_without_it(ktune: Terminal, shifted: Path) -> None:
    ktune("search", shifted, "--problem", "N=64", "--trials", "2")
    ktune("search", shifted, "--problem", "N=64,shift=0", "--trials", "3")
    ktune("search", shifted, "--problem", "N=64,shift=1", "--trials", "2")
    folders = sorted(path.name for path in (ktune.folder / "results").iterdir())
    assert folders == ["shifted-N64-Fake-H200", "shifted-N64-shift1-Fake-H200"]
    best = json.loads((ktune.folder / "results" / folders[1] / "best.json").read_text())
    assert best["problem"] == {"family": "shifted", "sizes": {"N": 64, "shift": 1}, "dtype": "float32"}
    assert "N64-shift1" in ktune("report", shifted, "--problem", "N=64,shift=1")


def test_list_shows_options_apart_with_their_defaults(ktune: Terminal, shifted: Path, toy: Path) -> None:
    out = ktune("list", shifted)
    sizes, _, options = out.partition("options (")
    assert "N    elements" in sizes and "shift=" not in sizes
    assert "shift=0*         1 adds one to each element" in options and "float32* bfloat16" in options
    assert "small-bf16       N=1000,dtype=bfloat16" in options
    found = json.loads(ktune("list", shifted, "--json"))
    assert found["sizes"] == {"N": "elements"} and found["dtypes"] == ["float32", "bfloat16"]
    assert found["options"]["times"] == {"default": 1, "help": "how often it is done"}
    assert found["problems"]["small-bf16"] == {"N": 1000, "dtype": "bfloat16"}
    assert "options (" not in (plain := ktune("list", toy)) and "dtypes" not in plain


def test_a_config_file_may_give_options(ktune: Terminal, shifted: Path) -> None:
    (ktune.folder / "two.toml").write_text('problem = ["small-shifted", "N=64,times=2,dtype=bfloat16"]\ntrials = 2\n')
    ktune("search", shifted, "--config", "two.toml")
    assert {r.problem.label for r in ktune.evaluator.evaluated} == {"N1000-shift1", "N64-times2-bfloat16"}


def test_what_was_found_before_a_family_had_options_is_read_as_it_was(ktune: Terminal, toy: Path) -> None:
    folder = ktune.folder / "toy"
    shutil.copytree(toy, folder)
    ktune("search", folder, "--trials", "4")
    results = ktune.folder / "results" / "toy-N1048576-Fake-H200"
    export = ("export", "--study", results.name, "--with-kernel", "--output")
    ktune(*export, "before")
    best = (results / "best.json").read_text()

    text = (folder / "family.py").read_text()
    options = 'Size("N", "elements"), Size("shift", "adds so much", default=0, least=0)'
    text = text.replace('Size("N", "elements"),', f"{options},").replace("blocks = ", 'blocks = problem["shift"] + ')
    (folder / "family.py").write_text(text)
    for name in [name for name in sys.modules if is_family_module(name)]:
        del sys.modules[name]

    ktune(*export, "after")
    before, after = (sorted((ktune.folder / name).iterdir()) for name in ("before", "after"))
    assert [path.name for path in before] == [path.name for path in after] and len(before) > 1
    assert [path.read_bytes() for path in before] == [path.read_bytes() for path in after]
    evaluated = len(ktune.evaluator.evaluated)
    ktune("search", folder, "--trials", "4")
    assert len(ktune.evaluator.evaluated) == evaluated and (results / "best.json").read_text() == best
    ktune("search", folder, "--trials", "6")
    assert len(ktune.evaluator.evaluated) > evaluated
    assert "N1048576" in ktune("report", results.name)
    assert "toy at N1048576 " in ktune("verify", folder, results / "best.json").splitlines()[0] + " "


def test_winners_of_problems_that_differ_in_options_alone_meet_in_one_header(ktune: Terminal, shifted: Path) -> None:
    ktune("search", shifted, "--problem", "small", "--problem", "small-shifted", "--trials", "2")
    (header,) = (ktune.folder / "results").glob("shifted-2problems-*/best.h")
    text = header.read_text()
    assert "ktune_shifted_select(const char *gpu, long long size_N, long long size_shift) {" in text
    assert "size_N == 1000 && size_shift == 0" in text and "size_N == 1000 && size_shift == 1" in text
