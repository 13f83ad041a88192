"""The CUDA timer on a pretended stream: what is queued in which order, and what happens when the host is late."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from ktune.gpu import cuda_timer
from ktune.gpu.cuda_timer import CudaTimer

CPU = torch.device("cpu")


class Stream:
    """Keeps the order of what is queued; events advance a clock by what ran between them."""

    def __init__(self) -> None:
        self.queued: list[str] = []
        self.now_ms = 0.0
        self.late: Callable[[], bool] = lambda: False

    def event(self, enable_timing: bool) -> SimpleNamespace:
        assert enable_timing
        event = SimpleNamespace(at=0.0)

        def record() -> None:
            self.queued.append("event")
            event.at = self.now_ms

        event.record = record
        event.query = lambda: self.late()
        event.elapsed_time = lambda stop: stop.at - event.at
        return event

    def run(self) -> None:
        self.queued.append("plan")
        self.now_ms += 0.06

    def spin(self, cycles: int) -> None:
        self.queued.append("delay")
        self.delays.append(cycles)
        self.now_ms += 1.0

    delays: list[int] = []


@pytest.fixture
def stream(monkeypatch: pytest.MonkeyPatch) -> Iterator[Stream]:
    made = Stream()
    made.delays = []
    monkeypatch.setattr(cuda_timer, "_event", lambda: made.event(True))
    monkeypatch.setattr(cuda_timer, "_spin", made.spin)
    monkeypatch.setattr(cuda_timer.driver, "reset_persisting_l2", lambda: made.queued.append("reset L2"))
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: SimpleNamespace(L2_cache_size=1 << 16))
    yield made


@pytest.fixture
def timer(stream: Stream, monkeypatch: pytest.MonkeyPatch) -> CudaTimer:
    sensor = SimpleNamespace(sm_clock_mhz=lambda: 1980, throttle=lambda: ("sw_power_cap",))
    made = CudaTimer(CPU, sensor)  # type: ignore[arg-type]
    real = made._flush
    monkeypatch.setattr(made, "_flush", lambda: (stream.queued.append("flush"), real())[1])
    made.bind(stream.run)
    stream.queued.clear()
    stream.delays.clear()
    return made


def test_a_cold_sample_flushes_and_waits_before_its_event_pair(timer: CudaTimer, stream: Stream) -> None:
    reading = timer.cold(2)
    assert stream.queued == ["flush", "delay", "event", "plan", "event"] * 2
    assert reading.samples_us == pytest.approx((60.0, 60.0))
    assert reading.sm_clock_mhz == 1980 and reading.throttle == ("sw_power_cap",)


def test_a_hot_sample_runs_once_unmeasured_and_then_several_times(timer: CudaTimer, stream: Stream) -> None:
    reading = timer.hot(1, 3)
    assert stream.queued == ["plan", "delay", "event", "plan", "plan", "plan", "event"]
    assert reading.samples_us == pytest.approx((60.0,)), "per execution"


def test_more_samples_than_event_pairs_come_in_batches(timer: CudaTimer) -> None:
    assert len(timer.cold(27).samples_us) == 27


def test_a_sample_whose_launch_came_late_is_taken_again_behind_a_longer_delay(timer: CudaTimer, stream: Stream) -> None:
    answers = iter([True, False])
    stream.late = lambda: next(answers, False)
    assert len(timer.cold(2).samples_us) == 2
    assert stream.queued.count("plan") == 3
    assert timer._delay_factor == 4.0
    assert "host-bound" not in timer.method("cold", 1)


def test_a_plan_that_is_always_late_is_timed_all_the_same_and_says_so(timer: CudaTimer, stream: Stream) -> None:
    stream.late = lambda: True
    assert len(timer.cold(2).samples_us) == 2
    assert "host-bound" in timer.method("cold", 1)
    stream.late = lambda: False
    timer.bind(stream.run)
    assert "host-bound" not in timer.method("cold", 1), "the next plan starts anew"


def test_the_delay_is_never_shorter_than_20_us_nor_longer_than_20_ms(timer: CudaTimer, stream: Stream) -> None:
    timer.cold(1)
    timer._host_us = 1e9
    timer.cold(1)
    assert stream.delays == [20 * 2000, 20_000 * 2000]


def test_the_delay_covers_what_the_host_needs_for_all_launches_of_a_sample(timer: CudaTimer, stream: Stream) -> None:
    timer._host_us = 15.0
    timer.hot(1, 10)
    assert stream.delays == [2 * 15 * 10 * 2000]


def test_binding_gives_persisting_lines_of_the_last_variant_back(timer: CudaTimer, stream: Stream) -> None:
    timer.bind(stream.run)
    assert stream.queued == ["reset L2"], "and does not warm up a GPU that was just busy"


def test_nothing_between_two_events_is_measured_at_the_start(timer: CudaTimer) -> None:
    assert timer.empty_pair_us == 0.0
    assert "empty pair 0.0 us" in timer.method("cold", 1)
