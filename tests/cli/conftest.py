"""Every command, driven in this process, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_terminal import Terminal


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal on this machine as it is."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return Terminal(folder)


@pytest.fixture
def ktune(bare: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal on a machine with a fake GPU."""
    monkeypatch.setattr("ktune.cli.evaluators.make_evaluator", bare.make_evaluator)
    return bare


@pytest.fixture(scope="session")
def toy(families: Path) -> Path:
    return families / "toy"
