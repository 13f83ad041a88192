"""How the tests run workers, and how they look whether one is still there."""

from __future__ import annotations

import os
from pathlib import Path

BACKEND = "fake_backend:fake_backend"
DEADLINES_S = {"start": 20.0, "prepare": 1.0, "load": 1.0, "verify": 1.0, "time": 1.0, "recheck": 1.0}
GOOD_BLOCKS = (64, 96, 128, 160, 192, 256, 320, 384, 512, 1024)


def is_alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state not in "ZX"


def group_is_gone(leader: int) -> bool:
    try:
        os.killpg(leader, 0)
    except ProcessLookupError:
        return True
    return False
