"""The one seam between proposing variants and knowing how they did."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Protocol

from ktune.core.model import Environment, Measurement, Request, Source


class Evaluator(Protocol):
    """Answers requests with measurements. A CUDA GPU, a recorded table and a fake GPU all do."""

    source: Source

    @property
    def environment(self) -> Environment:
        """The GPU and what drives it; may wait until that is known."""
        ...

    def evaluate(self, requests: Iterable[Request]) -> Iterator[Measurement]:
        """Pull requests as there is room for them, yield measurements as they finish (in any order).

        Everything happens in the caller's thread: a request is pulled only inside `next()`, so a
        generator of proposals sees every measurement yielded so far. One measurement per request.
        """
        ...

    def close(self) -> None:
        """End every process that this evaluator started."""
        ...
