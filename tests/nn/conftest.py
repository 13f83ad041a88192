"""Each test of the modules starts as a fresh process would: nothing warned about yet."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(autouse=True)
def nothing_warned(monkeypatch: pytest.MonkeyPatch) -> None:
    from ktune.nn import kernels

    monkeypatch.setattr(kernels, "_warned", set())
