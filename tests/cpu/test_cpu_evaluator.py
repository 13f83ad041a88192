"""A CPU execution answers requests as right or wrong: its source is the CPU, and it never has a time."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from ktune.cli.main import main
from ktune.core.errors import EnvironmentFault
from ktune.core.loading import load_family
from ktune.core.model import Measurement, Request, Source, Status, Value
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.compiler import ProgramStore
from ktune.cpu.evaluator import CpuEvaluator

STATUS_OF_BEHAVIOUR = {
    "good": Status.OK,
    "all_nan": Status.WRONG,
    "last_nan": Status.WRONG,
    "zeros": Status.WRONG,
    "writes_nothing": Status.WRONG,
    "writes_past_end": Status.WRONG,
    "writes_before": Status.WRONG,
    "changes_input": Status.WRONG,
    "illegal_address": Status.CRASHED,
    "endless_loop": Status.TIMED_OUT,
    "does_not_compile": Status.BUILD_FAILED,
    "too_much_shared_memory": Status.LAUNCH_FAILED,
}


def evaluate(
    family: Path, cache: Path, points: Sequence[dict[str, Value]], sanitize: bool = False, timeout_s: float = 20.0
) -> list[Measurement]:
    loaded = load_family(family)
    problem = loaded.named_problems["small"]
    space = Space(loaded.family, [problem])
    requests = [
        Request(trial, make_variant(loaded.family, space.complete(point), problem), problem)
        for trial, point in enumerate(points)
    ]
    evaluator = CpuEvaluator(loaded, cache, read_settings().path, sanitize=sanitize, timeout_s=timeout_s)
    try:
        return list(evaluator.evaluate(iter(requests)))
    finally:
        evaluator.close()


@pytest.fixture(scope="module")
def cache(programs: ProgramStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Skips, by `programs`, where there is no compiler."""
    return tmp_path_factory.mktemp("evaluator-cache")


def test_every_way_to_be_bad_is_told_apart_and_hurts_nothing_else(families: Path, cache: Path) -> None:
    points: list[dict[str, Value]] = [{"behaviour": behaviour} for behaviour in STATUS_OF_BEHAVIOUR]
    found = evaluate(families / "bad", cache, points, timeout_s=3.0)
    assert [m.trial for m in found] == list(range(len(points)))
    told = {m.variant.configuration["behaviour"]: m.status for m in found}
    assert told == STATUS_OF_BEHAVIOUR
    assert all(m.detail for m in found if m.status is not Status.OK)


def test_a_measurement_comes_from_the_cpu_and_has_no_time(families: Path, cache: Path) -> None:
    (found,) = evaluate(families / "toy", cache, [{}], sanitize=True)
    assert found.status is Status.OK and found.source is Source.CPU
    assert found.cold is None and found.hot is None and not found.eligible and found.build is None
    assert found.accuracy is not None and found.environment is not None
    assert found.environment.gpu_name.startswith("CPU") and not found.environment.gpu_uuid


def test_a_sanitized_execution_finds_what_values_do_not_show(families: Path, cache: Path, tmp_path: Path) -> None:
    folder = tmp_path / "toy"
    shutil.copytree(families / "toy", folder)
    kernel = folder / "toy.cu"
    kernel.write_text(
        kernel.read_text().replace(
            "if (i < n) y[i] = 2.0f * x[i];", "if (i <= n && x[i] < 1e30f) y[min(i, n - 1)] = 2.0f * x[min(i, n - 1)];"
        )
    )
    (plain,) = evaluate(folder, cache, [{}])
    (sanitized,) = evaluate(folder, cache, [{}], sanitize=True)
    assert plain.status is Status.OK
    assert sanitized.status is Status.WRONG and "reads x[1] (1 elements)" in sanitized.detail


def test_without_a_compiler_the_remedy_is_named(families: Path, tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFault, match=r"needs a C\+\+20 compiler.*apt-get install"):
        CpuEvaluator(load_family(families / "toy"), tmp_path, str(tmp_path))


Command = Callable[..., tuple[str, str]]


@pytest.fixture
def ktune(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs a command in this process; what it printed on stdout and stderr."""

    def run(*arguments: object, code: int = 0) -> tuple[str, str]:
        monkeypatch.setattr("sys.argv", ["ktune", *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, err
        return out, err

    return run


@pytest.mark.usefixtures("programs")
def test_the_command_executes_on_the_cpu_and_says_so(ktune: Command, families: Path) -> None:
    few = ("--sample", "0", "--set", "block_size=64", "--set", "items=1,2")
    out, _ = ktune("verify", families / "toy", "--device", "cpu", "--problem", "small", *few)
    assert out.startswith("toy executed on the CPU on small problems: not a verification on a GPU\n")
    assert "ok  right     right" in out and "all as expected" in out


@pytest.mark.usefixtures("programs")
def test_variants_that_can_not_run_are_not_counted_as_verified(ktune: Command) -> None:
    only = ("--set", "algorithm=wgmma", "--set", "ring=3", "--set", "promote_k=256", "--sample", "0", "--json")
    out, _ = ktune("verify", "linear_swish_scale", "--device", "cpu", "--problem", "small", *only, code=4)
    checks = json.loads(out)["checks"]
    assert checks and all(check["found"] == "can't run" and not check["judged"] for check in checks)
    assert all(check["source"] == "cpu" and check["detail"].startswith("not executable on the CPU") for check in checks)


def test_sanitizing_is_the_cpus(ktune: Command, families: Path) -> None:
    _, err = ktune("verify", families / "toy", "--sanitize", code=2)
    assert "--sanitize needs --device cpu" in err
