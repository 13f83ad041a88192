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
from ktune.core.errors import UsageError
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
        for t, j, word in itertools.product(range(4), range(2), range(4 if bytes_each == 4 else 2)):
            for i in range(4 // bytes_each):
                first = 8 * t + 4 * j + {1: 0, 2: 2 * word, 4: word}[bytes_each]
                at[chunk_of(j, word) * 16 + 4 * t + bytes_each * i] = first + i
        return [[at[16 * start + bytes_each * k] for k in range(16 * size // bytes_each)] for start, size in products]

    def of_w_16(self, j):
        """Product j from the 16-byte load of chunk 2t + j: registers 0, 2 of the PTX fragment are k 2t and 2t + 8."""
        places = [0] * 16
        for t, i in itertools.product(range(4), range(4)):
            places[2 * t + (i if i < 2 else 8 + i - 2)] = 4 * (2 * t + j) + i
        return places

    def of_w_32(self, p):
        """Product p of tf32, half of the load of chunk 2t + p / 2: registers 0, 2 of the fragment are k t, t + 4."""
        places = [0] * 8
        for t, i in itertools.product(range(4), range(2)):
            places[t + 4 * i] = 4 * (2 * t + p // 2) + 2 * (p % 2) + i
        return places

    def of_w_8(self):
        """Both loads as bytes: registers 0, 2 of the PTX fragment are k 4t and 16 + 4t."""
        places = [0] * 32
        for t, j, i in itertools.product(range(4), range(2), range(4)):
            places[16 * j + 4 * t + i] = 4 * (2 * t + j) + i
        return places


def test_both_operands_of_wgmma_put_the_same_column_into_the_same_place():
    """Places of x by `high_chunk` and `low_chunk` of operands.cuh, of w by its fragments, for 32-, 16-, 8-bit parts."""
    row = Slice()
    high = row.of_x(lambda j, pair: 2 * j + pair, 2, [(0, 2), (2, 2)])
    low_16 = row.of_x(lambda j, pair: 4 + 2 * j + pair, 2, [(4, 2), (6, 2)])
    assert high == low_16 == [row.of_w_16(0), row.of_w_16(1)]
    assert sorted(high[0] + high[1]) == list(range(32))
    steps = [(2 * p, 2) for p in range(4)]
    high_32 = row.of_x(lambda j, word: 4 * j + word, 4, steps)
    # lo is in the same places of the next tile, chunks 8 to 15
    low_32 = row.of_x(lambda j, word: 8 + 4 * j + word, 4, [(8 + start, size) for start, size in steps])
    assert high_32 == low_32 == [row.of_w_32(p) for p in range(4)]
    assert sorted(itertools.chain(*high_32)) == list(range(32))
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


@pytest.mark.parametrize(
    ("operands", "longest"), [("tf32x3", 1024), ("bf16x3", 2048), ("fp16x3", 4096), ("tf32", None), ("fp16_e5m2", None)]
)
@pytest.mark.parametrize(("k", "split_k"), [(32768, 1), (32768, 8), (16384, 8), (1024, 1)])
def test_tensor_cores_sum_no_more_columns_than_the_tolerance_bears(operands, longest, k, split_k):
    space = Space(FAMILY, [FAMILY.problem(M=128, N=4096, K=k)])
    values = {"algorithm": "wgmma", "operands": operands, "ring": 3, "split_k": split_k}
    intervals = FAMILY.parameter("promote_k").values
    valid = []
    for promote_k in intervals:
        try:
            valid.append(space.complete({**values, "promote_k": promote_k})["promote_k"])
        except UsageError as error:
            assert "the tensor cores sum at most" in str(error)
    assert valid == [p for p in intervals if longest is None or min(p, k // split_k) <= longest]


@pytest.mark.build
@pytest.mark.parametrize(
    "chosen",
    [
        {"algorithm": "cublas_epilogue"},
        {"algorithm": "simt"},
        {"algorithm": "small_batch", "batch_tile": 16},
        {"algorithm": "wgmma", "ring": 7},
        {"algorithm": "wgmma", "ring": 8, "warpgroups": 1, "cluster": 1, "hints": False, "split_k": 2},
        {"algorithm": "wgmma", "order": "large_first", "promote_k": 2048},
        {"algorithm": "wgmma", "operands": "tf32"},
        {"algorithm": "wgmma", "operands": "tf32x3", "ring": 4},
        {"algorithm": "wgmma", "operands": "tf32x3", "ring": 5, "warpgroups": 1, "cluster": 1, "order": "large_first"},
        {"algorithm": "wgmma", "operands": "fp16x3", "ring": 7},
        {"algorithm": "wgmma", "operands": "fp16x3", "ring": 8, "warpgroups": 1, "cluster": 1, "split_k": 4},
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


def tf32(tensor):
    return rounded(tensor, 11)


def split_z(operands, x, weight):
    """x W^T of the parts that operands.cuh makes, summed in float64: what the split alone costs."""
    if operands == "tf32":
        return tf32(x).double() @ tf32(weight).double().t()
    narrow = {
        "tf32x3": tf32,
        "bf16x3": lambda tensor: tensor.bfloat16().float(),
        "fp16x3": lambda tensor: tensor.half().float(),
    }[operands]
    raised, w_scale = (2048.0, 256.0) if operands == "fp16x3" else (1.0, 1.0)
    weight = weight * w_scale
    x_high, w_high = narrow(x), narrow(weight)
    x_low, w_low = narrow((x - x_high) * raised), narrow((weight - w_high) * raised)
    x_high, w_high, x_low, w_low = (part.double() for part in (x_high, w_high, x_low, w_low))
    return (x_high @ w_high.t() + (x_high @ w_low.t() + x_low @ w_high.t()) / raised) / w_scale


def split_accuracy(operands, k, kind="normal", x_scale=1.0, w_scale=1.0):
    sizes = problem(64, 128, k)
    given = REFERENCE.inputs(sizes, seed=3, kind=kind)
    given["x"] *= x_scale
    given["weight"] *= w_scale
    if (x_scale, w_scale) != (1.0, 1.0):
        given["bias"].zero_()
    z = split_z(operands, given["x"], given["weight"]) + given["bias"].double()
    y = 2.0 * z * torch.sigmoid(z)
    truth, bound = REFERENCE.reference(sizes, given)["y"], REFERENCE.bound(sizes, given)["y"]
    return compare(y.float(), truth, FAMILY.tolerance, bound=bound)


def split_passes(operands, k, kind):
    return passes(split_accuracy(operands, k, kind), FAMILY.tolerance)


@pytest.mark.parametrize("k", [4, 64, 512, 4096])
@pytest.mark.parametrize("operands", ["tf32x3", "bf16x3", "fp16x3"])
def test_three_products_of_a_split_are_within_every_rule_and_one_of_tf32_is_not(operands, k):
    assert all(split_passes(operands, k, kind) for kind in ("normal", "uniform", "small"))
    # small inputs vanish beside the bias
    assert not any(split_passes("tf32", k, kind) for kind in ("normal", "uniform"))


def test_fp16x3_serves_the_magnitudes_that_the_readme_states():
    """By the componentwise bound: the fixed tolerance says little of very large and very small outputs."""

    def ratio(operands="fp16x3", **scales):
        return split_accuracy(operands, 512, **scales).bound_ratio

    assert all(ratio(x_scale=2.0**e) < 0.1 for e in (-12, -6, 6, 12))
    assert all(ratio(w_scale=2.0**e) < 0.1 for e in (-14, -7, 7, 11))
    assert ratio(x_scale=2.0**-22) > 1.0 and ratio(w_scale=2.0**-30) > 1.0
    assert ratio("tf32x3", x_scale=2.0**-22) < 0.1 and ratio("bf16x3", w_scale=2.0**-30) < 0.5
    beyond = torch.full((1, 8), 65_536.0)
    assert not split_z("fp16x3", beyond, torch.ones(1, 8)).isfinite().any()
    assert not split_z("fp16x3", torch.ones(1, 8), beyond / 256).isfinite().any()


def test_shared_memory_of_two_tiles_of_x_leaves_a_shorter_ring():
    space = Space(FAMILY, [LOADED.named_problems["record"]], {"algorithm": ("wgmma",)})
    longest = {
        (operands, groups): max(p["ring"] for p in space if (p["operands"], p["warpgroups"]) == (operands, groups))
        for operands, groups in itertools.product(("tf32x3", "bf16x3"), (1, 2))
    }
    assert longest == {("tf32x3", 1): 5, ("tf32x3", 2): 4, ("bf16x3", 1): 8, ("bf16x3", 2): 7}


def test_the_bound_of_a_long_sum_is_far_below_its_terms():
    sizes = problem(2, 3, 4096)
    given = REFERENCE.inputs(sizes, seed=1)
    bound = REFERENCE.bound(sizes, given)["y"]
    assert (bound < 1e-3 * math.sqrt(sizes["K"])).all()
    assert (bound > 0).all()
