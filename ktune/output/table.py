"""Measurements as a pandas table and as CSV."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import pandas as pd

from ktune.api import Family
from ktune.core.model import Measurement
from ktune.output.columns import columns
from ktune.output.ranking import ranked


def measurements_table(measurements: Iterable[Measurement], family: Family) -> pd.DataFrame:
    """One row per measurement, in the order of `ranking.ranked`; the columns are those of `columns`.

    A value that is not known is missing (an empty cell in CSV), never 0. NaN stays NaN: an output that was
    NaN has a NaN error.
    """
    rows = ranked(measurements)
    costs = {m.problem: family.cost(m.problem) for m in rows}
    data = {}
    for column in columns(family, rows):
        data[column.name] = _array(column.kind, [column.cell(m, family, costs[m.problem]) for m in rows])
    return pd.DataFrame(data)


def csv_text(table: pd.DataFrame) -> str:
    """The table as CSV: 7 significant digits, missing cells empty, NaN `nan`, booleans 0 and 1."""
    shown = {name: _digits(table[name]) if table[name].dtype == "Float64" else table[name] for name in table.columns}
    return str(pd.DataFrame(shown).to_csv(index=False, lineterminator="\n"))


def _digits(column: pd.Series) -> Any:
    # to_csv with a float format writes NaN as if it were missing.
    values = zip(column.to_numpy(dtype=float, na_value=0.0), column.isna(), strict=True)
    return pd.array([None if missing else f"{value:.7g}" for value, missing in values], dtype="string")


def _array(kind: str, cells: list[Any]) -> Any:
    if kind == "text":
        return pd.array(cells, dtype="string")
    if kind == "whole":
        return pd.array(cells, dtype="Int64")
    missing = np.array([cell is None for cell in cells], dtype=bool)
    values = np.array([0.0 if cell is None else float(cell) for cell in cells], dtype=np.float64)
    # pd.array would turn NaN into a missing value; the two differ here.
    return pd.arrays.FloatingArray(values, missing)
