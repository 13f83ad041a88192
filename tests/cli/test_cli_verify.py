"""`ktune verify` compares what was found with what was expected of each variant."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.cli.verify import choose_configurations
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Request, Status
from ktune.core.space import Space


def fast(request: Request) -> bool:
    return request.variant.configuration["fast_math"] is True


def test_by_default_it_takes_the_default_the_limits_and_a_sample(toy: Path) -> None:
    loaded = load_family(toy)
    space = Space(loaded.family, [loaded.named_problems["small"]])
    chosen = choose_configurations(space, 10, seed=0)
    assert chosen[0] == space.default and len(chosen) == len(set(chosen)) and set(chosen) <= set(space)
    for parameter in loaded.family.parameters:
        found = {point.get(parameter.name) for point in chosen}
        valid = [v for v in parameter.values if any(point.get(parameter.name) == v for point in space)]
        assert {valid[0], valid[-1]} <= found
    assert choose_configurations(space, 10, seed=0) == chosen != choose_configurations(space, 10, seed=1)
    assert set(choose_configurations(space, 1000, seed=0)) == set(space)


def test_right_variants_are_as_expected(ktune: Terminal, toy: Path) -> None:
    out = ktune("verify", toy, "--sample", "5", "--problem", "small")
    assert "toy at N1000" in out and "all as expected" in out
    assert all(request.problem["N"] == 1000 for request in ktune.evaluator.evaluated)
    assert ktune.evaluator.closed


def test_a_variant_that_should_be_right_and_is_not_exits_with_4(ktune: Terminal, toy: Path) -> None:
    ktune.plant(lambda request: Status.WRONG if fast(request) else Status.OK)
    out = ktune("verify", toy, code=4)
    assert "!!  right     wrong" in out and "planted: wrong" in out and "not as expected" in out


@pytest.fixture
def known_bad(monkeypatch: pytest.MonkeyPatch, toy: Path) -> None:
    """The toy, whose fast-math variants are declared wrong."""
    loaded = load_family(toy)
    family = replace(loaded.family, expected_wrong=lambda c: "fast-math is too coarse" if c["fast_math"] else "")
    monkeypatch.setattr("ktune.core.loading.load_family", lambda name: LoadedFamily(family, loaded.folder))


@pytest.mark.usefixtures("known_bad")
def test_known_bad_variants_that_fail_as_declared_are_a_success(ktune: Terminal, toy: Path) -> None:
    ktune.plant(lambda request: Status.WRONG if fast(request) else Status.OK)
    out = ktune("verify", toy, "--sample", "5")
    assert "ok  wrong     wrong" in out and "known wrong: fast-math is too coarse" in out and "all as expected" in out


@pytest.mark.usefixtures("known_bad")
def test_a_known_bad_variant_that_passes_is_not_as_expected(ktune: Terminal, toy: Path) -> None:
    out = ktune("verify", toy, "--sample", "0", code=4)
    assert "!!  wrong     right" in out


def test_a_crash_is_never_what_was_expected(ktune: Terminal, toy: Path) -> None:
    ktune.plant(lambda request: Status.CRASHED)
    ktune("verify", toy, "--sample", "0", code=4)


def test_json_holds_every_check(ktune: Terminal, toy: Path) -> None:
    found = json.loads(ktune("verify", toy, "--sample", "3", "--json"))
    assert found["format"] == 1 and all(c["as_expected"] and c["source"] == "fake" for c in found["checks"])


def test_a_configuration_has_the_same_names_everywhere(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "10")
    folder = ktune.folder / "results" / "toy-N1048576-Fake-H200"
    best = json.loads((folder / "best.json").read_text())
    names = [f"#{best['trial']}", best["configuration_id"], best["digests"]["configuration"][:12], folder / "best.json"]
    ktune.evaluator.evaluated.clear()
    ktune("verify", toy, *names)
    assert len(ktune.evaluator.evaluated) == 4
    assert len({request.variant.configuration for request in ktune.evaluator.evaluated}) == 1
    for name in names:
        exported = json.loads(ktune("export", "--configuration", name, "--json", "--output", "out"))
        assert exported["winner"]["configuration_id"] == best["configuration_id"]
