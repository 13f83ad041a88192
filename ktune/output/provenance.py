"""Where an exported file comes from, in words, for its head and for its provenance string."""

from __future__ import annotations

from ktune import __version__
from ktune.core.identity import configuration_id
from ktune.core.model import Source, Timing
from ktune.output.rounding import interval, median
from ktune.output.summary import comparison, source_note
from ktune.output.winner import Winner


def provenance(winner: Winner) -> list[tuple[str, str]]:
    """(what, value) pairs, the same for the same winner on every run."""
    m = winner.measurement
    rows = [
        ("figures", source_note([m])),
        ("family", winner.loaded.name),
        ("problem", m.problem.label),
        ("configuration", winner.identity),
    ]
    if m.environment is not None:
        e = m.environment
        rows += [("GPU", e.gpu_name), ("driver", f"{e.driver} (CUDA {e.cuda_driver})"), ("PyTorch", e.torch)]
    if m.build is not None:
        rows += [("compiler", m.build.compiler), ("code digest", m.build.code_digest)]
    if winner.source_digest:
        rows.append(("source digest", winner.source_digest))
    rows += [(f"time, L2 {t.regime}", _timed(t)) for t in (m.cold, m.hot) if t is not None]
    if m.accuracy is not None:
        error = f"{m.accuracy.worst_ratio:.3g} of the tolerance, max |error| {m.accuracy.max_abs:.3g}"
        rows.append(("error", error))
    noise = winner.finding.noise_percent
    rows.append(("noise floor", "not measured" if noise is None else f"{noise:.2g} %"))
    tied = [configuration_id(winner.loaded.family, other.variant.configuration) for other in winner.finding.tied]
    rows.append(("tied", ", ".join(tied) or "none"))
    if winner.finding.default is not None and winner.finding.verdict is not None:
        rows.append(("against the default", comparison(winner.finding) or winner.finding.verdict.value))
    rows += [("warning", warning) for warning in winner.finding.warnings]
    rows += [
        ("recorded at" if m.source is Source.REPLAYED else "measured at", m.finished_at or "not known"),
        ("command", winner.command or "not known"),
    ]
    return [*rows, ("ktune", m.environment.ktune if m.environment else __version__)]


def provenance_lines(winner: Winner) -> list[str]:
    """The pairs in two columns."""
    rows = provenance(winner)
    width = max(len(name) for name, _ in rows) + 1
    return [f"{name + ':':<{width}} {value}" for name, value in rows]


def provenance_text(winner: Winner) -> str:
    """The pairs on one line."""
    return "; ".join(f"{name}: {value}" for name, value in provenance(winner))


def _timed(timing: Timing) -> str:
    count = len(timing.samples_us)
    return f"median {median(timing)} us, 95 % interval {interval(timing)} us, {count} samples ({timing.method})"
