"""The C header: compiled as C, C++ and CUDA, every macro flipped, several problems in one file."""

from __future__ import annotations

import itertools
import re
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.api import Parameter
from ktune.core.errors import FamilyError, UsageError
from ktune.core.identity import value_text
from ktune.output.facts import facts, settings
from ktune.output.header import header_text, write_header
from ktune.output.summary import Finding
from ktune.output.winner import Winner
from tests.output.studies import row_sums_winner, toy, toy_winner, winner_of

STRICT = ["-Wall", "-Wextra", "-Werror"]
C99 = ["gcc", "-std=c99", *STRICT, "-x", "c"]
CPP17 = ["g++", "-std=c++17", *STRICT, "-x", "c++"]
CUDA = ["nvcc", "-std=c++17", "-arch=sm_90a", "-Werror", "all-warnings", "-Xcompiler", ",".join(STRICT), "-x", "cu"]

needs_gcc = pytest.mark.skipif(not (shutil.which("gcc") and shutil.which("g++")), reason="needs gcc and g++")
LANGUAGES = [
    pytest.param(C99, id="c99"),
    pytest.param(CPP17, id="c++17"),
    pytest.param(CUDA, id="cuda", marks=pytest.mark.build),
]


def compile_text(compiler: list[str], text: str, folder: Path, *flags: str) -> str:
    """The compiler's errors; "" if it accepts the text."""
    done = subprocess.run(
        [*compiler, *flags, "-c", "-o", "out.o", "-"],
        input=text,
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=60,
    )
    return "" if done.returncode == 0 else done.stdout + done.stderr or "failed silently"


def run_c(text: str, folder: Path, *flags: str) -> list[str]:
    """The lines that a C program prints."""
    command = [*C99, *flags, "-o", "program", "-"]
    subprocess.run(command, input=text, cwd=folder, check=True, text=True, timeout=60)
    return subprocess.run([folder / "program"], check=True, capture_output=True, text=True).stdout.splitlines()


def several() -> list[Winner]:
    """Two problems, one of them tuned on two GPU models."""
    return [
        toy_winner("default", block_size=256),
        toy_winner("small", algorithm="unrolled", items=4, unroll=2),
        winner_of(toy(), "small", {"block_size": 64}, gpu="NVIDIA H100 80GB HBM3"),
    ]


@needs_gcc
@pytest.mark.parametrize("compiler", LANGUAGES)
@pytest.mark.parametrize(
    "winners", [[toy_winner()], [row_sums_winner(clustered=True)], several()], ids=["one", "two-launches", "several"]
)
def test_it_compiles_without_a_warning_even_when_included_twice(
    compiler: list[str], winners: list[Winner], tmp_path: Path
):
    write_header(winners, tmp_path / "best.h")
    assert compile_text(compiler, '#include "best.h"\n#include "best.h"\n', tmp_path, "-I.") == ""


@needs_gcc
def test_every_macro_has_the_winners_value_in_c(tmp_path: Path):
    winner = row_sums_winner(clustered=True)
    write_header([winner], tmp_path / "best.h")
    formats = {
        "const char*": "%s",
        "double": "%.7g",
        "int": "%d",
        "unsigned int": "%u",
        "long long": "%lld",
        "unsigned long long": "%llu",
    }
    given = facts(winner)
    prints = [f'printf("{formats[f.ctype]}\\n", ({f.ctype}){f.macro});' for f in given]
    prints += [f'printf("%d\\n", {s.macro});' for s in settings(winner)]
    lines = run_c(
        '#include <stdio.h>\n#include "best.h"\nint main(void) {' + "\n".join(prints) + "return 0;}", tmp_path, "-I."
    )
    found = dict(zip([f.macro for f in given] + [s.macro for s in settings(winner)], lines, strict=True))
    expected = {
        "BLOCK_SIZE": "128",
        "CLUSTERED": "1",
        "FAST_MATH": "1",
        "ORDER": "1",
        "ALGORITHM": "0",
        "SIZE_ROWS": "1000",
        "LAUNCH0_GRID_X": "4",
        "LAUNCH0_GRID_Y": "1000",
        "LAUNCH0_CLUSTER_X": "4",
        "LAUNCH0_SMEM_BYTES": "65536",
        "LAUNCH1_BLOCK_X": "32",
        "LAUNCH_COUNT": "2",
        "WORKSPACE_BYTES": "32256",
        "CONFIGURATION_ID": winner.identity,
        "NVCC_FLAGS": "-gencode arch=compute_90a,code=sm_90a -std=c++17 -O3 --use_fast_math",
        "SOURCE": "fake",
        "TIME_COLD_MEDIAN_US": f"{winner.measurement.cold_us:.7g}",
        "GPU": "NVIDIA H200",
    }
    assert {name: found[f"KTUNE_ROW_SUMS_{name}"] for name in expected} == expected
    assert winner.command in found["KTUNE_ROW_SUMS_PROVENANCE"], "quotes, comment ends and trigraphs survive"


def test_every_macro_is_documented_in_the_header_as_it_is_tested():
    text = header_text([toy_winner()], "best")
    for setting in settings(toy_winner()):
        assert f"/* {setting.parameter.name}: " in text
        assert f"#ifndef {setting.macro}\n#define {setting.macro} {setting.literal}\n#endif" in text


FLIPS = [(s.parameter.name, value) for s in settings(toy_winner()) for value in s.parameter.values]


@needs_gcc
@pytest.mark.parametrize(("name", "value"), FLIPS, ids=[f"{n}-{value_text(v)}" for n, v in FLIPS])
def test_each_parameter_can_be_overridden_and_the_struct_follows(name: str, value: object, tmp_path: Path):
    winner = toy_winner()
    write_header([winner], tmp_path / "best.h")
    (setting,) = [s for s in settings(winner) if s.parameter.name == name]
    literal = next((macro for macro, choice in setting.choices if choice == value), value_text(value))
    tuned = value == winner.configuration.get(name, setting.parameter.default)
    expected = f"Algorithm::{value}" if setting.choices else literal
    checks = [
        f"static_assert(Tuned::{setting.member} == {expected});",
        f"static_assert(Tuned::kIsTuned == {int(tuned)});",
    ]
    others = [s for s in settings(winner) if s.parameter.name != name and not s.choices]
    checks += [f"static_assert(Tuned::{s.member} == {s.literal});" for s in others]
    if setting.choices:
        checks.append(f'static_assert(std::string_view({setting.macro}_NAME) == "{value}");')
    text = '#include <string_view>\n#include "best.h"\nusing namespace ktune::toy;\n' + "\n".join(checks)
    assert compile_text(CPP17, text, tmp_path, "-I.", f"-D{setting.macro}={literal}") == ""


@needs_gcc
def test_a_word_that_is_no_choice_is_refused_by_the_preprocessor(tmp_path: Path):
    write_header([toy_winner()], tmp_path / "best.h")
    said = compile_text(C99, '#include "best.h"\n', tmp_path, "-I.", "-DKTUNE_TOY_ALGORITHM=7")
    assert "KTUNE_TOY_ALGORITHM must be one of simple, unrolled" in said


def test_booleans_are_digits_and_words_have_a_number_and_a_name():
    text = header_text([toy_winner(fast_math=True)], "best")
    assert "#define KTUNE_TOY_FAST_MATH 1\n" in text and "True" not in text
    assert "#define KTUNE_TOY_ALGORITHM_SIMPLE 0\n#define KTUNE_TOY_ALGORITHM_UNROLLED 1\n" in text
    assert "#define KTUNE_TOY_ALGORITHM KTUNE_TOY_ALGORITHM_SIMPLE\n" in text


def test_a_parameter_that_does_not_exist_here_says_that_it_has_no_effect():
    text = header_text([toy_winner()], "best")
    assert "/* unroll: unroll factor (has no effect in this configuration) */" in text


@pytest.mark.parametrize(
    "said",
    [
        "NVIDIA H200",
        "580.0 (CUDA 13.0)",
        "nvcc 13.0.88",
        "2026-01-02T03:04:05+00:00",
        "N1048576",
        "95 % interval",
        "L2 cold",
        "L2 hot",
        "0.02 of the tolerance",
        "noise floor",
        "tied",
        "ktune search ./family",
        "source digest",
        "fake: from a formula",
    ],
)
def test_provenance_is_in_the_comment_and_in_the_string(said: str):
    text = header_text([toy_winner()], "best")
    comment, _, code = text.partition("#ifndef")
    assert said in comment
    assert said in re.search(r"#define KTUNE_TOY_PROVENANCE (.*)", code)[1]


def test_the_text_depends_on_the_winners_alone_and_not_on_their_order():
    texts = {header_text(list(order), "best") for order in itertools.permutations(several())}
    assert len(texts) == 1


def test_the_tied_set_is_named():
    winner, other = toy_winner(), toy_winner(items=2)
    tied = Winner(winner.loaded, Finding(winner.measurement, (other.measurement,)))
    assert re.search(rf"tied: +{re.escape(other.identity)}\n", header_text([tied], "best"))


@needs_gcc
def test_an_entry_is_selected_by_macro(tmp_path: Path):
    write_header(several(), tmp_path / "best.h")
    program = '#include <stdio.h>\n#include "best.h"\nint main(void) { puts(KTUNE_TOY_CONFIGURATION_ID); return 0; }'
    identities = [winner.identity for winner in several()]
    for entry, identity in zip(["N1048576", "N1000_H200", "N1000_H100_80GB_HBM3"], identities, strict=True):
        assert run_c(program, tmp_path, "-I.", f"-DKTUNE_TOY_ENTRY=KTUNE_TOY_ENTRY_{entry}") == [identity]
    misspelt = compile_text(C99, program, tmp_path, "-I.", "-DKTUNE_TOY_ENTRY=KTUNE_TOY_ENTRY_N1")
    assert "KTUNE_TOY_ENTRY must be one of the entries above" in misspelt


@needs_gcc
def test_an_entry_is_selected_by_sizes_and_gpu_at_run_time(tmp_path: Path):
    write_header(several(), tmp_path / "best.h")
    asked = [("0", 1048576), ('"NVIDIA H200"', 1000), ('"NVIDIA H100 80GB HBM3"', 1000), ('"Other"', 1000), ("0", 999)]
    calls = "".join(f'printf("%d\\n", ktune_toy_select({gpu}, {size}));' for gpu, size in asked)
    program = f'#include <stdio.h>\n#include "best.h"\nint main(void) {{ {calls} return 0; }}'
    numbers = run_c(program, tmp_path, "-I.")
    entries = ", ".join(f"KTUNE_TOY_ENTRY_{label}" for label in ("N1048576", "N1000_H200", "N1000_H100_80GB_HBM3"))
    shown = f'printf("%d\\n%d\\n%d\\n", {entries});'
    names = run_c(f'#include <stdio.h>\n#include "best.h"\nint main(void) {{ {shown} return 0; }}', tmp_path, "-I.")
    assert numbers == [*names, "0", "0"]


@needs_gcc
def test_a_visitor_is_called_with_the_entry_of_the_sizes(tmp_path: Path):
    write_header(several(), tmp_path / "best.h")
    program = """
    #include "best.h"
    int main() {
      int block = 0;
      auto take = [&](auto entry) { block = decltype(entry)::kBlockSize; };
      if (!ktune::toy::visit(nullptr, 1048576, take) || block != 256) return 1;
      if (!ktune::toy::visit("NVIDIA H100 80GB HBM3", 1000, take) || block != 64) return 2;
      if (!ktune::toy::visit("NVIDIA H200", 1000, take) || block != 128) return 3;
      return ktune::toy::visit(nullptr, 3, take) ? 4 : 0;
    }"""
    command = [*CPP17, "-I.", "-o", "program", "-"]
    subprocess.run(command, input=program, cwd=tmp_path, check=True, text=True, timeout=60)
    assert subprocess.run([tmp_path / "program"], check=False).returncode == 0


@needs_gcc
@pytest.mark.parametrize("names", [("best.h", "best.h"), ("a.h", "b.h")])
def test_two_different_headers_of_one_family_do_not_mix_silently(names: tuple[str, str], tmp_path: Path):
    for folder, name, winner in zip("12", names, (toy_winner(), toy_winner("small")), strict=True):
        write_header([winner], tmp_path / folder / name)
    text = "".join(f'#include "{folder}/{name}"\n' for folder, name in zip("12", names, strict=True))
    assert "another tuned header of toy is included already" in compile_text(C99, text, tmp_path, "-I.")


@pytest.mark.build
def test_the_struct_serves_as_constants_in_device_code(tmp_path: Path):
    write_header([toy_winner(fast_math=True)], tmp_path / "best.h")
    text = """
    #include "best.h"
    using ktune::toy::Tuned;
    __global__ void __launch_bounds__(Tuned::kBlockSize) kernel(int* y) {
      __shared__ int all[Tuned::kItems * Tuned::kBlockSize];
      all[threadIdx.x] = Tuned::kFastMath;
      if constexpr (Tuned::kAlgorithm == ktune::toy::Algorithm::simple) *y = all[0];
    }"""
    assert compile_text(CUDA, text, tmp_path, "-I.") == ""


@needs_gcc
def test_names_and_values_that_c_would_choke_on_are_made_safe(tmp_path: Path):
    loaded, winner = toy(), toy_winner()
    family = replace(
        loaded.family,
        name="my-class 2",
        parameters=(
            *loaded.family.parameters,
            Parameter("class", ("new", "8-bit"), "8-bit", 'ends */ here ??/ "x" \\'),
        ),
    )
    odd = Winner(replace(loaded, family=family), winner.finding, 'é \\ "quoted" \n*/')
    write_header([odd], tmp_path / "3 best-of.all.h")
    for compiler in (C99, CPP17):
        assert compile_text(compiler, '#include "3 best-of.all.h"\n', tmp_path, "-I.") == ""
    assert re.search(
        r"#ifndef KTUNE_MY_CLASS_2_3_BEST_OF_ALL_H_[0-9A-F]{8}\n", (tmp_path / "3 best-of.all.h").read_text()
    )


def test_two_things_with_one_macro_are_refused_with_the_name():
    loaded, winner = toy(), toy_winner()
    family = replace(loaded.family, parameters=(*loaded.family.parameters, Parameter("Items", (1,), 1, "a clash")))
    with pytest.raises(FamilyError, match=r"two macros would both be called KTUNE_TOY_ITEMS; rename"):
        header_text([Winner(replace(loaded, family=family), winner.finding)], "best")


def test_what_cannot_share_a_header_is_refused():
    with pytest.raises(UsageError, match="at least one winner"):
        header_text([], "best")
    with pytest.raises(UsageError, match=r"one header holds one family, got row_sums, toy"):
        header_text([toy_winner(), row_sums_winner()], "best")
    with pytest.raises(UsageError, match=r"two winners for N1048576 on NVIDIA H200"):
        header_text([toy_winner(), toy_winner(items=2)], "best")


def test_a_header_of_someone_elses_is_not_overwritten(tmp_path: Path):
    (tmp_path / "best.h").write_text("#define MINE 1\n")
    with pytest.raises(UsageError, match="was not written by ktune"):
        write_header([toy_winner()], tmp_path / "best.h")
    write_header([toy_winner()], tmp_path / "best.h", force=True)
    write_header([toy_winner(items=2)], tmp_path / "best.h")
