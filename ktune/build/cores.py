"""How many compilers may run at once on this machine."""

from __future__ import annotations

import os
from pathlib import Path

COMPILER_BYTES = 600_000_000
"""Memory set aside for one nvcc: a small kernel takes 90 MB, a header-heavy one several times that."""

_MEMINFO = Path("/proc/meminfo")
_CGROUP = Path("/sys/fs/cgroup")


def count_jobs(wanted: int | None, cores: int, available_bytes: int | None) -> int:
    """`wanted`, else one a core, never more than free memory holds (None: unknown), at least 1."""
    jobs = cores if wanted is None else wanted
    if available_bytes is not None:
        jobs = min(jobs, available_bytes // COMPILER_BYTES)
    return max(1, jobs)


def available_cores(cgroup: Path = _CGROUP) -> int:
    """Cores that this process may run on, by affinity and by the container's quota."""
    cores = len(os.sched_getaffinity(0))
    quota, _, period = _read(cgroup / "cpu.max").partition(" ")
    if quota.isdigit() and period.strip().isdigit():
        cores = min(cores, max(1, int(quota) // int(period)))
    return cores


def available_memory(meminfo: Path = _MEMINFO, cgroup: Path = _CGROUP) -> int | None:
    """Bytes that can be used without swapping, by the kernel's estimate and the container's limit."""
    found = [_kilobytes(line) for line in _read(meminfo).splitlines() if line.startswith("MemAvailable:")]
    limit, used = _read(cgroup / "memory.max").strip(), _read(cgroup / "memory.current").strip()
    if limit.isdigit() and used.isdigit():
        cached = sum(
            int(line.split()[1])
            for line in _read(cgroup / "memory.stat").splitlines()
            if line.startswith("inactive_file ")
        )
        found.append(max(0, int(limit) - int(used) + cached))
    return min(found, default=None)


def _kilobytes(line: str) -> int:
    return int(line.split()[1]) * 1024


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
