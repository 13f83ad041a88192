"""What can be known of the projections without a GPU: space, plans, reference, and the kernels executed on the CPU."""

import random
import subprocess
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from ktune.api import KernelLaunch, Scalar, Tensor
from ktune.build.source import variant_source
from ktune.checks.compare import compare, passes
from ktune.core.errors import EnvironmentFault
from ktune.core.loading import load_family
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.compiler import Check, ProgramStore, find_compiler
from ktune.cpu.process import Order, Schedule, run_program
from ktune.cpu.source import host_source
from ktune.gpu.buffers import Region

LOADED = load_family("projections")
FAMILY = LOADED.family
REFERENCE = LOADED.module("reference")
CPU = torch.device("cpu")
OUTPUTS = ("delta", "B", "C")


def problem(rows, channels, states, features):
    return FAMILY.problem(R=rows, P=channels, S=states, K=features)


def layers(x, W_delta, W_B, W_C, bias):
    return {"delta": F.softplus(x @ W_delta.t() + bias, threshold=60), "B": x @ W_B.t(), "C": x @ W_C.t()}


def rounded(tensor, bits):
    """fp32 with `bits` bits of significand, as TF32 (11) and bf16 (8) have them."""
    mantissa, exponent = torch.frexp(tensor)
    return torch.ldexp(torch.round(mantissa * 2.0**bits) / 2.0**bits, exponent)


def right(found, sizes, given):
    """Whether each output keeps the tolerance and the componentwise bound."""
    truth, bound = REFERENCE.reference(sizes, given), REFERENCE.bound(sizes, given)
    return {
        name: passes(compare(found[name], truth[name], FAMILY.tolerance, bound=bound[name]), FAMILY.tolerance)
        for name in OUTPUTS
    }


@pytest.fixture(scope="module")
def programs(tmp_path_factory):
    try:
        compiler = find_compiler(read_settings().path)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    return ProgramStore(compiler, tmp_path_factory.mktemp("cpu-cache"))


@pytest.fixture
def execute(programs):
    def run(chosen, sizes, tensors, launches=None, *, check=Check.PLAIN, seed=3, outputs=None):
        """The outputs of a configuration on the CPU, from `tensors`; launches: in place of the plan's."""
        variant = make_variant(FAMILY, Space(FAMILY, [sizes]).complete(chosen), sizes)
        program = programs.program(host_source(LOADED, variant), check, "projections")
        declared = [Tensor(name, tuple(tensor.shape)) for name, tensor in tensors.items()]
        declared += FAMILY.outputs(sizes) if outputs is None else outputs
        regions = {tensor.name: Region(tensor, CPU) for tensor in declared}
        for name, region in regions.items():
            region.tensor.fill_(torch.nan)
            if name in tensors:
                region.tensor.copy_(tensors[name])
        launches = FAMILY.plan(variant.configuration, sizes).launches if launches is None else launches
        run_program(program, launches, regions, Schedule(Order.RANDOM, seed), 120.0)
        return {name: region.tensor.clone() for name, region in regions.items()}

    return run


@pytest.mark.parametrize("shape", [(1, 1, 1, 1), (5, 7, 3, 11), (70000, 3, 2, 4)], ids=str)
def test_the_reference_is_the_layers_in_float64(shape):
    given = REFERENCE.inputs(problem(*shape), seed=4)
    expected = layers(**{name: tensor.double() for name, tensor in given.items()})
    found = REFERENCE.reference(problem(*shape), given)
    for name in OUTPUTS:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("kind", REFERENCE.KINDS)
def test_inputs_of_every_kind_are_repeatable_and_random(kind):
    sizes = problem(4, 6, 3, 10)
    first, again, other = (REFERENCE.inputs(sizes, seed=s, kind=kind) for s in (1, 1, 2))
    assert all(torch.equal(first[k], again[k]) for k in first)
    assert not torch.equal(first["W_B"], other["W_B"]) and not torch.equal(first["W_B"], first["W_C"])
    assert {t.name: t.shape for t in FAMILY.inputs(sizes)} == {k: tuple(v.shape) for k, v in first.items()}


@pytest.mark.parametrize("k", [4, 16, 64, 256, 1024])
def test_the_bound_passes_fp32_and_rejects_tf32_at_every_depth(k):
    sizes = problem(64, 128, 64, k)
    given = REFERENCE.inputs(sizes, seed=9)
    coarse = {name: rounded(tensor, 11) if name != "bias" else tensor for name, tensor in given.items()}
    assert all(right(layers(**given), sizes, given).values())
    assert not any(right(layers(**coarse), sizes, given).values())


@pytest.mark.parametrize("k", [4, 64, 256, 1024])
def test_the_bound_passes_three_products_of_bf16_and_rejects_two(k):
    sizes = problem(64, 128, 64, k)
    given = REFERENCE.inputs(sizes, seed=9)
    high = {name: rounded(tensor, 8) for name, tensor in given.items()}
    low = {name: rounded(given[name] - high[name], 8) for name in given}

    def product(weight, terms):
        parts = {"hh": (high, high), "hl": (high, low), "lh": (low, high)}
        return sum(parts[t][0]["x"].double() @ parts[t][1][weight].double().t() for t in terms)

    def outputs(terms):
        found = {name: product(f"W_{name}", terms) for name in OUTPUTS}
        found["delta"] = F.softplus(found["delta"] + given["bias"].double(), threshold=60)
        return {name: tensor.float() for name, tensor in found.items()}

    assert all(right(outputs(("lh", "hl", "hh")), sizes, given).values())
    for two in (("hl", "hh"), ("lh", "hh")):
        assert not any(right(outputs(two), sizes, given).values())


def test_a_missing_bias_and_exchanged_outputs_are_wrong():
    sizes = problem(12, 12, 12, 40)
    given = REFERENCE.inputs(sizes, seed=2)
    exact = layers(**given)
    assert all(right(exact, sizes, given).values())
    no_bias = layers(**{**given, "bias": torch.zeros(12)})
    assert not right(no_bias, sizes, given)["delta"]
    exchanged = {"delta": exact["delta"], "B": exact["C"], "C": exact["B"]}
    assert right(exchanged, sizes, given) == {"delta": True, "B": False, "C": False}


@pytest.mark.parametrize("name", list(FAMILY.problems))
def test_every_named_problem_has_the_default_and_plans_that_name_only_tensors_that_exist(name):
    sizes = LOADED.named_problems[name]
    space = Space(FAMILY, [sizes])
    assert space.default in space
    for configuration in random.Random(1).sample(list(space), min(40, len(space))):
        plan = FAMILY.plan(configuration, sizes)
        known = {t.name for t in (*FAMILY.inputs(sizes), *FAMILY.outputs(sizes), *plan.workspace)}
        assert {a for launch in plan.launches for a in launch.arguments if not isinstance(a, Scalar)} <= known
        for check in FAMILY.checks(configuration, sizes):
            assert make_variant(FAMILY, configuration, check) == make_variant(FAMILY, configuration, sizes)
            assert Space(FAMILY, [check]).broken_rule(configuration) is None


def test_blocks_share_the_rows_of_every_part_of_the_columns():
    record = LOADED.named_problems["record"]
    for columns, parts in ((48, 6), (96, 3), (144, 2)):
        chosen = {"algorithm": "wgmma", "columns": columns, "blocks": 132, "stages": 2}
        (launch,) = FAMILY.plan(Space(FAMILY, [record]).complete(chosen), record).launches
        assert launch.grid == (132 // parts * parts, 1, 1)
    few = problem(100, 256, 16, 256)
    (launch,) = FAMILY.plan(Space(FAMILY, [few]).complete({"algorithm": "wgmma"}), few).launches
    assert launch.grid == (2 * 2, 1, 1)


TILES = [
    {"columns": 48, "warpgroups": 1, "stages": 2, "vector_width": 4},
    {"columns": 96, "warpgroups": 2, "stages": 3, "vector_width": 1},
    {"columns": 144, "warpgroups": 2, "stages": 8, "vector_width": 4},
]


@pytest.mark.parametrize("chosen", TILES, ids=lambda chosen: "-".join(map(str, chosen.values())))
@pytest.mark.parametrize("k", [28, 64, 68])
@pytest.mark.parametrize("check", [Check.PLAIN, Check.RACES], ids=lambda check: check.name)
def test_a_warpgroup_works_through_many_tiles(chosen, k, check, execute):
    """With one block for each part of the columns; k: one slice, two, and three of which the last has 4 columns."""
    sizes = problem(64 * 5 + 3, 44, 8, k)
    configuration = Space(FAMILY, [sizes]).complete({"algorithm": "wgmma", **chosen})
    (launch,) = FAMILY.plan(configuration, sizes).launches
    parts = -(-60 // chosen["columns"])
    assert launch.grid[0] > parts
    given = REFERENCE.inputs(sizes, seed=6)
    found = execute(dict(configuration), sizes, given, (replace(launch, grid=(parts, 1, 1)),), check=check)
    assert right(found, sizes, given) == dict.fromkeys(OUTPUTS, True)


@pytest.mark.parametrize("kind", REFERENCE.KINDS)
def test_the_products_on_tensor_cores_keep_the_bound_for_inputs_of_every_kind(kind, execute):
    sizes = problem(70, 128, 16, 256)
    given = REFERENCE.inputs(sizes, seed=8, kind=kind)
    found = execute({"algorithm": "wgmma", "vector_width": 4}, sizes, given)
    truth, bound = REFERENCE.reference(sizes, given), REFERENCE.bound(sizes, given)
    for name in OUTPUTS:
        assert ((found[name].double() - truth[name]).abs() <= bound[name]).all()


def test_what_is_lost_is_less_than_bf16_loses(execute):
    """Two parts of 8 bits lose up to 1.7e-6 of the terms' sizes here, additions in fp32 2.4e-7."""
    sizes = problem(64, 128, 16, 256)
    given = REFERENCE.inputs(sizes, seed=8)
    found = execute({"algorithm": "wgmma", "vector_width": 4}, sizes, given)
    truth = REFERENCE.reference(sizes, given)
    for name in ("B", "C"):
        size = given["x"].double().abs() @ given[f"W_{name}"].double().abs().t()
        assert ((found[name].double() - truth[name]).abs() <= 2.0**-21 * size).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-8, 9e-4, 0.03, 40.0, 1100.0, 7e4, 1e18])
@pytest.mark.parametrize("tensor", ["x", "W_delta", "W_C"])
@pytest.mark.parametrize("row", [0, 37])
def test_rows_of_numbers_that_fp16_does_not_hold_are_as_exact(scale, tensor, row, execute):
    sizes = problem(70, 48, 16, 68)
    given = REFERENCE.inputs(sizes, seed=8)
    given[tensor][row % given[tensor].shape[0]] *= scale
    found = execute({"algorithm": "wgmma"}, sizes, given)
    truth, bound = REFERENCE.reference(sizes, given), REFERENCE.bound(sizes, given)
    for name in OUTPUTS:
        assert ((found[name].double() - truth[name]).abs() <= bound[name]).all()


def test_a_row_that_fp16_does_not_hold_changes_no_other_row(execute):
    sizes = problem(70, 48, 16, 68)
    given = REFERENCE.inputs(sizes, seed=8)
    expected = execute({"algorithm": "wgmma"}, sizes, given)
    others = torch.arange(70) != 37
    for factor in (1e-8, 1e8, torch.inf, torch.nan):
        changed = {**given, "x": given["x"].clone()}
        changed["x"][37] *= factor
        found = execute({"algorithm": "wgmma"}, sizes, changed)
        assert all(torch.equal(found[name][others], expected[name][others]) for name in OUTPUTS)


@pytest.mark.parametrize("tensor", ["x", "W_delta", "W_B"])
def test_infinite_and_absent_numbers_give_what_they_give_in_float64(tensor, execute):
    sizes = problem(66, 40, 16, 36)
    for value in (torch.inf, -torch.inf, torch.nan):
        given = REFERENCE.inputs(sizes, seed=5)
        given[tensor][3, 2] = value
        found, truth = execute({"algorithm": "wgmma"}, sizes, given), REFERENCE.reference(sizes, given)
        for name in OUTPUTS:
            torch.testing.assert_close(found[name].double(), truth[name], rtol=1e-4, atol=1e-4, equal_nan=True)


def test_softplus_is_exact_to_a_millionth_and_overflows_nowhere(execute):
    v = torch.cat([torch.linspace(-87, 87, 3000), torch.linspace(-1, 1, 1001), torch.tensor([1e-30, -300.0, 3e38])])
    sizes = problem(1, v.numel(), 1, 1)
    launch = KernelLaunch(
        "softplus_in_place",
        (-(-v.numel() // 1024), 1, 1),
        (256, 1, 1),
        ("delta", "bias", Scalar(v.numel(), "int64"), Scalar(v.numel())),
    )
    tensors = {"delta": v[None], "bias": torch.zeros(v.numel())}
    found = execute({"algorithm": "cublas"}, sizes, tensors, (launch,), outputs=[])["delta"][0]
    truth = REFERENCE.softplus(v.double())
    assert (found.double() - truth).abs().div(truth.clamp(min=1e-300))[truth > 1e-38].max() < 1e-6
    assert torch.isfinite(found).all() and found[-2] == 0.0 and found[-1] == v[-1]


@pytest.mark.build
@pytest.mark.parametrize(
    "chosen",
    [
        {"algorithm": "cublas"},
        {"algorithm": "bf16_gemm", "vector_width": 4},
        {"algorithm": "wgmma", "vector_width": 4},
        {"algorithm": "wgmma", "stages": 3, "fast_math": True},
        {"algorithm": "wgmma", "columns": 96, "warpgroups": 2},
        {"algorithm": "wgmma", "columns": 48, "warpgroups": 3, "stages": 2, "vector_width": 4},
    ],
    ids=lambda chosen: "-".join(map(str, chosen.values())),
)
def test_a_sample_of_each_algorithm_compiles_without_spills_or_products_in_sequence(chosen, tmp_path):
    sizes = LOADED.named_problems["record"]
    configuration = Space(FAMILY, [sizes]).complete(chosen)
    source = tmp_path / "variant.cu"
    source.write_text(variant_source(LOADED, make_variant(FAMILY, configuration, sizes)))
    flags = ["--use_fast_math"] if chosen.get("fast_math") else []
    command = ["nvcc", "-cubin", "-gencode", "arch=compute_90a,code=sm_90a", "-std=c++17", "-Xptxas", "-v", *flags,
               "-o", str(tmp_path / "variant.cubin"), str(source)]  # fmt: skip
    built = subprocess.run(command, capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    assert "serialized" not in built.stderr
    spilled = [line for line in built.stderr.splitlines() if "spill" in line and "0 bytes spill stores" not in line]
    assert not spilled, spilled
