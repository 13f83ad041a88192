"""The CUDA timer on a pretended stream: what is queued in which order, and what happens when the host is late."""

from collections.abc import Callable, Iterator
from types import SimpleNamespace

import pytest
import torch

from ktune.gpu import cuda_timer
from ktune.gpu.cuda_timer import CudaTimer
from ktune.gpu.timing import Pace

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
    assert timer._pace.delay_factor == 4.0
    assert "host-bound" not in timer.method("cold", 1)


def test_a_plan_that_is_always_late_is_timed_all_the_same_and_says_so(timer: CudaTimer, stream: Stream) -> None:
    stream.late = lambda: True
    assert len(timer.cold(2).samples_us) == 2
    assert "host-bound" in timer.method("cold", 1)
    stream.late = lambda: False
    timer.bind(stream.run)
    assert "host-bound" not in timer.method("cold", 1), "the next plan starts anew"


@pytest.fixture
def slow_host(timer: CudaTimer, stream: Stream, monkeypatch: pytest.MonkeyPatch) -> Stream:
    """A host that needs 15 ms to launch the plan."""
    clock = SimpleNamespace(seconds=0.0)
    real = stream.run

    def run() -> None:
        clock.seconds += 0.015
        real()

    pretended = SimpleNamespace(perf_counter=lambda: clock.seconds, monotonic=lambda: clock.seconds)
    monkeypatch.setattr(cuda_timer, "time", pretended)
    monkeypatch.setattr(stream, "run", run)
    return stream


def test_a_plan_that_no_delay_can_hide_is_timed_without_one_and_says_so(timer: CudaTimer, slow_host: Stream) -> None:
    slow_host.late = lambda: True
    timer.bind(slow_host.run)
    slow_host.queued.clear()
    assert timer.cold(1).samples_us == pytest.approx((60.0,))
    assert timer.cold(2).samples_us == pytest.approx((60.0, 60.0))
    assert slow_host.delays == [20 * 2000]
    assert slow_host.queued.count("plan") == 4, "only the sample that found it out was taken again"
    assert "host-bound, with launch gaps" in timer.method("cold", 1)


def test_no_sample_without_launch_gaps_is_kept_beside_those_with_them(timer: CudaTimer, slow_host: Stream) -> None:
    # the GPU is on time behind the delay until the host turns out to be too slow
    timer.bind(slow_host.run)
    slow_host.queued.clear()
    found = timer.cold(12)
    assert len(found.samples_us) == 12 and found.host_bound
    assert slow_host.queued.count("delay") == 10 and slow_host.queued.count("plan") == 10 + 12


def test_a_plan_that_the_host_keeps_up_with_is_not_host_bound(timer: CudaTimer) -> None:
    assert not timer.cold(12).host_bound and not timer.hot(3, 5).host_bound


def test_a_host_that_pauses_once_makes_no_plan_host_bound(timer: CudaTimer, stream: Stream, monkeypatch) -> None:
    # each sample reads the clock twice: the first launch takes 30 ms, the others nothing
    readings = iter([0.0, 0.03])
    pretended = SimpleNamespace(perf_counter=lambda: next(readings, 0.03), monotonic=lambda: 0.0)
    monkeypatch.setattr(cuda_timer, "time", pretended)
    timer.cold(2)
    assert "host-bound" not in timer.method("cold", 1)


def test_what_was_learnt_of_a_plans_pace_is_known_when_it_is_bound_again(timer: CudaTimer, stream: Stream) -> None:
    one, other = Pace(), Pace()
    timer.bind(stream.run, one)
    stream.late = lambda: True
    timer.cold(1)
    stream.late = lambda: False
    timer.bind(stream.run, other)
    timer.cold(1)
    assert "host-bound" not in timer.method("cold", 1)
    timer.bind(stream.run, one)
    stream.queued.clear()
    timer.cold(1)
    assert stream.queued == ["flush", "event", "plan", "event"]
    assert "host-bound" in timer.method("cold", 1)


def test_a_plan_that_is_late_at_times_says_so_and_keeps_its_delay(timer: CudaTimer, stream: Stream) -> None:
    answers = iter([False, True, True, True])
    stream.late = lambda: next(answers, False)
    assert len(timer.cold(2).samples_us) == 2
    assert "some launched late" in timer.method("cold", 1) and "host-bound" not in timer.method("cold", 1)
    stream.queued.clear()
    timer.cold(1)
    assert stream.queued.count("delay") == 1


def test_the_delay_is_never_shorter_than_20_us_nor_longer_than_20_ms(timer: CudaTimer, stream: Stream) -> None:
    timer.cold(1)
    timer._pace.host_us = 1e9
    timer.cold(1)
    assert stream.delays == [20 * 2000, 20_000 * 2000]


def test_the_delay_covers_what_the_host_needs_for_all_launches_of_a_sample(timer: CudaTimer, stream: Stream) -> None:
    timer._pace.host_us = 15.0
    timer.hot(1, 10)
    assert stream.delays == [2 * 15 * 10 * 2000]


def test_binding_gives_persisting_lines_of_the_last_variant_back(timer: CudaTimer, stream: Stream) -> None:
    timer.bind(stream.run)
    assert stream.queued == ["reset L2"], "and does not warm up a GPU that was just busy"


def test_nothing_between_two_events_is_measured_at_the_start(timer: CudaTimer) -> None:
    assert timer.empty_pair_us == 0.0
    assert "empty pair 0.0 us" in timer.method("cold", 1)
