"""What `ktune export --with-kernel` writes for the shipped families compiles with every warning an error."""

import random
import sys
from pathlib import Path

import pytest

from ktune.core.identity import configuration_id
from ktune.core.loading import load_family
from ktune.core.model import Effort, Request
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.output.kernel import kernel_text, write_kernel
from ktune.output.summary import Finding
from ktune.output.winner import Winner

TESTS = Path(__file__).parent.parent
CASES = [
    ("selective_scan", "direct", "tails"),
    ("selective_scan", "staged", "small"),
    ("linear_swish_scale", "simt", "small"),
    ("linear_swish_scale", "small_batch", "tails"),
    ("linear_swish_scale", "wgmma", "small"),
    ("projections", "wgmma", "small"),
    ("linear_swish_scale", "wgmma", "tails"),
]


@pytest.mark.build
@pytest.mark.parametrize(("name", "algorithm", "problem_name"), CASES)
def test_an_exported_kernel_compiles_without_a_warning(name, algorithm, problem_name, tmp_path):
    sys.path[:0] = [str(TESTS), str(TESTS / "output")]
    from driver import NAME, compile_kernel
    from fake_gpu import FakeEvaluator

    loaded = load_family(name)
    problem = loaded.named_problems[problem_name]
    points = Space(loaded.family, [problem], {"algorithm": (algorithm,)}).points
    configuration = random.Random(2).choice(points)
    measured = FakeEvaluator().answer(
        Request(0, make_variant(loaded.family, configuration, problem), problem, Effort.FULL)
    )
    winner = Winner(loaded, Finding(measured), "pytest")
    write_kernel(winner, tmp_path, NAME)
    try:
        compile_kernel(winner, tmp_path)
    except AssertionError as error:
        pytest.fail(f"{configuration_id(loaded.family, configuration)}: {error}")


def test_an_export_encodes_its_tensor_maps_without_linking_the_driver(tmp_path):
    sys.path[:0] = [str(TESTS)]
    from fake_gpu import FakeEvaluator

    loaded = load_family("linear_swish_scale")
    problem = loaded.named_problems["small"]
    configuration = Space(loaded.family, [problem]).complete({"algorithm": "wgmma"})
    measured = FakeEvaluator().answer(
        Request(0, make_variant(loaded.family, configuration, problem), problem, Effort.FULL)
    )
    text = kernel_text(Winner(loaded, Finding(measured), "pytest"), "linear")
    assert "const cuuint64_t dimensions[] = {128ull, 96ull};" in text
    assert "const cuuint64_t strides[] = {512ull};" in text
    assert "const cuuint32_t box[] = {32u, 128u};" in text
    assert "CU_TENSOR_MAP_SWIZZLE_128B" in text and "&map_1" in text
    assert '"cuTensorMapEncodeTiled", &found' in text
