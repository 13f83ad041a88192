"""The files that describe a study: measurements.csv, measurements.parquet and report.html."""

from __future__ import annotations

import importlib.util
import io
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from ktune.output.files import write_file
from ktune.output.page import MARK, html_page
from ktune.output.summary import Report

if TYPE_CHECKING:
    import pandas as pd

# Every table of measurements has this column, in CSV's first line and in Parquet's schema.
TABLE_MARK = "configuration_id"


@dataclass(frozen=True)
class Written:
    """The files of a report, and a sentence for each that could not be written."""

    paths: tuple[Path, ...]
    notes: tuple[str, ...] = ()


def write_report(report: Report, folder: Path, *, force: bool = False) -> Written:
    """Write measurements.csv, report.html and, where pyarrow is installed, measurements.parquet into `folder`."""
    # A search checks its paths first and needs no pandas until it has results.
    from ktune.output.table import measurements_table

    table = measurements_table(report.measurements, report.family)
    paths = [
        write_csv(table, folder / "measurements.csv", force=force),
        write_file(folder / "report.html", html_page(report), MARK, force=force),
    ]
    missing = parquet_missing()
    if missing is None:
        paths.append(write_parquet(table, folder / "measurements.parquet", force=force))
    return Written(tuple(paths), () if missing is None else (missing,))


def write_csv(table: pd.DataFrame, path: Path, *, force: bool = False) -> Path:
    from ktune.output.table import csv_text

    return write_file(path, csv_text(table), TABLE_MARK, force=force)


def write_parquet(table: pd.DataFrame, path: Path, *, force: bool = False) -> Path:
    buffer = io.BytesIO()
    table.to_parquet(buffer, index=False)
    return write_file(path, buffer.getvalue(), TABLE_MARK, force=force)


def parquet_missing() -> str | None:
    """None if Parquet can be written here, else how to get it."""
    if importlib.util.find_spec("pyarrow") is not None:
        return None
    return "measurements.parquet was left out: pyarrow is not installed; `pip install 'ktune-cuda[parquet]'` adds it"
