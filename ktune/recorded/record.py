"""From a complete exhaustive search of a family's core to its table."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from ktune.api import Family
from ktune.build.source import family_source
from ktune.core.identity import digest
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Effort, Measurement, Status
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.timing import CULL_FACTOR
from ktune.output.bench_files import JSON_NAME
from ktune.recorded.table import RecordedTable, write_table
from ktune.study.codec import problem_to_json
from ktune.study.ranking import eligible_time_us, latest
from ktune.study.study import Study

TABLE_NAME = "recorded.json.gz"
# How many times the best known time a point of a recording is timed in full: a long kernel costs too much beyond.
PATIENT, LONG_US, PATIENT_WITH_LONG = 5.0, 1000.0, 2.5
_TWIN = re.compile(r"^same code as #(\d+)")


@dataclass(frozen=True)
class Recorded:
    """What a recording left. notes: what its reader must know."""

    path: Path
    table: RecordedTable
    notes: tuple[str, ...] = ()


def patience(best_us: float | None) -> float:
    """By what a recording multiplies the time above which a search culls."""
    long = best_us is not None and best_us > LONG_US
    return (PATIENT_WITH_LONG if long else PATIENT) / CULL_FACTOR


def write_recording(study: Study, loaded: LoadedFamily, space: Space) -> Recorded | None:
    """Write the table of a study whose space is the core into its folder; None while points are missing."""
    table = make_table(study, loaded, space)
    if table is None:
        return None
    path = write_table(study.folder / TABLE_NAME, table)
    return Recorded(path, table, tuple(_notes(table)))


def make_table(study: Study, loaded: LoadedFamily, space: Space) -> RecordedTable | None:
    """The table of a study; None while points are missing."""
    found = study.measurements()
    names = {m.trial: study.identify(m.variant.configuration) for m in found}
    short, full = (_by_configuration(found, effort, names) for effort in (Effort.SEARCH, Effort.FULL))
    known = [m for m in short.values() if m.environment is not None]
    if not known or any(point not in short for point in space.points):
        return None
    last = max(known, key=lambda m: m.finished_at)
    assert last.environment is not None
    measurements = {point: short[point] for point in space.points}
    return RecordedTable(
        family=study.family,
        problem=study.problem,
        environment=last.environment,
        noise_percent=study.finals.noise_percent if study.finals else None,
        recorded_on=last.finished_at[:10],
        core={name: tuple(values) for name, values in space.narrowing.items()},
        measurements=measurements,
        references={**_default(space, measurements), **_benched(study)},
        full={point: full[point] for point in space.points if point in full},
        space_digest=space.digest,
        source_digest=source_digest(loaded, space),
    )


def source_digest(loaded: LoadedFamily, space: Space) -> str:
    """Of every kernel source that a point of the space is built from."""
    family: Family = loaded.family
    variants = (make_variant(family, point, space.problems[0]) for point in space.points)
    names = sorted({family.source_of(variant) for variant in variants} - {""})
    return digest(part for name in names for part in (name, family_source(loaded.folder, name)))


def _by_configuration(
    found: list[Measurement], effort: Effort, names: Mapping[int, str]
) -> dict[Configuration, Measurement]:
    return {v.configuration: _renamed(m, names) for v, m in latest(found, effort).items()}


def _renamed(m: Measurement, names: Mapping[int, str]) -> Measurement:
    """Numbers of trials mean nothing outside their study."""
    detail = _TWIN.sub(lambda match: f"same code as {names.get(int(match[1]), match[1])}", m.detail)
    return replace(m, detail=detail)


def _default(space: Space, measurements: Mapping[Configuration, Measurement]) -> dict[str, float]:
    time_us = eligible_time_us(measurements[space.default])
    return {} if time_us is None else {"default of the core": time_us}


def _benched(study: Study) -> dict[str, float]:
    """The cold medians of a bench of the same problem in the study's folder: the family's default and its peers."""
    path = study.folder / JSON_NAME
    if not path.is_file():
        return {}
    bench = json.loads(path.read_text(encoding="utf-8"))
    if bench["problem"] != problem_to_json(study.problem):
        return {}
    rows = [row for row in bench["rows"] if row["role"] != "subject" and row["status"] == "ok" and row["cold"]]
    return {row["name"]: float(row["cold"]["median_us"]) for row in rows}


def _notes(table: RecordedTable) -> list[str]:
    """What makes the table less than it could be."""
    limit_us = CULL_FACTOR * patience(table.best_us) * table.best_us
    culled = [m for m in table.measurements.values() if m.status is Status.CULLED]
    early = sum(math.isfinite(limit_us) and m.bound_us is not None and m.bound_us < limit_us for m in culled)
    notes = []
    if early:
        notes.append(
            f"{early} points were culled below {limit_us:.4g} us, by an earlier search of this study; "
            "record in a study of its own: --study NAME"
        )
    if table.noise_percent is None:
        notes.append("the noise floor is not known: the finalists did not race")
    return notes
