"""What is read while a plan runs in a loop, with a meter and a clock that tests control."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from ktune.profile.steady import run_steadily


@dataclass
class Gpu:
    """Each execution takes 1 ms of fake time and 0.5 J; the energy counter moves every 100 ms."""

    energy_known: bool = True
    readable: bool = True
    now_s: float = 0.0
    executed: int = 0
    waits: list[int] = field(default_factory=list)

    def run(self) -> None:
        self.executed += 1

    def mark(self) -> Callable[[], None]:
        submitted = self.executed

        def wait() -> None:
            self.waits.append(submitted)
            self.now_s = max(self.now_s, submitted * 1e-3)

        return wait

    def sm_clock_mhz(self) -> int | None:
        return (345 if self.now_s < 0.2 else 1980) if self.readable else None

    def memory_clock_mhz(self) -> int | None:
        return 3201 if self.readable else None

    def power_w(self) -> float | None:
        return 500.0 if self.readable else None

    def power_limit_w(self) -> float | None:
        return 700.0 if self.readable else None

    def energy_mj(self) -> int | None:
        return int(self.now_s * 10) * 50_000 if self.energy_known else 7

    def throttle(self) -> tuple[str, ...]:
        return ("sw_power_cap",) if self.now_s > 1.0 else ()


def test_clocks_and_power_are_those_of_the_warm_gpu() -> None:
    gpu = Gpu()
    found = run_steadily(gpu.run, gpu.mark, gpu, 1000.0, 2.0, 0, now=lambda: gpu.now_s)
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.power_w, found.power_limit_w) == (1980, 3201, 500, 700)
    assert found.throttle == ("sw_power_cap",)
    assert found.seconds >= 2.0
    assert found.executions == gpu.executed == gpu.waits[-1]


def test_energy_is_taken_between_movements_of_the_counter() -> None:
    gpu = Gpu()
    found = run_steadily(gpu.run, gpu.mark, gpu, 1000.0, 2.0, 0, now=lambda: gpu.now_s)
    assert found.energy_per_launch_mj == pytest.approx(500.0, rel=0.02)


def test_a_counter_that_stands_still_gives_no_energy() -> None:
    gpu = Gpu(energy_known=False)
    assert run_steadily(gpu.run, gpu.mark, gpu, 1000.0, 2.0, 0, now=lambda: gpu.now_s).energy_per_launch_mj is None


def test_the_energy_of_a_shared_gpu_is_nobodys() -> None:
    gpu = Gpu()
    found = run_steadily(gpu.run, gpu.mark, gpu, 1000.0, 2.0, 1, now=lambda: gpu.now_s)
    assert (found.energy_per_launch_mj, found.foreign_processes) == (None, 1)


def test_what_nvml_does_not_tell_is_none() -> None:
    gpu = Gpu(readable=False)
    found = run_steadily(gpu.run, gpu.mark, gpu, 1000.0, 2.0, None, now=lambda: gpu.now_s)
    assert (found.sm_clock_mhz, found.memory_clock_mhz, found.power_w) == (None, None, None)


def test_a_plan_slower_than_the_whole_loop_is_not_repeated_for_long() -> None:
    gpu = Gpu()
    found = run_steadily(gpu.run, gpu.mark, gpu, 5e6, 0.0005, 0, now=lambda: gpu.now_s)
    assert 1 <= found.executions <= 2
