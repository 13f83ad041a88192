"""Recordings of the toy family's core, made by a search on the fake GPU."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "cli"), str(TESTS / "recorded")]

from cli_terminal import Terminal  # noqa: E402
from toy_recording import record_toy  # noqa: E402

from ktune.recorded.table import RecordedTable, write_table  # noqa: E402


@pytest.fixture
def table(tmp_path: Path) -> RecordedTable:
    """The core of the toy family: 36 points, one of them wrong, one culled."""
    return record_toy(tmp_path / "recording")


@pytest.fixture
def file(table: RecordedTable, tmp_path: Path) -> Path:
    return write_table(tmp_path / "toy.json.gz", table)


@pytest.fixture
def toy(families: Path) -> Path:
    return families / "toy"


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal on this machine as it is."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Terminal(folder)


@pytest.fixture
def terminal(bare: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal whose only GPU is a fake one."""
    monkeypatch.setattr("ktune.cli.evaluators.make_evaluator", bare.make_evaluator)
    return bare


@pytest.fixture
def replay(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal of a machine without any GPU, on which replayed winners are neither built nor executed."""

    def refuse(*given: object) -> None:
        raise AssertionError("a replay must not look for a GPU")

    monkeypatch.setattr("ktune.cli.evaluators.make_evaluator", refuse)
    monkeypatch.setattr("ktune.cli.replaying.confirmations", lambda *given: [])
    return terminal
