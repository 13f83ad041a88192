"""The GPU as the profile's parent sees it: isolated processes under the GPU's lock. The parent never touches CUDA."""

from __future__ import annotations

import contextlib
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from ktune.core.settings import Settings
from ktune.gpu.lock import LOCK_FOLDER, GpuLock
from ktune.profile.counters import read_counters
from ktune.profile.isolated import Ended, run_isolated
from ktune.profile.messages import Order, nothing_known, read_facts, with_reason, write_order
from ktune.profile.model import DeviceFacts, KernelCounters, Missing
from ktune.profile.tools import find_ncu

WORKER = "ktune.profile.worker"
WORKER_LIMIT_S = 180.0
NCU_LIMIT_S = 300.0


@dataclass(frozen=True)
class Device:
    """One GPU, by UUID. log: where its processes' stderr goes. on_event: told what a user may wait for."""

    uuid: str
    log: Path
    settings: Settings
    on_event: Callable[[str], None] = lambda sentence: None
    lock_folder: Path = LOCK_FOLDER
    worker: str = WORKER
    worker_limit_s: float = WORKER_LIMIT_S
    ncu_limit_s: float = NCU_LIMIT_S

    def look(self, order: Order) -> DeviceFacts:
        """What the worker found; the parts that it did not come to are missing with the reason."""
        with self._locked(), tempfile.TemporaryDirectory(prefix="ktune-profile-") as folder:
            asked, answered = Path(folder) / "order.json", Path(folder) / "answer.json"
            write_order(order, asked)
            command = [sys.executable, "-P", "-m", self.worker, str(asked), str(answered)]
            ended = run_isolated(command, self.worker_limit_s)
            facts = read_facts(answered) or nothing_known("the worker left no answer")
        self._keep(ended)
        if not ended.reason:
            return facts
        last = next((line.strip() for line in reversed(ended.errors.splitlines()) if line.strip()), "no message")
        return with_reason(facts, f"the worker {ended.reason}: {last[:300]}; log: {self.log}")

    def count(self, order: Order) -> tuple[KernelCounters, ...] | Missing:
        """Hardware counters, where ncu is installed and permitted."""
        ncu = find_ncu(self.settings)
        if ncu is None:
            return Missing("ncu is not installed; it comes with the CUDA toolkit, or as Nsight Compute")
        with self._locked(), tempfile.TemporaryDirectory(prefix="ktune-ncu-") as folder:
            asked = Path(folder) / "order.json"
            write_order(order, asked)
            # ncu keeps a lock file in TMPDIR that it cannot open if another user made it
            return read_counters(
                ncu, asked, lambda command: run_isolated(command, self.ncu_limit_s, {"TMPDIR": folder})
            )

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        lock = GpuLock(self.uuid, self.lock_folder)
        lock.acquire(on_wait=lambda holder: self.on_event(f"waiting for the GPU, which {holder} holds"))
        try:
            yield
        finally:
            lock.release()

    def _keep(self, ended: Ended) -> None:
        if ended.errors:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("a", encoding="utf-8") as log:
                log.write(ended.errors)
