import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from fake_compiler import fake_toolchain

from ktune.build import toolchain as toolchain_module
from ktune.build.toolchain import check_toolchain, find_ninja, find_toolchain, require_target
from ktune.core.errors import EnvironmentFault, UsageError
from ktune.core.settings import Settings, read_settings

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Settings:
    """A machine with no CUDA toolkit and nothing on PATH."""
    monkeypatch.setattr(toolchain_module, "_installed_nvcc", lambda: None)
    for name in ("NVCC_CCBIN", "NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS"):
        monkeypatch.delenv(name, raising=False)
    return Settings(cache_dir=tmp_path, cuda_home=None, path=str(tmp_path / "empty"), visible_devices=None)


def with_gcc(settings: Settings, folder: Path) -> Settings:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "gcc").write_text("#!/bin/sh\n")
    (folder / "gcc").chmod(0o755)
    return replace(settings, path=f"{folder}:/bin:/usr/bin")


def test_nvcc_is_taken_from_the_option_then_cuda_home_then_path_then_pip(
    tmp_path: Path, nowhere: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    option, home, path, pip = (
        fake_toolchain(tmp_path / place / "bin").nvcc for place in ("option", "home", "path", "site-packages")
    )
    monkeypatch.setattr(toolchain_module, "_installed_nvcc", lambda: pip)
    settings = replace(with_gcc(nowhere, path.parent), cuda_home=home.parent.parent)

    assert find_toolchain(settings, option).nvcc == option
    assert find_toolchain(settings, option.parent.parent).found_by == "option"
    found = find_toolchain(settings)
    assert (found.nvcc, found.found_by, found.release, found.label) == (home, "CUDA_HOME", "13.0.88", "nvcc 13.0.88")
    found = find_toolchain(replace(settings, cuda_home=tmp_path / "no toolkit"))
    assert (found.nvcc, found.found_by) == (path, "PATH")
    path.unlink()
    elsewhere = with_gcc(replace(settings, cuda_home=None), tmp_path / "gcc only")
    elsewhere = replace(elsewhere, path=str(tmp_path / "gcc only"))
    monkeypatch.setattr(toolchain_module, "_release", lambda nvcc, path: "13.0.88")
    assert (find_toolchain(elsewhere).nvcc, find_toolchain(elsewhere).found_by) == (pip, "pip")


def test_no_nvcc_is_an_environment_fault_that_says_where_it_looked_and_what_to_install(
    nowhere: Settings,
) -> None:
    with pytest.raises(EnvironmentFault) as caught:
        find_toolchain(replace(nowhere, cuda_home=Path("/no/toolkit")))
    message = str(caught.value)
    assert caught.value.exit_code == 3
    for part in ("CUDA_HOME=/no/toolkit holds no bin/nvcc", nowhere.path, 'pip install "ktune-cuda[nvcc]"'):
        assert part in message


def test_an_option_that_is_no_compiler_is_a_usage_error(nowhere: Settings, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not an executable nvcc"):
        find_toolchain(nowhere, tmp_path / "nvcc")


def test_a_missing_gcc_is_named_before_any_build(
    nowhere: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nvcc = fake_toolchain(tmp_path / "cuda").nvcc
    with pytest.raises(EnvironmentFault, match=r"no gcc is on PATH .*g\+\+"):
        find_toolchain(nowhere, nvcc)
    monkeypatch.setenv("NVCC_CCBIN", "/opt/gcc-14/bin/g++")
    assert find_toolchain(nowhere, nvcc).nvcc == nvcc


def test_a_program_that_is_not_nvcc_is_refused_with_what_it_said(nowhere: Settings, tmp_path: Path) -> None:
    fake = tmp_path / "nvcc"
    fake.write_text("#!/bin/sh\necho hello from another program\n")
    fake.chmod(0o755)
    with pytest.raises(EnvironmentFault, match="hello from another program"):
        find_toolchain(nowhere, fake)


def test_a_missing_ninja_is_named_with_its_remedy(nowhere: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ninja", None)
    with pytest.raises(EnvironmentFault, match="pip install ninja"):
        find_ninja(nowhere)


def test_ninja_of_an_environment_that_is_not_activated_is_found(nowhere: Settings) -> None:
    pytest.importorskip("ninja")
    assert os.access(find_ninja(nowhere), os.X_OK)


def test_a_bare_environment_ends_in_a_clear_fault_or_a_working_compiler() -> None:
    program = (
        "from ktune.build.toolchain import find_toolchain\n"
        "from ktune.core.errors import EnvironmentFault\n"
        "from ktune.core.settings import read_settings\n"
        "try:\n"
        "    find_toolchain(read_settings())\n"
        "except EnvironmentFault as fault:\n"
        "    print('fault:', fault)\n"
    )
    bare = {"PATH": "/nonexistent", "PYTHONPATH": str(ROOT), "KTUNE_CACHE_DIR": "/nonexistent"}
    done = subprocess.run([sys.executable, "-c", program], env=bare, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("fault: ")
    assert "PATH (/nonexistent)" in done.stdout
    assert "install" in done.stdout


def test_a_target_that_this_nvcc_does_not_know_is_refused_with_those_that_it_does(tmp_path: Path) -> None:
    fake = fake_toolchain(tmp_path)
    require_target(fake, "sm_90a")
    with pytest.raises(EnvironmentFault, match="compiles for sm_80, sm_90, not for sm_70"):
        require_target(fake, "sm_70")


def test_include_folders_of_the_environment_do_not_reach_the_compiler(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CPATH", "/somewhere/include")
    environment = fake_toolchain(tmp_path).environment()
    assert "CPATH" not in environment
    assert environment["PATH"] == read_settings().path


def test_a_broken_toolkit_is_found_out_by_a_kernel_of_one_line(tmp_path: Path) -> None:
    check_toolchain(fake_toolchain(tmp_path / "sound", "exit 0"), "sm_90a")
    broken = fake_toolchain(tmp_path / "broken", "echo 'ptxas fatal   : Unsupported .version 9.3'; exit 255")
    with pytest.raises(EnvironmentFault, match=r"ptxas fatal : Unsupported \.version 9\.3"):
        check_toolchain(broken, "sm_90a")


@pytest.mark.build
def test_the_compiler_of_this_machine_works() -> None:
    check_toolchain(find_toolchain(read_settings()), "sm_90a")
