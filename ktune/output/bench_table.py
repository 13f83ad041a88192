"""A bench as the terminal shows it."""

from __future__ import annotations

from collections.abc import Sequence

from ktune.core.identity import configuration_id
from ktune.core.model import Source, Status, Timing
from ktune.output.bench import Bench, Outcome, Role
from ktune.output.rounding import interval, median, ratio_interval
from ktune.output.summary import note_of_source
from ktune.study.verdict import Speed

HEAD = ("", "cold us [95 %]", "hot us", "error/tol", "speed-up [95 %]", "verdict")
NONE = "-"

# With fewer, not even the range of the samples holds the median with a probability of 95 %.
FEWEST_FOR_95_PERCENT = 6


def bench_lines(bench: Bench) -> list[str]:
    """Where and how it was measured, the table, the conclusion, and what stands behind the names."""
    return [*_head_lines(bench), "", *table_lines(bench), "", *_conclusion(bench), *_notes(bench)]


def table_lines(bench: Bench) -> list[str]:
    """The table: numbers right-aligned; the times of what is not right stand in parentheses."""
    rows = [HEAD, *(_cells(bench, outcome) for outcome in bench.ordered)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(HEAD))]
    return [_aligned(row, widths) for row in rows]


def verdict_text(bench: Bench, outcome: Outcome) -> str:
    """The row against the subject; of what can't be compared, why."""
    if outcome.status is None:
        return f"not installed: {outcome.contender.install}"
    if not outcome.right:
        return outcome.status.value.replace("_", " ")
    if outcome is bench.subject:
        return "right"
    speed = bench.speed(outcome)
    return "right" if speed is None else speed.value


def error_text(outcome: Outcome) -> str:
    """The worst error over the tolerance: above 1 is wrong."""
    return NONE if outcome.accuracy is None else f"{outcome.accuracy.worst_ratio:.2g}"


def _cells(bench: Bench, outcome: Outcome) -> tuple[str, ...]:
    cold = NONE if outcome.cold is None else f"{median(outcome.cold)} {interval(outcome.cold)}"
    hot = NONE if outcome.hot is None else median(outcome.hot)
    if outcome.cold is not None and not outcome.right:
        cold, hot = f"({cold})", hot if hot == NONE else f"({hot})"
    speed_up = None if outcome is bench.subject else bench.speed_up(outcome)
    gain = NONE if speed_up is None else ratio_interval(speed_up.value, speed_up.low, speed_up.high)
    return outcome.name, cold, hot, error_text(outcome), gain, verdict_text(bench, outcome)


def _aligned(cells: Sequence[str], widths: Sequence[int]) -> str:
    name, *numbers, verdict = cells
    middle = "  ".join(f"{cell:>{width}}" for cell, width in zip(numbers, widths[1:-1], strict=True))
    return f"{name:<{widths[0]}}  {middle}  {verdict}".rstrip()


def _head_lines(bench: Bench) -> list[str]:
    e = bench.environment
    limit = "not known" if e.power_limit_w is None else f"{e.power_limit_w:,.0f} W"
    lines = [
        f"{bench.loaded.name} at {bench.problem.label}: {_raced(bench)}, {bench.finished_at}",
        f"{e.gpu_name} ({e.gpu_uuid}), driver {e.driver} (CUDA {e.cuda_driver}), {e.compiler}, torch {e.torch}",
        f"power limit {limit}, SM clock {_clocks(bench.timings)}, throttle reasons: {_throttle(bench.timings)}",
        "cold: L2 flushed before each execution; hot: the same data again; float64 reference, one tolerance for all",
    ]
    if bench.source is not Source.MEASURED:
        lines.append(f"source of all figures: {note_of_source(bench.source)}")
    return [*lines, *(f"warning: {warning}" for warning in bench.warnings)]


def _raced(bench: Bench) -> str:
    raced = sum(bool(outcome.results) for outcome in bench.outcomes)
    processes = "1 fresh process" if bench.processes == 1 else f"{bench.processes} fresh processes"
    return f"{raced} raced in {processes}, seed {bench.seed}"


def _clocks(timings: Sequence[Timing]) -> str:
    clocks = [t.sm_clock_mhz for t in timings if t.sm_clock_mhz is not None]
    if not clocks:
        return "not known"
    low, high = min(clocks), max(clocks)
    return f"{low} MHz" if low == high else f"{low} to {high} MHz"


def _throttle(timings: Sequence[Timing]) -> str:
    return ", ".join(sorted({reason for t in timings for reason in t.throttle})) or "none"


def _conclusion(bench: Bench) -> list[str]:
    noise = bench.noise_percent
    floor = "noise floor not measured (1 process)" if bench.processes == 1 else "noise floor not known"
    if noise is not None:
        floor = f"noise floor {noise:.2g} % ({bench.subject.name} in {bench.processes} fresh processes)"
    if not bench.subject.right:
        return [f"{bench.subject.name} is not right: nothing is compared with it", floor]
    rival = bench.best_rival
    if rival is None:
        return ["no rival is right and timed", floor]
    return [f"best rival that is right: {rival.name}; {_compared(bench, rival)}", floor]


def _compared(bench: Bench, rival: Outcome) -> str:
    speed, gain = bench.speed(rival), bench.speed_up(rival)
    assert gain is not None
    shown = ratio_interval(gain.value, gain.low, gain.high)
    if speed is Speed.TIED:
        return f"{bench.subject.name} is tied with it, {shown} its speed"
    relation = "faster" if speed is Speed.SLOWER else "slower"
    return f"{bench.subject.name} is {relation}, {shown} its speed"


def _notes(bench: Bench) -> list[str]:
    """What configurations the names stand for, what their intervals lack, and why some failed."""
    lines = []
    for outcome in bench.ordered:
        contender = outcome.contender
        if contender.role is not Role.PEER and contender.configuration is not None:
            lines.append(f"{outcome.name}: {configuration_id(bench.loaded.family, contender.configuration)}")
        if outcome.cold is not None and len(outcome.cold.samples_us) < FEWEST_FOR_95_PERCENT:
            lines.append(f"{outcome.name}: the interval is the range of {len(outcome.cold.samples_us)} samples")
        if outcome.cold is not None and outcome.cold.host_bound:
            lines.append(f"{outcome.name}: host-bound, its times hold the gaps between its launches")
        if outcome.status not in (None, Status.OK) and outcome.detail:
            lines.append(f"{outcome.name}: {outcome.status}: {outcome.detail.splitlines()[0]}")
    return lines
