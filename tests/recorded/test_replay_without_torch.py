"""A replay on an install that has neither torch nor the CUDA bindings."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BLOCKED = """
import sys

class Missing:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "cuda", "triton"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Missing())
from ktune.cli.main import app
app(sys.argv[1:])
"""


def run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    """`ktune ...` without torch, without CUDA on PATH, and without a GPU."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": str(folder), "CUDA_VISIBLE_DEVICES": ""}
    for name in ("CUDA_HOME", "CUDA_PATH"):
        environment.pop(name, None)
    command = [sys.executable, "-c", BLOCKED, *map(str, words)]
    return subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)


def test_a_replay_completes_and_says_what_was_left_out(tmp_path: Path, toy: Path, file: Path) -> None:
    done = run(tmp_path, "search", toy, "--replay", file, "--trials", "20")
    assert done.returncode == 0, done.stderr
    assert "variants: " in done.stdout and "winner #" in done.stdout
    assert "left out  executing it on the CPU needs torch, which is not installed" in done.stdout
    assert (tmp_path / "results" / "toy-N1048576-Fake-H200-replayed" / "best.h").is_file()


@pytest.mark.parametrize("words", [["report"], ["export", "--with-kernel"], ["list", "--study", "replayed"]])
def test_what_reads_a_replayed_study_needs_no_torch_either(
    tmp_path: Path, toy: Path, file: Path, words: list[str]
) -> None:
    run(tmp_path, "search", toy, "--replay", file, "--trials", "5", "--finalists", "0")
    done = run(tmp_path, *words)
    assert done.returncode == 0, done.stderr
    assert "replayed" in done.stdout + done.stderr


def test_the_makefile_leaves_out_of_a_replay_only_what_is_no_replays_business() -> None:
    """Every dependency but the two that are gigabytes is installed; a renamed one would be fetched after all."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {re.split(r"[<>=\[]", dependency)[0] for dependency in project["dependencies"]}
    left_out = re.search(r"^NOT_FOR_REPLAYS := (.+)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert left_out is not None and set(left_out[1].split()) == {"torch", "cuda-bindings"} < names
