"""The timer for CUDA: event pairs behind a short delay, L2 flushed before cold samples. Clocks are never changed."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from ktune.gpu import driver, timing
from ktune.gpu.nvml import Sensor
from ktune.gpu.timing import Pace, Reading

# torch.cuda._sleep spins for a number of SM clocks; at a lower clock than this the delay is longer, never shorter.
_CYCLES_PER_US = 2000
_SHORTEST_DELAY_US = 20.0
_LONGEST_DELAY_US = 20_000.0

# Queued at once before the host waits: enough to keep the GPU busy, few enough to stay interruptible.
_BATCH = 10
_ATTEMPTS = 3
_WARM_UP_S = 0.025
_REWARM_S = 0.01
_WARM_UP_LIMIT_S = 0.3
_IDLE_AFTER_S = 0.3

# NVML may take a millisecond to answer, as long as a whole batch of samples.
_CONDITIONS_LAST_S = 0.01
_DEFAULT_L2_BYTES = 64 << 20


class CudaTimer:
    """Times a plan on torch's current device and stream. One per process; `bind` it to each plan in turn.

    A cold sample is: write a buffer of 2 x L2, read another one (so that no dirty line is written back during the
    kernel), a delay, an event, the plan, an event. The delay lets the host queue everything before the GPU
    arrives at the first event, so that no gap between launches is inside the pair; where the GPU was faster
    after all, the sample is taken again. A plan that the host cannot launch within the longest delay, or that waits for
    the GPU itself, is host-bound: it is timed without a delay, its launch gaps included, since that is how it runs.
    From then on no sample without gaps is kept beside those with them. Nothing is subtracted from a sample.
    """

    def __init__(self, device: torch.device, sensor: Sensor) -> None:
        self._sensor = sensor
        l2_bytes = torch.cuda.get_device_properties(device).L2_cache_size or _DEFAULT_L2_BYTES
        words = 2 * l2_bytes // 4
        self._written = torch.zeros(words, dtype=torch.int32, device=device)
        self._clean = torch.zeros(words, dtype=torch.int32, device=device)
        self._sink = torch.zeros((), dtype=torch.int64, device=device)
        self._events = [(_event(), _event()) for _ in range(_BATCH)]
        self._run: Callable[[], None] = _nothing
        self._pace = Pace()
        self._conditions: tuple[float, int | None, tuple[str, ...]] = (-math.inf, None, ())
        self._last_busy: float | None = None
        self.empty_pair_us = self._time_empty_pair()

    def bind(self, run: Callable[[], None], pace: Pace | None = None) -> None:
        """The plan to time from now on, at its pace if that is known. Warms the GPU up if it may have fallen asleep."""
        self._run = run
        self._pace = pace if pace is not None else Pace()
        driver.reset_persisting_l2()
        now = time.monotonic()
        if self._last_busy is None or now - self._last_busy > _IDLE_AFTER_S:
            least_s = _WARM_UP_S if self._last_busy is None else _REWARM_S
            timing.warm_up(self._work, self._sensor.sm_clock_mhz, least_s, _WARM_UP_LIMIT_S)
        self._last_busy = time.monotonic()

    def cold(self, samples: int) -> Reading:
        return self._take(samples, 1, self._flush)

    def hot(self, samples: int, launches: int) -> Reading:
        return self._take(samples, launches, self._run)

    def method(self, regime: str, launches: int) -> str:
        """As recorded with each timing, with what the timer reads around nothing."""
        how = "one launch" if launches == 1 else f"{launches} launches"
        pair = "event pair, host-bound, with launch gaps" if self._pace.host_bound else "event pair behind a delay"
        late = ", some launched late" if self._pace.sometimes_late and not self._pace.host_bound else ""
        return f"{pair}, {how}{late}, empty pair {self.empty_pair_us:.1f} us"

    def _take(self, samples: int, launches: int, before: Callable[[], None]) -> Reading:
        taken: list[float] = []
        late: list[float] = []
        clock: int | None = None
        throttle: set[str] = set()
        attempts = _ATTEMPTS * math.ceil(samples / _BATCH)
        while len(taken) < samples and attempts > 0:
            attempts -= 1
            hidden = not self._pace.host_bound
            batch, missed, seen, reasons = self._batch(min(_BATCH, samples - len(taken)), launches, before)
            taken += batch
            late += missed
            throttle.update(reasons)
            if hidden and self._pace.host_bound:
                # what a delay hid, wholly or in part, has not all of the gaps
                taken, late = [], []
                attempts = _ATTEMPTS * math.ceil(samples / _BATCH)
            clock = seen if clock is None or (seen is not None and seen < clock) else clock
        if len(taken) < samples:
            # a plan that waits on the host by itself is slow by itself: its samples count, and say so
            self._pace.host_bound = not taken
            self._pace.sometimes_late = bool(taken)
            taken += late[: samples - len(taken)]
        self._last_busy = time.monotonic()
        return Reading(tuple(taken), clock, tuple(sorted(throttle)), self._pace.host_bound)

    def _batch(
        self, samples: int, launches: int, before: Callable[[], None]
    ) -> tuple[list[float], list[float], int | None, tuple[str, ...]]:
        """(samples, samples whose launches came late, SM clock, throttle reasons); waits for the GPU once.

        Of a host-bound plan no sample is late.
        """
        hidden = not self._pace.host_bound
        on_time, host_us = [], []
        pairs = self._events[:samples]
        for start, stop in pairs:
            before()
            if hidden:
                _spin(self._delay_cycles(launches))
            began = time.perf_counter()
            start.record()
            for _ in range(launches):
                self._run()
            stop.record()
            host_us.append((time.perf_counter() - began) * 1e6 / launches)
            on_time.append(not start.query())
        clock, throttle = self._read_conditions()
        torch.cuda.synchronize()
        self._learn(host_us, all(on_time), launches)
        times = [start.elapsed_time(stop) * 1000.0 / launches for start, stop in pairs]
        good = [t for t, ok in zip(times, on_time, strict=True) if ok or not hidden]
        late = [t for t, ok in zip(times, on_time, strict=True) if not ok and hidden]
        return good, late, clock, throttle

    def _learn(self, host_us: Sequence[float], in_time: bool, launches: int) -> None:
        """Adapt the pace to what the host took for each execution."""
        pace = self._pace
        pace.host_us = statistics.median(host_us)
        # the least, since a host that paused once is no slow host
        if 2.0 * min(host_us) * launches > _LONGEST_DELAY_US:
            pace.host_bound = True
        elif not in_time:
            pace.delay_factor *= 2.0

    def _read_conditions(self) -> tuple[int | None, tuple[str, ...]]:
        """SM clock and throttle reasons; to be called while the GPU works, or it would answer for an idle one."""
        now = time.monotonic()
        if now - self._conditions[0] > _CONDITIONS_LAST_S:
            self._conditions = (now, self._sensor.sm_clock_mhz(), self._sensor.throttle())
        return self._conditions[1:]

    def _delay_cycles(self, launches: int) -> int:
        wanted_us = self._pace.delay_factor * self._pace.host_us * launches
        delay_us = min(max(_SHORTEST_DELAY_US, wanted_us), _LONGEST_DELAY_US)
        return int(delay_us * _CYCLES_PER_US)

    def _flush(self) -> None:
        self._written.fill_(1)
        torch.sum(self._clean, dim=0, out=self._sink)

    def _work(self) -> None:
        """The plan once, with memory traffic, waited for."""
        self._flush()
        self._run()
        torch.cuda.synchronize()

    def _time_empty_pair(self) -> float:
        self._take(_BATCH, 1, self._flush)
        return statistics.median(self._take(_BATCH, 1, self._flush).samples_us)


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)


def _spin(cycles: int) -> None:
    """Occupy the stream for so many SM clocks; touches no memory."""
    sleep: Any = torch.cuda._sleep
    sleep(cycles)


def _nothing() -> None:
    """An empty plan."""
