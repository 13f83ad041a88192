"""The builder with a compiler made of a shell script: scheduling, failures, faults, the end."""

import errno
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from fake_compiler import GOOD, case, fake_toolchain, living_below, write_family

from ktune.build import batch as batch_module
from ktune.build.builder import Builder, BuildResult
from ktune.build.cache import BuildCache
from ktune.core.errors import EnvironmentFault, FamilyError, UsageError
from ktune.core.model import Status

SLOW_CASE_0 = 'grep -q "kCase = 0;" variant.cu && sleep 60; ' + GOOD


class Bench:
    """A family and a folder to build it in with any compiler script."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.loaded = write_family(folder / "family")
        self.cache = folder / "cache"
        self.scripts = 0

    def builder(self, body: str = GOOD, *, jobs: int = 2, **options: float) -> Builder:
        self.scripts += 1
        toolchain = fake_toolchain(self.folder / f"tools{self.scripts}", body)
        return Builder(self.loaded, toolchain, self.cache, jobs=jobs, **options)  # type: ignore[arg-type]

    def build(self, cases: list[int], body: str = GOOD, **options: float) -> dict[int, BuildResult]:
        """{case: result} of a builder of its own."""
        with self.builder(body, **options) as builder:  # type: ignore[arg-type]
            return {number_of(r): r for r in builder.build([case(self.loaded, number) for number in cases])}


def number_of(result: BuildResult) -> int:
    return result.variant.configuration.integer("case")


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(tmp_path)


def wait_until(holds: Callable[[], bool], limit_s: float = 20.0) -> None:
    deadline = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < deadline, "it did not come about in time"
        time.sleep(0.02)


def test_every_variant_is_answered_once_with_all_its_facts(bench: Bench) -> None:
    results = bench.build([1, 2, 3])
    assert sorted(results) == [1, 2, 3]
    for result in results.values():
        assert result.status is Status.OK
        assert result.cubin is not None and result.cubin.is_file()
        assert result.log is not None and "Used 40 registers" in result.log.read_text()
        facts = result.facts
        assert facts is not None
        assert (facts.registers, facts.stack_bytes, facts.smem_static_bytes) == (40, 16, 1024)
        assert (facts.spill_store_bytes, facts.spill_load_bytes) == (4, 8)
        assert (facts.cached, facts.compiler) == (False, "nvcc 13.0.88")
        assert facts.compile_s >= 0.0
    assert len({r.facts.key for r in results.values() if r.facts}) == 3


def test_compile_time_is_that_of_each_variant(bench: Bench) -> None:
    results = bench.build([0, 1], 'grep -q "kCase = 0;" variant.cu && sleep 0.5; ' + GOOD)
    slow, quick = (results[number].facts for number in (0, 1))
    assert slow is not None and quick is not None
    assert slow.compile_s >= 0.45 > quick.compile_s


def test_a_second_builder_answers_from_the_cache_without_a_compiler(bench: Bench) -> None:
    first = bench.build([1, 2])
    again = bench.build([1, 2], "exit 1")
    for number, result in again.items():
        assert result.facts is not None and result.facts.cached
        assert result.cubin == first[number].cubin


def test_one_key_is_compiled_once_and_answers_all_who_asked(bench: Bench) -> None:
    count = bench.folder / "count"
    with bench.builder(f"echo x >> {count}; sleep 0.2; {GOOD}") as builder:
        variant = case(bench.loaded, 1)
        builder.submit([variant, variant])
        builder.submit([variant])
        assert builder.pending == 3
        assert [builder.next_result(None) is not None for _ in range(3)] == [True] * 3
        assert builder.pending == 0
        assert builder.next_result(None) is None
    assert count.read_text() == "x\n"


def test_a_variant_without_kernels_is_ok_without_a_cubin(tmp_path: Path) -> None:
    loaded = write_family(tmp_path / "family", name="")
    with Builder(loaded, fake_toolchain(tmp_path / "tools", "exit 1"), tmp_path / "cache") as builder:
        assert builder.key(case(loaded, 0)) == ""
        assert list(builder.build([case(loaded, 0)])) == [BuildResult(case(loaded, 0), Status.OK, None, None)]


def test_one_bad_unit_of_38_costs_only_itself_and_is_named(bench: Bench) -> None:
    body = 'grep -q "kCase = 17;" variant.cu && { echo "cases.cu(3): error: no such thing"; exit 2; }; ' + GOOD
    results = bench.build(list(range(38)), body, jobs=4)
    failed = [number for number, result in results.items() if result.status is not Status.OK]
    assert (len(results), failed) == (38, [17])
    bad = results[17]
    assert (bad.status, bad.detail) == (Status.BUILD_FAILED, "cases.cu(3): error: no such thing")
    assert bad.facts is None and bad.cubin is None
    assert bad.log is not None and bad.log.parent == bench.cache / "logs"
    assert "error: no such thing" in bad.log.read_text()
    assert "kCase = 17;" in bad.log.with_suffix(".cu").read_text()


def test_a_truncated_cubin_of_a_compiler_that_reported_success_is_refused_and_not_kept(bench: Bench) -> None:
    result = bench.build([1], 'head -c 300 "$cubin" > kernel.cubin; cat "$log"')[1]
    assert result.status is Status.BUILD_FAILED
    assert "reported success and left an unusable cubin" in result.detail and "cut short" in result.detail
    assert list((bench.cache / "builds").rglob("*.cubin")) == []
    assert bench.build([1])[1].status is Status.OK


def test_success_without_a_cubin_or_without_resources_is_a_failure(bench: Bench) -> None:
    assert "unusable cubin" in bench.build([1], 'cat "$log"')[1].detail
    assert "no registers and spills for k" in bench.build([1], 'cp "$cubin" kernel.cubin')[1].detail


def test_serialised_tensor_core_instructions_are_a_failed_build(bench: Bench) -> None:
    body = "echo 'ptxas info : (C7510) wgmma.mma_async instructions are serialized due to x'; " + GOOD
    result = bench.build([1], body)[1]
    assert result.status is Status.BUILD_FAILED
    assert "C7510" in result.detail


def test_a_compile_that_runs_on_is_ended_at_its_limit_and_the_others_are_not(bench: Bench) -> None:
    started = time.monotonic()
    results = bench.build([0, 1, 2], SLOW_CASE_0, compile_timeout_s=0.5)
    assert time.monotonic() - started < 20
    assert results[0].status is Status.BUILD_FAILED
    assert results[0].detail == "the compiler ran past its limit of 0.5 s"
    assert results[1].status is results[2].status is Status.OK


def test_without_the_timeout_program_processor_time_is_limited(bench: Bench) -> None:
    tools = bench.folder / "few programs"
    tools.mkdir()
    for name in ("cp", "cat"):
        (tools / name).symlink_to(str(shutil.which(name)))
    endless = replace(fake_toolchain(bench.folder / "endless", "while :; do :; done"), path=str(tools))
    with Builder(bench.loaded, endless, bench.cache, compile_timeout_s=1.0) as builder:
        (result,) = builder.build([case(bench.loaded, 0)])
    assert result.detail == "the compiler ran past its limit of 1 s"
    sound = replace(fake_toolchain(bench.folder / "sound"), path=str(tools))
    with Builder(bench.loaded, sound, bench.cache, compile_timeout_s=1.0) as builder:
        assert [result.status for result in builder.build([case(bench.loaded, 0)])] == [Status.OK]


def test_a_compiler_that_is_killed_fails_alone(bench: Bench) -> None:
    results = bench.build([0, 1, 2], 'grep -q "kCase = 0;" variant.cu && kill -9 $$; ' + GOOD)
    assert [results[n].status for n in (0, 1, 2)] == [Status.BUILD_FAILED, Status.OK, Status.OK]
    assert results[0].detail == "the compiler ended with 137 and named no error"


def test_a_variant_that_spills_more_than_a_limit_is_spilled_and_otherwise_ok(bench: Bench) -> None:
    assert bench.build([1], spill_limit_bytes=12)[1].status is Status.OK
    result = bench.build([1], spill_limit_bytes=11)[1]
    assert result.status is Status.SPILLED
    assert result.detail == "spills 12 bytes, the limit is 11"
    assert result.facts is not None


def test_each_result_is_there_as_soon_as_its_compile_ends(bench: Bench) -> None:
    with bench.builder(SLOW_CASE_0) as builder:
        builder.submit([case(bench.loaded, number) for number in (0, 1, 2, 3)])
        quick = [builder.next_result(20.0) for _ in range(3)]
        assert sorted(number_of(result) for result in quick if result) == [1, 2, 3]
        assert builder.next_result(0.05) is None
        assert builder.pending == 1


def test_later_variants_do_not_wait_for_the_slowest_compile_of_an_earlier_batch(bench: Bench) -> None:
    with bench.builder(SLOW_CASE_0) as builder:
        builder.submit([case(bench.loaded, 0)])
        for number in (1, 2, 3):
            builder.submit([case(bench.loaded, number)])
        assert {number_of(r) for r in (builder.next_result(20.0) for _ in range(3)) if r} == {1, 2, 3}


def test_no_more_compilers_run_at_once_than_jobs(bench: Bench) -> None:
    running = bench.folder / "running"
    running.mkdir()
    body = f"touch {running}/$$; ls {running} | wc -l >> {bench.folder}/counts; sleep 0.1; rm {running}/$$; {GOOD}"
    with bench.builder(body, jobs=3) as builder:
        for number in range(12):
            builder.submit([case(bench.loaded, number)])
        while builder.pending:
            assert builder.next_result(20.0) is not None
    counts = [int(line) for line in (bench.folder / "counts").read_text().split()]
    assert len(counts) == 12
    assert max(counts) <= 3


def test_close_leaves_no_process_and_no_work_folder(bench: Bench) -> None:
    builder = bench.builder("sleep 60 & sleep 60; wait")
    builder.submit([case(bench.loaded, number) for number in range(6)])
    wait_until(lambda: len(living_below(bench.cache)) >= 5)
    builder.close()
    assert living_below(bench.cache) == []
    assert list((bench.cache / "work").iterdir()) == []
    builder.close()
    builder.submit([case(bench.loaded, 7)])
    assert builder.pending == 7
    assert builder.next_result(None) is None
    assert living_below(bench.cache) == []


def test_a_full_disk_is_a_fault_of_the_environment_and_not_of_the_variant(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Full:
        free = 0

    monkeypatch.setattr(batch_module.shutil, "disk_usage", lambda path: Full)
    with bench.builder("exit 1") as builder, pytest.raises(EnvironmentFault, match="no space is left"):
        list(builder.build([case(bench.loaded, 1)]))


def test_a_cache_that_refuses_an_entry_ends_the_builds_with_the_reason_at_every_call(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*arguments: object) -> Path:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(BuildCache, "publish", refuse)
    with bench.builder() as builder:
        builder.submit([case(bench.loaded, 1)])
        for _ in range(2):
            with pytest.raises(EnvironmentFault, match=r"No space left on device.*KTUNE_CACHE_DIR"):
                builder.next_result(None)


def test_a_ninja_that_starts_nothing_is_an_environment_fault_with_what_it_said(bench: Bench) -> None:
    ninja = bench.folder / "ninja"
    ninja.write_text("#!/bin/sh\necho 'ninja: error: bad version'; exit 1\n")
    ninja.chmod(0o755)
    broken = replace(fake_toolchain(bench.folder / "tools"), ninja=ninja)
    with Builder(bench.loaded, broken, bench.cache) as builder, pytest.raises(EnvironmentFault, match="bad version"):
        list(builder.build([case(bench.loaded, 1)]))


def test_bad_targets_and_sources_are_refused_before_anything_is_queued(bench: Bench) -> None:
    with bench.builder() as builder:
        with pytest.raises(UsageError, match="banana"):
            builder.submit([case(bench.loaded, 1), case(bench.loaded, 1, "banana")])
        with pytest.raises(UsageError, match="spelled sm_90a"):
            builder.submit([case(bench.loaded, 1, "9.0a")])
        with pytest.raises(EnvironmentFault, match="not for sm_70"):
            builder.submit([case(bench.loaded, 1, "sm_70")])
        assert builder.pending == 0
    (bench.loaded.folder / "cases.cu").unlink()
    with bench.builder() as builder:
        with pytest.raises(FamilyError, match="names the source"):
            builder.submit([case(bench.loaded, 1)])
        assert builder.pending == 0


def test_folders_with_spaces_and_dollar_signs_build(tmp_path: Path) -> None:
    odd = Bench(tmp_path / "a $folder: 'with' spaces")
    assert odd.build([1])[1].status is Status.OK


RUN = """
import sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from fake_compiler import case, fake_toolchain
from ktune.build.builder import Builder
from ktune.build.toolchain import Toolchain, find_toolchain
from ktune.core.loading import load_family
from ktune.core.settings import read_settings
loaded = load_family({family!r})
toolchain = find_toolchain(read_settings(), Path({nvcc!r}))
with Builder(loaded, toolchain, Path({cache!r}), jobs=2) as builder:
    for result in builder.build([case(loaded, number) for number in range({cases})]):
        print(result.status, flush=True)
"""


def start_run(bench: Bench, nvcc: Path, cases: int) -> subprocess.Popen[str]:
    """Another process that builds the first `cases` variants in the bench's cache."""
    here = Path(__file__).resolve()
    program = RUN.format(
        tests=str(here.parent), family=str(bench.loaded.folder), nvcc=str(nvcc), cache=str(bench.cache), cases=cases
    )
    environment = {**os.environ, "PYTHONPATH": str(here.parents[2])}
    return subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True, env=environment)


def test_after_kill_9_during_a_build_compilers_end_and_the_next_run_builds_everything(bench: Bench) -> None:
    slow = fake_toolchain(bench.folder / "slow", "sleep 0.4; " + GOOD)
    killed = start_run(bench, slow.nvcc, 40)
    assert killed.stdout is not None
    assert killed.stdout.readline() == "ok\n"
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    killed.stdout.close()
    wait_until(lambda: living_below(bench.cache) == [], limit_s=6.0)
    (bench.cache / "builds" / "lock").write_text("stale")
    (bench.cache / "work" / "lock").write_text("stale")
    results = bench.build(list(range(4)))
    assert [results[n].status for n in range(4)] == [Status.OK] * 4


def test_processes_that_share_a_cold_cache_all_succeed(bench: Bench) -> None:
    nvcc = fake_toolchain(bench.folder / "shared", "sleep 0.05; " + GOOD).nvcc
    runs = [start_run(bench, nvcc, 8) for _ in range(3)]
    outputs = [run.communicate(timeout=60)[0] for run in runs]
    assert outputs == ["ok\n" * 8] * 3
    assert len(list((bench.cache / "builds").glob("??/*"))) == 8
    assert list((bench.cache / "work").iterdir()) == []
