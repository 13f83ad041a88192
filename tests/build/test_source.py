from pathlib import Path

import pytest
from fake_compiler import KERNEL, case, fake_toolchain, write_family

from ktune.build.key import build_key, nvcc_flags
from ktune.build.source import family_source, variant_source
from ktune.build.toolchain import Toolchain
from ktune.core.errors import FamilyError
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.space import Space
from ktune.core.variant import make_variant


def key_of(loaded: LoadedFamily, toolchain: Toolchain, number: int = 1) -> str:
    variant = case(loaded, number)
    return build_key(variant_source(loaded, variant), nvcc_flags(loaded.family, variant), toolchain)


def test_a_variants_source_is_its_constants_and_then_the_familys_text(tmp_path: Path) -> None:
    loaded = write_family(tmp_path)
    source = variant_source(loaded, case(loaded, 7))
    assert source.index("constexpr int kCase = 7;") < source.index(KERNEL)
    assert "#pragma once" not in source


def test_a_variant_without_kernels_has_no_source(tmp_path: Path) -> None:
    loaded = write_family(tmp_path, name="")
    assert variant_source(loaded, case(loaded, 0)) == ""


def test_a_missing_source_file_is_a_fault_of_the_family(tmp_path: Path) -> None:
    loaded = write_family(tmp_path)
    (tmp_path / "cases.cu").unlink()
    with pytest.raises(FamilyError, match=r"names the source 'cases\.cu'"):
        variant_source(loaded, case(loaded, 0))


def test_quoted_includes_of_the_family_stand_in_place_and_others_stay(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    (tmp_path / "main.cu").write_text(
        '#include <cuda_fp16.h>\n#include "cuda_bf16.h"\n  # include "parts/a.cuh"  // a\nend\n'
    )
    (tmp_path / "parts" / "a.cuh").write_text('#include "b.cuh"\n#include "top.cuh"\nint a;\n')
    (tmp_path / "parts" / "b.cuh").write_text("int b;\n")
    (tmp_path / "top.cuh").write_text("int top;")
    lines = [line for line in family_source(tmp_path, "main.cu").splitlines() if line]
    assert lines == ["#include <cuda_fp16.h>", '#include "cuda_bf16.h"', "int b;", "int top;", "int a;", "end"]


def test_includes_in_comments_and_strings_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "a.cuh").write_text("int a; /* closed */\n")
    text = '// it\'s\n/*\n#include "a.cuh"\n*/\n// #include "a.cuh"\nconst char* s = "\\"/*";\n#include "a.cuh"\n'
    (tmp_path / "main.cu").write_text(text)
    source = family_source(tmp_path, "main.cu")
    assert source.count("int a;") == 1
    assert source.startswith(text.rpartition("#include")[0])


def test_a_header_with_pragma_once_is_guarded_and_files_may_include_each_other(tmp_path: Path) -> None:
    (tmp_path / "main.cu").write_text('#include "a.cuh"\n#include "b.cuh"\n')
    (tmp_path / "a.cuh").write_text('#pragma once\n#include "b.cuh"\nint a;\n')
    (tmp_path / "b.cuh").write_text('#pragma once\n#include "a.cuh"\nint b;\n')
    source = family_source(tmp_path, "main.cu")
    assert "#pragma once" not in source
    assert source.count("#ifndef KTUNE_ONCE_") == source.count("#endif") == 4


def test_line_markers_name_the_familys_own_files_and_lines(tmp_path: Path) -> None:
    (tmp_path / "main.cu").write_text('first\n#include "a.cuh"\nthird\n')
    (tmp_path / "a.cuh").write_text("a\n")
    expected = ['#line 1 "main.cu"', "first", '#line 1 "a.cuh"', "a", '#line 3 "main.cu"', "third"]
    assert family_source(tmp_path, "main.cu", line_markers=True).splitlines() == expected


def test_the_key_changes_with_source_include_constants_compiler_flags_and_target(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("NVCC_APPEND_FLAGS", raising=False)
    loaded = write_family(tmp_path / "family", '#include "scale.cuh"\n' + KERNEL)
    (tmp_path / "family" / "scale.cuh").write_text("constexpr int kScale = 2;\n")
    tools = fake_toolchain(tmp_path / "tools")
    first = key_of(loaded, tools)
    assert key_of(loaded, tools) == first

    keys = {first, key_of(loaded, tools, 2), key_of(loaded, Toolchain(tools.nvcc, "13.1.0"))}
    flags = nvcc_flags(loaded.family, case(loaded, 1, "sm_80"))
    keys.add(build_key(variant_source(loaded, case(loaded, 1)), flags, tools))
    monkeypatch.setenv("NVCC_APPEND_FLAGS", "-DX=1")
    keys.add(key_of(loaded, tools))
    monkeypatch.delenv("NVCC_APPEND_FLAGS")
    (tmp_path / "family" / "scale.cuh").write_text("constexpr int kScale = 3;\n")
    keys.add(key_of(loaded, tools))
    (tmp_path / "family" / "cases.cu").write_text('#include "scale.cuh"\n\n' + KERNEL)
    keys.add(key_of(loaded, tools))
    assert len(keys) == 7


def test_the_same_family_elsewhere_has_the_same_keys(tmp_path: Path) -> None:
    tools = fake_toolchain(tmp_path / "tools")
    here, there = (write_family(tmp_path / name, '#include "a.cuh"\n' + KERNEL) for name in ("here", "there"))
    for loaded in (here, there):
        (loaded.folder / "a.cuh").write_text("#pragma once\nint a;\n")
    assert key_of(here, tools) == key_of(there, tools)


def test_flags_of_parameters_follow_the_common_ones(families: Path) -> None:
    loaded = load_family(families / "toy")
    problem = loaded.named_problems["small"]
    space = Space(loaded.family, [problem])
    plain, fast = (space.complete({"fast_math": value}) for value in (False, True))
    flags = nvcc_flags(loaded.family, make_variant(loaded.family, plain, problem))
    assert "arch=compute_90a,code=sm_90a" in flags
    assert nvcc_flags(loaded.family, make_variant(loaded.family, fast, problem)) == (*flags, "--use_fast_math")
