"""What the hardware allows at best: the time that compulsory memory traffic takes."""

from __future__ import annotations

from collections.abc import Iterable

from ktune.api import Cost
from ktune.core.model import Environment, Measurement

# Memory bandwidth in GB/s, from NVIDIA's datasheets of the H200, H100 and GH200. Longer names first.
_DATASHEET_GBPS = (
    ("GH200 480GB", 4000.0),
    ("GH200", 4900.0),
    ("H200", 4800.0),
    ("H100 PCIe", 2000.0),
    ("H100 NVL", 3900.0),
    ("H100", 3350.0),
)


def dram_peak_gbps(environment: Environment | None) -> float | None:
    """The datasheet's memory bandwidth of this GPU model; None where the model is not known."""
    if environment is None:
        return None
    for name, peak in _DATASHEET_GBPS:
        if name in environment.gpu_name:
            return peak
    return None


def compulsory_bytes(cost: Cost) -> int:
    """Bytes that any implementation reads and writes at least once."""
    return cost.bytes_read + cost.bytes_written


def dram_floor_us(cost: Cost, environment: Environment | None) -> float | None:
    """Microseconds that the compulsory bytes take at the datasheet's bandwidth; None if not known."""
    peak = dram_peak_gbps(environment)
    return None if peak is None else compulsory_bytes(cost) / (peak * 1e3)


def known_environment(measurements: Iterable[Measurement]) -> Environment | None:
    """The first environment that a measurement names."""
    return next((m.environment for m in measurements if m.environment is not None), None)
