"""Writing result files: whole or not at all, and never over a file of someone else's."""

from __future__ import annotations

import contextlib
import errno
import os
import tempfile
from pathlib import Path

from ktune.core.errors import EnvironmentFault, KtuneError, UsageError

_DISK_FAULTS = (errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EIO)


def check_writable(path: Path, mark: str, *, force: bool = False) -> None:
    """Raise what `write_file` would raise for this path, before there is anything to write.

    Makes the missing folders above it, as `write_file` does.
    """
    _refuse_foreign(path, mark.encode(), force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise _explained(path, error) from error


def write_file(path: Path, data: str | bytes, mark: str, *, force: bool = False) -> Path:
    """Replace `path` by `data` in one step: a reader sees the old file or the new one, never a part.

    mark: text that every file of this kind contains. An existing file without it was written by
    someone else and is left alone, unless `force`.
    """
    content = data.encode() if isinstance(data, str) else data
    if mark.encode() not in content:
        raise KtuneError(f"{path.name} would lack its mark {mark!r}, so that ktune could not replace it later")
    _refuse_foreign(path, mark.encode(), force)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _publish(path, content)
    except OSError as error:
        raise _explained(path, error) from error
    return path


def _publish(path: Path, content: bytes) -> None:
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".tmp", dir=path.parent)
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        # mkstemp makes files that only their owner may read.
        temporary.chmod(_mode(path))
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    # The rename itself is on disk once its folder is; some file systems cannot sync a folder.
    with contextlib.suppress(OSError):
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _mode(path: Path) -> int:
    if path.exists():
        return path.stat().st_mode & 0o777
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


def _refuse_foreign(path: Path, mark: bytes, force: bool) -> None:
    try:
        if path.is_dir():
            raise UsageError(f"{path} is a folder, not a file; name a file inside it")
        foreign = not force and path.exists() and mark not in path.read_bytes()
    except OSError as error:
        raise _explained(path, error) from error
    if foreign:
        raise UsageError(f"{path} exists and was not written by ktune; choose another path or add --force")


def _explained(path: Path, error: OSError) -> KtuneError:
    reason = error.strerror or type(error).__name__
    if error.errno in _DISK_FAULTS:
        return EnvironmentFault(f"cannot write {path}: {reason}; free some space or choose a path on another disk")
    return UsageError(f"cannot write {path}: {reason}; choose a path that you may write to")
