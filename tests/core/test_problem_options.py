"""A problem's options and dtype: the same problem however it is spelled, known to the family wherever it comes from."""

from __future__ import annotations

import json
import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.errors import FamilyError, UsageError
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Problem
from ktune.core.space import Space
from ktune.core.variant import check_problems, make_variant
from ktune.study.codec import problem_from_json, problem_to_json

FAMILIES = Path(__file__).resolve().parent.parent / "families"


@pytest.fixture(scope="module")
def shifted() -> LoadedFamily:
    return load_family(FAMILIES / "shifted")


def test_an_option_at_its_default_is_left_out_of_the_problem(shifted: LoadedFamily) -> None:
    plain, spelled = shifted.family.problem(N=5), shifted.family.problem(N=5, shift=0, times=1, dtype="float32")
    assert plain == spelled == Problem("shifted", (("N", 5),)) and hash(plain) == hash(spelled)
    assert repr(plain) == repr(spelled) == "Problem(family='shifted', sizes=(('N', 5),), dtype='float32')"
    assert plain != shifted.family.problem(N=5, shift=1)
    assert [plain["N"], plain["shift"], plain["times"]] == [5, 0, 1]


def test_a_label_has_what_differs_from_the_defaults_and_the_dtype_last(shifted: LoadedFamily) -> None:
    family = shifted.family
    assert family.problem(N=5, times=1).label == "N5"
    assert family.problem(times=3, shift=True, N=5).label == "N5-shift1-times3"
    assert family.problem(N=5, shift=1, dtype="bfloat16").label == "N5-shift1-bfloat16"


def test_the_problem_s_json_is_the_same_with_and_without_options_of_the_family(shifted: LoadedFamily) -> None:
    text = json.dumps(problem_to_json(shifted.family.problem(N=5, shift=0)))
    assert text == '{"family": "shifted", "sizes": {"N": 5}, "dtype": "float32"}'
    given = shifted.family.problem(N=5, times=2, dtype="bfloat16")
    assert problem_from_json(problem_to_json(given)) == given


def test_defaults_survive_pickling(shifted: LoadedFamily) -> None:
    moved = pickle.loads(pickle.dumps(shifted.family.problem(N=5, times=2)))
    assert (moved["shift"], moved["times"]) == (0, 2)


@pytest.mark.parametrize(
    ("given", "dtype", "message"),
    [
        ({"shift": 1}, "", "must give N and may give shift, times, got shift"),
        ({"N": 5, "shfit": 1}, "", "must give N and may give shift, times, got N, shfit"),
        ({"N": 5, "shift": -1}, "", "shift must be at least 0, got -1"),
        ({"N": 0}, "", "N must be at least 1, got 0"),
        ({"N": 5, "times": 1.5}, "", "times must be a whole number, got 1.5"),
        ({"N": 5}, "float16", "dtype of shifted must be float32 or bfloat16, got 'float16'"),
    ],
)
def test_what_the_family_does_not_have_is_refused(
    shifted: LoadedFamily, given: dict[str, int], dtype: str, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        shifted.family.problem_of(given, dtype)


def test_named_problems_may_give_options_and_a_dtype(shifted: LoadedFamily) -> None:
    labels = {name: problem.label for name, problem in shifted.named_problems.items()}
    assert labels == {
        "default": "N1048576", "small": "N1000", "small-shifted": "N1000-shift1", "small-bf16": "N1000-bfloat16"
    }  # fmt: skip


def test_a_problem_of_a_file_has_the_defaults_wherever_the_family_sees_it(shifted: LoadedFamily) -> None:
    bare = problem_from_json({"family": "shifted", "sizes": {"N": 70, "times": 2}, "dtype": "bfloat16"})
    assert not bare.defaults
    for family in (shifted.family, replace(shifted.family, summary="another")):
        space = Space(family, [bare])
        variant = make_variant(family, space.default, bare)
        assert dict(variant.constants) == {"shift": 0, "times": 2, "bfloat16": 1}
        assert family.cost(bare).flops == 140
        assert family.plan(space.default, bare).launches
        assert [t.dtype for t in (*family.inputs(bare), *family.outputs(bare))] == ["bfloat16"] * 2
        assert [check.label for check in check_problems(family, variant, bare)] == [
            "N1-times2-bfloat16", "N65-times2-bfloat16"
        ]  # fmt: skip


def test_rules_may_name_options(shifted: LoadedFamily) -> None:
    bare = problem_from_json({"family": "shifted", "sizes": {"N": 70}, "dtype": "float32"})
    fused = [{point["fused"] for point in Space(shifted.family, [p])} for p in (bare, replace(bare, sizes=_SHIFTED))]
    assert fused == [{True}, {False, True}]
    with pytest.raises(UsageError, match="only a shift can be fused; got fused=0, shift=0 for N70"):
        Space(shifted.family, [bare]).complete({"fused": False})
    with pytest.raises(UsageError, match=r"shift is a flag, 0 or 1; got shift=2 for N70-shift2"):
        _ = Space(shifted.family, [shifted.family.problem(N=70, shift=2)]).default


_SHIFTED = (("N", 70), ("shift", 1))


def test_each_dtype_has_its_tolerance(shifted: LoadedFamily) -> None:
    family = shifted.family
    assert family.tolerance_of(family.problem(N=5)) is family.tolerance
    assert family.tolerance_of(family.problem(N=5, dtype="bfloat16")) is family.tolerances["bfloat16"]


def test_checks_of_another_dtype_or_binary_are_a_fault_of_the_family(shifted: LoadedFamily) -> None:
    problem = shifted.family.problem(N=70, dtype="bfloat16")
    for other, message in (
        (
            shifted.family.problem(N=1),
            "is of float32, the problem N70-bfloat16 of bfloat16; checks must",
        ),
        (shifted.family.problem(N=1, shift=1, dtype="bfloat16"), "checks must keep the compiled-in sizes"),
    ):
        family = replace(shifted.family, checks=lambda configuration, problem, other=other: (other,))
        variant = make_variant(family, Space(family, [problem]).default, problem)
        with pytest.raises(FamilyError, match=message):
            check_problems(family, variant, problem)
