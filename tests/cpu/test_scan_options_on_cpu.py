"""The selective scan's options in every algorithm: executed on the CPU, for lengths and widths with rests."""

from __future__ import annotations

import pytest

from ktune.core.loading import load_family
from ktune.core.model import Configuration, Problem, Status
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.compiler import Check, ProgramStore
from ktune.cpu.execute import Executor
from ktune.cpu.problems import far_problems, small_problems

LOADED = load_family("selective_scan")
FAMILY = LOADED.family

BLOCK = {"bias": 1, "softplus": 1, "gate": 1, "final": 1}
ALL = {**BLOCK, "initial": 1, "skip": 0, "G": 2}
DIRECT = {"algorithm": "direct", "block_size": 64, "threads_per_pair": 8, "unroll": 1}
STAGED = {"algorithm": "staged", "block_size": 64, "threads_per_pair": 4, "tile_l": 8, "unroll": 1, "exp": "ex2"}
PIPED = {"algorithm": "piped", "block_size": 64, "threads_per_pair": 2, "tile_l": 16, "unroll": 2, "exp": "ex2"}
PLAIN = (Check.PLAIN,)

# (configuration, N, options, dtype, checks)
CASES = [
    ({**DIRECT, "reduction": "shuffle"}, 5, ALL, "float32", PLAIN),
    ({**DIRECT, "reduction": "transposed", "prefetch": 8}, 16, ALL, "bfloat16", tuple(Check)),
    ({**STAGED, "reduction": "shuffle", "stages": 1}, 1, {"bias": 1, "initial": 1, "final": 1}, "float32", PLAIN),
    ({**STAGED, "reduction": "transposed", "vector_width": 4, "register_prefetch": True}, 64, ALL, "float32", PLAIN),
    ({**STAGED, "reduction": "shared", "vector_width": 2, "stages": 3}, 16, BLOCK, "bfloat16", tuple(Check)),
    ({**PIPED, "reduction": "shared", "helpers": 2}, 16, ALL, "float32", tuple(Check)),
    ({**PIPED, "reduction": "shared", "helpers": 1, "stages": 3}, 16, ALL, "bfloat16", PLAIN),
    ({**PIPED, "reduction": "shared", "helpers": 2, "copies": "bulk"}, 16, ALL, "float32", PLAIN),
    ({**PIPED, "reduction": "transposed", "helpers": 4, "row_ahead": 1}, 32, BLOCK, "bfloat16", PLAIN),
    ({**PIPED, "reduction": "transposed", "stages": 3}, 16, BLOCK, "bfloat16", tuple(Check)),
    ({**PIPED, "reduction": "transposed", "helpers": 1}, 256, {"gate": 1, "initial": 1}, "float32", PLAIN),
]


@pytest.fixture(scope="module")
def executor(programs: ProgramStore) -> Executor:
    return Executor(LOADED, programs)


def chosen(given: dict[str, object], problem: Problem) -> Configuration:
    """The configuration with these values; those that rules tie to N follow it."""
    space = Space(FAMILY, [problem])
    if problem["N"] == 256:
        given = {**given, "threads_per_pair": 8, "block_size": 256}
    return space.complete(given)  # type: ignore[arg-type]


def name_of(case: tuple[dict[str, object], int, dict[str, int], str, tuple[Check, ...]]) -> str:
    given, states, options, dtype, _ = case
    kind = "-".join(str(given[name]) for name in ("algorithm", "reduction") if name in given)
    return f"{kind}-N{states}-{'-'.join(options)}-{dtype}"


@pytest.mark.parametrize("case", CASES, ids=name_of)
def test_options_are_right_in_every_algorithm_whatever_rests_are_left(case, executor: Executor) -> None:
    given, states, options, dtype, checks = case
    problem = FAMILY.problem(B=2, L=64, D=128, N=states, **options, dtype=dtype)
    point = chosen(given, problem)
    variant = make_variant(FAMILY, point, problem)
    problems = small_problems(LOADED, variant, problem)
    assert {p["L"] for p in problems} >= {1}
    found = executor.verify(variant, problems if checks == PLAIN else problems[:4], checks)
    assert found.status is Status.OK and found.executable, found.detail
    assert found.accuracy is not None and found.accuracy.worst_ratio < 1.0


@pytest.mark.parametrize("given", [DIRECT, STAGED, PIPED], ids=lambda given: str(given["algorithm"]))
def test_offsets_of_every_option_need_more_than_32_bits_and_have_them(given, executor: Executor) -> None:
    reduction = {"reduction": "shuffle" if given is DIRECT else "shared"}
    problem = FAMILY.problem(B=2, L=64, D=128, N=16, **ALL)
    variant = make_variant(FAMILY, chosen({**given, **reduction}, problem), problem)
    far = far_problems(LOADED, variant, problem)
    assert far
    found = executor.verify_far(variant, far)
    assert found.status is Status.OK and found.executable, found.detail
