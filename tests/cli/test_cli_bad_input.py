"""Whatever a user gets wrong is told in one line, with the remedy and the right exit code, before anything runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.core.errors import EnvironmentFault
from ktune.gpu.nvml import GpuInfo

H200 = GpuInfo(0, "NVIDIA H200", "GPU-1234", "580.65", "13.0", (9, 0), 140 << 30, 139 << 30, 700.0, 0)
FOLDER = "toy-N1048576-Fake-H200"


def refused(terminal: Terminal, *words: str | Path, code: int = 2) -> str:
    """The one line on stderr of a command that must fail without having measured anything."""
    out = terminal(*words, code=code)
    lines = terminal.err.strip().splitlines()
    assert out == "" and len(lines) == 1 and lines[0].startswith("error: "), terminal.err
    assert terminal.evaluator.evaluated == []
    return lines[0]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--problem", "smal"], "no problem 'smal'; did you mean small?"),
        (["--problem", "M=3"], "no size 'M'; it has N"),
        (["--problem", "N=many"], "N must be a whole number, got 'many'"),
        (["--problem", "N=0"], "N must be at least 1, got 0"),
        (["--problem", "N=-4"], "N must be at least 1, got -4"),
        (["--problem", "N=1,N=2"], "N is given twice"),
        (["--set", "blocksize=32"], "no parameter 'blocksize'; did you mean block_size?"),
        (["--set", "block_size=48"], "block_size of toy must be one of 32, 64, 128, 256, got '48'"),
        (["--set", "block_size"], "--set takes name=value,value, got 'block_size'"),
        (["--set", "block_size="], "--set takes name=value,value"),
        (["--set", "items=1", "--set", "items=2"], "items is set twice"),
        (
            ["--set", "algorithm=unrolled", "--set", "items=1", "--set", "unroll=8"],
            "unroll may not exceed items; got unroll=8, items=1",
        ),
        (["--config", "missing.toml"], "can't read missing.toml"),
    ],
    ids=lambda value: "-".join(value).replace("--", "") if isinstance(value, list) else "",
)
@pytest.mark.parametrize("command", ["search", "verify"])
def test_bad_options_are_told_before_the_gpu_is_looked_for(
    bare: Terminal, toy: Path, command: str, words: list[str], message: str
) -> None:
    assert message in refused(bare, command, toy, *words)


@pytest.mark.parametrize("command", ["verify", "report", "export", "list"])
def test_only_search_takes_several_problems(ktune: Terminal, toy: Path, command: str) -> None:
    message = refused(ktune, command, toy, "--problem", "small", "--problem", "N=3")
    assert "--problem is given 2 times; only `ktune search` takes several" in message


def test_an_unknown_family_names_the_nearest(bare: Terminal, families: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktune.core.loading.shipped_folder", lambda: families)
    assert "no kernel family 'toi'; did you mean toy?" in refused(bare, "search", "toi")
    assert "holds no family.py; `ktune new nowhere` writes one" in refused(bare, "search", "./nowhere")


def test_a_broken_family_says_where_it_breaks(bare: Terminal) -> None:
    folder = bare.folder / "mine"
    folder.mkdir()
    (folder / "family.py").write_text("import nothing_of_that_name\n")
    assert "does not load: ModuleNotFoundError" in refused(bare, "search", "./mine")


@pytest.mark.parametrize("words", [["#7"], ["simple.block_31"], ["abcd1234"], ["other.json"]])
def test_an_unknown_configuration_is_refused(ktune: Terminal, toy: Path, words: list[str]) -> None:
    refused(ktune, "verify", toy, *words)


def test_an_output_folder_that_cannot_be_written_is_told_first(ktune: Terminal, toy: Path) -> None:
    (ktune.folder / "results").write_text("a file")
    message = refused(ktune, "search", toy)
    assert "cannot write results/ledger.sqlite" in message and "choose a path" in message
    assert ktune.told is None


def test_a_file_of_someone_else_is_not_replaced(ktune: Terminal, toy: Path) -> None:
    folder = ktune.folder / "results" / FOLDER
    folder.mkdir(parents=True)
    (folder / "best.h").write_text("int mine;\n")
    assert "best.h exists and was not written by ktune" in refused(ktune, "search", toy)
    assert (folder / "best.h").read_text() == "int mine;\n"


def test_a_study_of_another_problem_is_refused(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--trials", "2", "--study", "./mine")
    ktune.evaluator.evaluated.clear()
    assert "N1048576" in refused(ktune, "search", toy, "--problem", "small", "--trials", "2", "--study", "./mine")


def test_a_study_of_another_gpu_is_refused(ktune: Terminal, toy: Path) -> None:
    from dataclasses import replace

    ktune("search", toy, "--trials", "2", "--study", "./mine")
    ktune.evaluator.evaluated.clear()
    ktune.evaluator.environment = replace(ktune.evaluator.environment, gpu_name="Fake H100")
    message = refused(ktune, "search", toy, "--trials", "2", "--study", "./mine")
    assert "Fake H200" in message and "Fake H100" in message


def test_a_changed_space_begins_a_new_study_and_keeps_what_still_holds(ktune: Terminal, toy: Path) -> None:
    ktune("search", toy, "--sampler", "exhaustive", "--set", "algorithm=simple")
    measured = len(ktune.evaluator.evaluated)
    ktune("search", toy, "--sampler", "exhaustive", "--set", "algorithm=simple", "--set", "items=1,2")
    assert "new study: the space changed" in ktune.err and "taken over: 16 measurements" in ktune.err
    assert len(ktune.evaluator.evaluated) == measured


@pytest.mark.parametrize("command", ["report", "export"])
def test_a_study_that_is_not_there_is_named(ktune: Terminal, command: str) -> None:
    assert "no study in results; `ktune search` makes one" in refused(ktune, command)
    assert "'nothing'" in refused(ktune, command, "nothing")


def test_no_driver_is_told_at_once(bare: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def gpus() -> list[GpuInfo]:
        raise EnvironmentFault("no NVIDIA driver: libnvidia-ml.so.1 is not on this machine; install the driver")

    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ktune.gpu.nvml.gpus", gpus)
    message = refused(bare, "search", toy, code=3)
    assert "no NVIDIA driver" in message and "--replay h200" in message


def test_no_gpu_is_told_at_once(bare: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ktune.gpu.nvml.gpus", list)
    assert "lists no GPU" in refused(bare, "verify", toy, code=3)


@pytest.mark.parametrize("value", ["", "-1"])
def test_hidden_gpus_are_told_at_once(bare: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", value)
    assert "CUDA_VISIBLE_DEVICES" in refused(bare, "search", toy, code=3)


@pytest.fixture
def with_gpu(bare: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """NVML lists an H200."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [H200])
    return bare


@pytest.fixture
def with_cuda(with_gpu: Terminal, monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """And torch is built for its CUDA."""
    monkeypatch.setattr("ktune.gpu.nvml._torch_cuda", lambda: "13.0")
    return with_gpu


def test_a_cpu_only_torch_is_told_at_once(with_gpu: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ktune.gpu.nvml._torch_cuda", lambda: "")
    assert "torch is CPU-only" in refused(with_gpu, "search", toy, code=3)


def test_an_unknown_gpu_is_told_with_those_there_are(with_cuda: Terminal, toy: Path) -> None:
    assert "no GPU '7'; this machine has 0 (GPU-1234)" in refused(with_cuda, "search", toy, "--gpu", "7")


def test_no_nvcc_is_told_with_how_to_get_one(with_cuda: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CUDA_HOME", raising=False)
    monkeypatch.delenv("CUDA_PATH", raising=False)
    monkeypatch.setattr("ktune.build.toolchain._installed_nvcc", lambda: None)
    message = refused(with_cuda, "search", toy, code=3)
    assert "builds need nvcc" in message and "ktune-cuda[nvcc]" in message


def test_an_nvcc_option_that_is_none_is_usage(with_cuda: Terminal, toy: Path) -> None:
    assert "/nowhere/nvcc is not an executable nvcc" in refused(with_cuda, "search", toy, "--nvcc", "/nowhere/nvcc")


def test_a_driver_too_old_for_the_toolkit_is_told(
    with_cuda: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from dataclasses import replace

    from ktune.build.toolchain import Toolchain

    old = replace(H200, driver="550.54", cuda_driver="12.4")
    monkeypatch.setattr("ktune.gpu.nvml.gpus", lambda: [old])
    monkeypatch.setattr("ktune.gpu.nvml._torch_cuda", lambda: "12.4")
    monkeypatch.setattr("ktune.build.toolchain.find_toolchain", lambda *_: Toolchain(Path("nvcc"), "13.0.88"))
    message = refused(with_cuda, "search", toy, code=3)
    assert "driver 550.54 runs CUDA 12.4, too old for the code of nvcc 13.0.88" in message
    assert "install driver 580 or newer" in message and "CUDA 12 toolkit" in message


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("    blocks = -(-", "    raise KeyError('boo')\n    blocks = -(-"),
        ("vector_width <= 8192", "vector_width <= 8192 / 0"),
    ],
    ids=["plan", "rule"],
)
def test_what_a_users_family_raises_is_no_defect_of_ktune(bare: Terminal, old: str, new: str) -> None:
    bare("new", "mine")
    path = bare.folder / "mine" / "family.py"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    line = refused(bare, "verify", "./mine", "--device", "cpu")
    assert f"{path}:" in line and "raised" in line and "defect" not in line
