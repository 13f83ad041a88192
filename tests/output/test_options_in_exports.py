"""Winners of problems that differ in an option or in the dtype, in headers and launchers."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from ktune.core.errors import UsageError
from ktune.core.loading import load_family
from ktune.output.header import header_text, write_header
from ktune.output.kernel import signature, write_kernel
from ktune.output.several_kernels import check_kernels, dispatch_text, write_kernels
from ktune.output.winner import Winner, load_winner, write_winner
from tests.output.driver import compile_kernel
from tests.output.studies import FAMILIES, winner_of
from tests.output.test_header_export import CPP17, compile_text, needs_gcc, run_c


def shifted(problem: str, **given: int) -> Winner:
    return winner_of(load_family(FAMILIES / "shifted"), problem, dict(given))


def flagged() -> list[Winner]:
    return [shifted("small", block_size=32), shifted("small-shifted", block_size=128), shifted("default")]


PRINTED = """#include <stdio.h>
#include "best.h"
int main(void) {{ {prints} return 0; }}
"""


def printed(folder: Path, *calls: str) -> list[str]:
    prints = " ".join(f'printf("%d\\n", ktune_shifted_select({call}));' for call in calls)
    return run_c(PRINTED.format(prints=prints), folder, "-I.")


@needs_gcc
def test_selection_compares_the_option_that_one_winner_gives(tmp_path: Path) -> None:
    write_header(flagged(), tmp_path / "best.h")
    found = printed(tmp_path, "0, 1000, 0", "0, 1000, 1", "0, 1 << 20, 0", "0, 1 << 20, 1", "0, 1000, 2")
    assert len(set(found[:3])) == 3 and "0" not in found[:3] and found[3:] == ["0", "0"]


@needs_gcc
def test_each_entry_states_every_option(tmp_path: Path) -> None:
    write_header(flagged(), tmp_path / "best.h")
    text = """#include "best.h"
    using namespace ktune::shifted;
    static_assert(N1000::kSizeShift == 0 && N1000_shift1::kSizeShift == 1 && N1048576::kSizeShift == 0);
    static_assert(N1000::kSizeN == 1000 && N1000::kBlockSize == 32 && N1000_shift1::kBlockSize == 128);
    bool called() { return visit(nullptr, 1000, 1, [](auto entry) { (void)entry.kSizeShift; }); }
    """
    assert compile_text(CPP17, text, tmp_path, "-I.") == ""


def test_an_option_that_no_winner_gives_is_not_in_the_header() -> None:
    text = header_text([shifted("small"), shifted("default")], "best")
    assert "select(const char *gpu, long long size_N) {" in text
    assert "size_shift" not in text and "SIZE_SHIFT" not in text and "dtype" not in text


@needs_gcc
def test_selection_compares_the_dtype_where_winners_differ_in_it(tmp_path: Path) -> None:
    write_header([shifted("small"), shifted("small-bf16")], tmp_path / "best.h")
    found = printed(
        tmp_path, '0, "float32", 1000', '0, "bfloat16", 1000', '0, "float16", 1000', '"NVIDIA H200", "bfloat16", 1000',
        "0, 0, 1000",
    )  # fmt: skip
    assert sorted(found[:2]) == ["1", "2"] and found[2:] == ["0", found[1], "0"]
    text = '#include "best.h"\nauto f() { return ktune::shifted::visit(nullptr, "float32", 1000, [](auto) {}); }\n'
    assert compile_text(CPP17, text, tmp_path, "-I.") == ""


def test_the_launcher_picks_by_option_and_passes_each_its_own_sizes() -> None:
    text = dispatch_text(flagged(), "best")
    given = "x, y, workspace, size_N"
    assert f"if (size_N == 1000 && size_shift == 0) return ktune_shifted_launch_N1000({given}, stream);" in text
    shifted_launch = f"return ktune_shifted_launch_N1000_shift1({given}, size_shift, stream);"
    assert f"if (size_N == 1000 && size_shift == 1) {shifted_launch}" in text


def test_one_launcher_cannot_take_two_dtypes() -> None:
    with pytest.raises(UsageError, match="differ in their tensors' names or types"):
        check_kernels([shifted("small"), shifted("small-bf16")], "best")


def test_a_bfloat16_tensor_is_a_pointer_to_void() -> None:
    assert "const void* x,\n    void* y,\n" in signature(shifted("small-bf16"))


@pytest.mark.build
def test_an_exported_bfloat16_kernel_compiles_with_every_warning_an_error(tmp_path: Path) -> None:
    write_kernel(shifted("small-bf16"), tmp_path, "export")
    compile_kernel(shifted("small-bf16"), tmp_path)


@pytest.mark.build
def test_kernels_of_two_options_link_into_one_program(tmp_path: Path) -> None:
    write_kernels(flagged()[:2], tmp_path, "best")
    main = '#include "best_kernels.cuh"\nint main() { return ktune_shifted_launch(0, 0, 0, 1000, 2, 0) == 0; }\n'
    (tmp_path / "main.cpp").write_text(main)
    command = ["nvcc", "-arch=sm_90a", "-std=c++17", "-Werror", "all-warnings", "-o", "program", "main.cpp"]
    sources = sorted(path.name for path in tmp_path.glob("*.cu"))
    done = subprocess.run([*command, *sources], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    # an option that was not tuned is refused before anything is launched, so that no GPU is needed
    assert subprocess.run(["./program"], cwd=tmp_path, check=False).returncode == 0


@pytest.mark.parametrize("name", ["small", "small-shifted", "small-bf16"])
def test_a_winner_file_reads_back_with_defaults_and_canonical(tmp_path: Path, name: str) -> None:
    winner = shifted(name)
    path = write_winner(winner, tmp_path / "best.json")
    _, problem, configuration = load_winner(path)
    assert problem == winner.problem and configuration == winner.configuration and problem["times"] == 1
    path.write_text(path.read_text().replace('"N": 1000', '"N": 1000, "times": 1'))
    assert load_winner(path)[1] == problem


def test_a_winner_file_of_an_option_that_is_gone_is_refused(tmp_path: Path) -> None:
    path = write_winner(shifted("small"), tmp_path / "best.json")
    path.write_text(path.read_text().replace('"N": 1000', '"N": 1000, "gate": 1'))
    with pytest.raises(UsageError, match=r"must give N and may give shift, times, got N, gate; it was written for"):
        load_winner(path)
