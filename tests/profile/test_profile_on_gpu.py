"""On a real GPU: peaks are plausible, and the bound of each calibration problem is what it was made to be."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from ktune.cli.main import app
from ktune.core.settings import read_settings
from ktune.gpu.nvml import reason_no_gpu
from ktune.profile.tools import find_ncu

NO_GPU = reason_no_gpu()
pytestmark = [
    pytest.mark.gpu,
    pytest.mark.build,
    pytest.mark.skipif(bool(NO_GPU), reason=f"needs a CUDA GPU: {NO_GPU}"),
]

NO_NCU = find_ncu(read_settings()) is None

# {problem: (configuration, its bound)}
EXPECTED = {
    "copy": ("block_256.items_4", "memory"),
    "fma": ("block_256.items_1", "fp32"),
    "ex2": ("block_256.items_1", "special functions"),
    "chain": ("block_256.items_1", "latency"),
    "tiny": ("block_128.items_1", "launch overhead"),
}


@pytest.fixture(scope="module")
def shared_cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One cache for all of these tests, so that the peaks are measured once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(shared_cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("KTUNE_CACHE_DIR", str(shared_cache))
    monkeypatch.chdir(tmp_path)
    return shared_cache


def profiled(*words: str | Path) -> dict[str, Any]:
    result = CliRunner().invoke(app, ["profile", *map(str, words), "--json"])
    assert result.exit_code == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


@pytest.mark.parametrize("problem", EXPECTED)
def test_the_bound_of_a_calibration_problem_is_right_without_counters(families: Path, problem: str) -> None:
    configuration, expected = EXPECTED[problem]
    found = profiled(families / "calibration", configuration, "--problem", problem, "--no-counters")
    assert found["time"]["status"] == "ok", found["time"]
    assert found["bound"]["kind"] == expected, json.dumps(found, indent=1)


@pytest.mark.skipif(NO_NCU, reason="needs ncu")
@pytest.mark.parametrize("problem", EXPECTED)
def test_the_bound_of_a_calibration_problem_is_right_with_counters(families: Path, problem: str) -> None:
    configuration, expected = EXPECTED[problem]
    found = profiled(families / "calibration", configuration, "--problem", problem)
    counters = found["counters"]
    if isinstance(counters, dict):
        assert counters["missing"].startswith("ncu: this user may not read"), counters
        pytest.skip(counters["missing"])
    assert [kernel["kernel"] for kernel in counters] == ["calibration"]
    assert found["bound"]["kind"] == expected, json.dumps(found, indent=1)


def test_peaks_are_within_what_a_gpu_can_be(families: Path) -> None:
    peaks = profiled(families / "toy", "--no-counters")["peaks"]
    assert 100 < peaks["copy_gbps"] < 20_000
    assert 0.8 < peaks["read_gbps"] / peaks["copy_gbps"] < 1.3
    assert 1_000 < peaks["fp32_gflops"] < 300_000
    # an SM does 16 special functions and 64 or 128 multiply-adds a clock
    assert 6 < peaks["fp32_gflops"] / peaks["special_gops"] < 20
    assert peaks["tensor_gflops"] > peaks["fp32_gflops"]
    assert 0.5 < peaks["launch_us"] < 20
    assert 1.0 < peaks["chain_ns"] < 10


def test_the_driver_grants_what_the_rules_say(families: Path) -> None:
    for family, options in (
        ("selective_scan", ("--set", "algorithm=staged")),
        ("selective_scan", ("--set", "algorithm=direct")),
        ("linear_swish_scale", ("--problem", "batch128-4096x4096", "--set", "algorithm=simt")),
        (families / "toy", ()),
    ):
        found = profiled(family, *options, "--no-counters")
        for step, seen in zip(found["steps"], found["device"]["steps"], strict=True):
            assert step["occupancy"]["blocks"] == seen["blocks_per_sm"], step


def test_a_plan_with_a_torch_operation_has_a_time_for_each_step_and_counters_of_all_kernels() -> None:
    found = profiled("linear_swish_scale", "--problem", "batch128-4096x4096")
    operation, epilogue = found["device"]["steps"]
    assert operation["blocks_per_sm"] is None
    assert operation["hot_us"] > 0
    assert epilogue["hot_us"] > 0
    assert found["device"]["steady"]["executions"] > 100
    if isinstance(found["counters"], list):
        assert any(kernel["kernel"] == "epilogue" for kernel in found["counters"])
        assert len(found["counters"]) >= 2


def test_the_steady_state_is_read_while_the_plan_runs(families: Path) -> None:
    steady = profiled(families / "calibration", "--problem", "fma", "--no-counters")["device"]["steady"]
    assert steady["sm_clock_mhz"] > 500
    assert steady["power_w"] > 50
    assert steady["energy_per_launch_mj"] is None or steady["energy_per_launch_mj"] > 0
