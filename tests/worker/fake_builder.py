"""A builder without a compiler: results come in the order asked, each after `seconds` of pretended compiling."""

from __future__ import annotations

import hashlib
import time
from collections import deque
from collections.abc import Callable, Sequence
from pathlib import Path

from ktune.build.builder import BuildResult
from ktune.core.model import BuildFacts, Status, Variant


class FakeToolchain:
    label = "nvcc 13.0.88"


class FakeBuilder:
    toolchain = FakeToolchain()

    def __init__(
        self,
        jobs: int = 2,
        seconds: float = 0.0,
        status_of: Callable[[Variant], Status] | None = None,
        code_of: Callable[[Variant], str] = repr,
    ) -> None:
        self.jobs = jobs
        self.seconds = seconds
        self.status_of = status_of or failing_to_compile
        self.code_of = code_of
        self.submitted: list[Variant] = []
        self._due: deque[tuple[float, Variant]] = deque()
        self._free_at = 0.0

    @property
    def pending(self) -> int:
        return len(self._due)

    def submit(self, variants: Sequence[Variant]) -> None:
        for variant in variants:
            self.submitted.append(variant)
            self._free_at = max(self._free_at, time.monotonic()) + self.seconds
            self._due.append((self._free_at, variant))

    def next_result(self, timeout_s: float | None) -> BuildResult | None:
        if not self._due:
            time.sleep(timeout_s or 0.0)
            return None
        due, variant = self._due[0]
        left_s = due - time.monotonic()
        if timeout_s is not None and left_s > timeout_s:
            time.sleep(timeout_s)
            return None
        time.sleep(max(left_s, 0.0))
        self._due.popleft()
        return self.result(variant)

    def result(self, variant: Variant) -> BuildResult:
        status = self.status_of(variant)
        if status is Status.BUILD_FAILED:
            return BuildResult(variant, status, None, None, "bad.cu:6: static assertion failed", Path("build.log"))
        code = hashlib.sha256(self.code_of(variant).encode()).hexdigest()
        facts = BuildFacts(code, code, 40, 0, 0, 0, 0, self.seconds, False, self.toolchain.label)
        return BuildResult(variant, status, facts, Path("kernel.cubin"), "" if status is Status.OK else "planted")


def failing_to_compile(variant: Variant) -> Status:
    return Status.BUILD_FAILED if variant.configuration.get("behaviour") == "does_not_compile" else Status.OK
