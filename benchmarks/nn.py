"""End-to-end times of the drop-in modules beside the eager modules that they replace.

    python benchmarks/nn.py [--output FILE.json]

One GPU, one process, in turn, L2 flushed before each sample, by event pairs: the selective scan layer with its
projections at d_model 256, d_state 16, batch 16, length 2048, and linear + swish + scale at 32768 x 32768, batch 128.
The projections are those of torch (three products and softplus) or ktune's kernel, whichever won its search: the
configurations are printed.
Times are of the call as a user makes it; where the host can't launch ahead of the GPU, launch gaps count and the row
says so. The same layer as a replayed CUDA graph has none. Outputs are compared with the eager module's first.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import ktune.nn
from ktune.gpu.backend import uuid_of
from ktune.gpu.cuda_timer import CudaTimer
from ktune.gpu.nvml import Sensor
from ktune.gpu.timing import Pace

ROUNDS = 6
SAMPLES = 10
EAGER_SCAN_SAMPLES = 2

Run = Callable[[], Any]


class EagerScan(nn.Module):
    """The layer as PyTorch users write it, with the parameters of `ktune.nn.SelectiveScan`."""

    def __init__(self, layer: ktune.nn.SelectiveScan) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        layer = self.layer
        delta = F.softplus(layer.proj_delta(x))
        b, c = layer.proj_B(x), layer.proj_C(x)
        decay = torch.exp(delta[..., None] * -torch.exp(layer.A_log))
        driven = (delta * x)[..., None] * b[:, :, None, :]
        state = torch.zeros_like(decay[:, 0])
        rows = []
        for t in range(x.shape[1]):
            state = decay[:, t] * state + driven[:, t]
            rows.append((state * c[:, t, None, :]).sum(-1))
        return torch.stack(rows, 1) + x * layer.D


def graphed(run: Run) -> Run:
    """The call as one CUDA graph."""
    run()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        run()
    return partial(replay, graph, run)


def replay(graph: torch.cuda.CUDAGraph, run: Run) -> None:
    """run: what was captured; it holds the tensors that the graph reads, which the graph does not keep alive."""
    graph.replay()


def scan_runs() -> tuple[str, dict[str, Run]]:
    torch.manual_seed(0)
    layer = ktune.nn.SelectiveScan(256, 16, batch=16, seq_len=2048, device="cuda")
    of_torch = ktune.nn.SelectiveScan(256, 16, tuned_projections=False, device="cuda")
    of_torch.load_state_dict(layer.state_dict())
    scan_identity = layer.prepare()
    projections_identity = ktune.nn.prepare("projections", R=16 * 2048, P=256, S=16, K=256)
    algorithm = projections_identity.split(".")[0]
    tuned = "cuBLAS and one kernel for" if algorithm == "cublas" else "split-precision"
    x = torch.randn(16, 2048, 256, device="cuda")
    delta, b, c = layer._project(x)
    scan = partial(ktune.nn.selective_scan, x, delta, -torch.exp(layer.A_log), b, c, layer.D)
    eager = EagerScan(layer)
    expected = eager(x)
    torch.testing.assert_close(of_torch(x), expected, rtol=1e-4, atol=1e-4)
    error = ((layer(x) - expected).abs() / (1e-4 + 1e-4 * expected.abs())).max()
    tuned = f"(error {error:.2f} of 1e-4) {tuned}"
    runs: dict[str, Run] = {
        "eager": partial(eager, x),
        "ktune, projections of torch": partial(of_torch, x),
        "ktune, projections of torch, graph": graphed(partial(of_torch, x)),
        f"ktune, {tuned} projections": partial(layer, x),
        f"ktune, {tuned} projections, graph": graphed(partial(layer, x)),
        "of it: projections of torch, graph": graphed(partial(of_torch._project, x)),
        f"of it: {tuned} projections, graph": graphed(partial(layer._project, x)),
        "of it: scan, graph": graphed(scan),
    }
    return f"{projections_identity}, {scan_identity}", runs


def linear_runs() -> tuple[str, dict[str, Run]]:
    layer = ktune.nn.LinearSwishScale(32768, 32768, 2.0, device="cuda")
    identity = layer.prepare(128)
    x = torch.randn(128, 32768, device="cuda")

    def eager() -> torch.Tensor:
        z = layer.matmul(x)
        return z * torch.sigmoid(z) * layer.scale

    torch.testing.assert_close(layer(x), eager(), rtol=2e-4, atol=2e-4)
    runs: dict[str, Run] = {"eager": eager, "ktune": partial(layer, x), "ktune, graph": graphed(partial(layer, x))}
    return identity, runs


def time_in_turn(timer: CudaTimer, runs: dict[str, Run]) -> dict[str, dict[str, Any]]:
    """Cold median of each and the quartiles of its samples, microseconds."""
    samples: dict[str, list[float]] = {name: [] for name in runs}
    methods: dict[str, str] = {}
    paces = {name: Pace() for name in runs}
    for _ in range(ROUNDS):
        for name, run in runs.items():
            timer.bind(run, paces[name])
            slow = samples[name] and samples[name][-1] > 50_000
            samples[name] += timer.cold(EAGER_SCAN_SAMPLES if slow else SAMPLES).samples_us
            methods[name] = timer.method("cold", 1)
    found = {}
    for name, taken in samples.items():
        q1, median, q3 = statistics.quantiles(taken, n=4)
        found[name] = {"us": median, "q1_us": q1, "q3_us": q3, "samples": len(taken), "method": methods[name]}
    return found


def show(title: str, identity: str, rows: dict[str, dict[str, Any]]) -> None:
    print(f"{title}\n  kernels {identity}")
    eager = rows["eager"]["us"]
    for name, row in rows.items():
        gaps = "  with launch gaps" if "host-bound" in row["method"] else ""
        spread = f"[{row['q1_us']:.1f}, {row['q3_us']:.1f}]"
        print(f"  {name:<58}{row['us']:>10.1f} us  {spread}  {eager / row['us']:.1f}x{gaps}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    device = torch.device("cuda", 0)
    timer = CudaTimer(device, Sensor(uuid_of(device)))
    found: dict[str, Any] = {"gpu": torch.cuda.get_device_name(device), "torch": torch.__version__}
    layers = {
        "SelectiveScan(256, 16), x [16, 2048, 256]": scan_runs,
        "LinearSwishScale(32768, 32768), x [128, 32768]": linear_runs,
    }
    with torch.no_grad():
        for title, make in layers.items():
            identity, runs = make()
            rows = time_in_turn(timer, runs)
            show(title, identity, rows)
            found[title] = {"kernel": identity, "rows": rows}
            del runs
            torch.cuda.empty_cache()
    if options.output:
        options.output.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
