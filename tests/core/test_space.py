"""The space holds exactly the valid configurations, and says why another is none."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import pytest

from ktune.api import Parameter, Rule
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family, shipped_families
from ktune.core.model import Configuration, Value
from ktune.core.space import Space, default_values, find_parameter, parse_value


@pytest.fixture(params=["toy", "gemm_epilogue"])
def loaded(request: pytest.FixtureRequest, families: Path) -> LoadedFamily:
    return load_family(families / request.param)


@pytest.fixture
def toy(families: Path) -> LoadedFamily:
    return load_family(families / "toy")


def space_of(loaded: LoadedFamily, **narrowing: tuple[Value, ...]) -> Space:
    return Space(loaded.family, list(loaded.named_problems.values()), narrowing)


def filtered_product(space: Space) -> set[Configuration]:
    """The slow definition of a space: every combination, less absent parameters, less broken rules."""
    family = space.family
    found = set()
    for values in itertools.product(*(space.values(p) for p in family.parameters)):
        whole = dict(zip((p.name for p in family.parameters), values, strict=True))
        chosen: dict[str, Value] = {}
        for parameter in family.parameters:
            if all(chosen.get(name) in allowed for name, allowed in (parameter.when or {}).items()):
                chosen[parameter.name] = whole[parameter.name]
        kept = True
        for problem in space.problems:
            known = {**problem.by_name, **chosen}
            for rule in family.rules:
                if all(a in known for a in rule.arguments):
                    kept = kept and rule.holds(**{a: known[a] for a in rule.arguments})
        if kept:
            found.add(Configuration(tuple(chosen.items())))
    return found


def test_enumerating_gives_the_product_filtered_by_the_rules_without_repeats(loaded: LoadedFamily) -> None:
    space = space_of(loaded)
    points = list(space)
    assert len(points) == len(set(points)) == len(space)
    assert set(points) == filtered_product(space)


def test_a_narrowed_space_is_the_part_of_the_whole_with_those_values(loaded: LoadedFamily) -> None:
    whole, narrowed = space_of(loaded), space_of(loaded, block_size=(64, 128))
    assert set(narrowed) == {p for p in whole if p["block_size"] in (64, 128)}
    assert 0 < len(narrowed) < len(whole)
    assert narrowed.digest != whole.digest


def test_a_parameter_whose_condition_does_not_hold_is_absent(toy: LoadedFamily) -> None:
    for point in space_of(toy):
        assert ("unroll" in point) == (point["algorithm"] == "unrolled")


def test_the_default_point_is_the_familys_default(loaded: LoadedFamily) -> None:
    assert dict(space_of(loaded).default) == default_values(loaded.family)


def test_the_default_of_a_narrowed_space_is_its_nearest_point(toy: LoadedFamily) -> None:
    default = space_of(toy, block_size=(256,)).default
    assert dict(default) == {**default_values(toy.family), "block_size": 256}


def test_neighbours_are_valid_and_one_step_away(loaded: LoadedFamily) -> None:
    space = space_of(loaded)
    rng = random.Random(1)
    for point in (space.sample(rng) for _ in range(20)):
        for neighbour in space.neighbours(point):
            assert neighbour in space and neighbour != point
            if set(neighbour) == set(point):
                assert sum(neighbour[n] != point[n] for n in point) == 1


def test_a_change_drops_what_no_longer_exists_and_gives_the_default_to_what_is_new(toy: LoadedFamily) -> None:
    space = space_of(toy)
    unrolled = space.complete({"algorithm": "unrolled", "items": 4, "unroll": 4})
    simple = space.changed(unrolled, {"algorithm": "simple"})
    assert simple == space.complete({"items": 4})
    assert simple is not None and space.changed(simple, {"algorithm": "unrolled"}) == space.complete(
        {"algorithm": "unrolled", "items": 4}
    )


def test_a_change_that_breaks_a_rule_or_leaves_the_narrowing_gives_nothing(toy: LoadedFamily) -> None:
    space = space_of(toy, block_size=(64, 128))
    unrolled = space.complete({"algorithm": "unrolled", "items": 4, "unroll": 4})
    assert space.changed(unrolled, {"items": 1}) is None
    assert space.changed(unrolled, {"block_size": 256}) is None
    assert space.changed(unrolled, {"block_size": 64}) in space


def test_every_id_names_one_point_and_finds_it_again(loaded: LoadedFamily) -> None:
    space = space_of(loaded)
    for point in space:
        assert space.from_id(configuration_id(loaded.family, point)) == point
    assert space.from_id("no.such_1") is None


def test_completing_fills_in_the_familys_defaults(toy: LoadedFamily) -> None:
    point = space_of(toy).complete({"algorithm": "unrolled", "items": 4, "unroll": 2})
    assert dict(point) == {"algorithm": "unrolled", "block_size": 128, "items": 4, "unroll": 2, "fast_math": False}


def test_an_impossible_configuration_is_told_with_the_rule_and_the_values(toy: LoadedFamily) -> None:
    with pytest.raises(UsageError, match=r"unroll may not exceed items; got unroll=8, items=1 for N1048576"):
        space_of(toy).complete({"algorithm": "unrolled", "unroll": 8})


def test_setting_a_parameter_that_does_not_exist_here_says_where_it_does(toy: LoadedFamily) -> None:
    with pytest.raises(UsageError, match="unroll exists only where algorithm in unrolled"):
        space_of(toy).complete({"algorithm": "simple", "unroll": 2})


def test_an_unknown_parameter_is_told_with_the_nearest(toy: LoadedFamily) -> None:
    with pytest.raises(UsageError, match="no parameter 'blocksize'; did you mean block_size"):
        find_parameter(toy.family, "blocksize")
    with pytest.raises(UsageError, match="it has algorithm, block_size"):
        find_parameter(toy.family, "zzz")


def test_an_unknown_value_is_told_with_the_values(toy: LoadedFamily) -> None:
    with pytest.raises(UsageError, match="block_size of toy must be one of 32, 64, 128, 256, got '100'"):
        parse_value(toy.family, toy.family.parameter("block_size"), "100")


@pytest.mark.parametrize(("text", "value"), [("1", True), ("on", True), ("TRUE", True), ("0", False), ("no", False)])
def test_booleans_are_read_as_people_write_them(toy: LoadedFamily, text: str, value: bool) -> None:
    assert parse_value(toy.family, toy.family.parameter("fast_math"), text) is value


def test_a_narrowing_that_leaves_nothing_names_the_rule(toy: LoadedFamily) -> None:
    space = space_of(toy, algorithm=("unrolled",), items=(1,), unroll=(8,))
    assert len(space) == 0
    with pytest.raises(UsageError, match="unroll may not exceed items"):
        _ = space.default


def test_narrowing_to_no_value_is_refused(toy: LoadedFamily) -> None:
    with pytest.raises(UsageError, match="items is narrowed to no value"):
        space_of(toy, items=())


def test_a_rule_on_a_size_holds_for_every_problem_of_the_space(families: Path) -> None:
    gemm = load_family(families / "gemm_epilogue")
    wide = Space(gemm.family, [gemm.family.problem(M=4, N=512, K=64)])
    both = Space(gemm.family, [gemm.family.problem(M=4, N=512, K=64), gemm.family.problem(M=4, N=510, K=64)])
    assert {p["vector_width"] for p in wide if "vector_width" in p} == {1, 2, 4}
    assert {p["vector_width"] for p in both if "vector_width" in p} == {1, 2}


def test_a_space_of_other_rules_or_values_has_another_digest(toy: LoadedFamily) -> None:
    from dataclasses import replace

    problems = list(toy.named_problems.values())
    family = toy.family
    stricter = replace(family, rules=(*family.rules, Rule("items may not be 4", lambda items: items != 4)))
    wider = replace(family, parameters=(*family.parameters, Parameter("extra", (1, 2), 1, "more")))
    digests = {Space(f, problems).digest for f in (family, stricter, wider)}
    assert len(digests) == 3


@pytest.mark.parametrize("name", shipped_families())
def test_the_core_of_a_shipped_family_is_small_enough_to_record(name: str) -> None:
    loaded = load_family(name)
    core = Space(loaded.family, [next(iter(loaded.named_problems.values()))], loaded.family.core)
    assert 1 <= len(core) <= 2000
