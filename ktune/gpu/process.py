"""One worker process as its parent sees it: orders go in, messages come out, and it can be killed."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import Any

from ktune.core.errors import EnvironmentFault
from ktune.gpu.messages import Answer, Order, Step

KILL_WAIT_S = 20.0
EXIT_WAIT_S = 2.0


class WorkerProcess:
    """A running `ktune.gpu.worker`, leader of its own process group; stdout and stderr go to `log`.

    The kernel kills it when the thread that made it ends.
    """

    def __init__(self, backend: str, log: Path) -> None:
        self.log = log
        self.hung_up = False
        self._ended = ""
        self._connection, theirs = _pipe()
        try:
            with log.open("ab") as output:
                self._process = subprocess.Popen(
                    _command(theirs.fileno(), backend),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    pass_fds=[theirs.fileno()],
                    # Ctrl-C in the terminal goes to the foreground group: this is another one.
                    start_new_session=True,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(_import_path())},
                )
        except OSError as error:
            self._connection.close()
            raise EnvironmentFault(f"no GPU worker can be started with its log at {log}: {error}") from error
        finally:
            theirs.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def send(self, order: Order) -> None:
        """Hand over an order. A worker that is already dead is noticed by `messages`, not here."""
        try:
            self._connection.send(order)
        except (BrokenPipeError, ConnectionResetError):
            self.hung_up = True

    def wait(self, timeout_s: float) -> None:
        """Return when there is something to read, or after `timeout_s`."""
        wait([self._connection], max(timeout_s, 0.0))

    def messages(self) -> Iterator[Step | Answer]:
        """What has arrived so far; sets `hung_up` once the worker's end is closed and all is read."""
        while True:
            try:
                if not self._connection.poll():
                    return
                message = self._connection.recv()
            except (EOFError, OSError):
                self.hung_up = True
                return
            yield message

    def stop(self) -> str:
        """Kill the whole process group, wait for it, and say how the worker ended. An empty log is removed.

        EnvironmentFault if the kernel cannot end it, which is a driver that hangs.
        """
        if self._ended:
            return self._ended
        self._connection.close()
        if self.hung_up:
            # Its own end is the reason to report, so it gets the time to finish dying.
            self._ended_within(EXIT_WAIT_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        if not self._ended_within(KILL_WAIT_S):
            raise EnvironmentFault(
                f"GPU worker {self.pid} does not end within {KILL_WAIT_S:.0f} s of SIGKILL: the driver holds it; "
                "see `nvidia-smi`, and reset the GPU or reboot"
            )
        self._ended = self._end()
        with contextlib.suppress(OSError):
            if self.log.stat().st_size == 0:
                self.log.unlink()
        return self._ended

    def leave(self) -> None:
        """Let an idle worker release the GPU by itself, then make sure that it is gone."""
        self._connection.close()
        self._ended_within(EXIT_WAIT_S)
        self.stop()

    def _ended_within(self, seconds: float) -> bool:
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def _end(self) -> str:
        code = self._process.returncode
        return f"exited with code {code}" if code >= 0 else f"killed by {signal.Signals(-code).name}"


def _pipe() -> tuple[Connection[Any, Any], Connection[Any, Any]]:
    ours, theirs = Pipe()
    return ours, theirs


def _command(descriptor: int, backend: str) -> list[str]:
    # -P: the working folder is the user's, and may hold a `select.py`.
    return [sys.executable, "-P", "-m", "ktune.gpu.worker", str(descriptor), str(os.getpid()), backend]


def _import_path() -> list[str]:
    """Where this process imports from, so that the worker finds the same modules."""
    return [str(Path(entry).resolve()) for entry in sys.path]
