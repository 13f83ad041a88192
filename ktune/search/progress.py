"""What a running search tells whoever watches it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from ktune.core.model import Measurement, Status

if TYPE_CHECKING:
    from ktune.search.outcome import Outcome


@dataclass(frozen=True)
class Snapshot:
    """Where the search stands. `done` and `total` are of the current phase; `eta_s` is None until it can be known."""

    phase: str
    done: int
    total: int
    counts: Mapping[Status, int]
    incumbent: Measurement | None
    elapsed_s: float
    eta_s: float | None


class Progress(Protocol):
    """Called in the searching thread; what it raises ends the search."""

    def on_start(self, total: int, resumed: int, elsewhere: int) -> None:
        """The search begins: `total` trials, `resumed` of them measured before, `elsewhere` on another GPU."""
        ...

    def on_result(self, m: Measurement, snapshot: Snapshot) -> None:
        """A measurement is on disk."""
        ...

    def on_phase(self, phase: str, total: int) -> None:
        """A phase begins with that many measurements: search, simplify, neighbours, pairs, finalists; cross, of
        several problems."""
        ...

    def on_end(self, outcome: Outcome) -> None:
        """The search is over, or was interrupted."""
        ...


class Silent:
    """Tells nobody."""

    def on_start(self, total: int, resumed: int, elsewhere: int) -> None: ...

    def on_result(self, m: Measurement, snapshot: Snapshot) -> None: ...

    def on_phase(self, phase: str, total: int) -> None: ...

    def on_end(self, outcome: Outcome) -> None: ...
