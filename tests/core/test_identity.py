"""Names and digests: readable, complete, and equal only for equal things."""

from __future__ import annotations

from pathlib import Path

from ktune.core.identity import configuration_digest, configuration_id, digest, value_text
from ktune.core.loading import load_family
from ktune.core.model import Configuration
from ktune.core.prelude import camel, prelude, variant_flags
from ktune.core.space import Space
from ktune.core.variant import make_variant


def test_a_digest_depends_on_where_parts_end() -> None:
    assert digest(["ab", "c"]) != digest(["a", "bc"])
    assert digest(["ab", b"c"]) == digest(["ab", "c"])


def test_booleans_are_written_as_digits() -> None:
    assert [value_text(v) for v in (True, False, 1, "x")] == ["1", "0", "1", "x"]


def test_an_id_reads_like_the_configuration(families: Path) -> None:
    loaded = load_family(families / "toy")
    space = Space(loaded.family, [loaded.named_problems["small"]])
    assert configuration_id(loaded.family, space.default) == "simple.block_128.items_1.fast_math_0"


def test_every_point_has_its_own_digest(families: Path) -> None:
    loaded = load_family(families / "toy")
    points = Space(loaded.family, [loaded.named_problems["small"]]).points
    assert len({configuration_digest(p) for p in points}) == len(points)


def test_names_become_camel_case_in_cuda() -> None:
    assert camel("threads_per_pair") == "ThreadsPerPair"


def test_the_prelude_declares_every_parameter_even_where_it_is_absent(families: Path) -> None:
    loaded = load_family(families / "toy")
    problem = loaded.named_problems["small"]
    default = Space(loaded.family, [problem]).default
    text = prelude(loaded.family, make_variant(loaded.family, default, problem))
    assert "constexpr int kBlockSize = 128;" in text
    assert "constexpr int kUnroll = 1;" in text
    assert "constexpr bool kFastMath = false;" in text
    assert "enum class Algorithm { simple, unrolled };" in text
    assert "constexpr Algorithm kAlgorithm = Algorithm::simple;" in text


def test_flags_follow_the_values_of_the_variant(families: Path) -> None:
    loaded = load_family(families / "gemm_epilogue")
    problem = loaded.named_problems["small"]
    space = Space(loaded.family, [problem])
    plain = make_variant(loaded.family, space.default, problem)
    both = make_variant(loaded.family, space.complete({"fast_math": True, "registers": 64}), problem)
    assert variant_flags(loaded.family, plain) == ()
    assert variant_flags(loaded.family, both) == ("--use_fast_math", "--maxrregcount=64")


def test_a_configuration_is_a_mapping_that_can_be_a_key() -> None:
    one = Configuration((("a", 1), ("b", True)))
    assert dict(one) == {"a": 1, "b": True} and one.integer("b") == 1
    assert {one: 1}[Configuration((("a", 1), ("b", True)))] == 1
