"""`ktune doctor` says what is here, what is missing and the way out, on any machine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.cli.machine import TorchBuild, torch_build
from ktune.core.errors import EnvironmentFault
from ktune.gpu.nvml import GpuInfo

H200 = GpuInfo(0, "NVIDIA H200", "GPU-1234", "580.65", "13.0", (9, 0), 140 << 30, 139 << 30, 700.0, 0)


@pytest.fixture
def healthy(bare: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A machine that can search, but for its compiler, which is the one that is really here."""
    from ktune.build.toolchain import Toolchain

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [H200])
    monkeypatch.setattr("ktune.cli.machine.torch_build", lambda: TorchBuild("2.11.0+cu130", "13.0"))
    monkeypatch.setattr("ktune.cli.doctor._gpus_seen_by_torch", lambda: 1)
    monkeypatch.setattr(
        "ktune.build.toolchain.find_toolchain", lambda *_: Toolchain(Path("/cuda/bin/nvcc"), "13.0.88", "PATH")
    )
    monkeypatch.setattr("ktune.build.toolchain.require_target", lambda *_: None)
    monkeypatch.setattr("ktune.build.toolchain.find_ninja", lambda *_: Path("/bin/ninja"))
    monkeypatch.setattr("ktune.cli.doctor.find_gcc", lambda *_: "/usr/bin/gcc")
    return bare


def line(text: str, name: str) -> str:
    return next(x for x in text.splitlines() if x[3:].startswith(name))


def test_a_machine_that_can_search_exits_with_0(healthy: Terminal) -> None:
    out = healthy("doctor")
    assert line(out, "GPU 0") == "ok GPU 0  NVIDIA H200, 139 GiB free, idle, driver 580.65 (CUDA 13.0)"
    assert line(out, "nvcc") == "ok nvcc   13.0.88 from PATH (/cuda/bin/nvcc)"
    assert "runs code of nvcc 13.0.88 for GPU 0 (sm_90a)" in line(out, "driver")
    assert line(out, "torch") == "ok torch  2.11.0+cu130 (CUDA 13.0) sees 1 GPU"
    assert "compilers at once" in line(out, "memory") and "free on its disk" in line(out, "cache")
    assert "!!" not in out


def test_json_is_the_same_findings(healthy: Terminal) -> None:
    found = json.loads(healthy("doctor", "--json"))
    assert {"mark": "ok", "name": "ninja", "text": "/bin/ninja"} in found


def test_no_driver_is_a_fault(healthy: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus() -> list[GpuInfo]:
        raise EnvironmentFault("no NVIDIA driver; install the driver")

    monkeypatch.setattr("ktune.gpu.nvml.gpus", gpus)
    assert line(healthy("doctor", code=3), "GPU") == "!! GPU    no NVIDIA driver; install the driver"


def test_an_old_driver_a_cpu_torch_and_a_missing_nvcc_are_faults(
    healthy: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [replace(H200, driver="550.54", cuda_driver="12.4")])
    assert line(healthy("doctor", code=3), "driver").startswith("!! driver driver 550.54 runs CUDA 12.4")
    monkeypatch.setattr("ktune.cli.machine.torch_build", lambda: TorchBuild("2.13.0+cpu", None))
    assert "2.13.0+cpu is a CPU-only build" in line(healthy("doctor", code=3), "torch")
    monkeypatch.setattr("ktune.cli.machine.torch_build", lambda: None)
    assert "!! torch  not installed" in line(healthy("doctor", code=3), "torch")

    def find_toolchain(*_: object) -> None:
        raise EnvironmentFault("builds need nvcc; install it")

    monkeypatch.setattr("ktune.build.toolchain.find_toolchain", find_toolchain)
    assert line(healthy("doctor", code=3), "nvcc") == "!! nvcc   builds need nvcc; install it"


def test_a_gpu_that_is_not_hopper_says_what_works(healthy: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [replace(H200, name="NVIDIA A100", compute_capability=(8, 0))])
    assert "(sm_80); algorithms with Hopper instructions do not run on it" in line(healthy("doctor"), "driver")


def test_a_busy_gpu_is_said_to_be_noisy(healthy: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [replace(H200, foreign_processes=2)])
    assert "2 other processes: times will be noisy" in line(healthy("doctor"), "GPU 0")


def test_the_installed_torch_is_described_without_importing_it() -> None:
    import torch

    build = torch_build()
    assert build is not None and build.cuda == torch.version.cuda
    # the metadata of a wheel may leave out the local part, `+cu130`
    assert build.version.partition("+")[0] == torch.__version__.partition("+")[0]


def test_the_cache_is_emptied_on_request(bare: Terminal, own_cache: Path) -> None:
    entry = own_cache / "builds" / "ab" / "abcd"
    entry.mkdir(parents=True)
    (entry / "kernel.cubin").write_bytes(bytes(3 << 20))
    assert "3.0 MiB in" in line(bare("doctor", code=3) if not shutil.which("nvidia-smi") else bare("doctor"), "cache")
    assert "removed 3.0 MiB" in bare("doctor", "--clean-cache")
    assert not entry.exists()


@pytest.mark.skipif(os.name != "posix", reason="PATH as on POSIX")
def test_it_works_in_an_empty_environment(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "ktune", "doctor"]
    done = subprocess.run(
        command, env={"PATH": "/usr/bin:/bin"}, cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode in (0, 3) and done.stderr == ""
    assert {"GPU", "nvcc", "torch", "cache"} <= {text[3:].split()[0] for text in done.stdout.splitlines()}
