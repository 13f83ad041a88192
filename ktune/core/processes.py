"""Other processes of this host."""

from __future__ import annotations

import os


def is_running(pid: int) -> bool:
    """Whether there is a process of that id, of whichever user."""
    try:
        os.kill(pid, 0)
    except (ProcessLookupError, OverflowError):
        return False
    except PermissionError:
        return True
    return True
