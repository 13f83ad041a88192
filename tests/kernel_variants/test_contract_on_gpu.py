"""One contract for every shipped family, on a real GPU: right at sizes that are hard, by whichever configuration."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktune.api import Family
from ktune.build.builder import Builder
from ktune.build.toolchain import find_toolchain
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family, shipped_families
from ktune.core.model import Effort, Measurement, Problem, Request, Status
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.cuda_evaluator import CudaEvaluator
from ktune.gpu.nvml import reason_no_gpu
from ktune.output.summary import Finding
from ktune.output.winner import Winner

NO_GPU = reason_no_gpu()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.build,
    # Some 70 builds a family, and the GPU is waited for where other processes test on it too.
    pytest.mark.timeout(900),
    pytest.mark.skipif(bool(NO_GPU), reason=f"needs a CUDA GPU: {NO_GPU}"),
]

# Minimal, odd, one less and one more than what tiles divide, batch 1, few and many states.
HARD_SIZES = {
    "selective_scan": [
        (1, 1, 1, 1), (1, 2, 3, 1), (2, 1023, 40, 16), (3, 1025, 33, 5), (1, 63, 129, 64), (5, 31, 257, 16),
        (2, 128, 64, 17), (1, 65, 31, 256), (1, 4099, 96, 16), (1, 997, 1540, 16),
    ],
    "linear_swish_scale": [
        (1, 1, 1), (1, 129, 33), (127, 255, 257), (128, 256, 512), (129, 257, 511), (16, 101, 1000), (3, 4099, 64),
    ],
    "projections": [
        (1, 1, 1, 1), (63, 44, 8, 36), (257, 129, 33, 31), (1, 144, 16, 256), (2049, 256, 16, 260), (130, 40, 4, 1024),
        (65, 512, 64, 128), (40000, 48, 12, 96),
    ],
}  # fmt: skip
SAMPLED = 6

# Options and dtypes beside the first of HARD_SIZES' dimensions.
BLOCK = {"bias": 1, "softplus": 1, "gate": 1, "final": 1}
ALL = {**BLOCK, "initial": 1, "skip": 0}
HARD_OPTIONS: dict[str, list[dict[str, int | str]]] = {
    "selective_scan": [
        {"B": 3, "L": 1, "D": 40, "N": 16, **ALL},
        {"B": 2, "L": 1023, "D": 40, "N": 16, **BLOCK},
        {"B": 2, "L": 65, "D": 256, "N": 16, **ALL, "G": 4},
        {"B": 2, "L": 65, "D": 33, "N": 5, **ALL, "G": 3},
        {"B": 1, "L": 129, "D": 64, "N": 256, **ALL},
        {"B": 2, "L": 1023, "D": 40, "N": 16, "dtype": "bfloat16"},
        {"B": 2, "L": 257, "D": 256, "N": 64, **ALL, "G": 2, "dtype": "bfloat16"},
        {"B": 3, "L": 31, "D": 33, "N": 5, **BLOCK, "dtype": "bfloat16"},
    ],
}


class Bench:
    """An evaluator for one family, kept for all of its problems."""

    def __init__(self, name: str, folder: Path) -> None:
        self.loaded: LoadedFamily = load_family(name)
        self.builder = Builder(self.loaded, find_toolchain(read_settings()), folder / "cache")
        self.evaluator = CudaEvaluator(self.loaded, self.builder, log_dir=folder / "logs")

    def measure(self, problem: Problem, points: list, effort: Effort = Effort.SEARCH) -> list[Measurement]:
        family = self.loaded.family
        requests = [Request(i, make_variant(family, p, problem), problem, effort) for i, p in enumerate(points)]
        return sorted(self.evaluator.evaluate(requests), key=lambda m: m.trial)

    def close(self) -> None:
        self.evaluator.close()
        self.builder.close()


def hard_problems(family: Family) -> list[Problem]:
    dimensions = [size.name for size in family.sizes if size.default is None]
    found = [family.problem(**dict(zip(dimensions, sizes, strict=True))) for sizes in HARD_SIZES[family.name]]
    for given in HARD_OPTIONS.get(family.name, []):
        sizes = {name: size for name, size in given.items() if name != "dtype"}
        found.append(family.problem_of(sizes, str(given.get("dtype", ""))))  # type: ignore[arg-type]
    return found


@pytest.fixture(params=shipped_families())
def bench(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Bench]:
    """For one test: until it is closed, no other process can measure."""
    made = Bench(request.param, tmp_path / "bench")
    yield made
    made.close()


def test_sampled_configurations_are_right_at_hard_sizes(bench: Bench) -> None:
    family = bench.loaded.family
    rng = random.Random(11)
    for problem in hard_problems(family):
        space = Space(family, [problem])
        points = [space.default, *(space.sample(rng) for _ in range(SAMPLED))]
        points += [next(p for p in space if p["algorithm"] == a) for a in {p["algorithm"] for p in space.points}]
        for m in bench.measure(problem, points):
            expected = family.expected_wrong(m.variant.configuration)
            allowed = {Status.OK, Status.CULLED} if not expected else {Status.OK, Status.CULLED, Status.WRONG}
            name = configuration_id(family, m.variant.configuration)
            assert m.status in allowed, f"{name} at {problem.label}: {m.status} {m.detail}"


def test_the_export_of_a_variant_runs_in_a_program_without_ktune(bench: Bench, tmp_path: Path) -> None:
    sys.path.insert(0, str(Path(__file__).parent.parent / "output"))
    from driver import build_program, run_program, write_case

    family = bench.loaded.family
    problem = bench.loaded.named_problems["small"]
    library = ("cublas", "cublas_epilogue", "bf16_gemm")
    fused = [p for p in Space(family, [problem]).points if p["algorithm"] not in library]
    (m,) = bench.measure(problem, [random.Random(3).choice(fused)], Effort.FULL)
    winner = Winner(bench.loaded, Finding(m), "pytest")
    build_program(winner, tmp_path)
    write_case(winner, tmp_path, seed=5)
    print(run_program(tmp_path))
