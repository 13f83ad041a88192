"""Stands in for `ktune.profile.worker`: does what the order's family folder is called."""

import os
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path

from ktune.profile.messages import nothing_known, read_order, write_facts
from ktune.profile.model import Peaks, Steady, StepOnGpu

STEADY = Steady(2.0, 1000, 1980, 3201, 500.0, 700.0, ("sw_power_cap",), 12.5, 0)
PEAKS = Peaks(
    "Fake", "GPU-fake", "580", "2026-01-01T00:00:00+00:00", 4000.0, 4100.0, 60e3, 4e3, 7e5, 2.0, 1.5, 2.0, 1980
)
STEPS = (StepOnGpu("toy", 16, 5.0), StepOnGpu("gemm", None, 7.0))


def main() -> None:
    order, answer = read_order(Path(sys.argv[1])), Path(sys.argv[2])
    deed = Path(order.family_folder).name
    facts = replace(nothing_known("the process ended before it came to this"), sm_count=132)
    if deed == "silent":
        return
    write_facts(facts, answer)
    facts = replace(facts, peaks=PEAKS if order.calibration else facts.peaks, steps=STEPS)
    write_facts(facts, answer)
    if deed == "crash":
        print("cuda error: an illegal memory access", file=sys.stderr, flush=True)
        os.kill(os.getpid(), signal.SIGSEGV)
    if deed == "hang":
        time.sleep(60)
    write_facts(replace(facts, steady=STEADY), answer)


main()
