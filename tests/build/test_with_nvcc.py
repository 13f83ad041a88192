"""Builds by the real compiler: every step from a family's folder to a cubin that can be trusted."""

import tempfile
from pathlib import Path

import pytest
from fake_compiler import KERNEL, case, write_family

from ktune.build.builder import Builder, BuildResult
from ktune.build.cubin import CubinFault, parse_cubin
from ktune.build.toolchain import Toolchain, find_toolchain
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Status, Variant
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant

pytestmark = pytest.mark.build

SERIALISED = r"""
__device__ __noinline__ void touch(float* d) { d[0] += 1; }
extern "C" __global__ void k(float* out, unsigned long long da, unsigned long long db) {
  float d[4] = {0, 0, 0, config::kCase};
  for (int i = 0; i < 4; ++i) {
    asm volatile("wgmma.fence.sync.aligned;");
    asm volatile("{wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, 1,1,1,0,0;}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(da), "l"(db));
    touch(out);
    d[0] *= 2.f;
    asm volatile("wgmma.commit_group.sync.aligned;");
    asm volatile("wgmma.wait_group.sync.aligned 0;");
  }
  for (int i = 0; i < 4; ++i) out[threadIdx.x * 4 + i] = d[i];
}
"""

TWO_KERNELS = r"""
__constant__ float table[4] = {1, 2, 3, 4};
extern "C" __global__ void small(float* x) { x[threadIdx.x] = table[threadIdx.x & 3]; }
extern "C" __global__ void staged(float* x) {
  __shared__ float s[256];
  s[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  x[threadIdx.x] = s[255 - threadIdx.x];
}
"""


@pytest.fixture(scope="module")
def toolchain() -> Toolchain:
    return find_toolchain(read_settings())


def build(loaded: LoadedFamily, toolchain: Toolchain, cache: Path, variants: list[Variant]) -> list[BuildResult]:
    """Results in the order of `variants`."""
    with Builder(loaded, toolchain, cache) as builder:
        by_variant = {result.variant: result for result in builder.build(variants)}
    return [by_variant[variant] for variant in variants]


def test_variants_of_a_family_build_for_hopper_and_for_older_gpus(
    families: Path, toolchain: Toolchain, own_cache: Path
) -> None:
    loaded = load_family(families / "toy")
    problem = loaded.named_problems["small"]
    space = Space(loaded.family, [problem])
    points = [space.default, space.complete({"algorithm": "unrolled", "items": 4, "unroll": 2, "fast_math": True})]
    variants = [
        make_variant(loaded.family, point, problem, target) for point in points for target in ("sm_90a", "sm_80")
    ]
    results = build(loaded, toolchain, own_cache, variants)
    assert [result.status for result in results] == [Status.OK] * 4
    for result in results:
        assert result.facts is not None and result.cubin is not None
        assert 8 <= result.facts.registers <= 255
        assert parse_cubin(result.cubin.read_bytes(), "x").kernels == ("toy",)
        assert result.facts.compile_s > 0.05
    assert len({result.facts.code_digest for result in results if result.facts}) == 4
    again = build(loaded, toolchain, own_cache, variants)
    assert all(result.facts is not None and result.facts.cached for result in again)


def test_facts_of_several_kernels_are_the_most_registers_and_the_sum_of_shared_memory(
    tmp_path: Path, toolchain: Toolchain, own_cache: Path
) -> None:
    loaded = write_family(tmp_path, TWO_KERNELS)
    result = build(loaded, toolchain, own_cache, [case(loaded, 0)])[0]
    assert result.facts is not None and result.cubin is not None
    assert result.facts.smem_static_bytes == 1024
    whole = result.cubin.read_bytes()
    assert parse_cubin(whole, "x").kernels == ("small", "staged")
    for size in range(0, len(whole), 7):
        with pytest.raises(CubinFault):
            parse_cubin(whole[:size], "x")
    with pytest.raises(CubinFault, match="cut short"):
        parse_cubin(whole[:-1], "x")


def test_an_edited_include_and_an_edited_source_are_built_anew(
    tmp_path: Path, toolchain: Toolchain, own_cache: Path
) -> None:
    scaled = KERNEL.replace("config::kCase", "config::kCase * kScale")
    loaded = write_family(tmp_path, '#include "scale.cuh"\n' + scaled)

    def built() -> tuple[bool, str]:
        facts = build(loaded, toolchain, own_cache, [case(loaded, 3)])[0].facts
        assert facts is not None
        return facts.cached, facts.code_digest

    (tmp_path / "scale.cuh").write_text("#pragma once\nconstexpr float kScale = 2;\n")
    first = built()
    assert built() == (True, first[1])
    (tmp_path / "scale.cuh").write_text("#pragma once\nconstexpr float kScale = 3;\n")
    second = built()
    (tmp_path / "cases.cu").write_text('#include "scale.cuh"\n' + scaled.replace("kScale", "kScale + 1"))
    third = built()
    assert [cached for cached, _ in (first, second, third)] == [False] * 3
    assert len({first[1], second[1], third[1]}) == 3


def test_failures_of_each_compiler_stage_are_told_in_the_familys_own_lines(
    tmp_path: Path, toolchain: Toolchain, own_cache: Path
) -> None:
    source = '#include "part.cuh"\nstatic_assert(config::kCase != 1, "case must not be 1");\n' + KERNEL
    loaded = write_family(tmp_path, source)
    (tmp_path / "part.cuh").write_text(
        "__device__ void part() {\n"
        '  if constexpr (config::kCase == 2) asm("foo.bar;");\n'
        "  static_assert(config::kCase != 3);\n"
        "}\n"
    )
    # An unused device function is dropped before ptxas sees it.
    (tmp_path / "cases.cu").write_text(source.replace("{ x[", "{ part(); x["))
    good, asserted, assembler, included = build(loaded, toolchain, own_cache, [case(loaded, n) for n in range(4)])
    assert good.status is Status.OK
    assert asserted.detail == 'cases.cu(2): error: static assertion failed with "case must not be 1"'
    assert "error" in assembler.detail and "ptxas" in assembler.detail
    assert included.detail.startswith("part.cuh(3): error: static assertion failed")
    assert {r.status for r in (asserted, assembler, included)} == {Status.BUILD_FAILED}


def test_serialised_tensor_core_instructions_are_refused(tmp_path: Path, toolchain: Toolchain, own_cache: Path) -> None:
    loaded = write_family(tmp_path, SERIALISED)
    result = build(loaded, toolchain, own_cache, [case(loaded, 1)])[0]
    assert result.status is Status.BUILD_FAILED
    assert "serialized" in result.detail


def test_the_code_does_not_depend_on_where_it_is_compiled(toolchain: Toolchain) -> None:
    """nvcc 13.0 gives this variant 107 registers where it sees paths of a certain length, short ones, and else 92."""
    loaded = load_family("selective_scan")
    problem = loaded.named_problems["record"]
    given = {"algorithm": "staged", "block_size": 64, "threads_per_pair": 4, "reduction": "shared", "tile_l": 64}
    given |= {"stages": 4, "register_prefetch": True, "unroll": 4, "vector_width": 4, "exp": "ex2", "static_d": True}
    variant = make_variant(loaded.family, Space(loaded.family, [problem]).complete(given), problem)
    digests = set()
    for length in (1, 12, 24, 70):
        with tempfile.TemporaryDirectory() as folder:
            (result,) = build(loaded, toolchain, Path(folder) / ("x" * length), [variant])
        assert result.facts is not None, result.detail
        digests.add(result.facts.code_digest)
    assert len(digests) == 1
