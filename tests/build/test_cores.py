from pathlib import Path

import pytest
from fake_compiler import fake_toolchain, write_family

from ktune.build import builder as builder_module
from ktune.build.builder import Builder
from ktune.build.cores import COMPILER_BYTES, available_cores, available_memory, count_jobs


@pytest.mark.parametrize(
    ("wanted", "cores", "compilers_in_memory", "jobs"),
    [
        (None, 16, 100, 16),
        (None, 16, 3, 3),
        (8, 2, 100, 8),
        (8, 2, 3, 3),
        (None, 4, 0, 1),
        (None, 4, None, 4),
        (0, 4, 9, 1),
    ],
)
def test_jobs_are_one_a_core_or_as_wanted_and_never_more_than_memory_holds(
    wanted: int | None, cores: int, compilers_in_memory: int | None, jobs: int
) -> None:
    memory = None if compilers_in_memory is None else compilers_in_memory * COMPILER_BYTES
    assert count_jobs(wanted, cores, memory) == jobs


def test_free_memory_is_the_smaller_of_the_machines_and_the_containers(tmp_path: Path) -> None:
    meminfo = tmp_path / "meminfo"
    meminfo.write_text("MemTotal: 9000 kB\nMemFree: 10 kB\nMemAvailable:    4000 kB\n")
    assert available_memory(meminfo, tmp_path) == 4000 * 1024
    (tmp_path / "memory.max").write_text("3000000\n")
    (tmp_path / "memory.current").write_text("2500000\n")
    (tmp_path / "memory.stat").write_text("anon 1\ninactive_file 400000\n")
    assert available_memory(meminfo, tmp_path) == 900_000
    (tmp_path / "memory.max").write_text("max\n")
    assert available_memory(meminfo, tmp_path) == 4000 * 1024
    assert available_memory(tmp_path / "absent", tmp_path) is None


def test_cores_follow_the_containers_quota(tmp_path: Path) -> None:
    unlimited = available_cores(tmp_path)
    assert unlimited >= 1
    (tmp_path / "cpu.max").write_text("max 100000\n")
    assert available_cores(tmp_path) == unlimited
    (tmp_path / "cpu.max").write_text("50000 100000\n")
    assert available_cores(tmp_path) == 1


def test_a_builder_starts_no_more_compilers_than_memory_holds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(builder_module, "available_memory", lambda: 3 * COMPILER_BYTES)
    builder = Builder(
        write_family(tmp_path / "family"), fake_toolchain(tmp_path / "tools"), tmp_path / "cache", jobs=64
    )
    assert builder.jobs == 3
