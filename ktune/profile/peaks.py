"""Measures this GPU's peaks with the calibration kernels. Runs only in the worker's process."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from ktune.api import Argument, KernelLaunch, Scalar
from ktune.gpu import driver
from ktune.gpu.cuda_timer import CudaTimer
from ktune.profile.model import Peaks

# The values that the kernels are compiled with.
CHAINS = 8
UNROLL = 16

_BLOCK = 256
_FULL_SM_BLOCKS = 8
_ROUNDS = 1024
_CHAIN_ROUNDS = 64
_BLOCKS_PER_SM = (8, 16, 32, 64)
_LARGEST_ARRAY_BYTES = 1 << 30
_SMALLEST_ARRAY_L2S = 4
_MATRIX = 8192
_SAMPLES = 15
_NOTHING_LAUNCHES = 20
_AB = (Scalar(-1.0, "float32"), Scalar(1.0, "float32"))
_NEVER = Scalar(-12345.678, "float32")


class Calibration:
    """The calibration kernels, loaded, with their buffers. One use: `measure`."""

    def __init__(self, cubin: Path, device: torch.device, timer: CudaTimer) -> None:
        self._module = driver.Module(cubin)
        self._device = device
        self._timer = timer
        self._sm_count = torch.cuda.get_device_properties(device).multi_processor_count
        self._clocks: list[int] = []
        self._throttle: set[str] = set()
        self._sink = torch.zeros(4, device=device)

    def measure(self, gpu_name: str, gpu_uuid: str, shared_gpu: bool) -> Peaks:
        """Every peak, in about a second; `driver` is the parent's to fill in.

        shared_gpu: others compute on it, so that these may be too low.
        """
        copy, read = self._bandwidths()
        operations = self._sm_count * _FULL_SM_BLOCKS * _BLOCK * _ROUNDS * UNROLL * CHAINS
        fma_us = self._time_us(self._launch("calibrate_fma", self._full(), ("sink", Scalar(_ROUNDS), *_AB, _NEVER)))
        ex2_us = self._time_us(self._launch("calibrate_ex2", self._full(), ("sink", Scalar(_ROUNDS), _NEVER)))
        chain_us = self._time_us(
            self._launch("calibrate_chain", (1, 32), ("sink", Scalar(_CHAIN_ROUNDS), *_AB, _NEVER))
        )
        nothing = self._launch("calibrate_nothing", (1, 32), ())
        launch_us = self._time_us(nothing)
        self._timer.bind(nothing)
        gap_us = statistics.median(self._timer.hot(_SAMPLES, _NOTHING_LAUNCHES).samples_us)
        return Peaks(
            gpu_name=gpu_name,
            gpu_uuid=gpu_uuid,
            driver="",
            measured_at=datetime.now(UTC).isoformat(timespec="seconds"),
            copy_gbps=copy,
            read_gbps=read,
            fp32_gflops=2 * operations / fma_us / 1e3,
            special_gops=operations / ex2_us / 1e3,
            tensor_gflops=self._tensor_gflops(),
            launch_us=launch_us,
            gap_us=gap_us,
            chain_ns=1e3 * (chain_us - launch_us) / (_CHAIN_ROUNDS * UNROLL * CHAINS),
            sm_clock_mhz=min(self._clocks, default=None),
            throttle=tuple(sorted(self._throttle)),
            shared_gpu=shared_gpu,
        )

    def close(self) -> None:
        torch.cuda.synchronize()
        self._module.unload()
        torch.cuda.empty_cache()

    def _bandwidths(self) -> tuple[float | None, float | None]:
        """(copy, read) in GB/s, the best of several grids; None where the GPU has no room for large arrays."""
        size = self._array_bytes()
        if size is None:
            return None, None
        source = torch.rand(size // 4, device=self._device)
        target = torch.empty_like(source)
        pointers = {"from": source.data_ptr(), "to": target.data_ptr()}
        vectors = Scalar(size // 16, "int64")
        grids = [(self._sm_count * blocks, _BLOCK) for blocks in _BLOCKS_PER_SM]
        copy_us = self._best_us("calibrate_copy", grids, ("from", "to", vectors), pointers)
        read_us = self._best_us("calibrate_read", grids, ("from", "sink", vectors, _NEVER), pointers)
        return 2 * size / copy_us / 1e3, size / read_us / 1e3

    def _array_bytes(self) -> int | None:
        """Of each of two arrays: 1 GiB, or a quarter of what is free, but several times L2."""
        free, _ = torch.cuda.mem_get_info(self._device)
        size = min(_LARGEST_ARRAY_BYTES, int(free) // 4) // 4096 * 4096
        l2_bytes = torch.cuda.get_device_properties(self._device).L2_cache_size
        return size if size >= _SMALLEST_ARRAY_L2S * l2_bytes and size > 0 else None

    def _best_us(
        self, kernel: str, grids: Sequence[tuple[int, int]], arguments: tuple[Argument, ...], pointers: dict[str, int]
    ) -> float:
        return min(self._time_us(self._launch(kernel, grid, arguments, pointers)) for grid in grids)

    def _tensor_gflops(self) -> float | None:
        """bfloat16 products of the library; None where the GPU has no room for them."""
        try:
            a = torch.randn(_MATRIX, _MATRIX, device=self._device).bfloat16()
            b = torch.randn(_MATRIX, _MATRIX, device=self._device).bfloat16()
            out = torch.empty_like(a)

            def product() -> None:
                torch.mm(a, b, out=out)

            return 2 * _MATRIX**3 / self._time_us(product) / 1e3
        except torch.cuda.OutOfMemoryError:
            return None

    def _full(self) -> tuple[int, int]:
        return self._sm_count * _FULL_SM_BLOCKS, _BLOCK

    def _launch(
        self,
        kernel: str,
        shape: tuple[int, int],
        arguments: tuple[Argument, ...],
        pointers: dict[str, int] | None = None,
    ) -> Callable[[], None]:
        blocks, threads = shape
        launch = KernelLaunch(kernel, (blocks, 1, 1), (threads, 1, 1), arguments)
        return driver.BoundLaunch(
            self._module.kernel(kernel), launch, {"sink": self._sink.data_ptr(), **(pointers or {})}
        )

    def _time_us(self, run: Callable[[], None]) -> float:
        """The median of some cold samples: arrays are far larger than L2, and the rest has nothing to cache."""
        self._timer.bind(run)
        reading = self._timer.cold(_SAMPLES)
        if reading.sm_clock_mhz is not None:
            self._clocks.append(reading.sm_clock_mhz)
        self._throttle.update(reading.throttle)
        return statistics.median(reading.samples_us)
