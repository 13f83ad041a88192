"""What can be known of linear + swish + scale without a GPU: its space, plans, reference, bound and column order."""

import itertools
import math
import random
import subprocess

import pytest
import torch

from ktune.api import Scalar, TensorMap
from ktune.build.source import variant_source
from ktune.checks.compare import compare, passes
from ktune.core.loading import load_family
from ktune.core.space import Space
from ktune.core.tensor_map import map_layout
from ktune.core.variant import make_variant

LOADED = load_family("linear_swish_scale")
FAMILY = LOADED.family
REFERENCE = LOADED.module("reference")
ALGORITHMS = ("cublas_epilogue", "simt", "small_batch", "wgmma")


def problem(m, n, k):
    return FAMILY.problem(M=m, N=n, K=k)


def layer(x, weight, bias):
    z = x @ weight.t() + bias
    return 2.0 * z * torch.sigmoid(z)


def rounded(tensor, bits):
    """fp32 with `bits` bits of significand, as TF32 (11) has them."""
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2.0**bits) / 2.0**bits, exponent)


@pytest.mark.parametrize(("m", "n", "k"), [(1, 1, 1), (5, 7, 11), (3, 2050, 64)])
def test_the_reference_is_the_layer_in_float64(m, n, k):
    given = REFERENCE.inputs(problem(m, n, k), seed=4)
    expected = layer(*(given[name].double() for name in ("x", "weight", "bias")))
    torch.testing.assert_close(REFERENCE.reference(problem(m, n, k), given)["y"], expected, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", REFERENCE.KINDS)
def test_inputs_of_every_kind_are_repeatable_and_random(kind):
    sizes = problem(4, 6, 10)
    first, again, other = (REFERENCE.inputs(sizes, seed=s, kind=kind) for s in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["weight"], other["weight"])
    assert {t.name: t.shape for t in FAMILY.inputs(sizes)} == {k: tuple(v.shape) for k, v in first.items()}


@pytest.mark.parametrize("k", [1, 16, 64, 257, 1024, 4096])
def test_the_componentwise_bound_passes_fp32_and_rejects_tf32_at_every_depth(k):
    sizes = problem(64, 256, k)
    given = REFERENCE.inputs(sizes, seed=9)
    truth = REFERENCE.reference(sizes, given)["y"]
    bound = REFERENCE.bound(sizes, given)["y"]
    exact = layer(given["x"], given["weight"], given["bias"])
    coarse = layer(rounded(given["x"], 11), rounded(given["weight"], 11), given["bias"])
    assert ((exact.double() - truth).abs() / bound).max() <= 1.0
    assert ((coarse.double() - truth).abs() / bound).max() > 1.0


def test_a_scale_before_the_bias_and_a_bias_along_the_wrong_axis_are_wrong():
    sizes = problem(12, 12, 40)
    given = REFERENCE.inputs(sizes, seed=2)
    truth = REFERENCE.reference(sizes, given)["y"]
    x, weight, bias = given["x"], given["weight"], given["bias"]
    z = x @ weight.t()
    early = 2.0 * z * torch.sigmoid(2.0 * z) + bias
    across = z + bias[:, None]
    for wrong in (early, 2.0 * across * torch.sigmoid(across)):
        assert not passes(compare(wrong, truth, FAMILY.tolerance), FAMILY.tolerance)
    assert passes(compare(layer(x, weight, bias), truth, FAMILY.tolerance), FAMILY.tolerance)


@pytest.mark.parametrize("name", list(FAMILY.problems))
def test_plans_of_every_algorithm_name_only_tensors_that_exist(name):
    sizes = LOADED.named_problems[name]
    rng = random.Random(1)
    for algorithm in ALGORITHMS:
        points = list(itertools.islice(Space(FAMILY, [sizes], {"algorithm": (algorithm,)}), 3000))
        for configuration in rng.sample(points, min(20, len(points))):
            plan = FAMILY.plan(configuration, sizes)
            known = {t.name for t in (*FAMILY.inputs(sizes), *FAMILY.outputs(sizes), *plan.workspace)}
            arguments = [a for launch in plan.launches for a in launch.arguments]
            named = {a.tensor if isinstance(a, TensorMap) else a for a in arguments if not isinstance(a, Scalar)}
            assert named <= known
            for check in FAMILY.checks(configuration, sizes):
                assert make_variant(FAMILY, configuration, check) == make_variant(FAMILY, configuration, sizes)


def test_tf32_is_in_the_space_and_known_to_be_wrong():
    space = Space(FAMILY, [LOADED.named_problems["small"]])
    assert FAMILY.expected_wrong(space.complete({"scheme": "tf32"}))
    assert not FAMILY.expected_wrong(space.complete({"scheme": "fp32"}))


class Slice:
    """One row of a slice of 32 columns, as the kernels of wgmma.cu lay it out: {place along k: column}."""

    def of_x(self, chunk_of, bytes_each, products):
        """What split_x writes and a descriptor at chunk `start` of `size` chunks reads, for each (start, size)."""
        at = {}
        for t, j, pair in itertools.product(range(4), range(2), range(2)):
            for i in range(4 // bytes_each):
                first = 8 * t + 4 * j + (2 * pair if bytes_each == 2 else 0)
                at[chunk_of(j, pair) * 16 + 4 * t + bytes_each * i] = first + i
        return [[at[16 * start + bytes_each * k] for k in range(16 * size // bytes_each)] for start, size in products]

    def of_w_16(self, j):
        """Product j from the 16-byte load of chunk 2t + j: registers 0, 2 of the PTX fragment are k 2t and 2t + 8."""
        places = [0] * 16
        for t, i in itertools.product(range(4), range(4)):
            places[2 * t + (i if i < 2 else 8 + i - 2)] = 4 * (2 * t + j) + i
        return places

    def of_w_8(self):
        """Both loads as bytes: registers 0, 2 of the PTX fragment are k 4t and 16 + 4t."""
        places = [0] * 32
        for t, j, i in itertools.product(range(4), range(2), range(4)):
            places[16 * j + 4 * t + i] = 4 * (2 * t + j) + i
        return places


def test_both_operands_of_wgmma_put_the_same_column_into_the_same_place():
    """Places of x by `high_chunk` and `low_chunk` of operands.cuh, of w by its fragments, for 16- and 8-bit parts."""
    row = Slice()
    high = row.of_x(lambda j, pair: 2 * j + pair, 2, [(0, 2), (2, 2)])
    low_16 = row.of_x(lambda j, pair: 4 + 2 * j + pair, 2, [(4, 2), (6, 2)])
    assert high == low_16 == [row.of_w_16(0), row.of_w_16(1)]
    assert sorted(high[0] + high[1]) == list(range(32))
    both_8 = row.of_x(lambda j, pair: 4 + 2 * pair + j, 1, [(4, 2), (6, 2)])
    assert both_8 == [row.of_w_8(), row.of_w_8()]
    assert sorted(row.of_w_8()) == list(range(32))


def test_the_swizzle_of_the_copies_is_the_one_that_the_kernel_reads():
    """The 128-byte swizzle adds bits 7 to 9 of an address to its bits 4 to 6; tiles begin at multiples of 1024."""
    for row, chunk in itertools.product(range(128), range(8)):
        address = row * 128 + chunk * 16
        assert address ^ (address >> 3 & 0x70) == row * 128 + (chunk ^ row % 8) * 16


def test_a_blocks_rows_of_the_weight_arrive_by_one_copy_and_clusters_are_whole():
    sizes = problem(300, 1000, 516)
    for cluster, groups in itertools.product((1, 2), (1, 2)):
        configuration = Space(FAMILY, [sizes]).complete(
            {"algorithm": "wgmma", "cluster": cluster, "warpgroups": groups, "ring": 4}
        )
        split_x, main = FAMILY.plan(configuration, sizes).launches
        (tile,) = [a for a in main.arguments if isinstance(a, TensorMap)]
        assert map_layout(tile, FAMILY.inputs(sizes)[1]).box == (32, 64 * groups)
        blocks = math.ceil(1000 / (64 * groups))
        assert main.grid[0] == 3 * math.ceil(blocks / cluster) * cluster and main.cluster == (cluster, 1, 1)
        assert main.programmatic and not split_x.programmatic


@pytest.mark.build
@pytest.mark.parametrize(
    "chosen",
    [
        {"algorithm": "cublas_epilogue"},
        {"algorithm": "simt"},
        {"algorithm": "small_batch", "batch_tile": 16},
        {"algorithm": "wgmma", "ring": 7},
        {"algorithm": "wgmma", "ring": 8, "warpgroups": 1, "cluster": 1, "hints": False, "split_k": 2},
        {"algorithm": "wgmma", "order": "large_first", "promote_k": 32768},
        {"algorithm": "wgmma", "operands": "fp16_e5m2"},
        {"algorithm": "wgmma", "operands": "fp16_e5m2", "warpgroups": 1, "cluster": 1},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_a_sample_of_each_algorithm_compiles_without_spills(chosen, tmp_path):
    sizes = LOADED.named_problems["batch16-4096x11008" if "batch_tile" in chosen else "record"]
    configuration = Space(FAMILY, [sizes]).complete(chosen)
    source = tmp_path / "variant.cu"
    source.write_text(variant_source(LOADED, make_variant(FAMILY, configuration, sizes)))
    command = ["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-std=c++17", "-Xptxas", "-v",
               "-o", str(tmp_path / "variant.cubin"), str(source)]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "serialized" not in built.stderr
    spilled = [line for line in built.stderr.splitlines() if "spill" in line and "0 bytes spill stores" not in line]
    assert not spilled, spilled


def test_the_bound_of_a_long_sum_is_far_below_its_terms():
    sizes = problem(2, 3, 4096)
    given = REFERENCE.inputs(sizes, seed=1)
    bound = REFERENCE.bound(sizes, given)["y"]
    assert (bound < 1e-3 * math.sqrt(sizes["K"])).all()
    assert (bound > 0).all()
