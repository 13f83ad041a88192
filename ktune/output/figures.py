"""The report's figures: cold time by trial, and the best time for each value of each parameter."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from ktune.core.identity import value_text
from ktune.core.model import Measurement, Problem, Status
from ktune.output.charts import Level, Mark, dots, scale_name, scatter
from ktune.output.limits import compulsory_bytes, dram_floor_us, dram_peak_gbps, known_environment
from ktune.output.markup import figure
from ktune.output.ranking import default_measurement, has_time, standing
from ktune.output.rounding import median, microseconds
from ktune.output.summary import Report
from ktune.study.ranking import eligible_time_us

# A limit further below the best time than this would squeeze all points into a strip.
_DRAWN_WITHIN = 6.0


def trial_figure(report: Report, problem: Problem) -> list[str]:
    """Cold time over trial with the best so far, the default's time and the memory limit."""
    measurements = report.of_problem(problem)
    timed = [(time_us, m) for m in measurements if (time_us := eligible_time_us(m)) is not None]
    finding = report.finding(problem)
    marks = [Mark(m.trial, time_us, m.effort.value, _title(report, m)) for time_us, m in timed]
    for m in measurements:
        if m.status is Status.CULLED and m.bound_us is not None and m.bound_us > 0:
            marks.append(Mark(m.trial, m.bound_us, "culled", f"{_title(report, m)} at least"))
    if not marks:
        return []
    if finding is not None and finding.winner.cold_us is not None:
        title = f"winner {_title(report, finding.winner)}"
        marks.append(Mark(finding.winner.trial, finding.winner.cold_us, "won", title))
    levels = []
    default_us = eligible_time_us(default_measurement(report.family, measurements))
    if default_us is not None:
        levels.append(Level(default_us, "default", f"default {microseconds(default_us)} us"))
    floor_us = dram_floor_us(report.family.cost(problem), known_environment(measurements))
    if floor_us is not None and floor_us * _DRAWN_WITHIN > min(mark.y for mark in marks):
        levels.append(Level(floor_us, "floor", f"memory limit {microseconds(floor_us)} us"))
    chart = scatter(marks, _incumbents(timed), levels, ("trial", "cold median, us"))
    caption = (
        "Each dot is a variant that is right: dark if timed in full, light if timed briefly by the search, "
        "hollow if culled (at its lower bound), ringed in green if it won. The line is the best so far."
    )
    note = _floor_note(report, problem, measurements)
    return ["<h3>Cold time by trial</h3>", figure(chart, f"{caption} {note}", measurements)]


def marginal_figure(report: Report, problem: Problem) -> list[str]:
    """One small chart per parameter of which several values were timed."""
    timed = [m for m in standing(report.of_problem(problem)) if has_time(m)]
    charts = {}
    for parameter in report.family.parameters:
        values = _times_by_value(parameter.name, parameter.values, timed)
        if len(values) > 1:
            charts[parameter.name] = values
    if not charts:
        return []
    times = [min(found) for values in charts.values() for found in values.values()]
    drawn = []
    for name, values in charts.items():
        rows = [(v, min(found), f"{microseconds(min(found))} us ({len(found)})") for v, found in values.items()]
        drawn.append(f"<div><h4>{escape(name)}</h4>{dots(rows, min(times), max(times))}</div>")
    caption = (
        "The best cold median of any variant with that value, and in brackets how many of them were timed; green is "
        f"the parameter's fastest. All on one {scale_name(min(times), max(times))} scale, "
        f"from {microseconds(min(times))} to {microseconds(max(times))} us."
    )
    content = f'<div class="grid">{"".join(drawn)}</div>'
    return ["<h3>Best time for each value</h3>", figure(content, caption, timed)]


def _times_by_value(name: str, values: Iterable[object], timed: Iterable[Measurement]) -> dict[str, list[float]]:
    """{value: cold medians}, in the family's order, for values that were timed at all."""
    found: dict[str, list[float]] = {str(_text(value)): [] for value in values}
    for m in timed:
        if name in m.variant.configuration and m.cold_us is not None:
            found[_text(m.variant.configuration[name])].append(m.cold_us)
    return {value: times for value, times in found.items() if times}


def _text(value: object) -> str:
    return value_text(value) if isinstance(value, bool | int | str) else str(value)


def _floor_note(report: Report, problem: Problem, measurements: Sequence[Measurement]) -> str:
    cost, environment = report.family.cost(problem), known_environment(measurements)
    peak, floor_us = dram_peak_gbps(environment), dram_floor_us(cost, environment)
    size = f"{compulsory_bytes(cost) / 1e6:,.4g} MB"
    if peak is None or floor_us is None:
        return f"Compulsory traffic is {size}; this GPU's bandwidth is not known, so there is no limit to draw."
    limit = f"{size} read and written once at the datasheet's {peak:,.0f} GB/s take {microseconds(floor_us)} us"
    return f"Memory limit: {limit}."


def _title(report: Report, m: Measurement) -> str:
    shown = median(m.cold) if m.cold is not None else microseconds(m.bound_us)
    return f"#{m.trial} {report.identify(m.variant.configuration)}: {shown} us"


def _incumbents(timed: Iterable[tuple[float, Measurement]]) -> list[tuple[float, float]]:
    """(trial, cold median) at each trial that was faster than all before it."""
    steps: list[tuple[float, float]] = []
    for time_us, m in sorted(timed, key=lambda pair: pair[1].trial):
        if not steps or time_us < steps[-1][1]:
            steps.append((m.trial, time_us))
    return steps
