"""What runs in a race on a GPU: a loaded variant, or a peer of the family on the same inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import perf_counter
from typing import Any

import torch

from ktune.api import Peer
from ktune.checks import verify as verification
from ktune.core.errors import UsageError
from ktune.core.loading import LoadedFamily
from ktune.core.model import Status
from ktune.gpu.buffers import digest
from ktune.gpu.cases import BoundCase, Case
from ktune.gpu.driver import torch_fault
from ktune.gpu.protocol import LaunchFault, StickyFault, Verdict

# Some peers settle only after the first call: a captured graph, a tuned tile.
_SETTLING_CALLS = 3
_SLOW_S = 0.05


class VariantRunner:
    """A variant bound to the measured problem and its check cases. Its outputs must repeat bit for bit."""

    compiles = False

    def __init__(self, name: str, measured: BoundCase, checks: Sequence[BoundCase]) -> None:
        self.name = name
        self.run = measured.run
        self._measured, self._checks = measured, checks
        self._verified: Mapping[str, int] = {}

    def warm_up(self) -> None:
        """It is compiled."""

    def verify(self) -> Verdict:
        try:
            verdict = verification.verify((self._measured, *self._checks))
        except torch.cuda.OutOfMemoryError as error:
            raise fault_of(error, self.name) from error
        self._verified = self._measured.digests()
        return verdict

    def poison(self) -> None:
        self._measured.poison()

    def recheck(self) -> Verdict:
        damage, found = self._measured.damage(), self._measured.digests()
        if damage or found != self._verified:
            verdict = verification.judge(self._measured, damage and f"{damage}, while timed")
            if verdict.status is not Status.OK:
                return verdict
            differs = next(name for name in found if found[name] != self._verified[name])
            sentence = f"the timed and the verified run differ in {differs}, both within tolerance"
            return Verdict(Status.UNSTABLE, sentence, verdict.accuracy)
        return Verdict(Status.OK)


class PeerRunner:
    """A peer prepared with a case's inputs. Its outputs are its own, and may vary within the tolerance."""

    compiles = True

    def __init__(self, name: str, call: Callable[[], Any], case: Case) -> None:
        self.name = name
        self.label, self.tolerance = case.label, case.tolerance
        self._call, self._case = call, case
        self._returned: Any = None
        self._verified: list[int] = []

    def run(self) -> None:
        # dropped first, so that the allocator gives the next outputs the same memory
        self._returned = None
        try:
            self._returned = self._call()
        except Exception as error:
            raise fault_of(error, self.name) from error

    def warm_up(self) -> None:
        """Call it until it has compiled and settled: three times, or twice where it is slow. Waits for the GPU."""
        for call in range(_SETTLING_CALLS):
            began = perf_counter()
            self.run()
            torch.cuda.synchronize()
            if call > 0 and perf_counter() - began > _SLOW_S:
                return

    def verify(self) -> Verdict:
        self.run()
        verdict = self._judge(self._case.damage())
        self._verified = self._digests()
        return verdict

    def poison(self) -> None:
        """Its outputs are new at each call."""

    def recheck(self) -> Verdict:
        damage = self._case.damage()
        if not damage and self._digests() == self._verified:
            return Verdict(Status.OK)
        return self._judge(damage and f"{damage}, while timed")

    def outputs(self) -> Mapping[str, torch.Tensor]:
        return {name: self._returned[name].to(own.device) for name, own in self._case.outputs().items()}

    def damage(self) -> str:
        return self._case.damage()

    def reference(self) -> Mapping[str, torch.Tensor]:
        return self._case.reference()

    def bound(self) -> Mapping[str, torch.Tensor]:
        return self._case.bound()

    def _judge(self, damage: str) -> Verdict:
        misfit = self._misfit()
        if misfit:
            return Verdict(Status.WRONG, f"{damage}; {misfit}" if damage else misfit, damaged=bool(damage))
        return verification.judge(self, damage)

    def _misfit(self) -> str:
        """What it returned that cannot be compared with the reference; empty if everything can."""
        returned = self._returned if isinstance(self._returned, Mapping) else {}
        for name, own in self._case.outputs().items():
            tensor = returned.get(name)
            if not isinstance(tensor, torch.Tensor):
                return f"returned no tensor {name!r}"
            if tensor.shape != own.shape:
                return f"returned {name} of shape {tuple(tensor.shape)}, the problem's is {tuple(own.shape)}"
        return ""

    def _digests(self) -> list[int]:
        return [] if self._misfit() else [int(digest(tensor)) for tensor in self.outputs().values()]


def prepare_peer(loaded: LoadedFamily, name: str, peer: str, case: Case) -> PeerRunner:
    """The peer on the case's inputs. LaunchFault if it is not installed or fails; UsageError for an unknown one."""
    found = find_peer(loaded, peer)
    try:
        how = found.missing()
        if how is not None:
            raise LaunchFault(f"not installed: {how}")
        prepared = found.prepare(case.problem, case.inputs())
        return PeerRunner(name, prepared, case)
    except Exception as error:
        raise fault_of(error, name) from error


def find_peer(loaded: LoadedFamily, peer: str) -> Peer:
    """The peer of that name in the family's peers.py."""
    peers: Sequence[Peer] = getattr(loaded.module("peers"), "PEERS", ())
    for candidate in peers:
        if candidate.name == peer:
            return candidate
    names = ", ".join(candidate.name for candidate in peers) or "none"
    raise UsageError(f"{loaded.name} has no peer {peer!r}; its peers.py names in PEERS: {names}")


def fault_of(error: Exception, doing: str) -> LaunchFault | StickyFault:
    """The fault that an exception out of an entrant stands for. Waits for the GPU: an error of its own goes before."""
    if isinstance(error, LaunchFault | StickyFault):
        return error
    found = torch_fault(error, doing) if isinstance(error, RuntimeError) else None
    if found is not None:
        return found
    try:
        torch.cuda.synchronize()
    except RuntimeError as late:
        found = torch_fault(late, doing)
    first_line = next(iter(str(error).strip().splitlines()), "")
    return found or LaunchFault(f"{type(error).__name__}: {first_line}")
