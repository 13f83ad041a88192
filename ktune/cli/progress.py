"""What a running search shows on stderr: one live line on a terminal, a line now and then elsewhere."""

from __future__ import annotations

import shutil
import sys
import time
from collections.abc import Mapping
from typing import TextIO

from ktune.api import Family
from ktune.core.identity import value_text
from ktune.core.model import Configuration, Effort, Measurement, Status
from ktune.output.limits import dram_floor_us
from ktune.output.rounding import half_width_us, median, microseconds
from ktune.search.outcome import Outcome
from ktune.search.progress import Snapshot

# What comes between the trials and the final, in portions, of which nobody knows how many.
AROUND = ("simplify", "neighbours", "pairs")
LINE_EVERY_S = 10.0
LIVE_EVERY_S = 0.1


class ShownProgress:
    """Prints the default's time, each new incumbent, and in between where the search stands."""

    def __init__(
        self,
        family: Family,
        default: Configuration,
        stream: TextIO | None = None,
        live: bool | None = None,
        mark: str = "",
    ) -> None:
        """mark: what every line with a figure ends with, if the figures are not measured."""
        self._family = family
        self._default = default
        self._mark = mark
        self._stream = stream or sys.stderr
        self._live = self._stream.isatty() if live is None else live
        self._incumbent: Measurement | None = None
        self._looks_around = False
        self._last_shown_s = time.monotonic()

    def say(self, sentence: str) -> None:
        """A line that stays."""
        self._clear()
        print(sentence, file=self._stream, flush=True)

    def on_start(self, total: int, resumed: int, elsewhere: int) -> None:
        self._looks_around = False
        if resumed >= total > 0:
            self.say(f"complete: {resumed} of {total} trials are on record; a larger --trials goes on")
        elif resumed:
            self.say(f"resuming: {resumed} of {total} trials are on record")
        if elsewhere and resumed < total:
            self.say(
                f"note: {elsewhere} of them were timed on another GPU, which may be a few per cent faster or slower; "
                "the fastest of each take part in the final, on this one alone"
            )

    def on_phase(self, phase: str, total: int) -> None:
        self._incumbent = None if phase == "finalists" else self._incumbent
        if phase == "finalists":
            self.say(f"finalists   {total} variants in full{self._mark}")
        elif phase == "neighbours" and not self._looks_around:
            self._looks_around = True
            self.say(f"around      what is near the fastest, beyond the trials{self._mark}")
        elif phase == "cross":
            self.say(f"cross       {total} measurements in full: each problem's best on the others")

    def on_result(self, m: Measurement, snapshot: Snapshot) -> None:
        if m.effort is Effort.SEARCH and m.variant.configuration == self._default:
            self.say(f"default     {self._default_text(m)}{self._mark}")
        elif snapshot.incumbent is m and m is not self._incumbent and m.effort is Effort.SEARCH:
            elapsed = f"{snapshot.elapsed_s:.0f}s"
            difference = self._difference(m.variant.configuration)
            self.say(f"{elapsed:<5} #{m.trial:<4} {median(m.cold)} us  {difference}{self._mark}")
        self._incumbent = snapshot.incumbent
        now = time.monotonic()
        if now - self._last_shown_s >= (LIVE_EVERY_S if self._live else LINE_EVERY_S) or (
            self._live and snapshot.done == 1
        ):
            self._last_shown_s = now
            self._show(f"{status_line(snapshot)}{self._mark}")

    def on_end(self, outcome: Outcome) -> None:
        idle = idle_percent(outcome.evaluator_stats)
        waited = "" if idle is None else f"   GPU idle for builds {idle:.0f} %"
        done = f"{outcome.trials_done}/{outcome.trials_total}"
        self.say(f"{done:<11} {counts_text(outcome.counts)}{waited}   {outcome.elapsed_s:.1f} s{self._mark}")

    def _default_text(self, m: Measurement) -> str:
        if m.cold is None:
            return f"{m.status}: {m.detail.partition(chr(10))[0]}"
        limit_us = dram_floor_us(self._family.cost(m.problem), m.environment)
        limit = "" if limit_us is None else f"   (memory's limit {microseconds(limit_us)} us)"
        return f"{median(m.cold)} us +-{microseconds(half_width_us(m.cold))}{limit}"

    def _difference(self, configuration: Configuration) -> str:
        """The parameters that differ from the default, shortly."""
        changed = [
            f"{self._family.parameter(name).short} {value_text(value)}"
            for name, value in configuration.items()
            if self._default.get(name) != value
        ]
        return ", ".join(changed) or "the default"

    def _show(self, text: str) -> None:
        if not self._live:
            print(text, file=self._stream, flush=True)
            return
        width = shutil.get_terminal_size().columns - 1
        self._stream.write(f"\r\x1b[K{text[:width]}")
        self._stream.flush()

    def _clear(self) -> None:
        if self._live:
            self._stream.write("\r\x1b[K")


def status_line(snapshot: Snapshot) -> str:
    """`31/200  27 ok  4 wrong   best 212 us   41 s left`; after the trials `around 5/12`, of a portion."""
    best = "" if snapshot.incumbent is None else f"   best {median(snapshot.incumbent.cold)} us"
    around = snapshot.phase in AROUND
    left = "" if snapshot.eta_s is None or around else f"   {duration(snapshot.eta_s)} left"
    done = f"{'around ' if around else ''}{snapshot.done}/{snapshot.total}"
    return f"{done:<10}  {counts_text(snapshot.counts)}{best}{left}"


def counts_text(counts: Mapping[Status, int]) -> str:
    """`171 ok  9 wrong  14 spilled`, in the taxonomy's order."""
    return "  ".join(f"{counts[status]} {status}" for status in Status if counts.get(status))


def duration(seconds: float) -> str:
    """`41 s`, `3 min`, `2 h 05 min`."""
    if seconds < 99.5:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 120 else f"{minutes // 60} h {minutes % 60:02d} min"


def idle_percent(stats: Mapping[str, float]) -> float | None:
    """How long the GPU waited for compilers, per cent of the evaluator's time; None where that is not counted."""
    idle, total = stats.get("gpu_idle_for_builds"), stats.get("total")
    return 100 * idle / total if idle is not None and total else None
