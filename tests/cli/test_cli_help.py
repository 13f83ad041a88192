"""The command line answers at once and tells what it can do."""

from __future__ import annotations

import resource
import subprocess
import sys

import pytest
from cli_terminal import Terminal

import ktune as package

COMMANDS = ("search", "verify", "report", "export", "bench", "list", "doctor", "new")
HELP_LIMIT_S = 0.25
HEAVY = ("torch", "pandas", "numpy", "optuna", "sqlalchemy", "rich", "cuda", "click", "pynvml")


def test_help_answers_within_a_quarter_of_a_second_of_processor_time() -> None:
    fastest = float("inf")
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-m", "ktune", "--help"], check=True, capture_output=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        fastest = min(fastest, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
        if fastest <= HELP_LIMIT_S:
            return
    pytest.fail(f"the fastest of 5 took {fastest:.2f} s")


def test_the_commands_load_without_the_heavy_packages() -> None:
    code = f"import sys, ktune.cli.main; print([m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    assert done.stdout.strip() == "[]"


@pytest.mark.parametrize("command", COMMANDS)
def test_each_help_has_an_imperative_line_and_an_example(ktune: Terminal, command: str) -> None:
    text = ktune(command, "--help")
    assert f"Example: ktune {command}" in text
    assert command in ktune("--help")


def test_version(ktune: Terminal) -> None:
    assert ktune("--version").strip() == f"ktune {package.__version__}"


def test_an_unknown_command_or_option_is_usage(ktune: Terminal) -> None:
    ktune("serch", code=2)
    ktune("search", "toy", "--trails", "3", code=2)
    ktune("search", "toy", "--trials", "many", code=2)
    ktune("search", code=2)
