"""What is done for real after a replay: the winner's build and its execution on the CPU."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from toy_recording import toy

from ktune.core.errors import EnvironmentFault
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Measurement
from ktune.core.settings import Settings, read_settings
from ktune.recorded.confirm import build_winner, execute_winner
from ktune.recorded.table import RecordedTable


@pytest.fixture
def winner(table: RecordedTable) -> Measurement:
    return min(table.full.values(), key=lambda m: m.cold_us or 1e9)


@pytest.fixture
def settings() -> Settings:
    return read_settings()


@pytest.fixture
def broken(tmp_path: Path) -> LoadedFamily:
    """The toy family with a factor of 3 in its kernel and a name of its own."""
    folder = tmp_path / "toy"
    folder.mkdir()
    for path in toy().folder.glob("*.*"):
        text = path.read_text().replace("2.0f", "3.0f").replace("2.f", "3.f")
        (folder / path.name).write_text(text)
    assert (folder / "toy.cu").read_text() != (toy().folder / "toy.cu").read_text()
    return load_family(folder)


@pytest.mark.build
def test_the_winner_is_built_and_its_registers_are_told(winner: Measurement, settings: Settings) -> None:
    found = build_winner(winner, toy(), settings, None)
    assert found.done and found.right
    assert "registers, no spills" in found.text and "(nvcc " in found.text and "shared memory" in found.text


@pytest.mark.build
def test_the_same_code_and_other_code_are_told_apart(winner: Measurement, settings: Settings) -> None:
    from ktune.build.builder import Builder
    from ktune.build.toolchain import find_toolchain

    assert winner.build is not None
    with Builder(toy(), find_toolchain(settings), settings.cache_dir, jobs=1) as builder:
        facts = next(builder.build([winner.variant])).facts
    assert facts is not None

    def compared(**changes: object) -> str:
        recorded = replace(facts, **changes)
        return build_winner(replace(winner, build=recorded), toy(), settings, None).text.rpartition("; ")[2]

    assert compared() == "the machine code that was recorded"
    assert compared(code_digest="0", compiler="nvcc 12.0") == (
        "not the machine code that was recorded: it was built with nvcc 12.0"
    )
    assert compared(code_digest="0", key="0", registers=facts.registers + 1) == (
        f"not the machine code that was recorded, which has {facts.registers + 1} registers: "
        "the kernel or its flags changed since"
    )
    assert "the compiler is the same, its output is not" in compared(code_digest="0")


def test_without_a_compiler_the_build_is_left_out_with_the_remedy(winner: Measurement, tmp_path: Path) -> None:
    nowhere = Settings(tmp_path / "cache", None, str(tmp_path), None)
    found = build_winner(winner, toy(), nowhere, None)
    if found.done:
        pytest.skip("this machine has an nvcc that is found without PATH")
    assert found.line.startswith("left out  building the winner: ") and "install" in found.text


@pytest.fixture
def cpu() -> None:
    from ktune.cpu.compiler import find_compiler

    try:
        find_compiler(read_settings().path)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))


@pytest.mark.usefixtures("cpu")
def test_the_winner_is_executed_on_the_cpu_and_called_what_that_is(winner: Measurement, settings: Settings) -> None:
    found = execute_winner(winner, toy(), settings)
    assert found.done and found.right
    assert found.line.startswith("executed  on the CPU: right on ")
    assert found.text.endswith("(not a verification on a GPU)") and "schedules" in found.text


@pytest.mark.usefixtures("cpu")
def test_a_winner_whose_kernel_is_wrong_is_found(winner: Measurement, settings: Settings, broken: LoadedFamily) -> None:
    found = execute_winner(winner, broken, settings)
    assert found.done and not found.right and found.text.startswith("on the CPU: wrong: ")


def test_without_a_host_compiler_the_execution_is_left_out_with_the_remedy(winner: Measurement, tmp_path: Path) -> None:
    found = execute_winner(winner, toy(), Settings(tmp_path / "cache", None, str(tmp_path), None))
    assert not found.done and found.line.startswith("left out  executing it on the CPU") and "g++" in found.text


class NoTorch:
    """An import system in which torch is not installed."""

    def find_spec(self, name: str, *given: object) -> None:
        if name.partition(".")[0] == "torch":
            raise ModuleNotFoundError("No module named 'torch'", name="torch")


@pytest.fixture
def without_torch(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in [name for name in sys.modules if name == "torch" or name.startswith("ktune.cpu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(sys, "meta_path", [NoTorch(), *sys.meta_path])
    yield


@pytest.mark.usefixtures("without_torch")
def test_without_torch_the_execution_is_left_out_with_the_remedy(winner: Measurement, settings: Settings) -> None:
    found = execute_winner(winner, toy(), settings)
    assert not found.done
    assert "needs torch, which is not installed" in found.text and "-m pip install torch (" in found.text
