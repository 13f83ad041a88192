"""What the epilogue of `cublas_epilogue` costs: beside the bare GEMM, and by itself against a copy.

    python benchmarks/epilogue.py [--output FILE.json]

All on one GPU in one process, interleaved, L2 flushed before each sample: the GEMM at M=128, N=K=32768 with and without
the epilogue kernel; the epilogue alone on an 8192 x 8192 product, and a device-to-device copy of the same size, both as
bytes read and written over time. Every epilogue's result is compared with PyTorch's first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from ktune.api import KernelLaunch
from ktune.build.builder import Builder
from ktune.build.toolchain import find_toolchain
from ktune.core.loading import load_family
from ktune.core.model import Problem
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.backend import uuid_of
from ktune.gpu.cuda_timer import CudaTimer
from ktune.gpu.driver import BoundLaunch, Module
from ktune.gpu.nvml import Sensor

LOADED = load_family("linear_swish_scale")
FAMILY = LOADED.family
GEMM = LOADED.module("operations").gemm
CHOICES = [
    {"block_size": block, "items": items, "vector_width": 4, "fast_math": True}
    for block in (128, 256, 512)
    for items in (1, 2, 4, 8)
]
ROUNDS = 6
SAMPLES = 10


def epilogue_launches(problem: Problem, builder: Builder) -> list[tuple[str, Module, KernelLaunch]]:
    """The epilogue kernel of every choice, loaded, as its plan launches it for `problem`."""
    space = Space(FAMILY, [problem])
    points = [space.complete({"algorithm": "cublas_epilogue", **choice}) for choice in CHOICES]
    by_variant = {make_variant(FAMILY, point, problem): point for point in points}
    found = []
    for result in builder.build(list(by_variant)):
        assert result.cubin is not None, result.detail
        point = by_variant[result.variant]
        launch = next(x for x in FAMILY.plan(point, problem).launches if isinstance(x, KernelLaunch))
        name = f"block {point['block_size']}, items {point['items']}"
        found.append((name, Module(result.cubin), launch))
    return found


def bind(module: Module, launch: KernelLaunch, y: torch.Tensor, bias: torch.Tensor) -> BoundLaunch:
    return BoundLaunch(module.kernel(launch.kernel), launch, {"y": y.data_ptr(), "bias": bias.data_ptr()})


def check(run: Callable[[], None], y: torch.Tensor, z: torch.Tensor, bias: torch.Tensor) -> None:
    y.copy_(z)
    run()
    expected = torch.nn.functional.silu(z + bias) * 2.0
    torch.testing.assert_close(y, expected, rtol=1e-5, atol=1e-6)


def time_in_turn(timer: CudaTimer, runs: dict[str, Callable[[], None]]) -> dict[str, float]:
    """Cold median of each, microseconds, taken in turn."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            timer.bind(run)
            samples[name] += timer.cold(SAMPLES).samples_us
    return {name: statistics.median(taken) for name, taken in samples.items()}


def beside_gemm(timer: CudaTimer, builder: Builder) -> dict[str, Any]:
    problem = LOADED.named_problems["record"]
    given = LOADED.module("reference").inputs(problem, 1, device="cuda")
    y = torch.empty(problem["M"], problem["N"], device="cuda")

    def bare() -> None:
        GEMM(given["x"], given["weight"], y)

    runs: dict[str, Callable[[], None]] = {"bare GEMM": bare}
    for name, module, launch in epilogue_launches(problem, builder):
        epilogue = bind(module, launch, y, given["bias"])
        bare()
        check(epilogue, y, y.clone(), given["bias"])

        def both(epilogue: BoundLaunch = epilogue) -> None:
            bare()
            epilogue()

        runs[name] = both
    times = time_in_turn(timer, runs)
    gemm_us = times.pop("bare GEMM")
    return {"gemm_us": gemm_us, "more_us": {name: us - gemm_us for name, us in times.items()}}


def copy_into(y: torch.Tensor, z: torch.Tensor) -> None:
    y.copy_(z)


def by_itself(timer: CudaTimer, builder: Builder, side: int = 8192) -> dict[str, Any]:
    problem = FAMILY.problem(M=side, N=side, K=4)
    z = torch.randn(side, side, device="cuda")
    bias = torch.randn(side, device="cuda")
    y = torch.empty_like(z)
    runs: dict[str, Callable[[], None]] = {"copy": lambda: copy_into(y, z)}
    for name, module, launch in epilogue_launches(problem, builder):
        runs[name] = bind(module, launch, y, bias)
        check(runs[name], y, z, bias)
    times = time_in_turn(timer, runs)
    moved = 2 * 4 * side * side
    return {name: {"us": us, "gbps": moved / us / 1e3, "of_copy": times["copy"] / us} for name, us in times.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    timer = CudaTimer(device, Sensor(uuid_of(device)))
    settings = read_settings()
    with torch.no_grad(), Builder(LOADED, find_toolchain(settings), settings.cache_dir) as builder:
        found = {"gpu": torch.cuda.get_device_name(device), "beside_gemm": beside_gemm(timer, builder),
                 "alone": by_itself(timer, builder)}  # fmt: skip
    gemm = found["beside_gemm"]
    best, more_us = min(gemm["more_us"].items(), key=lambda item: item[1])
    print(f"bare GEMM {gemm['gemm_us']:.0f} us; the epilogue adds {more_us:.1f} us at best ({best})")
    alone = {name: row for name, row in found["alone"].items() if name != "copy"}
    best, row = max(alone.items(), key=lambda item: item[1]["of_copy"])
    copy = found["alone"]["copy"]
    print(f"copy {copy['gbps']:.0f} GB/s; the epilogue alone {row['gbps']:.0f} GB/s, {row['of_copy']:.0%} ({best})")
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
