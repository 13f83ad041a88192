"""Rebuild an exported winner in fresh processes, time each, and say how far their medians are apart.

    python benchmarks/rebuild_winner.py best.json [--processes 10] [--output FILE.json]

Every process starts from an empty build cache: it reads the JSON, compiles the variant, verifies it and times it by the
full protocol, twice. The noise floor is the largest difference between the two medians of one process.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any


def measure(path: Path) -> dict[str, Any]:
    """Build, verify and time the winner of `path` in this process and its worker; microseconds."""
    from ktune.build.builder import Builder
    from ktune.build.toolchain import find_toolchain
    from ktune.core.model import Effort, Request
    from ktune.core.settings import read_settings
    from ktune.core.variant import make_variant
    from ktune.gpu.cuda_evaluator import CudaEvaluator
    from ktune.output.winner import load_winner

    loaded, problem, configuration = load_winner(path)
    variant = make_variant(loaded.family, configuration, problem)
    settings = read_settings()
    with Builder(loaded, find_toolchain(settings), settings.cache_dir) as builder:
        evaluator = CudaEvaluator(loaded, builder, log_dir=settings.cache_dir / "logs")
        try:
            found = list(evaluator.evaluate([Request(i, variant, problem, Effort.FULL) for i in range(2)]))
        finally:
            evaluator.close()
    timings = [(m.cold, m.hot) for m in found]
    return {
        "status": [str(m.status) for m in found],
        "cold_us": [cold.median_us if cold else None for cold, _ in timings],
        "hot_us": [hot.median_us if hot else None for _, hot in timings],
        "sm_clock_mhz": [cold.sm_clock_mhz if cold else None for cold, _ in timings],
        "throttle": [list(cold.throttle) if cold else None for cold, _ in timings],
    }


def measure_afresh(path: Path) -> dict[str, Any]:
    """`measure` in a process of its own, with a cache of its own."""
    with tempfile.TemporaryDirectory(prefix="ktune-rebuild-") as cache:
        environment = {**os.environ, "KTUNE_CACHE_DIR": cache}
        command = [sys.executable, __file__, str(path), "--one"]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"a process ended with {done.returncode}: {done.stderr[-2000:]}")
    row: dict[str, Any] = json.loads(done.stdout)
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("winner", type=Path)
    parser.add_argument("--processes", type=int, default=10)
    parser.add_argument("--output", type=Path)
    parser.add_argument("--one", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.winner)))
        return
    rows = []
    for number in range(options.processes):
        rows.append(measure_afresh(options.winner))
        print(f"process {number + 1}: {rows[-1]}", flush=True)
    firsts = [row["cold_us"][0] for row in rows]
    center = statistics.median(firsts)
    spread = (max(firsts) - min(firsts)) / center
    floor = max(abs(a - b) / center for a, b in (row["cold_us"] for row in rows))
    print(
        f"{len(rows)} processes: cold median {center:.2f} us, from {min(firsts):.2f} to {max(firsts):.2f} "
        f"({spread:.2%} apart); within a process {floor:.2%}"
    )
    if options.output:
        summary = {"median_us": center, "spread": spread, "within_process": floor, "processes": rows}
        options.output.write_text(json.dumps(summary, indent=1) + "\n")


if __name__ == "__main__":
    main()
