"""Running a program that may crash or hang: in a process group of its own, with a limit, ended with its parent."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

_KILL_WAIT_S = 20.0


@dataclass(frozen=True)
class Ended:
    """How a program ended. reason: why its answer is not to be trusted; "" if it ended well by itself."""

    output: str
    errors: str
    reason: str = ""


def run_isolated(command: Sequence[str], limit_s: float, extra: Mapping[str, str] | None = None) -> Ended:
    """Run `command` to its end, or kill its whole group at `limit_s` or on an interruption of this process.

    extra: environment variables over this process's. Its standard input is a pipe that only this process's end
    closes, by which it can notice that it is alone. It finds the same Python modules.
    """
    import_path = os.pathsep.join(str(Path(entry).resolve()) for entry in sys.path)
    alive, held = os.pipe()
    try:
        process = subprocess.Popen(
            list(command), stdin=alive, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace",
            start_new_session=True, env={**os.environ, "PYTHONPATH": import_path, **(extra or {})},
        )  # fmt: skip
    except OSError as error:
        os.close(held)
        return Ended("", "", f"{command[0]} does not run: {error.strerror}")
    finally:
        os.close(alive)
    try:
        return _outcome(process, limit_s)
    except BaseException:
        _kill(process)
        raise
    finally:
        os.close(held)


def _outcome(process: subprocess.Popen[str], limit_s: float) -> Ended:
    try:
        output, errors = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        _kill(process)
        with contextlib.suppress(subprocess.TimeoutExpired):
            output, errors = process.communicate(timeout=_KILL_WAIT_S)
            return Ended(output, errors, f"did not end within {limit_s:g} s")
        return Ended("", "", f"does not end within {_KILL_WAIT_S:g} s of SIGKILL: the driver holds it")
    return Ended(output, errors, _unclean(process.returncode))


def _unclean(code: int) -> str:
    if code < 0:
        return f"killed by {signal.Signals(-code).name}"
    return f"ended with code {code}" if code else ""


def _kill(process: subprocess.Popen[str]) -> None:
    """The whole group; its leader may have ended before its children."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
