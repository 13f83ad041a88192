"""A search of several problems as files: winners.csv, winners.json (format 1), best.h, report.html."""

from __future__ import annotations

import csv
import io
import json
import os
from pathlib import Path
from typing import Any, NamedTuple

from ktune.core.errors import UsageError
from ktune.core.loading import shipped_folder
from ktune.output.files import check_writable, write_file
from ktune.output.header import MARK as HEADER_MARK
from ktune.output.header import write_header
from ktune.output.page import MARK as HTML_MARK
from ktune.output.several import Several, mean_loss_percent, roles
from ktune.output.several_page import several_page
from ktune.output.winner import winner_json
from ktune.search.matrix import Cell, Row, Searched
from ktune.study.codec import FORMAT, check_format, configuration_to_json, problem_to_json

KIND = "ktune winners"
CSV_MARK = "loss_percent"
CSV_NAME, JSON_NAME, HEADER_NAME, HTML_NAME = "winners.csv", "winners.json", "best.h", "report.html"


class SeveralFile(NamedTuple):
    """What a winners.json names. family: a shipped name, or a folder. studies: {problem's name: its study's folder}.

    unfinished: problems that its search did not come to the end of.
    """

    family: str
    studies: dict[str, Path]
    command: str
    unfinished: tuple[str, ...] = ()


def check_several_files(folder: Path, *, force: bool = False) -> None:
    """Raise now what `write_several` would raise after the search."""
    marks = {CSV_NAME: CSV_MARK, JSON_NAME: KIND, HEADER_NAME: HEADER_MARK, HTML_NAME: HTML_MARK}
    for name, mark in marks.items():
        check_writable(folder / name, mark, force=force)


def write_several(several: Several, folder: Path) -> list[Path]:
    """Write the four files; the paths. Without a winner there is no header."""
    paths = [
        write_file(folder / CSV_NAME, csv_text(several), CSV_MARK),
        write_json(several, folder),
        write_file(folder / HTML_NAME, several_page(several, folder), HTML_MARK),
    ]
    return [*paths, write_header(several.winners, folder / HEADER_NAME)] if several.winners else paths


def write_json(several: Several, folder: Path, *, force: bool = False) -> Path:
    """Write winners.json."""
    text = json.dumps(several_json(several, folder), indent=2, allow_nan=False, ensure_ascii=False)
    return write_file(folder / JSON_NAME, f"{text}\n", KIND, force=force)


def several_json(several: Several, folder: Path) -> dict[str, Any]:
    """Everything in winners.json. Studies are named by their way from `folder`, so that both can move together."""
    matrix, loaded = several.matrix, several.loaded
    shipped = loaded.folder.parent == shipped_folder().resolve()
    problems = [
        {**_problem_json(one, folder), "winner": winner_json(winner)}
        for one, winner in zip(matrix.columns, several.winners, strict=True)
    ]
    problems += [{**_problem_json(one, folder), "winner": None} for one in matrix.without]
    compromise = matrix.compromise
    return {
        "format": FORMAT,
        "kind": KIND,
        "family": loaded.name,
        "family_folder": None if shipped else str(loaded.folder),
        "problems": problems,
        "configurations": [_row_json(several, row) for row in matrix.rows],
        "compromise": None if compromise is None else several.key(compromise),
        "command": several.command,
        "unfinished": list(several.unfinished),
    }


def csv_text(several: Several) -> str:
    """A row per configuration and problem: missing cells empty, 7 significant digits, booleans 0 and 1."""
    rows = [
        _csv_row(several, row, number, cell) for row in several.matrix.rows for number, cell in enumerate(row.cells)
    ]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, _COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def read_several(folder: Path) -> SeveralFile:
    """What the winners.json of a folder names."""
    path = folder / JSON_NAME
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UsageError(f"cannot read {path}: {error}; `ktune search` with several problems writes it") from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f'{path} is JSON without "kind": "{KIND}"; `ktune search` with several problems writes it')
    check_format(data, str(path))
    try:
        studies = {str(one["name"]): Path(os.path.normpath(folder / one["study"])) for one in data["problems"]}
        unfinished = tuple(str(name) for name in data.get("unfinished", []))
        return SeveralFile(str(data["family_folder"] or data["family"]), studies, str(data["command"]), unfinished)
    except (KeyError, TypeError) as error:
        raise UsageError(f"{path} lacks or garbles {error}; search again, which answers from the studies") from error


def _problem_json(one: Searched, folder: Path) -> dict[str, Any]:
    study = os.path.relpath(one.study.folder.resolve(), folder.resolve())
    return {"name": one.name, "problem": problem_to_json(one.problem), "study": study}


def _row_json(several: Several, row: Row) -> dict[str, Any]:
    return {
        "key": several.key(row),
        "configuration_id": row.identity,
        "configuration": configuration_to_json(row.configuration),
        "roles": roles(several, row),
        "mean_loss_percent": mean_loss_percent(row),
        "problems": {name: _cell_json(cell) for name, cell in zip(several.names, row.cells, strict=True)},
    }


def _cell_json(cell: Cell) -> dict[str, Any]:
    m = cell.measurement
    cold = m.cold if m is not None and cell.slowdown is not None else None
    return {
        "status": _status(cell),
        "law": cell.law or None,
        "time_cold_median_us": cold and cold.median_us,
        "time_cold_ci_low_us": cold and cold.ci_low_us,
        "time_cold_ci_high_us": cold and cold.ci_high_us,
        "loss_percent": cell.loss_percent,
        "effort": m and m.effort.value,
        "trial": m and m.trial,
    }


def _csv_row(several: Several, row: Row, number: int, cell: Cell) -> dict[str, Any]:
    one = several.matrix.columns[number]
    figures = _cell_json(cell)
    return {
        "key": several.key(row),
        "problem": one.name,
        "problem_label": one.problem.label,
        "winner": int(number in row.wins),
        "best_compromise": int(row is several.matrix.compromise),
        **{name: figures[name] for name in ("status", "time_cold_median_us", "time_cold_ci_low_us")},
        **{name: figures[name] for name in ("time_cold_ci_high_us", "loss_percent", "effort", "trial", "law")},
        "mean_loss_percent": mean_loss_percent(row),
        "source": one.study.source.value,
        "gpu_name": one.study.gpu_name,
        "study": one.study.name,
        "configuration_id": row.identity,
    }


_COLUMNS = (
    "problem", "problem_label", "key", "winner", "best_compromise", "status", "time_cold_median_us",
    "time_cold_ci_low_us", "time_cold_ci_high_us", "loss_percent", "mean_loss_percent", "effort", "trial", "source",
    "gpu_name", "study", "configuration_id", "law",
)  # fmt: skip


def _status(cell: Cell) -> str | None:
    if cell.law:
        return "invalid"
    return None if cell.measurement is None else cell.measurement.status.value


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.7g}"
    return "" if value is None else value
