"""Measurements survive JSON whole, whatever their floats are."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ktune.core.errors import UsageError
from ktune.core.model import (
    Accuracy,
    BuildFacts,
    Configuration,
    Effort,
    Environment,
    Measurement,
    Problem,
    Source,
    Status,
    Timing,
    Variant,
)
from ktune.study.codec import (
    FORMAT,
    measurement_from_json,
    measurement_from_text,
    measurement_to_json,
    measurement_to_text,
)
from tests.search.toy_search import measure, toy_space

NAMES = st.text(min_size=1, max_size=8)
SIZES = st.dictionaries(NAMES, st.integers(1, 1 << 40), max_size=4).map(lambda d: tuple(d.items()))
VALUES = st.one_of(st.booleans(), st.integers(-(1 << 31), 1 << 31), st.text(max_size=8))
CONFIGURATIONS = st.dictionaries(NAMES, VALUES, max_size=6).map(lambda d: Configuration(tuple(d.items())))


def maybe(kind: type) -> st.SearchStrategy:
    return st.one_of(st.none(), st.from_type(kind))


MEASUREMENTS = st.builds(
    Measurement,
    trial=st.integers(0, 10**6),
    variant=st.builds(Variant, family=NAMES, configuration=CONFIGURATIONS, constants=SIZES, target=NAMES),
    problem=st.builds(Problem, family=NAMES, sizes=SIZES, dtype=NAMES),
    status=st.sampled_from(Status),
    source=st.sampled_from(Source),
    effort=st.sampled_from(Effort),
    detail=st.text(),
    build=maybe(BuildFacts),
    accuracy=maybe(Accuracy),
    cold=maybe(Timing),
    hot=maybe(Timing),
    bound_us=st.one_of(st.none(), st.floats()),
    environment=maybe(Environment),
    finished_at=st.text(max_size=30),
    seconds=st.dictionaries(NAMES, st.floats(), max_size=4),
)


@settings(max_examples=60, deadline=None)
@given(MEASUREMENTS)
def test_any_measurement_comes_back_as_it_was(m: Measurement) -> None:
    text = measurement_to_text(m)
    back = measurement_from_text(text)
    # By repr, which tells booleans from integers and holds one NaN equal to another.
    assert repr(back) == repr(m)
    assert measurement_to_text(back) == text


def test_the_order_of_a_configuration_and_its_booleans_survive() -> None:
    m = measure(Configuration((("z", True), ("a", 1), ("m", "1"))))
    back = measurement_from_text(measurement_to_text(m))
    assert list(back.variant.configuration.items()) == [("z", True), ("a", 1), ("m", "1")]
    assert back.variant.configuration["z"] is True


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_what_json_has_no_number_for_is_written_as_strict_json(value: float) -> None:
    m = measure(toy_space().default, bound_us=value, seconds={"time": value})
    text = measurement_to_text(m)
    json.loads(text, parse_constant=lambda constant: pytest.fail(f"{constant} is not JSON"))
    back = measurement_from_text(text)
    assert repr(back.bound_us) == repr(value)
    assert repr(back.seconds["time"]) == repr(value)


def test_numbers_of_numpy_are_written_as_plain_ones() -> None:
    m = measure(toy_space().default)
    assert m.accuracy is not None and m.build is not None
    odd = replace(
        m,
        bound_us=np.float32(2.5),
        accuracy=replace(m.accuracy, max_abs=np.float64(0.5), first_bad=(np.int64(3),)),
        build=replace(m.build, registers=np.int32(40)),
    )
    back = measurement_from_text(measurement_to_text(odd))
    assert back.bound_us == 2.5 and type(back.bound_us) is float
    assert back.accuracy is not None and back.accuracy.first_bad == (3,)
    assert back.build is not None and type(back.build.registers) is int


def test_a_newer_format_is_refused_with_the_way_out() -> None:
    data = measurement_to_json(measure(toy_space().default))
    assert data["format"] == FORMAT == 1
    with pytest.raises(UsageError, match="format 2, this ktune reads up to format 1; upgrade ktune-cuda"):
        measurement_from_json({**data, "format": 2})


@pytest.mark.parametrize("found", [None, "1", 0, -1])
def test_what_says_no_format_is_refused(found: object) -> None:
    data = measurement_to_json(measure(toy_space().default))
    with pytest.raises(UsageError, match="must say format = 1"):
        measurement_from_json({**data, "format": found})


@pytest.mark.parametrize("part", ["trial", "variant", "problem", "status", "source", "effort"])
def test_a_measurement_without_one_of_its_parts_is_refused_by_name(part: str) -> None:
    data = measurement_to_json(measure(toy_space().default))
    del data[part]
    with pytest.raises(UsageError, match=f"damaged: KeyError '{part}'"):
        measurement_from_json(data)


def test_an_accuracy_written_before_bounds_were_known_is_read_without_one() -> None:
    data = measurement_to_json(measure(toy_space().default))
    del data["accuracy"]["bound_ratio"]
    old = measurement_from_json(data)
    assert old.accuracy is not None and old.accuracy.bound_ratio is None


def test_an_unknown_status_and_a_torn_line_are_refused() -> None:
    data = measurement_to_json(measure(toy_space().default))
    with pytest.raises(UsageError, match="damaged"):
        measurement_from_json({**data, "status": "splendid"})
    with pytest.raises(UsageError, match="must be a line of JSON"):
        measurement_from_text(json.dumps(data)[:100])


def test_keys_added_by_a_later_ktune_of_the_same_format_are_skipped() -> None:
    m = measure(toy_space().default)
    data = measurement_to_json(m)
    data["energy"] = 3
    data["cold"]["regime_version"] = 2
    assert measurement_from_json(data) == m
