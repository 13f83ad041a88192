"""`ktune profile`, without a GPU, with a fake one, and with a study that knows the time already."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import ENVIRONMENT, FakeEvaluator, fake_timing
from typer.testing import CliRunner

from ktune.build.toolchain import find_toolchain
from ktune.cli import profiling
from ktune.cli.main import app
from ktune.core.loading import load_family
from ktune.core.model import Measurement, Problem, Request, Source, Status, Variant
from ktune.core.settings import read_settings
from ktune.profile import static, tools
from ktune.profile.collect import Machine
from ktune.profile.evidence import COUNTERS, DURATION
from ktune.profile.messages import Order
from ktune.profile.model import DeviceFacts, KernelCounters, Missing, Peaks, Steady, StepOnGpu

pytestmark = pytest.mark.build

PEAKS = Peaks(
    "Fake H200", ENVIRONMENT.gpu_uuid, "", "2026-01-01", copy_gbps=4000.0, read_gbps=4100.0, fp32_gflops=60_000.0,
    special_gops=4000.0, tensor_gflops=700_000.0, launch_us=2.0, gap_us=1.0, chain_ns=2.0, sm_clock_mhz=1980,
)  # fmt: skip
STEADY = Steady(1.5, 1000, 1980, 3201, 512.0, 700.0, ("sw_power_cap",), 12.5, 0)

NO_NCU = Missing("ncu is not installed")


@dataclass
class FakeGpu:
    """Measures by a formula of its own and sees one step of the plan per launch."""

    name: str = "Fake H200"
    uuid: str = ENVIRONMENT.gpu_uuid
    driver: str = ENVIRONMENT.driver
    status: Status = Status.OK
    counters: tuple[KernelCounters, ...] | Missing = NO_NCU
    steps: tuple[StepOnGpu, ...] = (StepOnGpu("toy", 16, 5.0),)
    cold_us: float = 2.3
    measured: list[Variant] = field(default_factory=list)
    looked: list[Order] = field(default_factory=list)

    def measure(self, variant: Variant, problem: Problem) -> Measurement:
        self.measured.append(variant)
        failed = self.status not in (Status.OK, Status.WRONG)
        return Measurement(
            0, variant, problem, self.status, Source.MEASURED, detail="" if self.status is Status.OK else "planted",
            cold=None if failed else fake_timing(self.cold_us), hot=None if failed else fake_timing(2.0, "hot"),
            environment=ENVIRONMENT,
        )  # fmt: skip

    def look(self, order: Order) -> DeviceFacts:
        self.looked.append(order)
        peaks = PEAKS if order.calibration else Missing("not asked for")
        return DeviceFacts(132, self.steps, STEADY, peaks)

    def count(self, order: Order) -> tuple[KernelCounters, ...] | Missing:
        return self.counters


@pytest.fixture(scope="module")
def builds(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One build cache for this file: each variant is compiled once."""
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(autouse=True)
def own_cache(builds: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The shared builds, without what another test has measured."""
    shutil.rmtree(builds / "peaks", ignore_errors=True)
    monkeypatch.setenv("KTUNE_CACHE_DIR", str(builds))
    return builds


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    work = tmp_path / "work"
    work.mkdir()
    monkeypatch.chdir(work)
    monkeypatch.setattr(profiling, "reason_no_gpu", lambda settings: "no driver, planted")
    # each binary is disassembled once in this file
    monkeypatch.setattr(static, "disassemble", disassembled)
    return work


disassembled = functools.cache(tools.disassemble)


@pytest.fixture
def gpu(folder: Path, monkeypatch: pytest.MonkeyPatch) -> FakeGpu:
    """The machine's own compiler with a fake GPU beside it."""
    fake = FakeGpu()
    real: Callable[..., Machine] = profiling.open_machine

    def open_machine(*arguments: Any) -> Machine:
        return replace(real(*arguments), gpu=fake, no_gpu="")

    monkeypatch.setattr(profiling, "open_machine", open_machine)
    return fake


def ktune(*words: str | Path, code: int = 0) -> str:
    result = CliRunner().invoke(app, [str(word) for word in words])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == code, f"exit {result.exit_code}\n{result.stdout}\n{result.stderr}"
    return result.stdout if code == 0 else result.stderr


def profiled(*words: str | Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(ktune("profile", *words, "--json"))
    return found


def searched(toy: Path, monkeypatch: pytest.MonkeyPatch, status: Status = Status.OK) -> Path:
    """The folder of a finished study of `toy`."""
    with monkeypatch.context() as patch:
        evaluator = FakeEvaluator(lambda request: status)
        patch.setattr("ktune.cli.evaluators.make_evaluator", lambda loaded, options: evaluator)
        ktune("search", toy, "--trials", "6", code=0 if status is Status.OK else 4)
    (study,) = Path("results").iterdir()
    return study


@pytest.fixture(scope="session")
def toy(families: Path) -> Path:
    return families / "toy"


def test_without_a_gpu_the_build_tells_and_the_rest_is_marked(folder: Path, toy: Path) -> None:
    text = ktune("profile", toy)
    assert "without a GPU: no driver, planted" in text
    for part in ("registers", "occupancy           100 %: 64 of 64 warps, full", "global loads", "spills 0 B stored"):
        assert part in text
    for part in ("by the driver       needs a GPU", "time: needs a GPU", "steady state: needs a GPU",
                 "rates: needs a GPU", "hardware counters: n/a: needs a GPU", "bound: undetermined"):  # fmt: skip
        assert part in text


def test_without_a_gpu_no_figure_stands_for_an_unknown_one(folder: Path, toy: Path) -> None:
    found = profiled(toy)
    assert (found["format"], found["kind"], found["gpu"]) == (1, "ktune profile", "")
    for part in ("time", "rates", "device", "peaks", "counters"):
        assert found[part] == {"missing": "needs a GPU"}
    (step,) = found["steps"]
    assert step["registers"] > 0
    assert step["occupancy"]["percent"] == 100.0
    assert step["instructions"]["total"] == sum(step["instructions"]["counts"].values())
    assert not list(folder.iterdir())


def test_a_gpu_that_was_asked_for_and_is_not_there_is_a_fault(folder: Path, toy: Path) -> None:
    assert "error" in ktune("profile", toy, "--gpu", "7", code=3)


def test_any_configuration_of_any_family_is_profiled_from_its_build(folder: Path) -> None:
    staged = profiled("selective_scan", "--set", "algorithm=staged")
    assert staged["configuration"]["algorithm"] == "staged"
    assert staged["steps"][0]["instructions"]["counts"]["cp.async"] > 0
    fused = profiled("linear_swish_scale")
    assert [step["step"] for step in fused["steps"]] == ["torch operation", "kernel"]
    assert any("gemm is a torch operation" in note for note in fused["notes"])


@pytest.mark.parametrize("chosen", ["simple.block_64.items_1.fast_math_0", "--set", "file"])
def test_a_configuration_is_named_like_everywhere(folder: Path, toy: Path, chosen: str) -> None:
    named = {
        "--set": ("--set", "block_size=64"),
        "file": ("wanted.json",),
    }.get(chosen, (chosen,))
    Path("wanted.json").write_text(
        json.dumps(
            {
                "format": 1, "kind": "ktune winner", "family": "toy", "family_folder": str(toy),
                "problem": {"family": "toy", "sizes": {"N": 1000}, "dtype": "float32"},
                "configuration": {"algorithm": "simple", "block_size": 64, "items": 1, "fast_math": False},
            }
        )
    )  # fmt: skip
    found = profiled(toy, *named)
    assert found["configuration"]["block_size"] == 64
    assert found["steps"][0]["block"] == [64, 1, 1]
    assert found["problem"]["sizes"] == ({"N": 1000} if chosen == "file" else {"N": 1 << 20})


def test_an_unknown_configuration_or_study_is_usage(folder: Path, toy: Path) -> None:
    assert "no valid configuration 'nonsense'" in ktune("profile", toy, "nonsense", code=2)
    assert "no study" in ktune("profile", toy, "--study", "nowhere", code=2)
    assert "no study of toy" in ktune("profile", toy, "#3", code=2)


def test_a_configuration_that_does_not_build_is_told_with_its_log(folder: Path, families: Path) -> None:
    said = ktune("profile", families / "bad", "--set", "behaviour=does_not_compile", code=4)
    assert "does not build" in said
    assert "log:" in said


def test_the_studys_winner_and_its_time_are_taken_without_a_gpu(
    folder: Path, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = searched(toy, monkeypatch)
    text = ktune("profile", toy)
    assert "(winner #" in text
    stored = json.loads((study / "profile.json").read_text())
    assert stored["configuration_id"] in text
    assert (study / "profile.txt").read_text() == text
    assert "is not used: it is of another build" in text


def test_a_time_of_the_same_build_is_not_measured_again(
    folder: Path, toy: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded = load_family(toy)
    builds = profiling.NvccBuilds(find_toolchain(read_settings()), read_settings())
    answer = FakeEvaluator.answer

    def answer_as_built(evaluator: FakeEvaluator, request: Request) -> Measurement:
        m = answer(evaluator, request)
        assert m.build is not None
        return replace(m, build=replace(m.build, key=builds.key(loaded, request.variant)))

    monkeypatch.setattr(FakeEvaluator, "source", Source.MEASURED)
    monkeypatch.setattr(FakeEvaluator, "answer", answer_as_built)
    searched(toy, monkeypatch)
    gpu.uuid = "GPU-another"
    assert any("made on another GPU" in note for note in profiled(toy)["notes"])
    assert len(gpu.measured) == 1
    gpu.uuid = ENVIRONMENT.gpu_uuid
    found = profiled(toy)
    assert len(gpu.measured) == 1
    assert found["time"]["origin"].startswith("study toy-N1048576-")
    assert found["rates"]["memory"]["percent"] > 0


def test_a_time_from_another_build_is_measured_again_and_that_is_said(
    folder: Path, toy: Path, gpu: FakeGpu, monkeypatch: pytest.MonkeyPatch
) -> None:
    searched(toy, monkeypatch)
    found = profiled(toy)
    assert len(gpu.measured) == 1
    assert found["time"]["origin"] == "measured now"
    assert any("is not used" in note for note in found["notes"])


def test_what_is_named_does_not_replace_the_winners_profile(
    folder: Path, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    study = searched(toy, monkeypatch)
    ktune("profile", toy)
    winner = (study / "profile.json").read_text()
    ktune("profile", toy, "#3")
    assert (study / "profile.json").read_text() == winner
    assert len(list(study.glob("profile-*.json"))) == 1


def test_a_study_without_a_winner_leaves_the_default(folder: Path, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    searched(toy, monkeypatch, Status.WRONG)
    assert "(the default)" in ktune("profile", toy)


def test_with_a_gpu_rates_stand_beside_the_peaks_of_this_gpu(folder: Path, toy: Path, gpu: FakeGpu) -> None:
    text = ktune("profile", toy, "--output", "out")
    for part in ("on Fake H200", "16 blocks per SM, 100 %", "3.88 waves", "512 W of 700 W", "sw_power_cap",
                 "12.5 mJ", "peaks measured on Fake H200", "n/a: ncu is not installed"):  # fmt: skip
        assert part in text
    found = json.loads(Path("out/profile.json").read_text())
    achieved = 8 * (1 << 20) / 2.3e-6 / 1e9
    assert found["rates"]["memory"]["achieved"] == pytest.approx(achieved)
    assert found["rates"]["memory"]["percent"] == pytest.approx(achieved / 40)
    assert found["bound"]["kind"] == "launch overhead"
    assert "samples_us" not in found["time"]["cold"]


def test_peaks_are_measured_once_and_then_kept_until_they_are_asked_for(folder: Path, toy: Path, gpu: FakeGpu) -> None:
    for options in ((), (), ("--calibrate",)):
        ktune("profile", toy, *options)
    assert [order.calibration is not None for order in gpu.looked] == [True, False, True]
    assert all(Path(order.cubin or "").is_file() for order in gpu.looked)


def test_peaks_of_a_shared_gpu_are_used_but_not_kept(folder: Path, own_cache: Path, toy: Path, gpu: FakeGpu) -> None:
    gpu.look = lambda order: DeviceFacts(132, gpu.steps, STEADY, replace(PEAKS, shared_gpu=True))  # type: ignore[method-assign]
    for _ in range(2):
        found = profiled(toy)
        assert found["rates"]["memory"]["percent"] is not None
        assert any("may be too low" in note for note in found["notes"])
    assert not (own_cache / "peaks").exists()


@pytest.mark.parametrize("status", [Status.CRASHED, Status.TIMED_OUT, Status.LAUNCH_FAILED])
def test_a_variant_that_lost_its_worker_is_not_run_again(folder: Path, toy: Path, gpu: FakeGpu, status: Status) -> None:
    gpu.status = status
    found = profiled(toy)
    assert [order.steady_s for order in gpu.looked] == [0.0]
    for part in ("device", "counters"):
        assert found[part] == {"missing": f"not run again: it ended as {status}: planted"}
    assert found["bound"]["kind"] == "undetermined"


def test_a_wrong_variant_is_profiled_and_its_status_stands_with_its_time(folder: Path, toy: Path, gpu: FakeGpu) -> None:
    gpu.status = Status.WRONG
    text = ktune("profile", toy)
    assert "wrong: planted" in text
    assert "steady state, 1000 executions" in text


def test_the_driver_disagreeing_with_the_rules_is_noted(folder: Path, toy: Path, gpu: FakeGpu) -> None:
    gpu.steps = (StepOnGpu("toy", 12, 5.0),)
    assert any("the driver grants 12 blocks per SM, the rules say 16" in note for note in profiled(toy)["notes"])


def test_counters_name_the_bound_and_are_listed(folder: Path, toy: Path, gpu: FakeGpu) -> None:
    values = {**dict.fromkeys(COUNTERS, 10.0), DURATION: 1e4, "dram__bytes.sum": 3.5e7, "dram__bytes_read.sum": 1.7e7}
    del values["sm__throughput.avg.pct_of_peak_sustained_elapsed"]
    gpu.counters = (KernelCounters("toy", 3, values),)
    gpu.cold_us = 10.0
    text = ktune("profile", toy)
    assert "bound: memory" in text
    assert "hardware counters of toy, 3 launches, median 10 us" in text
    assert [line.split()[-1] for line in text.splitlines() if "sm__throughput" in line] == ["n/a"]
    assert profiled(toy, "--no-counters")["counters"] == {"missing": "not asked for"}


def test_files_of_someone_else_are_left_alone(folder: Path, toy: Path) -> None:
    Path("out").mkdir()
    Path("out/profile.txt").write_text("my notes")
    assert "was not written by ktune" in ktune("profile", toy, "--output", "out", code=2)
    ktune("profile", toy, "--output", "out", "--force")
    assert "ktune profile: toy" in Path("out/profile.txt").read_text()


def test_help_has_an_example(folder: Path) -> None:
    assert "Example: ktune profile" in ktune("profile", "--help")
