"""`ktune new` writes a family that searches at once, and never over something."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from cli_terminal import Terminal

from ktune.api import KernelLaunch
from ktune.build.source import variant_source
from ktune.cli.new import write_family
from ktune.core.errors import UsageError
from ktune.core.loading import load_family
from ktune.core.space import Space
from ktune.core.variant import make_variant


def test_the_new_family_searches_at_once(ktune: Terminal) -> None:
    assert "README.md, family.py, my_kernel.cu, reference.py into my_kernel/" in ktune("new", "my_kernel")
    assert "search ./my_kernel" in ktune.err
    out = ktune("search", "./my_kernel", "--trials", "10")
    assert re.search(r"(\d+) variants: \1 ok", out)
    assert ktune("export", "--with-kernel").count("wrote") == 4


def test_the_new_family_is_whole(tmp_path: Path) -> None:
    loaded = load_family(write_family("mine", tmp_path))
    problem = loaded.family.problem(N=100)
    reference = loaded.module("reference")
    inputs = reference.inputs(problem, seed=1)
    torch.testing.assert_close(reference.reference(problem, inputs)["y"], 2 * torch.relu(inputs["x"].double()))
    assert all(check.by_name.keys() == {"N"} for check in loaded.family.checks(default(loaded, problem), problem))


@pytest.mark.build
@pytest.mark.parametrize("given", [{}, {"block_size": 1024, "items": 2, "vector_width": 4, "fast_math": True}])
def test_the_new_kernel_compiles(tmp_path: Path, given: dict[str, object]) -> None:
    loaded = load_family(write_family("mine", tmp_path))
    problem = loaded.named_problems["default"]
    configuration = Space(loaded.family, [problem]).complete(given)  # type: ignore[arg-type]
    source = tmp_path / "variant.cu"
    source.write_text(variant_source(loaded, make_variant(loaded.family, configuration, problem)))
    command = ["nvcc", "-cubin", "-arch=sm_90a", "-std=c++17", "-o", tmp_path / "variant.cubin", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    launch = loaded.family.plan(configuration, problem).launches[0]
    assert isinstance(launch, KernelLaunch)
    assert launch.kernel.encode() in (tmp_path / "variant.cubin").read_bytes()


@pytest.mark.parametrize("name", ["My", "2fast", "a-b", "a/b", "../up", "", "class", "ä"])
def test_a_bad_name_is_refused(ktune: Terminal, name: str) -> None:
    ktune("new", name, code=2)
    assert "a family's name is a-z, 0-9 and _" in ktune.err
    assert list(ktune.folder.iterdir()) == []


def test_an_existing_folder_is_left_alone(ktune: Terminal) -> None:
    (ktune.folder / "mine").mkdir()
    ktune("new", "mine", code=2)
    assert "exists already" in ktune.err and list((ktune.folder / "mine").iterdir()) == []


def default(loaded, problem):  # type: ignore[no-untyped-def]
    return Space(loaded.family, [problem]).default


def test_a_shipped_familys_name_is_taken(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="ships with ktune"):
        write_family("selective_scan", tmp_path)
    assert not list(tmp_path.iterdir())
