"""CUDA source becomes C++ line for line; what has no form on the CPU is named, not guessed."""

from __future__ import annotations

import pytest
from cpu_kernels import KERNELS

from ktune.cpu.compiler import Check, CompileFault, ProgramStore
from ktune.cpu.source import kernel_names, ptx_functions, translated


def body(text: str) -> str:
    """The translation without the table of kernels."""
    return translated(text).partition("\nnamespace ktune_cpu {")[0]


@pytest.mark.parametrize("file", ["semantics.cu", "planted.cu"])
def test_every_line_stays_on_its_line(file: str) -> None:
    text = (KERNELS / file).read_text()
    assert body(text).count("\n") == text.count("\n")
    for before, after in zip(text.splitlines(), body(text).splitlines(), strict=True):
        if before.lstrip().startswith("extern "):
            assert before == after or "__shared__" in before


def test_dynamic_shared_memory_becomes_a_pointer() -> None:
    made = body("extern __shared__ __align__(16) float stages[];")
    assert made == "float* const stages = static_cast<float*>(ktune_cpu::dynamic_shared());"
    assert "const char* const" not in body("extern __shared__ unsigned char raw[];")
    assert body("extern __shared__ unsigned char raw[];").startswith("unsigned char* const raw =")


def test_static_shared_memory_becomes_a_reference_to_the_blocks_own() -> None:
    made = body("__shared__ alignas(32) scan::Pair<2> pairs[kWarps][2 * kRows];")
    assert "typedef scan::Pair<2> pairs_shared_t[kWarps][2 * kRows];" in made
    assert "sizeof(pairs_shared_t), (alignof(scan::Pair<2>) > (32) ?" in made


def test_what_is_no_code_is_left_alone() -> None:
    text = '// __shared__ float a[3];\n/* asm("x"); */ const char* b = "extern __shared__ float c[];";\n'
    assert body(text) == text


def test_kernels_are_found_behind_their_launch_bounds() -> None:
    text = """
    extern "C" __global__ void __launch_bounds__(linear::kThreads)
    first(const float* x) {}
    // extern "C" __global__ void commented(int) {}
    extern "C" __global__ void __launch_bounds__(config::kTile * (2 + kPad), 2) second(float* y, int n) {}
    extern "C" void __global__ third() {}
    template <int k> __global__ void not_extern(float* y) {}
    """
    assert kernel_names(text) == ["first", "second", "third"]


def test_inline_ptx_becomes_calls_in_order_with_their_operands() -> None:
    text = (
        'asm volatile("ex2.approx.ftz.f32 %0, %1;\\n\\tadd.f32 %0, %0, %2;" : "=f"(a[i]) : "f"(b * c), "f"(f(x, y)));'
    )
    assert body(text) == (
        "(ktune_cpu::ptx::ex2_approx_ftz_f32((a[i]), (b * c)), ktune_cpu::ptx::add_f32((a[i]), (a[i]), (f(x, y))));"
    )


@pytest.mark.parametrize(
    "statement",
    [
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {%0}, %1, %2, 1;",
        "@p bra done;",
        "{ .reg .pred p; setp.ne.b32 p, %0, 0; }",
        "mbarrier.arrive.shared::cta.b64 _, [%0];",
        "done:",
    ],
)
def test_an_instruction_without_a_cpu_form_is_named(statement: str) -> None:
    made = body(f'asm volatile("{statement}" :: "r"(a), "r"(b), "r"(c));')
    assert made.startswith('ktune_cpu::not_executable("inline PTX `') and statement.split(";")[0][:20] in made


def test_the_instructions_that_the_shipped_kernels_need_have_a_cpu_form() -> None:
    needed = {"ex2_approx_ftz_f32", "cp_async_cg_shared_global", "cp_async_ca_shared_global", "cp_async_wait_group"}
    assert needed <= ptx_functions()


def test_a_header_that_is_not_here_is_the_compilers_first_error(programs: ProgramStore) -> None:
    source = translated('#include <cooperative_groups.h>\nextern "C" __global__ void k(float* y) {}\n')
    with pytest.raises(CompileFault, match=r"cooperative_groups\.h: No such file") as caught:
        programs.program(source, Check.PLAIN, "a test")
    assert "cooperative_groups" in caught.value.log.read_text() and caught.value.log.with_suffix(".cpp").is_file()


def test_a_program_is_compiled_once(programs: ProgramStore) -> None:
    source = translated('extern "C" __global__ void once(float* y) { y[0] = 1.0f; }\n')
    first = programs.program(source, Check.PLAIN, "a test")
    changed = first.stat().st_ino
    assert programs.program(source, Check.PLAIN, "a test") == first and first.stat().st_ino == changed
    assert programs.program(source + "\n", Check.PLAIN, "a test") != first
    assert programs.program(source, Check.RACES, "a test") != first
