"""Hardware counters by ncu: the command, what it prints, and why there are none where there are none."""

from __future__ import annotations

import csv
import io
import math
import re
import statistics
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from ktune.profile.evidence import COUNTERS, DURATION
from ktune.profile.isolated import Ended
from ktune.profile.model import KernelCounters, Missing

DRIVER_MODULE = "ktune.profile.launch"
_ATTEMPTS = 6
_KERNEL_NAME = "Kernel Name"
_ERROR = re.compile(r"==ERROR==\s*(.+)")
_UNKNOWN_METRIC = re.compile(r"Failed to find metric\s+(?:regex:\^?)?([\w.\\]+)")
_PERMISSION = "ERR_NVGPUCTRPERM"


def read_counters(
    ncu: Path, order: Path, run: Callable[[Sequence[str]], Ended]
) -> tuple[KernelCounters, ...] | Missing:
    """Counters of each kernel of the plan; tried again without the metrics that this ncu or GPU does not have."""
    wanted = list(dict.fromkeys(COUNTERS))
    for _ in range(_ATTEMPTS):
        ended = run(command(ncu, wanted, order))
        found = parse_counters(ended.output)
        if found and not ended.reason:
            return found
        unknown = set(unknown_metrics(ended.output + ended.errors, wanted))
        if not unknown:
            return Missing(f"ncu: {explain(ended)}")
        wanted = [metric for metric in wanted if metric not in unknown]
    return Missing("ncu: it knows too few of the metrics; a newer Nsight Compute is needed")


def command(ncu: Path, metrics: Sequence[str], order: Path) -> list[str]:
    """Clocks as they are, caches flushed before each replay, and only the marked launches."""
    return [
        str(ncu), "--clock-control", "none", "--cache-control", "all", "--csv", "--page", "raw",
        "--print-units", "base", "--profile-from-start", "off", "--metrics", ",".join(metrics),
        sys.executable, "-P", "-m", DRIVER_MODULE, str(order),
    ]  # fmt: skip


def parse_counters(output: str) -> tuple[KernelCounters, ...]:
    """Medians per kernel, in the order of their first launch. Cells that are no number are left out."""
    launches: dict[str, list[dict[str, float]]] = {}
    for row in _rows(output):
        values = {name: value for name, text in row.items() if "__" in name and (value := _number(text)) is not None}
        if DURATION in values:
            launches.setdefault(row[_KERNEL_NAME], []).append(values)
    return tuple(KernelCounters(_short(kernel), len(rows), _medians(rows)) for kernel, rows in launches.items())


def unknown_metrics(text: str, wanted: Sequence[str]) -> list[str]:
    """Those of `wanted` that ncu complained about, by their whole name or by its base."""
    named = [match.replace("\\", "").rstrip(".") for match in _UNKNOWN_METRIC.findall(text)]
    return [metric for metric in wanted if any(metric == name or metric.startswith(f"{name}.") for name in named)]


def explain(ended: Ended) -> str:
    """Why there are no counters, as ncu says it, with the remedy where it is known."""
    said = ended.output + "\n" + ended.errors
    if _PERMISSION in said:
        return (
            "this user may not read the GPU's performance counters; run as root, or see "
            "https://developer.nvidia.com/ERR_NVGPUCTRPERM"
        )
    error = _ERROR.search(said)
    if error:
        return error[1].strip()
    last = next((line.strip() for line in reversed(said.splitlines()) if line.strip()), "nothing")
    return f"it profiled no kernel, {ended.reason or 'ended well'} and last said: {last[:300]}"


def _rows(output: str) -> Iterator[dict[str, str]]:
    """The table among whatever else stands on stdout; its second line holds units."""
    lines = output.splitlines()
    start = next((i for i, line in enumerate(lines) if line.startswith('"ID"') and _KERNEL_NAME in line), None)
    if start is None:
        return
    table = [line for line in lines[start:] if line.startswith('"')]
    for row in csv.DictReader(io.StringIO("\n".join(table))):
        if row.get("ID") and row.get(_KERNEL_NAME):
            yield {name: text for name, text in row.items() if isinstance(name, str) and isinstance(text, str)}


def _number(text: str) -> float | None:
    try:
        value = float(text.replace(",", ""))
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _medians(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    names = dict.fromkeys(name for row in rows for name in row)
    return {name: statistics.median(row[name] for row in rows if name in row) for name in names}


def _short(kernel: str) -> str:
    """Without the parameter list, which says nothing for `extern "C"` kernels."""
    return kernel.partition("(")[0].strip() or kernel
