"""Every algorithm of every family runs clean on the CPU: at the limits of its parameters, and a seeded sample."""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

import pytest

from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family, shipped_families
from ktune.core.model import Configuration, Problem, Status
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.compiler import Check, ProgramStore
from ktune.cpu.execute import Executor
from ktune.cpu.problems import broken_laws, far_problems, largest_of, small_problems

TEST_FAMILIES = Path(__file__).resolve().parents[1] / "families"
FAMILIES = (*shipped_families(), str(TEST_FAMILIES / "toy"), str(TEST_FAMILIES / "gemm_epilogue"))
# Needs tensor cores.
NOT_EXECUTABLE = {("linear_swish_scale", "wgmma")}
SEED = 20
SAMPLE = 2
CANDIDATES = 400

each_family = pytest.mark.parametrize("family", FAMILIES, ids=lambda name: Path(name).name)


@cache
def space_of(family: str) -> Space:
    loaded = load_family(family)
    return Space(loaded.family, [loaded.named_problems["small"]])


def algorithm_of(point: Configuration) -> str:
    return str(point.get("algorithm", ""))


def covering(points: Sequence[Configuration]) -> Iterator[Configuration]:
    """Few points that have, between them, the first and the last value of each parameter."""
    values: dict[str, list[object]] = {}
    for point in points:
        for name, value in point.items():
            if value not in values.setdefault(name, []):
                values[name].append(value)
    limits = {(name, v) for name, found in values.items() for v in (min(found, key=str), max(found, key=str))}
    for name, found in values.items():
        numbers = [v for v in found if isinstance(v, int)]
        limits |= {(name, min(numbers)), (name, max(numbers))} if numbers else set()
    while limits:
        best = max(points, key=lambda point: len(limits & set(point.items())))
        yield best
        limits -= set(best.items())


def chosen(family: str) -> list[Configuration]:
    """Of each algorithm that can run: points at the limits, drawn points; the family's default."""
    space = space_of(family)
    draw = random.Random(SEED)
    found = []
    for algorithm in dict.fromkeys(map(algorithm_of, space)):
        if (family, algorithm) in NOT_EXECUTABLE:
            continue
        points = [point for point in space if algorithm_of(point) == algorithm]
        few = draw.sample(points, min(CANDIDATES, len(points)))
        found += [*covering(few), *draw.sample(points, min(SAMPLE, len(points)))]
    return list(dict.fromkeys([space.default, *found]))


@pytest.fixture(scope="module")
def executors(programs: ProgramStore) -> dict[str, Executor]:
    return {family: Executor(load_family(family), programs) for family in FAMILIES}


@each_family
def test_limits_and_a_sample_are_right_under_every_schedule(family: str, executors: dict[str, Executor]) -> None:
    loaded, problem = loaded_of(family)
    for point in chosen(family):
        variant = make_variant(loaded.family, point, problem)
        found = executors[family].verify(variant, loaded.family.checks(point, problem))
        assert found.status is Status.OK and found.executable, (configuration_id(loaded.family, point), found.detail)
        assert found.accuracy is not None and found.accuracy.worst_ratio < 1.0


@each_family
def test_a_drawn_variant_of_each_algorithm_is_clean_in_every_check(family: str, executors: dict[str, Executor]) -> None:
    loaded, problem = loaded_of(family)
    last = {algorithm_of(point): point for point in chosen(family)}
    for point in last.values():
        variant = make_variant(loaded.family, point, problem)
        name = configuration_id(loaded.family, point)
        found = executors[family].verify(variant, small_problems(loaded, variant, problem)[:6], tuple(Check))
        assert found.status is Status.OK, (name, found.detail)
        far = executors[family].verify_far(variant, far_problems(loaded, variant, problem))
        assert far.status is Status.OK, (name, far.detail)


@each_family
def test_a_drawn_variant_of_each_algorithm_is_right_for_every_kind_of_inputs(
    family: str, executors: dict[str, Executor]
) -> None:
    loaded, problem = loaded_of(family)
    assert set(loaded.family.kinds(problem)) < set(loaded.module("reference").KINDS)
    for point in {algorithm_of(point): point for point in reversed(chosen(family))}.values():
        variant = make_variant(loaded.family, point, problem)
        largest = largest_of(loaded.family, loaded.family.checks(point, problem))
        found = executors[family].verify(variant, [largest], kinds_at=largest)
        assert found.status is Status.OK, (configuration_id(loaded.family, point), found.detail)


def test_an_algorithm_that_needs_tensor_cores_says_so_and_is_not_right(executors: dict[str, Executor]) -> None:
    loaded, problem = loaded_of("linear_swish_scale")
    for family, algorithm in NOT_EXECUTABLE:
        point = next(p for p in space_of(family) if algorithm_of(p) == algorithm)
        variant = make_variant(loaded.family, point, problem)
        found = executors[family].verify(variant, loaded.family.checks(point, problem))
        assert not found.executable and not found.right
        assert found.detail.startswith("not executable on the CPU: ")


@each_family
def test_small_problems_surround_the_checks_and_keep_their_laws(family: str) -> None:
    loaded, problem = loaded_of(family)
    point = space_of(family).default
    variant = make_variant(loaded.family, point, problem)
    checks = loaded.family.checks(point, problem)
    found = small_problems(loaded, variant, problem)
    assert found[: len(checks)] == tuple(checks) and len(set(found)) == len(found) > len(checks) + 2
    base = max(checks, key=lambda check: loaded.family.cost(check).flops)
    allowed = broken_laws(loaded.family, point, base)
    for near in found[len(checks) :]:
        assert broken_laws(loaded.family, point, near) <= allowed
        assert tuple(loaded.family.constants(point, near).items()) == variant.constants


def test_far_problems_have_offsets_that_32_bits_do_not_hold() -> None:
    loaded, problem = loaded_of("selective_scan")
    point = space_of("selective_scan").default
    found = far_problems(loaded, make_variant(loaded.family, point, problem), problem)
    largest = [max(math.prod(tensor.shape) for tensor in loaded.family.inputs(far)) for far in found]
    assert found and all((1 << 31) < elements < (1 << 32) for elements in largest)
    assert all(loaded.family.cost(far).flops > 1e9 for far in found)


def loaded_of(family: str) -> tuple[LoadedFamily, Problem]:
    loaded = load_family(family)
    return loaded, loaded.named_problems["small"]
