"""Runs `ktune ...` in this process, with a fake GPU where a test wants one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from fake_gpu import FakeEvaluator
from typer.testing import CliRunner

from ktune.cli.evaluators import EvaluatorOptions
from ktune.cli.main import app
from ktune.core.loading import LoadedFamily
from ktune.core.model import Request, Status


class Terminal:
    """Runs `ktune ...` and remembers the last result."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.evaluator = FakeEvaluator()
        self.told: EvaluatorOptions | None = None

    def plant(self, status_of: Callable[[Request], Status]) -> None:
        """From now on the fake GPU fails as `status_of` says."""
        self.evaluator.status_of = status_of

    def __call__(self, *words: str | Path, code: int = 0) -> str:
        """stdout of a command that must end with `code`; see `err` for its stderr."""
        result = CliRunner().invoke(app, [str(word) for word in words])
        self.err = result.stderr
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        assert result.exit_code == code, f"exit {result.exit_code}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def make_evaluator(self, loaded: LoadedFamily, options: EvaluatorOptions) -> FakeEvaluator:
        self.told = options
        return self.evaluator
