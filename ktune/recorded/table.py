"""One recording as one file (format 1): every valid point of a family's core, measured for one problem on one GPU.

Gzipped JSON: `zcat FILE | python -m json.tool` shows it. Reading needs the standard library alone.
"""

from __future__ import annotations

import gzip
import io
import json
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any

from ktune.core.errors import UsageError
from ktune.core.identity import digest
from ktune.core.model import Configuration, Effort, Environment, Measurement, Problem, Value
from ktune.output.files import write_file
from ktune.study.codec import (
    FORMAT,
    check_format,
    measurement_from_json,
    measurement_to_json,
    problem_from_json,
    problem_to_json,
)
from ktune.study.naming import gpu_slug
from ktune.study.ranking import eligible_time_us

KIND = "ktune recording"
MARK = "ktune-recording.json"
ENDING = ".json.gz"
_GZIP = b"\x1f\x8b"
_REMEDY = "`ktune search FAMILY --sampler exhaustive` on a GPU writes such files"
# Said once for the whole table.
_SHARED = ("format", "problem")


@dataclass(frozen=True)
class RecordedTable:
    """A complete recording.

    core: {parameter: values} to which the family was narrowed. measurements: of every valid point of it, the search's
    short one; full: the finalists' by the full protocol. noise_percent: of the finalists' races, None where they did
    not race. recorded_on: the date. references: {name: cold median in us} of what the points compare with.
    source_digest: of the family's kernel sources at that time; space_digest: of the narrowed space.
    """

    family: str
    problem: Problem
    environment: Environment
    noise_percent: float | None
    recorded_on: str
    core: dict[str, tuple[Value, ...]]
    measurements: Mapping[Configuration, Measurement]
    references: Mapping[str, float] = field(default_factory=dict)
    full: Mapping[Configuration, Measurement] = field(default_factory=dict)
    space_digest: str = ""
    source_digest: str = ""

    @property
    def best_us(self) -> float:
        """The fastest cold median of a point that may win; infinite where none may."""
        times = map(eligible_time_us, self.measurements.values())
        return min((time_us for time_us in times if time_us is not None), default=math.inf)

    @property
    def label(self) -> str:
        """`selective_scan B16-L2048-D256-N16, recorded on 2026-11-30 on NVIDIA H200`."""
        return f"{self.family} {self.problem.label}, recorded on {self.recorded_on} on {self.environment.gpu_name}"

    @cached_property
    def digest(self) -> str:
        """Changes with anything in the table: studies that replay it belong to it alone."""
        return digest([_text(self)])


def write_table(path: Path, table: RecordedTable) -> Path:
    """Write the table; the same table gives the same bytes. UsageError where a file that is none is in the way."""
    buffer = io.BytesIO()
    # The name in gzip's header is readable in the compressed file: it is the file's mark.
    with gzip.GzipFile(MARK, "wb", compresslevel=9, fileobj=buffer, mtime=0) as stream:
        stream.write(_text(table).encode())
    return write_file(path, buffer.getvalue(), MARK)


def read_table(path: Path | str) -> RecordedTable:
    """The table of a file. UsageError for one that is not there, is damaged, or is of a newer format."""
    data = _parsed(Path(path).expanduser())
    try:
        return _table(data)
    except (KeyError, TypeError, ValueError, AttributeError, IndexError, UsageError) as error:
        raise UsageError(f"the recording {path} is damaged: {type(error).__name__} {error}; {_REMEDY}") from error


def table_name(family: str, problem: Problem, gpu_name: str) -> str:
    """`selective_scan-B16-L2048-D256-N16-h200.json.gz`: how shipped tables are called."""
    return f"{family}-{problem.label}-{short_name(gpu_name)}{ENDING}"


def short_name(gpu_name: str) -> str:
    """`h200` of `NVIDIA H200`: how `--replay` calls a GPU."""
    return gpu_slug(gpu_name).lower()


def tables_folder() -> Path:
    """Where shipped tables are: inside the installed package, or beside it in a checkout."""
    package = Path(__file__).resolve().parent
    inside = package / "tables"
    return inside if inside.is_dir() else package.parent.parent / "recorded"


def shipped_tables() -> list[Path]:
    return sorted(tables_folder().glob(f"*{ENDING}"))


def is_file_name(name: str) -> bool:
    """Whether `--replay` means a file, and not a GPU."""
    return "/" in name or name.endswith((ENDING, ".json"))


def find_table(name: str, family: str, problem: Problem) -> RecordedTable:
    """The table of a file, or the shipped one of a GPU's short name such as `h200`.

    UsageError if there is none, or if it is of another family or problem.
    """
    if is_file_name(name):
        return table_of_file(name, family, problem)
    path = tables_folder() / table_name(family, problem, name)
    if not path.is_file():
        names = ", ".join(path.name.removesuffix(ENDING) for path in shipped_tables()) or "none"
        raise UsageError(
            f"no recording of {family} {problem.label} on {name!r} is shipped; there are: {names}. "
            f"--replay also takes a file: {_REMEDY}"
        )
    return read_table(path)


def table_of_file(name: str, family: str, problem: Problem | None = None) -> RecordedTable:
    """The table of a file. UsageError if it is of another family, or of another problem than one that is given."""
    table = read_table(name)
    if table.family != family:
        raise UsageError(
            f"{name} holds {table.family} {table.problem.label}, not {family}; search {table.family}, or give "
            "another file"
        )
    if problem is not None and table.problem != problem:
        raise UsageError(
            f"{name} holds {table.family} {table.problem.label}, not {family} {problem.label}; leave --problem "
            "out, or give another file"
        )
    return table


def _text(table: RecordedTable) -> str:
    environments = list(dict.fromkeys(m.environment for m in _all(table) if m.environment is not None))
    data = {
        "format": FORMAT,
        "kind": KIND,
        "family": table.family,
        "problem": problem_to_json(table.problem),
        "recorded_on": table.recorded_on,
        "environment": asdict(table.environment),
        "noise_percent": table.noise_percent,
        "references": dict(table.references),
        "core": {name: list(values) for name, values in table.core.items()},
        "space_digest": table.space_digest,
        "source_digest": table.source_digest,
        "environments": [asdict(environment) for environment in environments],
        "rows": [_row(m, environments) for m in _all(table)],
    }
    return json.dumps(data, allow_nan=False, separators=(",", ":"))


def _all(table: RecordedTable) -> Iterable[Measurement]:
    yield from table.measurements.values()
    yield from table.full.values()


def _row(m: Measurement, environments: list[Environment]) -> dict[str, Any]:
    """The measurement without what is said once for all, and without what is empty."""
    data = {name: value for name, value in measurement_to_json(m).items() if value and name not in _SHARED}
    if m.environment is not None:
        data["environment"] = environments.index(m.environment)
    return data


def _parsed(path: Path) -> dict[str, Any]:
    """The file's JSON, which says that it is a recording of a format that this ktune reads."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise UsageError(f"cannot read the recording {path}: {error.strerror}; {_REMEDY}") from error
    try:
        data = json.loads(gzip.decompress(raw) if raw.startswith(_GZIP) else raw)
    except (OSError, EOFError, zlib.error, ValueError, RecursionError) as error:
        raise UsageError(f"the recording {path} is damaged: {error}; {_REMEDY}") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f"{path} is no recording of ktune; {_REMEDY}")
    check_format(data, f"the recording {path}")
    return data


def _table(data: dict[str, Any]) -> RecordedTable:
    problem, environments = data["problem"], data["environments"]
    found: dict[Effort, dict[Configuration, Measurement]] = {effort: {} for effort in Effort}
    for row in data["rows"]:
        environment = environments[row["environment"]] if "environment" in row else None
        complete = {"trial": 0, **row, "format": FORMAT, "problem": problem, "environment": environment}
        m = measurement_from_json(complete)
        if m.variant.configuration in found[m.effort]:
            raise ValueError(f"{dict(m.variant.configuration)} stands twice among the rows of effort {m.effort}")
        found[m.effort][m.variant.configuration] = m
    noise, references = data["noise_percent"], data["references"].items()
    return RecordedTable(
        family=data["family"],
        problem=problem_from_json(problem),
        environment=Environment(**data["environment"]),
        noise_percent=None if noise is None else _number(noise),
        recorded_on=date.fromisoformat(data["recorded_on"]).isoformat(),
        core={name: tuple(values) for name, values in data["core"].items()},
        measurements=found[Effort.SEARCH],
        references={name: _number(time_us) for name, time_us in references},
        full=found[Effort.FULL],
        space_digest=data["space_digest"],
        source_digest=data["source_digest"],
    )


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"a finite number belongs in the place of {value!r}")
    return value
