"""A plan in a loop for a second or two, while NVML says what the GPU does meanwhile. Runs in the worker's process."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ktune.profile.model import Steady

# Long enough that two queued batches hide every look at NVML, short enough to be told apart by its energy counter.
_BATCH_US = 10_000.0
_MOST_PER_BATCH = 2000
_WARM_UP_SHARE = 0.25


class Meter(Protocol):
    """The readings that a loop is watched with: `ktune.gpu.nvml.Sensor`."""

    def sm_clock_mhz(self) -> int | None: ...

    def memory_clock_mhz(self) -> int | None: ...

    def power_w(self) -> float | None: ...

    def power_limit_w(self) -> float | None: ...

    def energy_mj(self) -> int | None: ...

    def throttle(self) -> tuple[str, ...]: ...


def run_steadily(
    run: Callable[[], None],
    mark: Callable[[], Callable[[], None]],
    meter: Meter,
    hot_us: float,
    seconds: float,
    foreign_processes: int | None = None,
    now: Callable[[], float] = time.monotonic,
) -> Steady:
    """Keep the GPU busy with `run` for `seconds` and read the meter after each batch; the first quarter warms up.

    mark: enqueues an event and returns a call that waits for it. hot_us: about what one `run` takes.
    foreign_processes: others on the GPU; with any, the energy counter says nothing about this plan.
    """
    per_batch = min(max(1, math.ceil(_BATCH_US / max(hot_us, 1.0))), _MOST_PER_BATCH)
    log = _Log(meter)
    began = now()
    waiting: list[Callable[[], None]] = []
    executed = 0
    while now() - began < seconds or not waiting:
        for _ in range(per_batch):
            run()
        waiting.append(mark())
        if len(waiting) > 1:
            waiting.pop(0)()
            executed += per_batch
            log.read(executed, now() - began >= _WARM_UP_SHARE * seconds)
    for wait in waiting:
        wait()
        executed += per_batch
    return log.summary(now() - began, executed, foreign_processes)


class _Log:
    def __init__(self, meter: Meter) -> None:
        self._meter = meter
        self._sm_clocks: list[int | None] = []
        self._memory_clocks: list[int | None] = []
        self._powers: list[float | None] = []
        self._throttle: set[str] = set()
        # (executions done, millijoules), each time that the counter was seen to have moved
        self._energy: list[tuple[int, int]] = []
        self._last_energy: int | None = None

    def read(self, executed: int, warm: bool) -> None:
        meter = self._meter
        self._throttle.update(meter.throttle())
        energy = meter.energy_mj()
        moved = energy is not None and self._last_energy is not None and energy != self._last_energy
        self._last_energy = energy
        if not warm:
            return
        if moved and energy is not None:
            self._energy.append((executed, energy))
        self._sm_clocks.append(meter.sm_clock_mhz())
        self._memory_clocks.append(meter.memory_clock_mhz())
        self._powers.append(meter.power_w())

    def summary(self, seconds: float, executed: int, foreign_processes: int | None) -> Steady:
        return Steady(
            seconds=seconds,
            executions=executed,
            sm_clock_mhz=_whole(_middle(self._sm_clocks)),
            memory_clock_mhz=_whole(_middle(self._memory_clocks)),
            power_w=_middle(self._powers),
            power_limit_w=self._meter.power_limit_w(),
            throttle=tuple(sorted(self._throttle)),
            energy_per_launch_mj=None if foreign_processes else self._energy_per_launch(),
            foreign_processes=foreign_processes,
        )

    def _energy_per_launch(self) -> float | None:
        """Between the first and the last time that the counter moved; None if it moved less than twice."""
        if len(self._energy) < 2:
            return None
        (first, before), (last, after) = self._energy[0], self._energy[-1]
        return (after - before) / (last - first) if last > first and after > before else None


def _middle(readings: Sequence[float | None]) -> float | None:
    """The median of what was given; None if nothing was."""
    given = [reading for reading in readings if reading is not None]
    return statistics.median(given) if given else None


def _whole(reading: float | None) -> int | None:
    return None if reading is None else round(reading)
