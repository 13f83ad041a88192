"""The process that hardware counters are read of: `python -m ktune.profile.launch ORDER`, under ncu.

It runs the plan until the clocks have risen, then three times between the marks that tell ncu to look.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path
from typing import Any

import torch

from ktune.core.loading import load_family
from ktune.gpu.backend import device_of
from ktune.profile.messages import read_order
from ktune.profile.subject import Subject
from ktune.profile.worker import end_with_parent, start_on

EXECUTIONS = 3
WARM_UP_S = 0.3


def main() -> None:
    """Run the order of the command line."""
    end_with_parent()
    order = read_order(Path(sys.argv[1]))
    device = device_of(order.gpu)
    start_on(device)
    runtime: Any = torch.cuda.cudart
    subject = Subject(load_family(order.family_folder), order, device)
    began = time.monotonic()
    while time.monotonic() - began < WARM_UP_S:
        subject.run()
        torch.cuda.synchronize()
    runtime().cudaProfilerStart()
    for _ in range(EXECUTIONS):
        subject.run()
    torch.cuda.synchronize()
    runtime().cudaProfilerStop()
    subject.close()


if __name__ == "__main__":
    main()
