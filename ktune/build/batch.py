"""One batch of compiles: from sources in a work folder to published entries, unit by unit."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktune.build.cache import LOG, BuildCache
from ktune.build.ninja import SOURCE, STARTED, Compile, NinjaRun, build_file
from ktune.build.outcome import Failed, examine
from ktune.build.toolchain import Toolchain
from ktune.core.errors import EnvironmentFault
from ktune.core.model import BuildFacts, Variant

_FULL_DISK_BYTES = 1 << 20


@dataclass(frozen=True)
class Unit:
    """One compile. `label` is the configuration's id, for readers of the cache."""

    key: str
    variant: Variant
    label: str
    source: str
    flags: tuple[str, ...]


@dataclass(frozen=True)
class Finished:
    """A unit that is done: facts and cubin, or the detail of its failure. log: the compiler's, where it stays."""

    unit: Unit
    facts: BuildFacts | None
    cubin: Path | None
    detail: str
    log: Path


class Batch:
    """Units that one ninja compiles with `jobs` compilers."""

    def __init__(
        self, units: Sequence[Unit], jobs: int, toolchain: Toolchain, cache: BuildCache, timeout_s: float
    ) -> None:
        self.jobs = jobs
        self._units = {f"u{i:04}": unit for i, unit in enumerate(units)}
        self._toolchain = toolchain
        self._cache = cache
        self._timeout_s = timeout_s
        self._left = len(units)
        self._run: NinjaRun | None = None
        self._killed = False

    @property
    def held(self) -> int:
        """Compilers that are running, or about to."""
        return min(self.jobs, self._left)

    def start(self, folder: Path) -> None:
        """Start ninja in `folder`, which is empty."""
        for name, unit in self._units.items():
            (folder / name).mkdir()
            (folder / name / SOURCE).write_text(unit.source)
        compiles = [Compile(name, unit.flags) for name, unit in self._units.items()]
        text = build_file(compiles, self._toolchain, self._timeout_s)
        self._run = NinjaRun(folder, text, self._toolchain, self.jobs)

    def kill(self) -> None:
        """End the compilers; what is unfinished then yields no result. Called from another thread."""
        self._killed = True
        if self._run is not None:
            self._run.kill()

    def compiled(self, folder: Path) -> Iterator[tuple[Path, Unit]]:
        """Each unit and its folder as its compile ends, those that ninja did not report last."""
        assert self._run is not None
        unreported = dict(self._units)
        for name in self._run.finished():
            unit = unreported.pop(name, None)
            if unit is not None and not self._killed:
                self._left -= 1
                yield folder / name, unit
        if self._killed:
            return
        if unreported and not any((folder / name / STARTED).exists() for name in self._units):
            raise EnvironmentFault(
                f"{self._toolchain.ninja} started no compiler: {' '.join(self._run.said[-3:]) or 'it said nothing'}; "
                "pip install --force-reinstall ninja"
            )
        for name, unit in unreported.items():
            self._left -= 1
            yield folder / name, unit

    def conclude(self, folder: Path, unit: Unit) -> Finished:
        """Publish what a compile left, or keep its log. Raises OSError or EnvironmentFault if the disk is full."""
        outcome = examine(folder, unit.key, self._toolchain.label, self._timeout_s)
        if isinstance(outcome, Failed):
            self._require_space(folder)
            (folder / LOG).touch()
            log = self._cache.keep_log(folder, folder / SOURCE, f"{unit.variant.family}-{unit.key[:16]}")
            return Finished(unit, None, None, outcome.detail, log)
        cubin = self._cache.publish(folder, outcome.facts, {"kernels": outcome.kernels, **_description(unit)})
        return Finished(unit, outcome.facts, cubin, "", cubin.parent / LOG)

    def _require_space(self, folder: Path) -> None:
        """A full disk fails every compile, and says nothing about the variant."""
        if shutil.disk_usage(folder).free < _FULL_DISK_BYTES:
            raise EnvironmentFault(f"no space is left under {folder.parent}; free some, or set KTUNE_CACHE_DIR")


def _description(unit: Unit) -> dict[str, Any]:
    return {
        "family": unit.variant.family,
        "configuration": unit.label,
        "constants": dict(unit.variant.constants),
        "target": unit.variant.target,
        "built_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
    }
