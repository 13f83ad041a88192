"""`--with-kernel`: the exported file compiles by itself, and on a GPU computes what the reference says."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from ktune.core.errors import UsageError
from ktune.output.kernel import declaration_text, kernel_text, write_kernel
from ktune.output.winner import Winner
from tests.output.driver import NAME, build_program, compile_kernel, main_text, run_program, write_case
from tests.output.studies import row_sums_winner, toy_winner

WINNERS = [
    pytest.param(lambda: toy_winner("small"), id="toy"),
    pytest.param(
        lambda: toy_winner("small", algorithm="unrolled", items=4, unroll=2, fast_math=True), id="toy-unrolled"
    ),
    pytest.param(lambda: row_sums_winner(), id="row_sums"),
    pytest.param(lambda: row_sums_winner(clustered=True, order="forward"), id="row_sums-cluster"),
    pytest.param(lambda: row_sums_winner("one", splits=1), id="row_sums-one"),
]


def has_gpu() -> bool:
    return (
        shutil.which("nvidia-smi") is not None and subprocess.run(["nvidia-smi"], capture_output=True).returncode == 0
    )


@pytest.mark.build
@pytest.mark.parametrize("make", [WINNERS[1], WINNERS[3]])
def test_the_kernel_compiles_alone_without_a_warning(make, tmp_path: Path):
    winner = make()
    write_kernel(winner, tmp_path, NAME)
    for path in winner.loaded.folder.glob("*.cu*"):
        assert not (tmp_path / path.name).exists()
    compile_kernel(winner, tmp_path)


@pytest.mark.build
def test_a_cpp_program_around_it_links_with_the_static_runtime(tmp_path: Path):
    build_program(row_sums_winner(), tmp_path)
    needed = subprocess.run(["ldd", "program"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert "libcudart" not in needed


@pytest.mark.gpu
@pytest.mark.build
@pytest.mark.skipif(not has_gpu(), reason="needs a CUDA GPU")
@pytest.mark.parametrize("make", WINNERS)
def test_a_cpp_program_gets_the_references_result_on_the_gpu(make, tmp_path: Path):
    winner = make()
    build_program(winner, tmp_path)
    write_case(winner, tmp_path, seed=3)
    assert run_program(tmp_path).endswith("OK\n")


@pytest.mark.gpu
@pytest.mark.build
@pytest.mark.skipif(not has_gpu(), reason="needs a CUDA GPU")
def test_the_program_notices_a_wrong_result(tmp_path: Path):
    winner = toy_winner("small")
    build_program(winner, tmp_path)
    write_case(winner, tmp_path)
    expected = tmp_path / "y_expected.bin"
    expected.write_bytes(expected.read_bytes()[8:] + bytes(8))
    with pytest.raises(AssertionError, match="FAILED: y"):
        run_program(tmp_path)


@pytest.mark.skipif(not shutil.which("gcc"), reason="needs gcc")
def test_the_declaration_is_c_and_cpp(tmp_path: Path):
    write_kernel(row_sums_winner(), tmp_path, NAME)
    # The runtime's own header, reduced to what the declaration uses.
    (tmp_path / "cuda_runtime_api.h").write_text("typedef int cudaError_t;\ntypedef struct stream* cudaStream_t;\n")
    use = f"""
    #include "{NAME}_kernel.cuh"
    #include "{NAME}_kernel.cuh"
    int use(const float* x, float* y, float* z, void* w);
    int use(const float* x, float* y, float* z, void* w) {{
      return ktune_row_sums_launch(x, y, z, w, KTUNE_ROW_SUMS_SIZE_ROWS, KTUNE_ROW_SUMS_SIZE_COLUMNS, 0);
    }}
    """
    for command in (["gcc", "-std=c99", "-x", "c"], ["g++", "-std=c++17", "-x", "c++"]):
        done = subprocess.run(
            [*command, "-Wall", "-Wextra", "-Werror", "-I.", "-c", "-o", "use.o", "-"],
            input=use,
            cwd=tmp_path,
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stderr


def launches_of(text: str) -> str:
    """The launcher's text, on one line."""
    return " ".join(text[text.index('extern "C" cudaError_t') :].split())


def test_it_launches_exactly_what_the_plan_says():
    text = launches_of(kernel_text(row_sums_winner(clustered=True), NAME))
    assert "grid = dim3(4, 1000, 1), block = dim3(128, 1, 1), cluster = dim3(4, 1, 1);" in text
    assert "launch(kernel, grid, block, cluster, programmatic, 65536, arguments, stream)" in text
    assert "{&at_x, &at_part_total, &at_part_largest, &scalar_3, &scalar_4, &scalar_5}" in text
    assert "long long scalar_3 = static_cast<long long>(1000ll);" in text
    assert "float scalar_5 = ktune_export::float_of(0x3dcccccdu);" in text
    assert text.index("row_sums_partial)") < text.index("row_sums_combine)")


def test_it_holds_the_configuration_and_every_local_include():
    text = kernel_text(row_sums_winner(splits=2), NAME)
    assert "constexpr int kSplits = 2;" in text and "struct Pair {" in text
    assert '#include "' not in text


def test_it_says_how_to_compile_it_and_where_it_comes_from():
    text = kernel_text(toy_winner(fast_math=True), NAME)
    expected = f"nvcc -gencode arch=compute_90a,code=sm_90a -std=c++17 -O3 --use_fast_math -c {NAME}_kernel.cu"
    assert expected in text and expected in declaration_text(toy_winner(fast_math=True), NAME)
    for said in ("NVIDIA H200", "fake: from a formula", "2026-01-02T03:04:05+00:00", "of the tolerance"):
        assert said in text


def test_its_arguments_are_checked_before_anything_is_launched():
    text = launches_of(kernel_text(row_sums_winner(), NAME))
    launched = text.index("ktune_export::launch(")
    for check in (
        "if (size_rows != 1000)",
        "if (size_columns != 777)",
        "tensors[] = {x, total, largest}",
        "aligned(tensor, 16)",
        "if (!workspace)",
        "overlap(largest, 4000ull, total, 4000ull)",
    ):
        assert text.index(check) < launched


def test_the_program_poisons_outputs_and_fails_on_nan():
    text = main_text(toy_winner("small"))
    assert "cudaMemset(pointer, 0xff, bytes)" in text and "if (!(error <= allowed)) ++bad;" in text


def test_a_plan_with_a_torch_operation_is_refused_with_the_remedy(tmp_path: Path):
    winner: Winner = row_sums_winner(algorithm="torch")
    with pytest.raises(UsageError, match=r"PyTorch operation 'sum_rows'.*export it without --with-kernel"):
        write_kernel(winner, tmp_path, NAME)
    assert list(tmp_path.iterdir()) == []
