"""Disassemblers and ncu are found where they may be; a bad one is named and the next is tried."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from ktune.api import KernelLaunch, Plan, TorchOperation
from ktune.build.builder import Builder, BuildResult
from ktune.build.toolchain import find_toolchain
from ktune.core.errors import FamilyError
from ktune.core.loading import load_family
from ktune.core.settings import Settings, read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.profile import tools
from ktune.profile.calibration import calibration_variant
from ktune.profile.mix import FP32_FMA, SPECIAL, Mix
from ktune.profile.model import KernelFacts, Missing, OperationFacts
from ktune.profile.occupancy import Occupancy
from ktune.profile.static import parse_barriers, static_notes, step_facts

LISTING = "Function : scale\n /*0000*/ FFMA R0, R1, R2, R3 ;\n /*0010*/ EXIT ;\n"
LOG = """ptxas info    : Compiling entry function 'scale' for 'sm_90a'
ptxas info    : Function properties for scale
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 40 registers, used 2 barriers, 16 bytes stack, 1024 bytes smem
"""


def script(path: Path, body: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def settings(tmp_path: Path, home: Path | None = None) -> Settings:
    """A machine with nothing on it but what is in `tmp_path/bin` and `home`."""
    return Settings(tmp_path / "cache", home, os.pathsep.join([str(tmp_path / "bin"), "/usr/bin", "/bin"]), None)


@pytest.fixture
def bare(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what is installed in this Python."""
    monkeypatch.setattr(tools, "_packaged", lambda tool: [])


def test_without_a_disassembler_the_way_to_get_one_is_named(bare: None, tmp_path: Path) -> None:
    found = tools.disassemble(tmp_path / "a.cubin", frozenset({"scale"}), settings(tmp_path))
    assert isinstance(found, Missing)
    assert 'pip install "ktune-cuda[disassemblers]"' in found.reason


def test_the_tool_of_cuda_home_comes_before_the_one_on_path(bare: None, tmp_path: Path) -> None:
    home = tmp_path / "cuda"
    script(home / "bin" / "cuobjdump", f"cat <<'X'\n{LISTING}X")
    script(tmp_path / "bin" / "cuobjdump", "exit 1")
    found = tools.disassemble(tmp_path / "a.cubin", frozenset({"scale"}), settings(tmp_path, home))
    assert not isinstance(found, Missing)
    assert [i.base for i in found["scale"].instructions] == ["FFMA", "EXIT"]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("echo fatal: too old for this cubin >&2; exit 3", "ended with 3: fatal: too old for this cubin"),
        ("echo something else entirely", "lists no instructions of scale"),
        ("exit 0", "lists no instructions of scale"),
        ("printf '\\377\\376'", "lists no instructions of scale"),
        ("kill -9 $$", "ended with -9"),
    ],
    ids=["refuses", "odd", "silent", "binary", "dies"],
)
def test_a_tool_that_fails_is_named_and_the_next_is_tried(bare: None, tmp_path: Path, body: str, said: str) -> None:
    script(tmp_path / "bin" / "cuobjdump", body)
    alone = tools.disassemble(tmp_path / "a.cubin", frozenset({"scale"}), settings(tmp_path))
    assert isinstance(alone, Missing)
    assert said in alone.reason
    assert str(tmp_path / "bin" / "cuobjdump") in alone.reason
    script(tmp_path / "bin" / "nvdisasm", f"cat <<'X'\n{LISTING}X")
    assert not isinstance(tools.disassemble(tmp_path / "a.cubin", frozenset({"scale"}), settings(tmp_path)), Missing)


def test_ncu_is_found_on_path_and_in_cuda_home(bare: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tools, "_NSIGHT_FOLDERS", (str(tmp_path / "opt"),))
    assert tools.find_ncu(settings(tmp_path)) is None
    older = script(tmp_path / "opt" / "2025.1.0" / "ncu", "")
    assert tools.find_ncu(settings(tmp_path)) == older
    newer = script(tmp_path / "opt" / "2025.3.0" / "ncu", "")
    assert tools.find_ncu(settings(tmp_path)) == newer
    on_path = script(tmp_path / "bin" / "ncu", "")
    assert tools.find_ncu(settings(tmp_path)) == on_path
    at_home = script(tmp_path / "cuda" / "bin" / "ncu", "")
    assert tools.find_ncu(settings(tmp_path, tmp_path / "cuda")) == at_home


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "ptxas.log"
    path.write_text(LOG)
    return path


SCALE = KernelLaunch("scale", (512, 2, 1), (256, 1, 1), ("x",), 32 * 1024, cluster=(2, 1, 1))


def test_a_step_has_what_its_compiler_said_and_what_follows_from_it(bare: None, tmp_path: Path, log: Path) -> None:
    script(tmp_path / "bin" / "cuobjdump", f"cat <<'X'\n{LISTING}X")
    plan = Plan((TorchOperation("gemm", ("x",)), SCALE))
    operation, kernel = step_facts(plan, tmp_path / "a.cubin", log, "sm_90a", settings(tmp_path))
    assert operation == OperationFacts("gemm")
    assert isinstance(kernel, KernelFacts)
    assert (kernel.registers, kernel.barriers, kernel.smem_static_bytes, kernel.blocks) == (40, 2, 1024, 1024)
    assert isinstance(kernel.occupancy, Occupancy)
    assert (kernel.occupancy.blocks, kernel.occupancy.limiter) == (6, "shared memory and registers")
    assert kernel.main_loop == Missing("no loop")
    notes = "\n".join(static_notes([operation, kernel]))
    for part in ("gemm is a torch operation", "scale spills: 20 bytes", "clusters"):
        assert part in notes


def test_a_target_without_a_table_and_a_kernel_without_a_listing_say_so(bare: None, tmp_path: Path, log: Path) -> None:
    (kernel,) = step_facts(Plan((SCALE,)), tmp_path / "a.cubin", log, "sm_75", settings(tmp_path))
    assert isinstance(kernel, KernelFacts)
    assert isinstance(kernel.occupancy, Missing)
    assert "sm_75" in kernel.occupancy.reason
    assert isinstance(kernel.instructions, Missing)
    assert isinstance(kernel.main_loop, Missing)


def test_a_plan_of_torch_operations_alone_needs_no_build(tmp_path: Path) -> None:
    steps = step_facts(Plan((TorchOperation("gemm", ("x",)),)), None, None, "sm_90a", settings(tmp_path))
    assert steps == [OperationFacts("gemm")]


def test_a_plan_that_launches_what_its_source_does_not_define_is_a_fault(bare: None, tmp_path: Path, log: Path) -> None:
    plan = Plan((KernelLaunch("scael", (1, 1, 1), (32, 1, 1), ()),))
    with pytest.raises(FamilyError, match="'scael'; its source defines scale"):
        step_facts(plan, tmp_path / "a.cubin", log, "sm_90a", settings(tmp_path))


def test_a_log_that_tells_no_barriers_leaves_them_unknown() -> None:
    assert parse_barriers(LOG) == {"scale": 2}
    assert parse_barriers(LOG.replace(", used 2 barriers", "")) == {}


def build(loaded_variant: object, tmp_path: Path) -> BuildResult:
    loaded, variant = loaded_variant  # type: ignore[misc]
    with Builder(loaded, find_toolchain(read_settings()), tmp_path / "cache", jobs=1) as builder:
        return next(builder.build([variant]))


def installed() -> bool:
    return any(True for _ in tools._installed_disassemblers(read_settings()))


with_disassembler = pytest.mark.skipif(not installed(), reason=f"needs a disassembler: {tools.INSTALL_DISASSEMBLERS}")


@pytest.mark.build
@with_disassembler
def test_each_calibration_kernel_does_nothing_but_its_own_kind_of_work(tmp_path: Path) -> None:
    built = build(calibration_variant("sm_90a"), tmp_path)
    assert built.cubin is not None, built.detail
    kernels = {"calibrate_fma": FP32_FMA, "calibrate_chain": FP32_FMA, "calibrate_ex2": SPECIAL}
    plan = Plan(tuple(KernelLaunch(name, (132, 1, 1), (256, 1, 1), ()) for name in kernels))
    for step in step_facts(plan, built.cubin, built.log, "sm_90a", read_settings()):
        assert isinstance(step, KernelFacts)
        assert isinstance(step.main_loop, Mix)
        assert step.main_loop.counts[kernels[step.kernel]] == 128
        assert step.main_loop.share(kernels[step.kernel]) > 95
        assert isinstance(step.occupancy, Occupancy)
        assert step.occupancy.percent == 100.0


@pytest.mark.build
@with_disassembler
def test_both_disassemblers_tell_the_same_of_a_real_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loaded = load_family("selective_scan")
    problem = next(iter(loaded.named_problems.values()))
    default = Space(loaded.family, [problem]).default
    built = build((loaded, make_variant(loaded.family, default, problem)), tmp_path)
    assert built.cubin is not None, built.detail
    plan = loaded.family.plan(default, problem)
    told = []
    for tool in tools._DISASSEMBLERS:
        monkeypatch.setattr(tools, "_DISASSEMBLERS", (tool,))
        if installed():
            told += step_facts(plan, built.cubin, built.log, "sm_90a", read_settings())
    assert told
    assert all(step == told[0] for step in told)
    assert isinstance(told[0], KernelFacts)
    assert isinstance(told[0].main_loop, Mix)
