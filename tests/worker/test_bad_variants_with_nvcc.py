"""Real compilers and a pretended GPU: every behaviour of the bad family compiles, but for the one that must not."""

from __future__ import annotations

from pathlib import Path

import pytest

from ktune.build.builder import Builder
from ktune.build.toolchain import find_toolchain
from ktune.core.model import Request, Status
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant

pytestmark = pytest.mark.build


def test_variants_compile_while_others_are_measured_and_each_is_answered_once(evaluator, bad, tmp_path: Path) -> None:
    problem = bad.named_problems["small"]
    points = [p for p in Space(bad.family, [problem], {}).points if p.get("block_size", 64) < 128]
    requests = [Request(i, make_variant(bad.family, p, problem), problem) for i, p in enumerate(points)]
    builder = Builder(bad, find_toolchain(read_settings()), tmp_path / "cache")
    try:
        one = evaluator(builder)
        measured = {m.trial: m for m in one.evaluate(requests)}
    finally:
        builder.close()
    assert len(measured) == len(requests) > 13
    for trial, point in enumerate(points):
        built = measured[trial].status is not Status.BUILD_FAILED
        assert built == (point["behaviour"] != "does_not_compile"), measured[trial].detail
        assert (measured[trial].status is Status.OK) == (point["behaviour"] == "good")
    assert one.environment.compiler == builder.toolchain.label
    assert 0 < one.stats["gpu_idle_for_builds"] < one.stats["total"]
