"""One lock per GPU for everyone on the machine, so that no two of them launch at the same time."""

from __future__ import annotations

import errno
import fcntl
import os
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

from ktune.core.errors import EnvironmentFault

# Fixed on purpose: TMPDIR may differ between users, and then two of them would not share the lock.
LOCK_FOLDER = Path("/tmp")
POLL_S = 0.1

_held_here: set[Path] = set()


class GpuLock:
    """An flock on a file named after the GPU's UUID. The kernel releases it when its holder dies."""

    def __init__(self, uuid: str, folder: Path = LOCK_FOLDER) -> None:
        self.uuid = uuid
        self.path = folder / f"ktune-{re.sub(r'[^A-Za-z0-9-]', '_', uuid)}.lock"
        self._descriptor: int | None = None

    @property
    def held(self) -> bool:
        return self._descriptor is not None

    def acquire(self, timeout_s: float | None = None, on_wait: Callable[[str], None] | None = None) -> None:
        """Wait for the GPU, for ever if `timeout_s` is None; `on_wait` is told once who holds it ("pid 123").

        EnvironmentFault on time-out, or if the lock file cannot be used.
        """
        if self.held:
            return
        if self.path in _held_here:
            raise EnvironmentFault(f"GPU {self.uuid} is already in use by this process; close its first evaluator")
        descriptor = self._open()
        try:
            self._wait(descriptor, timeout_s, on_wait)
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            os.close(descriptor)
            raise
        self._descriptor = descriptor
        _held_here.add(self.path)

    def release(self) -> None:
        """Let the next one in. The file stays: removing it would let two holders lock two files."""
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None
            _held_here.discard(self.path)

    def __enter__(self) -> Self:
        self.acquire()
        return self

    def __exit__(self, *exception: object) -> None:
        self.release()

    def _wait(self, descriptor: int, timeout_s: float | None, on_wait: Callable[[str], None] | None) -> None:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        told = False
        while not _try_lock(descriptor):
            holder = _holder(descriptor)
            if deadline is not None and time.monotonic() >= deadline:
                raise EnvironmentFault(
                    f"GPU {self.uuid} is held by {holder} and did not become free within {timeout_s:g} s; "
                    "wait for it to end, or choose another GPU with --gpu"
                )
            if on_wait is not None and not told:
                on_wait(holder)
                told = True
            time.sleep(POLL_S)

    def _open(self) -> int:
        flags = os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW
        try:
            return self._open_or_create(flags)
        except OSError as error:
            raise EnvironmentFault(
                f"the lock file {self.path} of GPU {self.uuid} cannot be opened: {error.strerror}; "
                "remove it, or ask its owner to"
            ) from error

    def _open_or_create(self, flags: int) -> int:
        # O_CREAT on someone else's file in a sticky folder is refused by hardened kernels: open it plainly first.
        try:
            return os.open(self.path, flags)
        except FileNotFoundError:
            pass
        try:
            descriptor = os.open(self.path, flags | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError:
            return os.open(self.path, flags)
        # The umask took the other users' right to write.
        os.fchmod(descriptor, 0o666)
        return descriptor


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise
        return False
    return True


def _holder(descriptor: int) -> str:
    pid = os.pread(descriptor, 32, 0).decode(errors="replace").strip()
    return f"pid {pid}" if pid.isdigit() else "another process"
