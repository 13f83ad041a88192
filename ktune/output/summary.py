"""What a study found, in the words of the terminal and of the report."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ktune.api import Family
from ktune.core.identity import configuration_id
from ktune.core.model import Configuration, Measurement, Problem, Source, Status
from ktune.core.space import default_values
from ktune.output.ranking import default_measurement, has_time, rank_key, standing
from ktune.output.rounding import interval, median, ratio
from ktune.study.ranking import stand
from ktune.study.verdict import Speed, verdict

if TYPE_CHECKING:
    from ktune.study.study import Study


@dataclass(frozen=True)
class Finding:
    """The winner of one problem, the others that cannot be told from it, and the A/A difference in per cent.

    default: the default's measurement, for the verdict. warnings: what a reader must know before believing the figures.
    """

    winner: Measurement
    tied: tuple[Measurement, ...] = ()
    noise_percent: float | None = None
    default: Measurement | None = None
    warnings: tuple[str, ...] = ()

    @property
    def verdict(self) -> Speed | None:
        """How the winner is against the default; None where that has no time of its own."""
        return self.verdict_against(self.default)

    def verdict_against(self, other: Measurement | None) -> Speed | None:
        """How the winner is against another."""
        if other is None or not has_time(other) or other.cold is None or self.winner.cold is None:
            return None
        return verdict(self.winner.cold, other.cold, self.noise_percent)


@dataclass(frozen=True)
class Report:
    """A study as the report sees it. A problem without a finding of its own shows where its measurements stand."""

    name: str
    family: Family
    measurements: Sequence[Measurement]
    findings: Sequence[Finding] = ()
    command: str = ""

    @property
    def problems(self) -> list[Problem]:
        return list(dict.fromkeys(m.problem for m in self.measurements))

    def of_problem(self, problem: Problem) -> list[Measurement]:
        return [m for m in self.measurements if m.problem == problem]

    def identify(self, configuration: Configuration) -> str:
        return configuration_id(self.family, configuration)

    def finding(self, problem: Problem) -> Finding | None:
        """The given finding, else what the measurements decide; None if nothing passed."""
        measurements = self.of_problem(problem)
        default = default_measurement(self.family, measurements)
        for finding in self.findings:
            if finding.winner.problem == problem:
                return replace(finding, default=finding.default or default)
        usual = Configuration(tuple(default_values(self.family).items()))
        found = stand(measurements, usual, self.identify)
        return None if found is None else Finding(found.winner, found.tied, default=default)


def finding_of(study: Study) -> Finding | None:
    """What a study found by its own default and noise floor; None if nothing passed."""
    standing, finals = study.standing(), study.finals
    if standing is None:
        return None
    noise, warnings = (finals.noise_percent, finals.warnings) if finals and standing.final else (None, ())
    ranked = sorted((m for m in study.measurements() if m.variant.configuration == study.default), key=rank_key)
    return Finding(standing.winner, standing.tied, noise, next(iter(ranked), None), warnings)


def summary_lines(report: Report) -> list[str]:
    """The closing lines of a search: counts by status, then winner, comparison and ties, or why nothing passed."""
    lines = []
    for problem in report.problems:
        measurements = report.of_problem(problem)
        if len(report.problems) > 1:
            lines.append(f"problem {problem.label}")
        lines.append(f"{counts_line(measurements)}{_source_suffix(measurements)}")
        finding = report.finding(problem)
        if finding is None:
            told = ["no variant is both right and timed", *failure_lines(measurements)]
        else:
            told = _winner_lines(report.family, finding)
        lines += [f"{line}{source_mark(measurements)}" for line in told]
    return lines


def counts_line(measurements: Iterable[Measurement]) -> str:
    """`200 variants: 171 ok, 9 wrong, 14 spilled, 6 build_failed`. A finalist counts once."""
    counts = status_counts(measurements)
    total = sum(counts.values())
    listed = ", ".join(f"{count} {status}" for status, count in counts.items()) or "nothing measured"
    return f"{total} variant{'' if total == 1 else 's'}: {listed}"


def status_counts(measurements: Iterable[Measurement]) -> dict[Status, int]:
    """{status: variants}, in the taxonomy's order, without zeros."""
    counts = Counter(m.status for m in standing(measurements))
    return {status: counts[status] for status in Status if counts[status]}


def failure_reasons(measurements: Iterable[Measurement]) -> list[tuple[Status, str, int]]:
    """(status, first line of the reason, variants), the most frequent first. Culled is slow, not a failure."""
    counts: Counter[tuple[Status, str]] = Counter()
    for m in standing(measurements):
        if m.status not in (Status.OK, Status.CULLED):
            counts[m.status, m.detail.partition("\n")[0] or "no reason recorded"] += 1
    order = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [(status, reason, count) for (status, reason), count in order]


def failure_lines(measurements: Iterable[Measurement], most: int = 8) -> list[str]:
    """The failures' histogram as text, `most` lines of it and how many more there are."""
    reasons = failure_reasons(measurements)
    lines = [f"{count:5d} {status:13s} {reason}" for status, reason, count in reasons[:most]]
    hidden = sum(count for _, _, count in reasons[most:])
    return [*lines, f"{hidden:5d} others"] if hidden else lines


def source_note(measurements: Iterable[Measurement]) -> str:
    """Where the figures come from, for the caption of each of them."""
    found = list(measurements)
    sources = {m.source for m in found}
    notes = [text for source, text in _SOURCE_NOTES.items() if source in sources]
    replayed = [m for m in found if m.source is Source.REPLAYED]
    if replayed:
        notes.append(_replay_note(replayed))
    return "; ".join(notes) if notes else "no figures"


def unmeasured_note(measurements: Iterable[Measurement]) -> str:
    """The `source_note` of figures that were not all measured; nothing of others."""
    found = list(measurements)
    return source_note(found) if source_mark(found) else ""


def source_mark(measurements: Iterable[Measurement]) -> str:
    """What every line with a figure ends with: ` (replayed)`; nothing if all were measured."""
    sources = {m.source for m in measurements} - {Source.MEASURED}
    return f" ({', '.join(source.value for source in Source if source in sources)})" if sources else ""


def note_of_source(source: Source) -> str:
    """Where figures of one source come from."""
    return _SOURCE_NOTES.get(source, _REPLAYED)


def comparison(finding: Finding) -> str | None:
    """`2.91x faster than the default`; None where the default has no time of its own."""
    winner, default, found = finding.winner, finding.default, finding.verdict
    if found is None or default is None or default.cold is None or winner.cold is None:
        return None
    if default.variant == winner.variant:
        return "the default is the winner"
    gain = default.cold.median_us / winner.cold.median_us
    shown = f"the default ({median(default.cold)} us)"
    if found is Speed.TIED:
        return f"tied with {shown}"
    return f"{ratio(gain)} faster than {shown}" if gain > 1 else f"{ratio(1 / gain)} slower than {shown}: keep it"


_SOURCE_NOTES = {
    Source.MEASURED: "measured",
    Source.CPU: "executed on the CPU, not a GPU figure",
    Source.FAKE: "fake: from a formula, not from a GPU",
}


_REPLAYED = "replayed from a recorded table, not measured here"


def _replay_note(replayed: Sequence[Measurement]) -> str:
    """With the recording's date and GPU, as far as they are known."""
    dates = sorted({m.finished_at[:10] for m in replayed if m.finished_at})
    gpus = sorted({m.environment.gpu_name for m in replayed if m.environment})
    if not dates or not gpus:
        return _REPLAYED
    return f"replayed from what was recorded on {dates[-1]} on {', '.join(gpus)}, not measured here"


def _source_suffix(measurements: Sequence[Measurement]) -> str:
    if all(m.source is Source.MEASURED for m in measurements):
        return ""
    return f" ({source_note(measurements)})"


def _winner_lines(family: Family, finding: Finding) -> list[str]:
    winner = finding.winner
    assert winner.cold is not None
    hot = f", {median(winner.hot)} us hot" if winner.hot else ""
    error = f"; error {winner.accuracy.worst_ratio:.2g} of tolerance" if winner.accuracy else ""
    lines = [
        f"winner #{winner.trial} {median(winner.cold)} us cold {interval(winner.cold)}{hot}{error}",
        f"  {configuration_id(family, winner.variant.configuration)}",
    ]
    notes = [comparison(finding)]
    if finding.noise_percent is not None:
        notes.append(f"noise {finding.noise_percent:.2g} %")
    if finding.tied:
        notes.append(f"tied: {', '.join(f'#{m.trial}' for m in finding.tied)}")
    told = [note for note in notes if note]
    if told:
        lines.append(f"  {'; '.join(told)}")
    return [*lines, *(f"  warning: {warning}" for warning in finding.warnings)]
