"""Time a complete sweep of configs/scan-272.toml, from an empty build cache, process start to exit.

    python benchmarks/scan_272.py [--runs 3] [--output FILE.json]

Each of ktune's runs is a fresh process with a fresh cache and results folder: 272 variants built, each verified at the
measured problem and on two small ones, each timed. Where Kernel Tuner (KernelTuner/kernel_tuner) and CuPy are
installed it sweeps the same kernel source and the same 272 points, with one verification and 7 launches each.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
import tomllib
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
CONFIG = ROOT / "configs" / "scan-272.toml"


def run_ktune() -> dict[str, Any]:
    """One sweep in a fresh process; wall seconds and what the command says of itself."""
    with tempfile.TemporaryDirectory(prefix="ktune-272-") as folder:
        command = [sys.executable, "-m", "ktune", "search", "selective_scan", "--config", str(CONFIG), "--json"]
        environment = {**os.environ, "KTUNE_CACHE_DIR": f"{folder}/cache"}
        started = time.perf_counter()
        done = subprocess.run(
            [*command, "--results", f"{folder}/results"], env=environment, capture_output=True, text=True, check=False
        )
        seconds = time.perf_counter() - started
        if done.returncode != 0:
            sys.exit(f"ktune exited {done.returncode}: {done.stderr[-2000:]}")
        return {"tool": "ktune", "seconds": seconds, "said": json.loads(done.stdout)}


def kernel_tuner_missing() -> str | None:
    for module in ("kernel_tuner", "cupy"):
        if importlib.util.find_spec(module) is None:
            return f"{module} is not installed: pip install kernel_tuner cupy-cuda13x"
    return None


def narrowed() -> dict[str, list[str]]:
    """{parameter: values as text} of the committed space."""
    settings = tomllib.loads(CONFIG.read_text())
    return {item.partition("=")[0]: item.partition("=")[2].split(",") for item in settings["set"]}


def kernel_source() -> str:
    """direct.cu with scan.cuh inlined, its parameters taken from macros, for problem `record`."""
    folder = ROOT / "kernel_variants" / "selective_scan"
    body = (folder / "direct.cu").read_text().replace('#include "scan.cuh"', (folder / "scan.cuh").read_text())
    return (
        "namespace config {\n"
        "enum class Reduction { shuffle, transposed, shared }; constexpr Reduction kReduction = Reduction::shuffle;\n"
        "enum class Exp { expf, exp2f, ex2 }; constexpr Exp kExp = Exp::expf;\n"
        "constexpr int kBlockSize = block_size_x, kThreadsPerPair = threads_per_pair, kPrefetch = prefetch;\n"
        "constexpr int kUnroll = unroll, kVectorWidth = 1; constexpr long long kN = 16, kD = 0;\n"
        "}\n" + body.replace("#pragma once", "")
    )


def run_kernel_tuner() -> dict[str, Any]:
    """One sweep by Kernel Tuner's CuPy back end (NVRTC), in this process; wall seconds of the sweep alone."""
    import kernel_tuner
    import numpy as np

    from ktune.core.loading import load_family

    loaded = load_family("selective_scan")
    problem = loaded.named_problems["record"]
    reference = loaded.module("reference")
    tensors = reference.inputs(problem, seed=1)
    expected = reference.reference(problem, tensors)["y"].numpy()
    given = [tensors[k].numpy() for k in ("x", "delta", "A", "B_t", "C_t", "skip")]
    arguments = [*given, np.zeros(expected.shape, np.float32), np.int32(problem["L"]), np.int32(problem["D"])]
    values = narrowed()
    options = {"0": [], "1": ["--use_fast_math"]}
    started = time.perf_counter()
    results = 0
    for fast_math in values["fast_math"]:
        tuned, _ = kernel_tuner.tune_kernel(
            "selective_scan_direct",
            kernel_source(),
            lambda p: problem["B"] * -(-problem["D"] // (p["block_size_x"] // p["threads_per_pair"])),
            arguments,
            {
                "block_size_x": [int(v) for v in values["block_size"]],
                "threads_per_pair": [int(v) for v in values["threads_per_pair"]],
                "prefetch": [int(v) for v in values["prefetch"]],
                "unroll": [int(v) for v in values["unroll"]],
            },
            restrictions=["block_size_x // threads_per_pair >= 8"],
            grid_div_x=[],
            answer=[None] * 6 + [expected, None, None],
            atol=1e-3,
            lang="cupy",
            compiler_options=["--std=c++17", *options[fast_math]],
            iterations=7,
            quiet=True,
        )
        results += len(tuned)
    return {"tool": "Kernel Tuner", "seconds": time.perf_counter() - started, "points": results,
            "version": kernel_tuner.__version__}  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    rows = []
    for number in range(options.runs):
        row = run_ktune()
        rows.append(row)
        print(f"ktune run {number + 1}: {row['seconds']:.1f} s, {json.dumps(row['said'])[:400]}", flush=True)
    missing = kernel_tuner_missing()
    if missing:
        print(f"Kernel Tuner: {missing}")
    else:
        row = run_kernel_tuner()
        rows.append(row)
        print(f"Kernel Tuner {row['version']}: {row['seconds']:.1f} s for {row['points']} points")
    if options.output:
        options.output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
