"""Variants for a flag and for bfloat16, executed on the CPU: each with its own binary, problems and tolerance."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from cpu_kernels import Runner

from ktune.cli.main import main
from ktune.core.loading import load_family
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.problems import small_problems


def test_conversions_and_products_round_as_torch_does(run_kernel: Runner) -> None:
    special = [0.0, -0.0, float("inf"), -float("inf"), float("nan"), 3.4e38, 1e-45, 1.00390625, 1.01171875, -2.5]
    x = torch.cat([torch.tensor(special), torch.randn(54, generator=torch.Generator().manual_seed(1))])
    empty = torch.zeros(64, dtype=torch.bfloat16)
    given = {"x": x, "one": empty, "pair": empty, "product": empty, "wide": torch.zeros(64)}
    out = run_kernel("semantics.cu", "brain_floats", list(given), given, block=(64,))
    rounded = x.bfloat16()
    for name in ("one", "pair"):
        assert torch.equal(out[name].float().nan_to_num(7.0), rounded.float().nan_to_num(7.0)), name
    assert torch.equal(out["wide"].nan_to_num(7.0), rounded.float().nan_to_num(7.0))
    product = (rounded * rounded + rounded).float()
    assert torch.equal(out["product"].float().nan_to_num(7.0), product.nan_to_num(7.0))


Command = Callable[..., str]


@pytest.fixture
def verify(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `ktune verify FAMILY --device cpu --sanitize --problem ...` in this process; its stdout."""

    def run(folder: Path, problem: str, code: int = 0) -> str:
        words = ["verify", str(folder), "--device", "cpu", "--sanitize", "--problem", problem, "--set", "block_size=32"]
        monkeypatch.setattr("sys.argv", ["ktune", *words])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, out + err
        return out

    return run


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("problem", "variants"),
    [("small", 1), ("small-shifted", 2), ("small-bf16", 1), ("N=70,shift=1,times=3,dtype=bfloat16", 2)],
)
def test_a_flag_and_bfloat16_are_right(verify: Command, families: Path, problem: str, variants: int) -> None:
    out = verify(families / "shifted", problem)
    assert out.count("ok  right     right") == variants and "all as expected" in out


@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize(
    ("file", "old", "new", "problem"),
    [
        pytest.param("shifted.cu", "config::kShift", "0", "small-shifted", id="the-flag-is-ignored"),
        pytest.param("shifted.cu", "y[i] = ", "if (i > 0) y[i] = ", "small-bf16", id="poison-is-left-in-bfloat16"),
        pytest.param("shifted.cu", "if (i >= n)", "if (i > n)", "small-bf16", id="a-bfloat16-too-far-is-written"),
        pytest.param("family.py", "Tolerance(1e-2, 1e-2, 1e-2,", "Tolerance(1e-6, 1e-6, 1e-6,",
                     "N=70,shift=1,dtype=bfloat16", id="the-tolerance-is-float32's"),
    ],
)  # fmt: skip
def test_what_is_wrong_for_a_flag_or_dtype_is_found(
    verify: Command, families: Path, tmp_path: Path, file: str, old: str, new: str, problem: str
) -> None:
    folder = tmp_path / "shifted"
    shutil.copytree(families / "shifted", folder)
    path = folder / file
    path.write_text(path.read_text().replace(old, new))
    assert "right     wrong" in verify(folder, problem, code=4)


@pytest.mark.parametrize(("name", "ending"), [("small-shifted", "-shift1"), ("small-bf16", "-bfloat16")])
def test_small_problems_keep_the_options_and_the_dtype(families: Path, name: str, ending: str) -> None:
    loaded = load_family(families / "shifted")
    problem = loaded.named_problems[name]
    variant = make_variant(loaded.family, Space(loaded.family, [problem]).default, problem)
    found = small_problems(loaded, variant, problem)
    assert len(found) > 3 and all(p.label == f"N{p['N']}{ending}" for p in found)
