"""Theoretical occupancy agrees with the documentation, and with the vendor's own header where a toolkit has it."""

from __future__ import annotations

import random
import shutil
import subprocess
from pathlib import Path

import pytest

from ktune.profile.occupancy import Footprint, SmLimits, limits_of, occupancy, resident_warps_per_scheduler

HOPPER = limits_of("sm_90a")
assert HOPPER is not None


@pytest.mark.parametrize(
    ("footprint", "blocks", "limiter"),
    [
        (Footprint(128, 32, 0), 16, ""),
        (Footprint(256, 64, 0), 4, "registers"),
        (Footprint(256, 65, 0), 3, "registers"),
        (Footprint(384, 168, 0), 1, "registers"),
        (Footprint(128, 32, 100 * 1024), 2, "shared memory"),
        (Footprint(128, 32, 227 * 1024), 1, "shared memory"),
        (Footprint(32, 16, 0), 32, "blocks"),
        (Footprint(33, 16, 0), 32, ""),
        (Footprint(96, 32, 0), 21, "warps and registers"),
        (Footprint(128, 32, 1024, barriers=16), 4, "barriers"),
    ],
)
def test_a_hopper_sm_holds_what_is_documented(footprint: Footprint, blocks: int, limiter: str) -> None:
    found = occupancy(footprint, HOPPER)
    assert (found.blocks, found.limiter) == (blocks, limiter)
    assert found.warps == blocks * footprint.warps


@pytest.mark.parametrize(
    "footprint", [Footprint(1025, 16, 0), Footprint(128, 16, 228 * 1024), Footprint(1024, 72, 0), Footprint(0, 16, 0)]
)
def test_a_block_that_fits_on_no_sm_has_no_occupancy(footprint: Footprint) -> None:
    found = occupancy(footprint, HOPPER)
    assert (found.blocks, found.percent) == (0, 0.0)
    assert found.limiter


def test_the_kilobyte_that_the_system_reserves_counts_for_every_block() -> None:
    without = occupancy(Footprint(32, 16, 228 * 1024 // 32), HOPPER)
    with_room = occupancy(Footprint(32, 16, 228 * 1024 // 32 - 1024), HOPPER)
    assert without.blocks < 32 == with_room.blocks


def test_each_target_has_its_own_limits_whatever_its_suffix() -> None:
    assert limits_of("sm_90") == HOPPER
    assert limits_of("sm_100f") is not None
    consumer = limits_of("sm_89")
    assert consumer is not None
    assert occupancy(Footprint(256, 32, 0), consumer).percent == 100.0
    assert occupancy(Footprint(512, 32, 90 * 1024), consumer).blocks == 1


@pytest.mark.parametrize("target", ["sm_70", "sm_999", "compute_90", "", "sm_90x"])
def test_a_target_that_is_not_in_the_table_has_no_limits(target: str) -> None:
    assert limits_of(target) is None


def test_a_small_grid_leaves_schedulers_without_a_warp() -> None:
    assert resident_warps_per_scheduler(8, 8, blocks=16, sm_count=132) == pytest.approx(128 / 528)
    assert resident_warps_per_scheduler(8, 8, blocks=10**6, sm_count=132) == 16.0


HEADER_PROGRAM = r"""
#include <climits>
#include <cstddef>
#include <cstdio>
#include <cuda_occupancy.h>
int main() {
  int major, minor, warps, threads, registers, barriers;
  long long sm_bytes, block_bytes, bytes;
  while (std::scanf("%d %d %d %lld %lld %d %d %lld %d", &major, &minor, &warps, &sm_bytes, &block_bytes, &threads,
                    &registers, &bytes, &barriers) == 9) {
    cudaOccDeviceProp device;
    device.computeMajor = major, device.computeMinor = minor;
    device.maxThreadsPerBlock = 1024, device.maxThreadsPerMultiprocessor = 32 * warps;
    device.regsPerBlock = device.regsPerMultiprocessor = 65536, device.warpSize = 32, device.numSms = 1;
    device.sharedMemPerBlock = 48 << 10, device.sharedMemPerMultiprocessor = sm_bytes;
    device.sharedMemPerBlockOptin = block_bytes, device.reservedSharedMemPerBlock = 1024;
    cudaOccFuncAttributes kernel;
    kernel.maxThreadsPerBlock = INT_MAX, kernel.numRegs = registers, kernel.sharedSizeBytes = 0;
    kernel.partitionedGCConfig = PARTITIONED_GC_OFF, kernel.shmemLimitConfig = FUNC_SHMEM_LIMIT_OPTIN;
    kernel.maxDynamicSharedSizeBytes = block_bytes, kernel.numBlockBarriers = barriers;
    cudaOccDeviceState state;
    cudaOccResult result;
    const int error = cudaOccMaxActiveBlocksPerMultiprocessor(&result, &device, &kernel, &state, threads, bytes);
    std::printf("%d\n", error ? -1 : result.activeBlocksPerMultiprocessor);
  }
}
"""


def toolkit_include() -> Path | None:
    nvcc = shutil.which("nvcc")
    candidates = [Path("/usr/local/cuda/include"), *sorted(Path("/usr/local").glob("cuda*/include"))]
    if nvcc:
        candidates.insert(0, Path(nvcc).resolve().parent.parent / "include")
    return next((folder for folder in candidates if (folder / "cuda_occupancy.h").is_file()), None)


@pytest.mark.build
@pytest.mark.parametrize("target", ["sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_100", "sm_120"])
def test_the_vendors_header_agrees_on_random_kernels(target: str, header: Path) -> None:
    limits = limits_of(target)
    assert limits is not None
    rng = random.Random(target)
    footprints = [
        Footprint(
            rng.choice([rng.randint(1, 1024), 32 * rng.randint(1, 32)]),
            rng.randint(8, 255),
            rng.choice([0, rng.randint(0, limits.smem_per_block_bytes)]),
            rng.choice([0, 1, 1, rng.randint(1, 16)]),
        )
        for _ in range(2000)
    ]
    number = int(target.removeprefix("sm_"))
    asked = "".join(line(number, limits, footprint) for footprint in footprints)
    told = subprocess.run([header], input=asked, capture_output=True, text=True, check=True).stdout.split()
    ours = [occupancy(footprint, limits).blocks for footprint in footprints]
    assert dict(zip(footprints, map(int, told), strict=True)) == dict(zip(footprints, ours, strict=True))


def line(number: int, limits: SmLimits, f: Footprint) -> str:
    fields = (
        number // 10, number % 10, limits.warps, limits.smem_bytes, limits.smem_per_block_bytes, f.threads, f.registers,
        f.smem_bytes, f.barriers,
    )  # fmt: skip
    return " ".join(map(str, fields)) + "\n"


@pytest.fixture(scope="module")
def header(tmp_path_factory: pytest.TempPathFactory) -> Path:
    include = toolkit_include()
    compiler = shutil.which("g++")
    if include is None or compiler is None:
        pytest.skip("needs g++ and a toolkit with cuda_occupancy.h")
    folder = tmp_path_factory.mktemp("occupancy")
    source, program = folder / "occupancy.cpp", folder / "occupancy"
    source.write_text(HEADER_PROGRAM)
    subprocess.run([compiler, "-I", include, "-o", program, source], check=True)
    return program
