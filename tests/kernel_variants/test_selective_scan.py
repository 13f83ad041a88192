"""What can be known of the selective scan without a GPU: its space, its plans, its reference, its rules."""

import itertools
import random
import subprocess
from pathlib import Path

import pytest
import torch

from ktune.api import TensorMap
from ktune.build.source import variant_source
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_id
from ktune.core.loading import load_family
from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.core.tensor_map import map_layout
from ktune.core.variant import make_variant
from ktune.cpu.problems import broken_laws

LOADED = load_family("selective_scan")
FAMILY = LOADED.family
RECORD = LOADED.named_problems["record"]


def compile_variant(configuration: Configuration, problem, folder: Path) -> subprocess.CompletedProcess[str]:
    source = folder / "variant.cu"
    source.write_text(variant_source(LOADED, make_variant(FAMILY, configuration, problem)))
    # 177: constants of the prelude that an algorithm does not use.
    command = ["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-std=c++17", "-diag-suppress", "177",
               "-o", str(folder / "variant.cubin"), str(source)]  # fmt: skip
    return subprocess.run(command, capture_output=True, text=True, check=False)


# What is worth while, not what is right: a check may be too small for it.
WORTHWHILE = ("more than one block runs", "chunks are for")
# Those whose whole spaces are looked through; the other layers differ in sizes alone.
LOOKED_THROUGH = [name for name in FAMILY.problems if "-b1-" not in name and "-b8-" not in name]


@pytest.mark.parametrize("name", LOOKED_THROUGH)
def test_every_named_problem_has_valid_points_and_the_default(name):
    space = Space(FAMILY, [LOADED.named_problems[name]])
    assert space.default in space
    assert len(space) > 1000


def test_the_reference_agrees_with_the_closed_form_of_the_recurrence():
    problem = FAMILY.problem(B=2, L=7, D=3, N=5)
    reference = LOADED.module("reference")
    tensors = reference.inputs(problem, seed=3)
    y = reference.reference(problem, tensors)["y"]
    x, delta, a, b, c, skip = (tensors[k].double() for k in ("x", "delta", "A", "B_t", "C_t", "skip"))
    for t in range(problem["L"]):
        expected = x[:, t] * skip
        for s in range(t + 1):
            decay = torch.exp(delta[:, s + 1 : t + 1].sum(1)[..., None] * a)
            driven = (delta[:, s] * x[:, s])[..., None] * b[:, s, None, :]
            expected = expected + (decay * driven * c[:, t, None, :]).sum(-1)
        torch.testing.assert_close(y[:, t], expected, rtol=1e-12, atol=1e-12)


BLOCK = {"bias": 1, "softplus": 1, "gate": 1, "skip": 0}
STATES = {"initial": 1, "final": 1}


def test_options_change_the_reference_as_their_formulas_say():
    reference = LOADED.module("reference")
    sizes = {"B": 2, "L": 9, "D": 6, "N": 4}
    given = reference.inputs(FAMILY.problem(**sizes, **BLOCK, G=3), seed=4)
    found = reference.reference(FAMILY.problem(**sizes, **BLOCK, G=3), given)["y"]
    delta = torch.log1p(torch.exp(given["delta"].double() + given["delta_bias"].double()))
    for group in range(3):
        channels = slice(2 * group, 2 * group + 2)
        alone = {
            "x": given["x"][..., channels],
            "delta": delta[..., channels],
            "A": given["A"][channels],
            "B_t": given["B_t"][:, :, group],
            "C_t": given["C_t"][:, :, group],
            "skip": torch.zeros(2),
        }
        y = reference.reference(FAMILY.problem(**{**sizes, "D": 2}), alone)["y"]
        z = given["z"][..., channels].double()
        torch.testing.assert_close(found[..., channels], y * z / (1 + torch.exp(-z)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("dtype", FAMILY.dtypes)
def test_scanning_in_two_calls_with_the_state_carried_over_is_scanning_once(dtype):
    reference = LOADED.module("reference")
    sizes = {"B": 2, "D": 6, "N": 4, **BLOCK, "G": 2}
    whole = FAMILY.problem(**sizes, L=11, **STATES, dtype=dtype)
    given = reference.inputs(whole, seed=5)
    expected = reference.reference(whole, given)
    state, rows = given["initial_state"].double(), []
    for steps in (slice(0, 4), slice(4, 11)):
        part = {k: v[:, steps] if v.dim() >= 3 and v.shape[1] == 11 else v for k, v in given.items()}
        problem = FAMILY.problem(**sizes, L=steps.stop - steps.start, **STATES, dtype=dtype)
        found = reference.reference(problem, {**part, "initial_state": state})
        state = found["final_state"]
        rows.append(found["y"])
    torch.testing.assert_close(torch.cat(rows, 1), expected["y"], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(state, expected["final_state"], rtol=1e-12, atol=1e-12)


def test_problems_without_options_keep_their_inputs_and_their_binaries():
    reference = LOADED.module("reference")
    plain = FAMILY.problem(B=2, L=9, D=6, N=4)
    without = reference.inputs(plain, seed=6)
    drawn = reference.inputs(FAMILY.problem(B=2, L=9, D=6, N=4, gate=1, initial=1), seed=6)
    assert list(without) == ["x", "delta", "A", "B_t", "C_t", "skip"]
    assert all(torch.equal(without[name], drawn[name]) for name in without)
    for point in Space(FAMILY, [RECORD], FAMILY.core):
        assert dict(make_variant(FAMILY, point, RECORD).constants).keys() == {"N", "D"}


@pytest.mark.parametrize("name", [name for name, problem in LOADED.named_problems.items() if len(problem.sizes) > 4])
def test_tensors_of_problems_with_options_are_what_the_reference_makes(name):
    problem = LOADED.named_problems[name]
    small = FAMILY.problem_of({**dict(problem.sizes), "B": 1, "L": 3, "D": 8 * problem["G"]}, problem.dtype)
    reference = LOADED.module("reference")
    given = reference.inputs(small, seed=1)
    assert {t.name: (t.shape, t.dtype) for t in FAMILY.inputs(small)} == {
        name: (tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")) for name, tensor in given.items()
    }
    found = reference.reference(small, given)
    assert {t.name: t.shape for t in FAMILY.outputs(small)} == {name: tuple(y.shape) for name, y in found.items()}


@pytest.mark.parametrize("dtype", FAMILY.dtypes)
@pytest.mark.parametrize("options", [{}, {**BLOCK, **STATES, "G": 2}], ids=["plain", "all-options"])
def test_the_eager_peer_agrees_with_the_reference(options, dtype):
    problem = FAMILY.problem(B=2, L=9, D=6, N=4, **options, dtype=dtype)
    reference, peers = LOADED.module("reference"), LOADED.module("peers")
    given = reference.inputs(problem, seed=8)
    found, expected = peers.prepare_eager(problem, given)(), reference.reference(problem, given)
    assert found.keys() == expected.keys()
    tolerance = FAMILY.tolerance_of(problem)
    for name, truth in expected.items():
        torch.testing.assert_close(found[name].double(), truth, rtol=tolerance.relative, atol=tolerance.absolute)


@pytest.mark.parametrize("kind", LOADED.module("reference").KINDS)
def test_inputs_of_every_kind_are_finite_random_and_have_a_finite_reference(kind):
    problem = FAMILY.problem(B=2, L=33, D=4, N=3)
    reference = LOADED.module("reference")
    first, again, other = (reference.inputs(problem, seed=s, kind=kind) for s in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["x"], other["x"])
    assert all(torch.isfinite(t).all() for t in first.values())
    assert {t.name: t.shape for t in FAMILY.inputs(problem)} == {k: tuple(v.shape) for k, v in first.items()}
    assert torch.isfinite(reference.reference(problem, first)["y"]).all()


def test_inputs_of_a_problem_too_large_to_draw_differ_in_every_batch(monkeypatch):
    reference = LOADED.module("reference")
    monkeypatch.setattr(reference, "MOST_DRAWN", 100)
    problem = FAMILY.problem(B=3, L=2 * reference.SHIFT + 60, D=2, N=3)
    found = reference.inputs(problem, seed=1)
    assert {t.name: t.shape for t in FAMILY.inputs(problem)} == {k: tuple(v.shape) for k, v in found.items()}
    for name in ("x", "delta"):
        first, second, third = found[name]
        assert len({tuple(batch.flatten().tolist()) for batch in (first, second, third)}) == 3
        torch.testing.assert_close(second[reference.SHIFT :], first[: -reference.SHIFT], rtol=0, atol=0)
    assert torch.isfinite(reference.reference(problem, found)["y"]).all()


def test_check_problems_are_served_by_the_same_binary():
    rng = random.Random(0)
    narrow = FAMILY.problem(B=2, L=100, D=64, N=16, **BLOCK, **STATES, dtype="bfloat16")
    grouped = FAMILY.problem(B=2, L=100, D=256, N=16, G=4, final=1)
    for problem in (RECORD, LOADED.named_problems["tails"], LOADED.named_problems["one"], narrow, grouped):
        space = Space(FAMILY, [problem])
        for _ in range(200):
            configuration = space.sample(rng)
            for check in FAMILY.checks(configuration, problem):
                same = make_variant(FAMILY, configuration, check)
                assert same == make_variant(FAMILY, configuration, problem)
                assert all(law.startswith(WORTHWHILE) for law in broken_laws(FAMILY, configuration, check))


def test_the_committed_space_of_272_points_has_272():
    import tomllib

    from ktune.core.loading import data_folder
    from ktune.core.space import find_parameter, parse_value

    settings = tomllib.loads((data_folder("configs") / "scan-272.toml").read_text())
    narrowing = {}
    for item in settings["set"]:
        name, _, values = item.partition("=")
        parameter = find_parameter(FAMILY, name)
        narrowing[name] = tuple(parse_value(FAMILY, parameter, v) for v in values.split(","))
    assert len(Space(FAMILY, [RECORD], narrowing)) == 272


@pytest.mark.parametrize("name", [name for name in LOOKED_THROUGH if name.startswith("mamba")])
def test_layers_of_mamba_have_piped_points_of_few_threads_a_pair_and_several_blocks_a_multiprocessor(name):
    narrowing = {"algorithm": ("piped",), "min_blocks": (3,), "tile_l": (32,), "unroll": (4,)}
    space = Space(FAMILY, [LOADED.named_problems[name]], narrowing)
    assert {point["threads_per_pair"] for point in space} >= {1, 2, 4}


def test_the_core_is_small_enough_to_be_recorded_completely():
    core = Space(FAMILY, [RECORD], FAMILY.core)
    assert 600 <= len(core) <= 2000
    assert {point["algorithm"] for point in core} == {"staged", "piped"}
    assert len({make_variant(FAMILY, point, RECORD) for point in core}) == len(core)


@pytest.mark.parametrize(
    ("retired", "kept"),
    [
        ({"barriers": "joint"}, True),
        ({"barriers": "split"}, False),
        ({"lanes": "channels"}, True),
        ({"lanes": "states"}, False),
    ],
)
def test_an_older_configuration_is_read_where_it_means_what_the_kernel_does_now(retired, kept):
    space = Space(FAMILY, [RECORD])
    now = PIPED | {"block_size": 128, "tile_l": 64}
    if kept:
        assert space.complete(now | retired) == space.complete(now)
    else:
        with pytest.raises(UsageError, match=f"no parameter '{next(iter(retired))}'"):
            space.complete(now | retired)


@pytest.mark.parametrize("algorithm", ["piped", "chunked"])
@pytest.mark.parametrize("groups", [1, 4])
def test_what_is_copied_in_bulk_is_passed_as_maps_whose_boxes_are_a_helper_warps_rows(algorithm, groups):
    problem = FAMILY.problem(B=2, L=2048, D=256, N=16, G=groups, gate=1)
    given = PIPED | {"algorithm": algorithm, "reduction": "transposed", "block_size": 256, "tile_l": 64}
    lanes, bulk = (
        FAMILY.plan(Space(FAMILY, [problem]).complete(given | {"copies": copies}), problem).launches[-1].arguments
        for copies in ("lanes", "bulk")
    )
    maps = {a.tensor: a.box for a in bulk if isinstance(a, TensorMap)}
    states = (1, 16, 16) if groups == 1 else (1, 16, 1, 16)
    assert maps == {"x": (1, 16, 64), "delta": (1, 16, 64), "z": (1, 16, 64), "B_t": states, "C_t": states}
    assert tuple(a.tensor if isinstance(a, TensorMap) else a for a in bulk) == lanes
    tensors = {tensor.name: tensor for tensor in FAMILY.inputs(problem)}
    assert all(map_layout(a, tensors[a.tensor]).box for a in bulk if isinstance(a, TensorMap))


PIPED = {"algorithm": "piped", "threads_per_pair": 4, "reduction": "shared", "exp": "ex2"}
CHUNKED = PIPED | {"algorithm": "chunked", "chunks": 2}
BLOCKSCAN = {"algorithm": "blockscan", "vector_width": 4}
BOUNDARIES = [
    ({"algorithm": "staged", "threads_per_pair": 32, "block_size": 256, "reduction": "transposed", "unroll": 1}, True),
    ({"algorithm": "staged", "threads_per_pair": 1, "block_size": 32, "reduction": "shuffle", "unroll": 16}, True),
    ({"algorithm": "staged", "threads_per_pair": 4, "vector_width": 4, "static_d": True, "tile_l": 8}, True),
    ({"algorithm": "direct", "threads_per_pair": 8, "prefetch": 8, "reduction": "transposed", "unroll": 1}, True),
    ({"algorithm": "direct", "threads_per_pair": 8, "prefetch": 4, "reduction": "transposed", "unroll": 1}, False),
    ({"algorithm": "staged", "threads_per_pair": 8, "reduction": "transposed", "tile_l": 8, "unroll": 2}, False),
    (PIPED, True),
    (PIPED | {"threads_per_pair": 8, "block_size": 256, "tile_l": 16, "unroll": 2}, True),
    (PIPED | {"threads_per_pair": 1, "block_size": 64, "reduction": "shuffle", "row_ahead": 1}, True),
    (PIPED | {"threads_per_pair": 8, "block_size": 256, "reduction": "transposed"}, True),
    (PIPED | {"threads_per_pair": 16, "block_size": 512}, True),
    (PIPED | {"threads_per_pair": 16, "block_size": 512, "reduction": "transposed"}, False),
    (PIPED | {"block_size": 32}, False),
    (PIPED | {"stages": 1}, False),
    (PIPED | {"unroll": 1}, False),
    (PIPED | {"tile_l": 8, "unroll": 2}, False),
    (PIPED | {"copies": "bulk"}, True),
    (CHUNKED | {"copies": "bulk"}, True),
    (CHUNKED, True),
    (CHUNKED | {"threads_per_pair": 1, "reduction": "shuffle"}, True),
    (CHUNKED | {"unroll": 1}, False),
    (BLOCKSCAN, True),
    (BLOCKSCAN | {"channels": 32, "lane_channels": 4, "time_warps": 1, "states_at_once": 8, "items": 4}, True),
    (BLOCKSCAN | {"channels": 12, "lane_channels": 2, "stages": 3, "vector_width": 2}, True),
    (BLOCKSCAN | {"channels": 12, "lane_channels": 8}, False),
    (BLOCKSCAN | {"stages": 1}, False),
]
NARROW = FAMILY.problem(B=8, L=2048, D=256, N=16, **BLOCK, dtype="bfloat16")
NARROW_4 = FAMILY.problem(B=8, L=2048, D=256, N=4, dtype="bfloat16")
FEW_STATES = FAMILY.problem(B=8, L=2048, D=256, N=4)
FEW_PAIRS = FAMILY.problem(B=1, L=2048, D=256, N=16)
BOUNDARIES_WITH_OPTIONS = [
    (PIPED | {"block_size": 64}, FEW_PAIRS, True),
    (PIPED | {"block_size": 64, "tile_l": 16, "helpers": 4}, FEW_PAIRS, False),
    (PIPED | {"block_size": 64, "tile_l": 16, "helpers": 2}, FEW_PAIRS, True),
    (PIPED | {"block_size": 64, "tile_l": 16, "reduction": "transposed"}, FEW_PAIRS, True),
    (PIPED | {"block_size": 128, "threads_per_pair": 8}, FEW_PAIRS, True),
    (PIPED | {"copies": "bulk"}, FEW_STATES, True),
    (PIPED | {"copies": "bulk", "tile_l": 16}, FEW_STATES, False),
    (PIPED | {"tile_l": 16}, FEW_STATES, True),
    (PIPED | {"copies": "bulk"}, NARROW, True),
    (PIPED, NARROW, True),
    (PIPED, NARROW_4, False),
    ({"algorithm": "staged", "threads_per_pair": 4, "reduction": "shared", "vector_width": 2}, NARROW, True),
    ({"algorithm": "staged", "threads_per_pair": 4, "reduction": "shared", "vector_width": 1}, NARROW, False),
    ({"algorithm": "direct", "threads_per_pair": 4, "reduction": "shared"}, NARROW_4, True),
]


@pytest.mark.build
@pytest.mark.parametrize(
    ("given", "problem", "valid"),
    [*((given, RECORD, valid) for given, valid in BOUNDARIES), *BOUNDARIES_WITH_OPTIONS],
    ids=lambda v: getattr(v, "label", str(v)[:60]),
)
def test_rules_in_python_and_static_asserts_in_cuda_draw_the_same_line(given, problem, valid, tmp_path):
    defaults = {p.name: p.default for p in FAMILY.parameters}
    chosen: dict = {}
    for parameter in FAMILY.parameters:
        if all(chosen.get(k) in v for k, v in (parameter.when or {}).items()):
            chosen[parameter.name] = given.get(parameter.name, defaults[parameter.name])
    configuration = Configuration(tuple(chosen.items()))
    broken = Space(FAMILY, [problem]).broken_rule(configuration)
    built = compile_variant(configuration, problem, tmp_path)
    assert (broken is None) == valid, broken
    assert (built.returncode == 0) == valid, built.stderr
    if not valid:
        assert "static assertion failed" in built.stderr


@pytest.mark.build
def test_odd_sizes_compile_for_every_reduction(tmp_path):
    problem = LOADED.named_problems["tails"]
    space = Space(FAMILY, [problem])
    rng = random.Random(5)
    for algorithm, reduction in itertools.product(("direct", "staged"), ("shuffle", "transposed", "shared")):
        fitting = [p for p in space if p["algorithm"] == algorithm and p["reduction"] == reduction]
        configuration = rng.choice(fitting)
        built = compile_variant(configuration, problem, tmp_path)
        assert built.returncode == 0, (configuration_id(FAMILY, configuration), built.stderr)
        assert "unroll" not in built.stderr, built.stderr
