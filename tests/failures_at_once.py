"""Prints each failure when it happens, for runs whose end may never be seen: KTUNE_TELL_FAILURES=1 pytest ..."""

from __future__ import annotations

import os
import sys

import pytest

VARIABLE = "KTUNE_TELL_FAILURES"


def tell(report: pytest.TestReport) -> None:
    """The test's id and how it failed, on stderr; nothing of a test that passed, or where nobody asked."""
    if report.failed and os.environ.get(VARIABLE) == "1" and "PYTEST_XDIST_WORKER" not in os.environ:
        print(f"\nFAILED {report.nodeid} ({report.when})\n{report.longreprtext}", file=sys.__stderr__, flush=True)
