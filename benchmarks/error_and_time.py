"""Error and time of every kind of matrix product of linear + swish + scale, the wrong ones included.

    python benchmarks/error_and_time.py [--output FOLDER]

One GPU, one process, at the shape of record, x from N(0, 1) and from U[0, 1): cuBLAS in fp32 and TF32, `simt`, and each
kind of operands of `wgmma` with each promotion interval. Each output is compared with float64 by the three rules of the
family; cold medians are of samples taken in turn, in rounds, L2 flushed and the GPU rested before each ten. Writes
error_and_time.json and error_and_time.html. Takes less than two minutes, most of it builds.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path

import torch
from error_page import KINDS, MEASURED, Point, error_page
from linear_stress import FAMILY, LOADED, REFERENCE, Subject, Tensors, executables

from ktune.checks.compare import compare, explain
from ktune.core.model import Accuracy, Timing, Value
from ktune.core.space import Space
from ktune.gpu.backend import floor_us, uuid_of
from ktune.gpu.cuda_timer import CudaTimer
from ktune.gpu.nvml import Sensor
from ktune.gpu.timing import SHORT_REST_S, Reading, refusal, summarise
from ktune.output.rounding import microseconds

ROUNDS = 3
SAMPLES = 10
SEED = 11
# The longest ring that fits beside the tiles of x.
RINGS = {"tf32x3": 4}
RING = 7


def subjects() -> Iterator[tuple[Subject, int | None]]:
    """(configuration, its promotion interval)."""
    problem = LOADED.named_problems["record"]
    # without rules: intervals that are too long are measured, too
    space = Space(replace(FAMILY, rules=()), [problem])
    cublas: dict[str, Value] = {"algorithm": "cublas_epilogue", "vector_width": 4}
    chosen: list[tuple[str, dict[str, Value], int | None]] = [
        ("cuBLAS fp32", {**cublas, "scheme": "fp32"}, None),
        ("cuBLAS TF32", {**cublas, "scheme": "tf32"}, None),
        ("simt fp32", {"algorithm": "simt", "tm": 16, "stages": 1, "vector_width": 4}, None),
    ]
    for operands in FAMILY.parameter("operands").values:
        for promote_k in FAMILY.parameter("promote_k").values:
            ring = RINGS.get(str(operands), RING)
            values = {"algorithm": "wgmma", "operands": operands, "promote_k": promote_k, "ring": ring}
            chosen.append((str(operands), values, int(promote_k)))
    for name, values, promote in chosen:
        yield Subject(name, space.complete(values), problem), promote


def judged(run: Callable[[], None], y: torch.Tensor, truth: torch.Tensor, bound: torch.Tensor) -> tuple[Accuracy, str]:
    """The errors of one run on a poisoned output, and why they are too large."""
    y.fill_(torch.nan)
    run()
    accuracy = compare(y, truth, FAMILY.tolerance, bound=bound, output="y")
    return accuracy, explain(accuracy, FAMILY.tolerance)


def timed(timer: CudaTimer, runs: Sequence[Callable[[], None]], least_us: float) -> list[Timing]:
    """The cold time of each, in turn."""
    samples: list[list[float]] = [[] for _ in runs]
    for _ in range(ROUNDS):
        for taken, run in zip(samples, runs, strict=True):
            torch.cuda.synchronize()
            time.sleep(SHORT_REST_S)
            timer.bind(run)
            taken += timer.cold(SAMPLES).samples_us
    for taken in samples:
        reason = refusal(taken, least_us)
        assert not reason, reason
    return [summarise("cold", timer.method("cold", 1), Reading(tuple(taken))) for taken in samples]


def measure() -> list[Point]:
    """Of every subject on every kind of inputs."""
    device = torch.device("cuda", 0)
    timer = CudaTimer(device, Sensor(uuid_of(device)))
    wanted = list(subjects())
    loaded = list(executables([subject for subject, _ in wanted]))
    problem = wanted[0][0].problem
    least_us = floor_us(FAMILY, problem, torch.cuda.get_device_name(device))
    y = torch.empty(problem["M"], problem["N"], device=device)
    points = []
    given: Tensors = {}
    for kind in KINDS:
        given.clear()
        given.update(REFERENCE.inputs(problem, SEED, kind, device=str(device)))
        truth, bound = REFERENCE.reference(problem, given)["y"], REFERENCE.bound(problem, given)["y"]
        tensors = {**given, "y": y}
        runs = [partial(run, tensors) for _, run in loaded]
        verdicts = [judged(run, y, truth, bound) for run in runs]
        for (subject, promote), (accuracy, reason), cold in zip(
            wanted, verdicts, timed(timer, runs, least_us), strict=True
        ):
            points.append(point_of(subject.name, promote, kind, accuracy, reason, cold))
            print(line_of(points[-1]), flush=True)
    return points


def point_of(name: str, promote: int | None, kind: str, accuracy: Accuracy, reason: str, cold: Timing) -> Point:
    assert accuracy.bound_ratio is not None
    return Point(
        name, promote, kind, cold.median_us, cold.ci_low_us, cold.ci_high_us,
        accuracy.worst_ratio, accuracy.bound_ratio, accuracy.normwise / FAMILY.tolerance.normwise, reason,
    )  # fmt: skip


def line_of(point: Point) -> str:
    errors = f"{point.elementwise:9.3g} {point.componentwise:9.3g} {point.normwise:9.3g}"
    interval = "" if point.promote_k is None else f"{point.promote_k:,}"
    name = f"{point.inputs:<8} {point.scheme:<12} {interval:>7}"
    return f"{name} {microseconds(point.time_us):>8} us  {errors}  {'WRONG' if point.reason else 'right'}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=Path())
    options = parser.parse_args()
    print(f"{'inputs':<8} {'product':<12} {'every':>7} {'cold':>11}  elementwise, componentwise, normwise / allowed")
    began = time.monotonic()
    with torch.no_grad():
        points = measure()
    problem = LOADED.named_problems["record"]
    facts = {
        "problem": problem.label,
        "GPU": torch.cuda.get_device_name(0),
        "torch": f"{torch.__version__} (CUDA {torch.version.cuda})",
        "on": time.strftime("%Y-%m-%d"),
    }
    options.output.mkdir(parents=True, exist_ok=True)
    record = {"source": MEASURED, "facts": facts, "points": [asdict(point) for point in points]}
    (options.output / "error_and_time.json").write_text(json.dumps(record, indent=1) + "\n")
    page = error_page(points, facts, MEASURED, problem["K"])
    (options.output / "error_and_time.html").write_text(page, encoding="utf-8")
    right = [point for point in points if not point.reason]
    best = min(right, key=lambda point: point.time_us)
    print(
        f"{len(points)} points, {len(points) - len(right)} wrong, in {time.monotonic() - began:.0f} s; fastest right: "
        f"{best.scheme} every {best.promote_k} {microseconds(best.time_us)} us; wrote error_and_time.json and .html"
    )


if __name__ == "__main__":
    main()
