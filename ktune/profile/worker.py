"""The isolated process that looks at one configuration on a GPU: `python -m ktune.profile.worker ORDER ANSWER`.

It writes the answer anew after each part, so that what it found outlives a crash. It ends when its standard input is
closed, which the end of its parent does.
"""

from __future__ import annotations

import faulthandler
import os
import resource
import statistics
import sys
import threading
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch

from ktune.api import KernelLaunch, TorchOperation
from ktune.core.loading import load_family
from ktune.gpu import nvml
from ktune.gpu.backend import device_of, uuid_of
from ktune.gpu.cuda_timer import CudaTimer
from ktune.profile.messages import Order, nothing_known, read_order, write_facts
from ktune.profile.model import DeviceFacts, Peaks, StepOnGpu
from ktune.profile.peaks import Calibration
from ktune.profile.steady import run_steadily
from ktune.profile.subject import Subject

ORPHANED = 3
_HOT_SAMPLES = 15
_STEP_ROUNDS = 20
# half a millisecond, in which the host queues a whole plan
_QUEUE_CYCLES = 1_000_000


def main() -> None:
    """Answer the order of the command line."""
    end_with_parent()
    faulthandler.enable()
    # an aborting variant would leave a core file of the whole process in the user's folder
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    answer(read_order(Path(sys.argv[1])), Path(sys.argv[2]))


def end_with_parent() -> None:
    """End this process as soon as its standard input is closed at the other end."""

    def watch() -> None:
        # not through sys.stdin: a thread that waits inside its buffer makes the interpreter abort as it ends
        while os.read(sys.stdin.fileno(), 4096):
            pass
        os._exit(ORPHANED)

    threading.Thread(target=watch, name="parent", daemon=True).start()


def start_on(device: torch.device) -> None:
    """Make the device current; no TF32 in torch's products unless a family asks for it."""
    torch.cuda.set_device(device)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False


def answer(order: Order, path: Path) -> None:
    """Measure the peaks if asked, then look at the variant; `path` grows part by part."""
    device = device_of(order.gpu)
    sensor = nvml.Sensor(uuid_of(device))
    # counted before this process has a context of its own, whatever its id is called outside of its container
    foreign = sensor.foreign_processes()
    start_on(device)
    sm_count = torch.cuda.get_device_properties(device).multi_processor_count
    facts = replace(nothing_known("the process ended before it came to this"), sm_count=sm_count)
    write_facts(facts, path)
    timer = CudaTimer(device, sensor)
    if order.calibration is not None:
        facts = replace(facts, peaks=_measure_peaks(order.calibration, device, timer, bool(foreign)))
        write_facts(facts, path)
    if order.steady_s > 0:
        _look_at_variant(order, device, timer, sensor, foreign, facts, path)


def _look_at_variant(
    order: Order,
    device: torch.device,
    timer: CudaTimer,
    sensor: nvml.Sensor,
    foreign: int | None,
    facts: DeviceFacts,
    path: Path,
) -> None:
    subject = Subject(load_family(order.family_folder), order, device)
    steps = tuple(_occupancy(subject, launch) for launch in subject.plan.launches)
    write_facts(replace(facts, steps=steps), path)
    timer.bind(subject.run)
    hot_us = statistics.median(timer.hot(_HOT_SAMPLES, 1).samples_us)
    times = _step_times_us(subject) if len(steps) > 1 else [hot_us]
    facts = replace(facts, steps=tuple(replace(s, hot_us=t) for s, t in zip(steps, times, strict=True)))
    write_facts(facts, path)
    steady = run_steadily(subject.run, _mark, sensor, hot_us, order.steady_s, foreign)
    write_facts(replace(facts, steady=steady), path)
    subject.close()


def _measure_peaks(cubin: str, device: torch.device, timer: CudaTimer, shared_gpu: bool) -> Peaks:
    calibration = Calibration(Path(cubin), device, timer)
    try:
        return calibration.measure(torch.cuda.get_device_name(device), uuid_of(device), shared_gpu)
    finally:
        calibration.close()


def _occupancy(subject: Subject, launch: KernelLaunch | TorchOperation) -> StepOnGpu:
    if isinstance(launch, TorchOperation):
        return StepOnGpu(launch.function, None, None)
    x, y, z = launch.block
    granted = subject.kernels[launch.kernel].blocks_per_sm(x * y * z, launch.smem_bytes)
    return StepOnGpu(launch.kernel, granted, None)


def _step_times_us(subject: Subject) -> list[float]:
    """Of each step, while the plan runs whole and hot: the median over some rounds, queued before the GPU starts."""
    sleep: Any = torch.cuda._sleep
    rounds = []
    for _ in range(_STEP_ROUNDS):
        events = [_event() for _ in range(len(subject.steps) + 1)]
        sleep(_QUEUE_CYCLES)
        events[0].record()
        for step, event in zip(subject.steps, events[1:], strict=True):
            step()
            event.record()
        torch.cuda.synchronize()
        rounds.append([1000.0 * before.elapsed_time(after) for before, after in pairwise(events)])
    return [statistics.median(times) for times in zip(*rounds, strict=True)]


def _mark() -> Callable[[], None]:
    event = _event()
    event.record()
    wait: Callable[[], None] = event.synchronize
    return wait


def _event() -> Any:
    make: Any = torch.cuda.Event
    return make(enable_timing=True)


if __name__ == "__main__":
    main()
