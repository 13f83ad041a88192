"""Kernels of several problems in one program: names apart, one launcher that picks by size."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.errors import UsageError
from ktune.core.loading import LoadedFamily, load_family
from ktune.output.several_kernels import check_kernels, dispatch_text, write_kernels
from ktune.output.winner import Winner
from tests.output.studies import FAMILIES, row_sums_winner, toy_winner, winner_of


def toys() -> list[Winner]:
    return [toy_winner("default", block_size=64), toy_winner("small", algorithm="unrolled", items=4, unroll=2)]


@pytest.mark.build
@pytest.mark.parametrize(
    "make",
    [
        pytest.param(toys, id="toy"),
        pytest.param(lambda: [row_sums_winner(), row_sums_winner("one", splits=1)], id="row_sums"),
    ],
)
def test_the_kernels_link_into_one_program(make, tmp_path: Path):
    winners = make()
    write_kernels(winners, tmp_path, "best")
    signature = dispatch_text(winners, "best").partition("static inline cudaError_t ")[2]
    zeros = ", ".join("0" for _ in signature.partition(")")[0].split(","))
    call = f"{signature.partition('(')[0]}({zeros})"
    main = f"int main() {{ return {call} == cudaErrorInvalidValue ? 0 : 1; }}"
    include = '#include "best_kernels.cuh"\n'
    (tmp_path / "main.cpp").write_text(f"{include}{include}{main}\n")
    command = ["nvcc", "-arch=sm_90a", "-std=c++17", "-Werror", "all-warnings", "-o", "program"]
    sources = sorted(path.name for path in tmp_path.glob("*.c*") if path.suffix in (".cu", ".cpp"))
    done = subprocess.run([*command, *sources], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # No launch happens for sizes that were not tuned, so it runs without a GPU.
    assert subprocess.run(["./program"], cwd=tmp_path, check=False).returncode == 0


def test_each_file_has_names_of_its_own(tmp_path: Path):
    paths = write_kernels(toys(), tmp_path, "best")
    assert [path.name for path in paths] == [
        "best_N1048576_kernel.cu", "best_N1048576_kernel.cuh", "best_N1000_kernel.cu", "best_N1000_kernel.cuh",
        "best_kernels.cuh",
    ]  # fmt: skip
    for label in ("N1048576", "N1000"):
        text = (tmp_path / f"best_{label}_kernel.cu").read_text()
        assert f"ktune_toy_launch_{label}(" in text and f"KTUNE_TOY_{label}_SIZE_N" in text
        assert "static __global__" in text and 'extern "C" __global__' not in text


def test_the_launcher_picks_by_size():
    text = dispatch_text(toys(), "best")
    assert "if (size_N == 1048576) return ktune_toy_launch_N1048576(x, y, workspace, size_N, stream);" in text
    assert "if (size_N == 1000) return ktune_toy_launch_N1000(x, y, workspace, size_N, stream);" in text


def test_a_winner_that_calls_pytorch_is_refused_with_its_problem():
    loaded = load_family(FAMILIES / "gemm_epilogue")
    name, problem = next(iter(loaded.named_problems.items()))
    with pytest.raises(UsageError, match=rf"^{problem.label}: .* calls the PyTorch operation"):
        check_kernels([winner_of(loaded, name, {"algorithm": "library"})], "best")


def test_kernels_in_a_block_of_c_linkage_are_refused(tmp_path: Path):
    winner = toy_winner()
    folder = tmp_path / "toy"
    folder.mkdir()
    for path in winner.loaded.folder.iterdir():
        if path.is_file():
            text = path.read_text().replace('extern "C" __global__', 'extern "C" { __global__')
            (folder / path.name).write_text(text + ("}\n" if path.suffix == ".cu" else ""))
    moved: LoadedFamily = load_family(folder)
    with pytest.raises(UsageError, match='write extern "C" before each kernel'):
        check_kernels([replace(winner, loaded=moved)], "best")
