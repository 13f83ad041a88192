"""What the documents show is true: the worked example is a whole family, and every command named exists."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest
import torch
from cli_terminal import Terminal

from ktune.build.source import variant_source
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.space import Space
from ktune.core.variant import make_variant

ROOT = Path(__file__).resolve().parents[2]
FENCED = re.compile(r"^```\w+ (?P<name>[\w.]+)\n(?P<text>.*?)^```$", re.DOTALL | re.MULTILINE)


@pytest.fixture
def example(tmp_path: Path) -> LoadedFamily:
    """The family that docs/family.md builds."""
    folder = tmp_path / "row_softmax"
    folder.mkdir()
    for block in FENCED.finditer((ROOT / "docs" / "family.md").read_text()):
        (folder / block["name"]).write_text(block["text"])
    return load_family(folder)


def test_the_example_is_searched(ktune: Terminal, example: LoadedFamily) -> None:
    out = ktune("search", example.folder, "--trials", "12")
    measured = len({r.variant for r in ktune.evaluator.evaluated})
    assert measured >= 12 and f"{measured} variants: {measured} ok" in out
    assert "a cached row must fit in shared memory" in ktune("list", example.folder)


def test_the_examples_rule_excludes_rows_that_do_not_fit(example: LoadedFamily) -> None:
    wide = Space(example.family, [example.family.problem(M=1, N=100_000)])
    assert {point["algorithm"] for point in wide} == {"rereading"}


def test_the_examples_reference_gives_its_outputs(example: LoadedFamily) -> None:
    problem = example.family.problem(M=3, N=7)
    reference = example.module("reference")
    found = reference.reference(problem, reference.inputs(problem, seed=0))
    assert {t.name: t.shape for t in example.family.outputs(problem)} == {n: tuple(t.shape) for n, t in found.items()}
    torch.testing.assert_close(found["y"].sum(dim=1), torch.ones(3, dtype=torch.float64))


@pytest.mark.build
@pytest.mark.parametrize("given", [{}, {"algorithm": "cached", "prefetch": 4, "fast_math": True}])
def test_the_examples_kernels_compile(example: LoadedFamily, tmp_path: Path, given: dict[str, object]) -> None:
    problem = example.named_problems["default"]
    configuration = Space(example.family, [problem]).complete(given)  # type: ignore[arg-type]
    source = tmp_path / "variant.cu"
    source.write_text(variant_source(example, make_variant(example.family, configuration, problem)))
    command = ["nvcc", "-cubin", "-arch=sm_90a", "-std=c++17", "-o", tmp_path / "variant.cubin", source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    "document", ["README.md", "docs/family.md", "docs/measuring.md", "docs/bench.md", "docs/nn.md", "docs/replay.md"]
)
def test_documents_name_only_commands_that_exist(ktune: Terminal, document: str) -> None:
    known = set(re.findall(r"^  (\w+) ", ktune("--help").partition("Commands:")[2], re.MULTILINE))
    named = set(re.findall(r"\bktune (\w+)(?= |`|$)", (ROOT / document).read_text()))
    verbs = {word for word in named if word in known or word in {"profile", "bench", "search", "tune"}}
    assert verbs <= known
