"""One database connection with patience: waits for locks a bounded time, and says what to do when that ends."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from sqlalchemy import Connection, Engine, create_engine, event
from sqlalchemy.exc import DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.pool import StaticPool

from ktune.core.errors import EnvironmentFault

LOCK_WAIT_S = 60.0

T = TypeVar("T")


class Locked(EnvironmentFault):
    """Another process held the ledger for longer than the wait."""


class Database:
    """Transactions on a SQLite file or on any SQLAlchemy URL.

    target: a Path (SQLite, write-ahead log) or a URL. read_only: for a SQLite file in a folder that can't be written.
    A transaction is durable against the end of this process once `write` returns.
    """

    def __init__(self, target: Path | str, *, lock_wait_s: float = LOCK_WAIT_S, read_only: bool = False) -> None:
        self.path = target if isinstance(target, Path) else None
        self.lock_wait_s = lock_wait_s
        self._shown = str(target) if isinstance(target, Path) else _without_password(target)
        self._engine = _sqlite_engine(target, read_only) if isinstance(target, Path) else _url_engine(target)

    def read(self, work: Callable[[Connection], T]) -> T:
        """What `work` returns, from one consistent state."""
        return self._patiently(work, self.lock_wait_s, writes=False)

    def write(self, work: Callable[[Connection], T], wait_s: float | None = None) -> T:
        """What `work` returns, committed. It may run more than once: it must only touch the connection."""
        return self._patiently(work, self.lock_wait_s if wait_s is None else wait_s, writes=True)

    def check(self) -> None:
        """EnvironmentFault unless the SQLite file is whole."""
        if self.path is None:
            return
        found = self.read(lambda c: str(c.exec_driver_sql("PRAGMA quick_check(1)").scalar()))
        if found != "ok":
            raise _damaged(self._shown, found)

    def close(self) -> None:
        self._engine.dispose()

    def _patiently(self, work: Callable[[Connection], T], wait_s: float, *, writes: bool) -> T:
        deadline = time.monotonic() + wait_s
        while True:
            try:
                with self._engine.connect().execution_options(ktune_writes=writes) as connection, connection.begin():
                    return work(connection)
            except (SQLAlchemyError, sqlite3.Error) as error:
                if not _is_lock(error):
                    raise self._fault(error) from error
                if time.monotonic() >= deadline:
                    raise self._locked() from error
            # Short sleeps here instead of SQLite's own long wait: that one can't be interrupted by Ctrl-C.
            time.sleep(0.02)

    def _locked(self) -> Locked:
        holders = _holders(self.path) if self.path else ""
        by = f"by {holders}" if holders else "by another process"
        return Locked(
            f"the ledger {self._shown} has been locked {by} for {self.lock_wait_s:g} s; "
            f"end that process and run the same command again"
        )

    def _fault(self, error: Exception) -> Exception:
        """The sentence for a database error; errors that would be defects of ktune stay as they are."""
        original = error.orig if isinstance(error, DBAPIError) else error
        code = getattr(original, "sqlite_errorcode", 0) & 0xFF
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return _damaged(self._shown, str(original))
        if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_PERM):
            return EnvironmentFault(
                f"the ledger {self._shown} can't be written ({original}); make its folder writable or choose another"
            )
        if code in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR):
            return EnvironmentFault(
                f"the disk refused a write to {self._shown} ({original}); free some space and run this again"
            )
        if self.path is None and isinstance(error, OperationalError):
            return EnvironmentFault(f"the ledger {self._shown} does not answer ({original}); check its URL and server")
        return error


def _sqlite_engine(path: Path, read_only: bool) -> Engine:
    def connect() -> sqlite3.Connection:
        # `immutable` lets a file in write-ahead mode be read where its side files can't be made.
        suffix = "?mode=ro&immutable=1" if read_only else ""
        address = f"file:{quote(os.fsencode(path.absolute()))}{suffix}"
        connection = sqlite3.connect(address, uri=True, timeout=0.1, isolation_level=None, check_same_thread=False)
        if not read_only:
            connection.execute("PRAGMA journal_mode=WAL")
            # In write-ahead mode NORMAL survives the end of the process; only a power cut may take the last commits.
            connection.execute("PRAGMA synchronous=NORMAL")
        return connection

    engine = create_engine("sqlite://", creator=connect, poolclass=StaticPool)

    @event.listens_for(engine, "begin")
    def begin(connection: Connection) -> None:
        # Taking the write lock at once avoids the deadlock of two readers that both want to write.
        writes = connection.get_execution_options().get("ktune_writes") and not read_only
        connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")

    return engine


def _url_engine(url: str) -> Engine:
    try:
        return create_engine(url, pool_pre_ping=True)
    except (SQLAlchemyError, ImportError) as error:
        raise EnvironmentFault(
            f"the ledger URL {_without_password(url)} can't be used ({error}); "
            "for PostgreSQL install ktune-cuda[postgresql] and write postgresql+psycopg://user@host/database"
        ) from error


def _without_password(url: str) -> str:
    head, at, tail = url.rpartition("@")
    scheme, _, user = head.partition("://")
    return f"{scheme}://{user.split(':')[0]}@{tail}" if at else url


def _is_lock(error: Exception) -> bool:
    original = error.orig if isinstance(error, DBAPIError) else error
    return getattr(original, "sqlite_errorcode", 0) & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)


def _damaged(shown: str, reason: str) -> EnvironmentFault:
    return EnvironmentFault(
        f"the ledger {shown} is damaged ({' '.join(reason.split())}); move it aside and run this again to start anew, "
        f"or save its rows with `sqlite3 {shown} .recover`"
    )


def _holders(path: Path) -> str:
    """`process 41 (python3)`, for the other processes that have the file open; "" where that can't be seen."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        if int(process.name) == os.getpid():
            continue
        try:
            if any(entry.resolve() == path.resolve() for entry in (process / "fd").iterdir()):
                found.append(f"process {process.name} ({(process / 'comm').read_text().strip()})")
        except OSError:
            continue
    return " or ".join(found)
