"""The content-addressed store of builds. No locks: an entry appears whole, by one rename, or not at all.

<cache_dir>/builds/<key[:2]>/<key>/   kernel.cubin, facts.json (format 1), ptxas.log
<cache_dir>/logs/                     log and source of each variant that failed to build
<cache_dir>/work/                     builds in progress, and what killed ones left behind
<cache_dir>/last_clean                its time is when the size was last brought down
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from ktune.build.cubin import CubinFault, read_cubin
from ktune.core.errors import EnvironmentFault
from ktune.core.model import BuildFacts

FORMAT = 1
CUBIN = "kernel.cubin"
FACTS = "facts.json"
LOG = "ptxas.log"
MAX_BYTES = 5_000_000_000
_RECENT_S = 3600.0
_DAY_S = 24 * 3600.0
_LOG_KEPT_S = 30 * _DAY_S
_PUBLISH_ATTEMPTS = 8


class BuildCache:
    """Builds under one cache folder, which any number of processes may share."""

    def __init__(self, cache_dir: Path) -> None:
        """Raises EnvironmentFault where the folder can't be written."""
        self.builds = cache_dir / "builds"
        self.logs = cache_dir / "logs"
        self.work = cache_dir / "work"
        self._last_clean = cache_dir / "last_clean"
        try:
            for folder in (self.builds, self.logs, self.work):
                folder.mkdir(parents=True, exist_ok=True)
            self.workspace("probe").rmdir()
        except OSError as error:
            raise unwritable(cache_dir, error) from error

    def entry(self, key: str) -> Path:
        return self.builds / key[:2] / key

    def lookup(self, key: str) -> tuple[BuildFacts, Path] | None:
        """Facts and cubin of a whole entry, marked as used now; None if it is absent, old or damaged."""
        entry = self.entry(key)
        try:
            stored = json.loads((entry / FACTS).read_text())
            facts = _facts_from_json(stored)
            cubin = read_cubin(entry / CUBIN)
        except (OSError, ValueError, KeyError, TypeError, CubinFault):
            return None
        if cubin.code_digest != facts.code_digest:
            return None
        with contextlib.suppress(OSError):
            os.utime(entry / FACTS)
        return facts, entry / CUBIN

    def workspace(self, name: str) -> Path:
        """A new folder on the cache's file system, for a build in progress."""
        self.work.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f"{name}-", dir=self.work))

    def publish(self, folder: Path, facts: BuildFacts, details: dict[str, Any]) -> Path:
        """Turn `folder`, which holds a checked cubin and its log, into the entry of `facts.key`; its cubin's path.

        Where another process was first, its entry stays. Raises OSError if the disk refuses.
        """
        (folder / FACTS).write_text(json.dumps({**_facts_to_json(facts), **details}, indent=1) + "\n")
        for path in folder.iterdir():
            if path.name not in (CUBIN, FACTS, LOG):
                path.unlink()
        for name in (CUBIN, FACTS):
            _flush_to_disk(folder / name)
        entry = self.entry(facts.key)
        for attempt in range(_PUBLISH_ATTEMPTS):
            entry.parent.mkdir(parents=True, exist_ok=True)
            try:
                folder.rename(entry)
                break
            except OSError:
                if self.lookup(facts.key) is not None:
                    break
                if attempt == _PUBLISH_ATTEMPTS - 1:
                    raise
                self._discard(entry)
        return entry / CUBIN

    def keep_log(self, folder: Path, source: Path, name: str) -> Path:
        """Move the log and the source of a failed build to the logs; the log's path."""
        log = self.logs / f"{name}.log"
        (folder / LOG).replace(log)
        source.replace(self.logs / f"{name}.cu")
        return log

    def clean_daily(self) -> None:
        """`clean` to the default size, unless that was done within a day: it reads the whole cache's folders."""
        with contextlib.suppress(OSError):
            if time.time() - self._last_clean.stat().st_mtime < _DAY_S:
                return
        self._last_clean.touch()
        self.clean()

    def clean(self, max_bytes: int = MAX_BYTES, *, spare_s: float = _RECENT_S) -> int:
        """Remove the least recently used entries until `max_bytes` are left; the bytes freed.

        spare_s: entries used within so many seconds stay, as a running search may be about to load them.
        Leftovers of builds that were killed go after a day, logs after 30 days.
        """
        now = time.time()
        for abandoned in _older(self.work, now - _DAY_S):
            shutil.rmtree(abandoned, ignore_errors=True)
        for log in _older(self.logs, now - _LOG_KEPT_S):
            log.unlink(missing_ok=True)
        entries = sorted((_usage(entry) for entry in self.builds.glob("??/*")), key=lambda usage: usage.used_at)
        total = sum(usage.size_bytes for usage in entries)
        freed = 0
        for usage in entries:
            if total - freed <= max_bytes or usage.used_at > now - spare_s:
                break
            self._discard(usage.entry)
            freed += usage.size_bytes
        return freed

    def _discard(self, entry: Path) -> None:
        """Take an entry away in one step, so that nobody reads half of it."""
        trash = self.workspace("trash")
        with contextlib.suppress(OSError):
            entry.rename(trash / "entry")
        shutil.rmtree(trash, ignore_errors=True)


def clean_cache(cache_dir: Path, max_bytes: int = MAX_BYTES, *, spare_s: float = _RECENT_S) -> int:
    """Bring the builds under `cache_dir` down to `max_bytes`, least recently used first; the bytes freed."""
    return BuildCache(cache_dir).clean(max_bytes, spare_s=spare_s)


def unwritable(cache_dir: Path, error: OSError) -> EnvironmentFault:
    """The fault of a cache folder that can't be written: no permission, or no space."""
    return EnvironmentFault(
        f"the build cache {cache_dir} can't be written: {error.strerror or error}; free space, or set KTUNE_CACHE_DIR"
    )


@dataclass(frozen=True)
class _Usage:
    entry: Path
    size_bytes: int
    used_at: float


def _usage(entry: Path) -> _Usage:
    size, used = 0, 0.0
    with contextlib.suppress(OSError):
        for path in entry.iterdir():
            status = path.stat()
            size += status.st_size
            used = max(used, status.st_mtime)
    return _Usage(entry, size, used)


def _older(folder: Path, than: float) -> list[Path]:
    found = []
    for path in folder.iterdir():
        with contextlib.suppress(OSError):
            if path.stat().st_mtime < than:
                found.append(path)
    return found


def _facts_to_json(facts: BuildFacts) -> dict[str, Any]:
    stored = asdict(facts)
    del stored["cached"]
    return {"format": FORMAT, **stored}


def _facts_from_json(stored: dict[str, Any]) -> BuildFacts:
    if stored["format"] != FORMAT:
        raise ValueError(f"{FACTS} must be of format {FORMAT}, got {stored['format']}")
    return BuildFacts(**{f.name: stored[f.name] for f in fields(BuildFacts) if f.name != "cached"}, cached=True)


def _flush_to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
