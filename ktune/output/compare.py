"""Two studies side by side, configuration by configuration."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from ktune.api import Family
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_id
from ktune.core.model import Measurement
from ktune.output.ranking import has_time, rank_key, standing
from ktune.study.verdict import verdict

COLUMNS = (
    ("configuration_id", "string", "readable name of the configuration"),
    ("problem_a", "string", "problem in the first study; empty where that did not measure it"),
    ("problem_b", "string", "problem in the second study; empty where that did not measure it"),
    ("status_a", "string", "status in the first study"),
    ("status_b", "string", "status in the second study"),
    ("status_changed", "Int64", "1 if both measured it and the statuses differ"),
    ("time_cold_median_a_us", "Float64", "cold median in the first study, microseconds"),
    ("time_cold_median_b_us", "Float64", "cold median in the second study, microseconds"),
    ("ratio_b_to_a", "Float64", "second time over first: below 1, the second is faster"),
    ("verdict", "string", "the second against the first: faster, slower, or tied where the intervals overlap"),
    ("source_a", "string", "where the first figures come from"),
    ("source_b", "string", "where the second figures come from"),
)


def compare_studies(family: Family, first: Sequence[Measurement], second: Sequence[Measurement]) -> pd.DataFrame:
    """One row per configuration of either study, its best measurement in each; status changes first, then by ratio.

    Studies that share problems are joined problem by problem; two studies of one problem each are joined by
    configuration alone. Missing cells are empty.
    """
    by_problem = _joined_by_problem(first, second)
    a, b = (_best_of_each(family, measurements, by_problem) for measurements in (first, second))
    rows = [_row(key[1], a.get(key), b.get(key)) for key in dict.fromkeys([*a, *b])]
    rows.sort(key=_order)
    return pd.DataFrame({name: _array([row[name] for row in rows], kind) for name, kind, _ in COLUMNS})


def _array(cells: list[Any], kind: Any) -> Any:
    return pd.array(cells, dtype=kind)


def comparison_lines(table: pd.DataFrame) -> list[str]:
    """What changed, counted: verdicts, statuses, and what only one study measured."""
    verdicts = table["verdict"].value_counts()
    counted = [f"{int(verdicts.get(verdict, 0))} {verdict}" for verdict in ("faster", "slower", "tied")]
    lines = [f"second against first: {', '.join(counted)}"]
    changed = table[(table["status_changed"] == 1).fillna(False).astype(bool)]
    lines += [f"  {row.configuration_id}: {row.status_a} -> {row.status_b}" for row in changed.itertuples()]
    for side, other in (("a", "second"), ("b", "first")):
        only = int(table[f"status_{side}"].isna().sum())
        if only:
            lines.append(f"{only} only in the {other}")
    return lines


def _joined_by_problem(first: Sequence[Measurement], second: Sequence[Measurement]) -> bool:
    a, b = ({m.problem.label for m in measurements} for measurements in (first, second))
    if a & b or not a or not b:
        return True
    if len(a) == len(b) == 1:
        return False
    raise UsageError(
        f"the studies share no problem ({', '.join(sorted(a))} against {', '.join(sorted(b))}); "
        "compare studies of one problem each, or of a problem that both have"
    )


_Key = tuple[str, str]


def _best_of_each(family: Family, measurements: Sequence[Measurement], by_problem: bool) -> dict[_Key, Measurement]:
    found: dict[_Key, Measurement] = {}
    for m in sorted(standing(measurements), key=rank_key):
        key = (m.problem.label if by_problem else "", configuration_id(family, m.variant.configuration))
        found.setdefault(key, m)
    return found


def _row(identity: str, a: Measurement | None, b: Measurement | None) -> dict[str, object]:
    time_a, time_b = (m.cold_us if m is not None and has_time(m) else None for m in (a, b))
    return {
        "configuration_id": identity,
        "problem_a": a and a.problem.label,
        "problem_b": b and b.problem.label,
        "status_a": a and a.status.value,
        "status_b": b and b.status.value,
        "status_changed": int(a.status is not b.status) if a and b else None,
        "time_cold_median_a_us": time_a,
        "time_cold_median_b_us": time_b,
        "ratio_b_to_a": time_b / time_a if time_a and time_b else None,
        "verdict": _verdict(a, b) if time_a and time_b else None,
        "source_a": a and a.source.value,
        "source_b": b and b.source.value,
    }


def _verdict(a: Measurement | None, b: Measurement | None) -> str | None:
    if a is None or b is None or a.cold is None or b.cold is None:
        return None
    return verdict(b.cold, a.cold).value


def _order(row: dict[str, object]) -> tuple[bool, float, str]:
    found = row["ratio_b_to_a"]
    ratio = found if isinstance(found, float) else float("inf")
    return row["status_changed"] != 1, ratio, str(row["configuration_id"])
