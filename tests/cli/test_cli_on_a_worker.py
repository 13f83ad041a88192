"""The commands through the real evaluator: nvcc, ninja, the cache, a worker process; only the GPU is pretended."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.gpu.nvml import GpuInfo

pytestmark = pytest.mark.build

H200 = GpuInfo(0, "Fake H200", "GPU-00000000-fake", "580.65", "13.0", (9, 0), 140 << 30, 139 << 30, 700.0, 0)


@pytest.fixture
def machine(bare: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A machine whose driver and GPU are pretended, up to the worker's backend."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).resolve().parents[1]))
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [H200])
    monkeypatch.setattr("ktune.gpu.nvml._torch_cuda", lambda: "13.0")
    monkeypatch.setattr("ktune.cli.gpu_evaluator.GpuEvaluator.backend", "fake_backend:fake_backend")
    return bare


def test_a_search_builds_measures_and_exports(machine: Terminal, toy: Path, own_cache: Path) -> None:
    found = json.loads(machine("search", toy, "--set", "block_size=64,128", "--trials", "6", "--json"))
    assert set(found["counts"]) <= {"ok", "culled"} and 6 <= sum(found["counts"].values()) <= 15
    assert found["stats_s"]["total"] > 0
    folder = machine.folder / "results" / "toy-N1048576-Fake-H200"
    winner = json.loads((folder / "best.json").read_text())
    assert winner["build"]["registers"] > 0 and winner["target"] == "sm_90a"
    assert list(own_cache.glob("builds/*/*/kernel.cubin")) and list((folder / "logs").iterdir())
    assert "GPU idle for builds" in machine.err


def test_a_kernel_that_changed_is_measured_anew(machine: Terminal, toy: Path) -> None:
    shutil.copytree(toy, machine.folder / "mine")
    words = ("search", "./mine", "--set", "algorithm=simple", "--set", "fast_math=0", "--trials", "3", "--seed", "1")
    machine(*words)
    source = machine.folder / "mine" / "toy.cu"
    source.write_text(source.read_text().replace("2.0f * x[i]", "x[i] + x[i]"))
    out = machine(*words)
    assert "new study: the kernel's source, flags or compiler changed" in machine.err
    assert re.search(r"(\d+) variants: \1 ok", out) and "3/3" in machine.err and "taken over" not in machine.err


def test_verify_builds_and_verifies(machine: Terminal, toy: Path) -> None:
    assert "2 variants: all as expected" in machine("verify", toy, "simple.block_32.items_1.fast_math_0",
                                                    "simple.block_64.items_2.fast_math_1")  # fmt: skip


def test_bench_races_in_workers_and_leaves_out_a_peer_that_kills_them(machine: Terminal, toy: Path) -> None:
    shutil.copytree(toy, machine.folder / "mine")
    peer = 'Peer("{0}", lambda: None, lambda problem, inputs: None)'
    peers = ", ".join(peer.format(name) for name in ("aborts", "wrong", "plain"))
    (machine.folder / "mine" / "peers.py").write_text(f"from ktune.api import Peer\n\nPEERS = ({peers})\n")
    words = ("simple.block_64.items_1.fast_math_0", "--problem", "small", "--json")
    found = json.loads(machine("bench", "./mine", *words))
    assert found["environment"]["gpu_name"] == "Fake H200" and found["processes"] == 2
    verdicts = {row["name"]: (row["status"], len(row["processes"])) for row in found["rows"]}
    first = found["rows"][0]
    assert verdicts.pop(first["name"]) == ("ok", 2) and first["configuration"]["block_size"] == 64
    assert verdicts == {"default": ("ok", 2), "plain": ("ok", 2), "wrong": ("wrong", 2), "aborts": ("crashed", 2)}
    assert all(process["cold"]["samples_us"] for process in first["processes"])
