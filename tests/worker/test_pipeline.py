"""Which jobs the pipeline makes of requests."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from fake_builder import FakeBuilder

from ktune.core.loading import LoadedFamily
from ktune.core.model import Effort, Request, Source
from ktune.gpu.pipeline import Pipeline
from ktune.gpu.protocol import Job


class Pool:
    """Keeps what it is given."""

    room = idle = ready = True

    def __init__(self) -> None:
        self.jobs: list[Job] = []

    def submit(self, job: Job) -> None:
        self.jobs.append(job)

    def poll(self, timeout_s: float) -> list[object]:
        return []


def jobs_of(bad: LoadedFamily, *requests: Request) -> list[Job]:
    pool = Pool()
    pipeline = Pipeline(bad.family, FakeBuilder(code_of=lambda variant: "code"), pool, Source.FAKE)  # type: ignore[arg-type]
    pipeline.add(requests)
    pipeline.advance(wait=False)
    assert pipeline.fault is None
    return pool.jobs


@pytest.mark.parametrize(("effort", "asked", "thorough"), [
    (Effort.SEARCH, False, False), (Effort.SEARCH, True, True), (Effort.FULL, False, True), (Effort.FULL, True, True),
])  # fmt: skip
def test_what_may_win_and_what_is_asked_for_is_verified_thoroughly(
    bad: LoadedFamily, ask: Callable[..., Request], effort: Effort, asked: bool, thorough: bool
) -> None:
    (job,) = jobs_of(bad, replace(ask(0, effort=effort), thorough=asked))
    assert job.thorough is thorough


def test_a_hasty_verification_does_not_answer_for_a_thorough_one(
    bad: LoadedFamily, ask: Callable[..., Request]
) -> None:
    hasty, twin, other = ask(0), ask(1, unroll=2), replace(ask(2, unroll=4), thorough=True)
    assert [job.trial for job in jobs_of(bad, hasty, twin, other)] == [0, 2]
