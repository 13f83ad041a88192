"""What `KTUNE_TELL_FAILURES=1 pytest` shows before its end."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from failures_at_once import VARIABLE

TESTS = Path(__file__).parents[1]
CONFTEST = """
import sys
sys.path.insert(0, {tests!r})
from failures_at_once import tell
def pytest_runtest_logreport(report):
    tell(report)
"""
CASES = """
import pytest
@pytest.fixture
def broken():
    raise OSError("no such GPU")
def test_right():
    pass
def test_wrong():
    assert 1 + 1 == 3
def test_setup(broken):
    pass
"""


@pytest.mark.parametrize("processes", ["0", "2"])
@pytest.mark.parametrize("asked", ["1", ""], ids=["asked", "not-asked"])
def test_each_failure_is_told_once_on_stderr_if_asked_for(
    tmp_path: Path, processes: str, asked: str, monkeypatch
) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST.format(tests=str(TESTS)))
    (tmp_path / "test_cases.py").write_text(CASES)
    monkeypatch.setenv(VARIABLE, asked)
    # This test's own process may be one of xdist's.
    monkeypatch.delenv("PYTEST_XDIST_WORKER", raising=False)
    command = [sys.executable, "-m", "pytest", "-q", "-n", processes, "--rootdir", str(tmp_path), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert "1 passed, 1 failed, 1 error" in done.stdout or "1 failed, 1 passed, 1 error" in done.stdout, done.stdout
    told = done.stderr.count("FAILED test_cases.py::")
    assert told == (2 if asked else 0), done.stderr
    if asked:
        assert "FAILED test_cases.py::test_wrong (call)" in done.stderr and "assert (1 + 1) == 3" in done.stderr
        assert "FAILED test_cases.py::test_setup (setup)" in done.stderr and "no such GPU" in done.stderr
