"""The scans that are parallel over time beside the sequential one, where pairs are few: measured beside predicted.

    python benchmarks/parallel_scans.py [--problem NAME ...] [--output FOLDER]

Every configuration is built, verified against the float64 reference and timed with cold L2 as in a search. The table's
rows are the fastest of each algorithm; FOLDER/parallel_scans.csv has all. Predictions are those of the family's README.
"""

from __future__ import annotations

import argparse
import csv
import itertools
from pathlib import Path
from typing import Any

from ktune.build.builder import Builder
from ktune.build.toolchain import find_toolchain
from ktune.core.identity import configuration_id
from ktune.core.loading import load_family
from ktune.core.model import Configuration, Measurement, Problem, Request, Status
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.cuda_evaluator import CudaEvaluator

LOADED = load_family("selective_scan")
FAMILY = LOADED.family
# Microseconds: the predicted rows of the README's section "Few pairs".
PREDICTED: dict[str, dict[str, str]] = {
    "long": {"piped": "1700", "chunked": "950-1050", "blockscan": "800-1000"},
    "mamba-130m-b1-l2048": {"piped": "54-57", "chunked": "33-38", "blockscan": "26-31"},
    "b1-l2048-d2560": {"piped": "54-57", "chunked": "50-56", "blockscan": "48-56"},
    "mamba-2.8b-b1-l2048": {"piped": "57-65", "chunked": "-", "blockscan": "80-95"},
    "mamba-130m-b1-l512": {"piped": "16-19", "chunked": "14-18", "blockscan": "9-12"},
    "record": {"piped": "56", "chunked": "65-72", "blockscan": "65-75"},
}
PATIENCE = 100.0
SHARED = {"exp": "ex2", "reduction": "shared", "helpers": 4}
PAIRS: tuple[dict[str, Any], ...] = (
    {"threads_per_pair": 4, "block_size": 128, "tile_l": 64, "stages": 3, "unroll": 16},
    {"threads_per_pair": 4, "block_size": 128, "tile_l": 32, "stages": 2, "unroll": 4, "min_blocks": 2},
    {"threads_per_pair": 2, "block_size": 64, "tile_l": 32, "stages": 2, "unroll": 4},
    {"threads_per_pair": 2, "block_size": 64, "tile_l": 32, "stages": 2, "unroll": 4, "min_blocks": 2},
    {"threads_per_pair": 2, "block_size": 128, "tile_l": 32, "stages": 2, "unroll": 4},
    {"threads_per_pair": 8, "block_size": 256, "tile_l": 32, "stages": 3, "unroll": 4},
)
BLOCKS = [
    {"channels": channels, "lane_channels": lanes, "time_warps": warps, "items": items, "states_at_once": states}
    for channels, lanes, warps, items, states in itertools.product(
        (8, 12, 16), (2, 4, 8), (1, 2, 4, 8), (4, 8, 16), (2, 4)
    )
]


def choices() -> list[dict[str, Any]]:
    """What is tried, for each problem as far as its rules allow."""
    piped = [{"algorithm": "piped", **SHARED, **pair} for pair in PAIRS]
    chunked = [{**choice, "algorithm": "chunked", "chunks": c} for choice in piped for c in (2, 4, 8, 16, 32)]
    scans = [
        {"algorithm": "blockscan", "vector_width": 4, "exp": "ex2", "min_blocks": blocks, **choice}
        for choice in BLOCKS
        for blocks in (1, 2)
    ]
    return [*piped, *chunked, *scans]


def complete(choice: dict[str, Any]) -> Configuration:
    """The choice and the defaults of the other parameters that exist beside it."""
    chosen: dict[str, Any] = {}
    for parameter in FAMILY.parameters:
        if all(chosen.get(name) in values for name, values in (parameter.when or {}).items()):
            chosen[parameter.name] = choice.get(parameter.name, parameter.default)
    return Configuration(tuple(chosen.items()))


def problem_of(name: str) -> Problem:
    named = LOADED.named_problems.get(name)
    return named or FAMILY.problem(B=1, L=2048, D=2560, N=16)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--problem", action="append", choices=list(PREDICTED))
    parser.add_argument("--output", type=Path, default=Path("parallel_scans"))
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    rows: list[list[object]] = []
    with Builder(LOADED, find_toolchain(read_settings()), given.output / "cache") as builder:
        evaluator = CudaEvaluator(LOADED, builder, log_dir=given.output / "logs")
        try:
            for name in given.problem or PREDICTED:
                rows += measure(evaluator, name)
        finally:
            evaluator.close()
    with (given.output / "parallel_scans.csv").open("w", newline="") as file:
        csv.writer(file).writerows([["problem", "algorithm", "status", "cold_us", "registers", "configuration"], *rows])
    print_table(rows)


def measure(evaluator: CudaEvaluator, name: str) -> list[list[object]]:
    """One row for each valid choice."""
    problem = problem_of(name)
    space = Space(FAMILY, [problem])
    points = [point for point in map(complete, choices()) if space.broken_rule(point) is None]
    # None is cut short for being slower than another algorithm's.
    requests = [
        Request(i, make_variant(FAMILY, point, problem), problem, patience=PATIENCE) for i, point in enumerate(points)
    ]
    found = list(evaluator.evaluate(iter(requests)))
    return [row_of(name, m) for m in found]


def row_of(name: str, m: Measurement) -> list[object]:
    point = m.variant.configuration
    registers = "" if m.build is None else m.build.registers
    return [name, point["algorithm"], m.status.value, m.cold_us, registers, configuration_id(FAMILY, point)]


def print_table(rows: list[list[object]]) -> None:
    print(f"{'problem':<20}  {'algorithm':<9}  {'right':>5}  {'wrong':>5}  {'predicted':>9}  {'us':>8}  configuration")
    for name, algorithms in PREDICTED.items():
        for algorithm, predicted in algorithms.items():
            of_it = [row for row in rows if row[:2] == [name, algorithm]]
            if not of_it:
                continue
            right = [row for row in of_it if row[2] == Status.OK and row[3] is not None]
            wrong = sum(row[2] in (Status.WRONG, Status.UNSTABLE, Status.CRASHED) for row in of_it)
            best, fastest = min(((float(str(row[3])), str(row[5])) for row in right), default=(float("nan"), "-"))
            counts = f"{len(right):>5}  {wrong:>5}"
            print(f"{name:<20}  {algorithm:<9}  {counts}  {predicted:>9}  {best:>8.1f}  {fastest}")


if __name__ == "__main__":
    main()
