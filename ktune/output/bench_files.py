"""A bench as files: bench.json (format 1, every sample) and bench.csv (a row per contender)."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ktune.core.identity import configuration_id
from ktune.core.loading import shipped_folder
from ktune.core.model import Status, Timing
from ktune.gpu.protocol import RaceResult
from ktune.output.bench import Bench, Outcome
from ktune.output.bench_table import verdict_text
from ktune.output.files import check_writable, write_file
from ktune.study.codec import FORMAT, configuration_to_json, problem_to_json

KIND = "ktune bench"
CSV_MARK = "speed_up_ci_low"
JSON_NAME, CSV_NAME = "bench.json", "bench.csv"

Row = dict[str, Any]


def check_bench_files(folder: Path, *, force: bool = False) -> None:
    """Raise now what `write_bench` would raise after the race."""
    check_writable(folder / JSON_NAME, KIND, force=force)
    check_writable(folder / CSV_NAME, CSV_MARK, force=force)


def write_bench(bench: Bench, folder: Path, *, force: bool = False) -> list[Path]:
    """Write bench.json and bench.csv; the paths."""
    return [
        write_file(folder / JSON_NAME, f"{json_text(bench)}\n", KIND, force=force),
        write_file(folder / CSV_NAME, csv_text(bench), CSV_MARK, force=force),
    ]


def json_text(bench: Bench) -> str:
    return json.dumps(bench_json(bench), indent=2, allow_nan=False, ensure_ascii=False)


def bench_json(bench: Bench) -> Row:
    """Everything in bench.json, rows in the table's order. Times in microseconds, ratios over the first row's time.

    A figure that is not known is null; one that is no number stands as "NaN", "Infinity" or "-Infinity".
    """
    shipped = bench.loaded.folder.parent == shipped_folder().resolve()
    found = {
        "format": FORMAT,
        "kind": KIND,
        "family": bench.loaded.name,
        "family_folder": None if shipped else str(bench.loaded.folder),
        "problem": problem_to_json(bench.problem),
        "source": bench.source.value,
        "environment": asdict(bench.environment),
        "processes": bench.processes,
        "seed": bench.seed,
        "noise_percent": bench.noise_percent,
        "warnings": bench.warnings,
        "rows": [_row_json(bench, outcome) for outcome in bench.ordered],
        "study": bench.study or None,
        "command": bench.command or None,
        "finished_at": bench.finished_at,
    }
    return {name: _plain(value) for name, value in found.items()}


def csv_text(bench: Bench) -> str:
    """One row per contender: missing cells empty, 7 significant digits, NaN `nan`."""
    rows = [_csv_row(bench, outcome) for outcome in bench.ordered]
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _cell(value) for name, value in row.items()} for row in rows)
    return buffer.getvalue()


def _row_json(bench: Bench, outcome: Outcome) -> Row:
    contender = outcome.contender
    configuration = contender.configuration
    gain = bench.speed_up(outcome)
    return {
        "name": contender.name,
        "role": contender.role.value,
        "configuration_id": configuration and configuration_id(bench.loaded.family, configuration),
        "configuration": None if configuration is None else configuration_to_json(configuration),
        "install": contender.install or None,
        "status": outcome.status and outcome.status.value,
        "detail": outcome.detail,
        "verdict": _verdict(bench, outcome),
        "speed_up": None if gain is None else asdict(gain),
        "accuracy": outcome.accuracy and asdict(outcome.accuracy),
        "cold": _figures(outcome.cold),
        "hot": _figures(outcome.hot),
        "noise_percent": outcome.noise_percent,
        "processes": [_result_json(result) for result in outcome.results],
    }


def _verdict(bench: Bench, outcome: Outcome) -> str:
    return "not installed" if outcome.status is None else verdict_text(bench, outcome)


def _result_json(result: RaceResult) -> Row:
    return {name: value for name, value in asdict(result).items() if name != "name"}


def _figures(timing: Timing | None) -> Row | None:
    """Without the samples, which stand with their processes."""
    if timing is None:
        return None
    figures = asdict(timing)
    return {**{name: v for name, v in figures.items() if name != "samples_us"}, "samples": len(timing.samples_us)}


def _csv_row(bench: Bench, outcome: Outcome) -> Row:
    contender, accuracy, gain = outcome.contender, outcome.accuracy, bench.speed_up(outcome)
    e = bench.environment
    configuration = contender.configuration
    return {
        "name": contender.name,
        "role": contender.role.value,
        "problem": bench.problem.label,
        "status": outcome.status and outcome.status.value,
        "verdict": _verdict(bench, outcome),
        **_timing_cells(outcome.cold, "cold"),
        **_timing_cells(outcome.hot, "hot"),
        "speed_up": gain and gain.value,
        CSV_MARK: gain and gain.low,
        "speed_up_ci_high": gain and gain.high,
        "noise_percent": outcome.noise_percent,
        "worst_error_ratio": accuracy and accuracy.worst_ratio,
        "worst_bound_ratio": accuracy and accuracy.bound_ratio,
        "max_abs_error": accuracy and accuracy.max_abs,
        "normwise_error": accuracy and accuracy.normwise,
        "sm_clock_mhz": outcome.cold and outcome.cold.sm_clock_mhz,
        "throttle": outcome.cold and "+".join(outcome.cold.throttle),
        "configuration_id": configuration and configuration_id(bench.loaded.family, configuration),
        "install": contender.install,
        "detail": outcome.detail,
        "source": bench.source.value,
        "processes": bench.processes,
        "seed": bench.seed,
        "gpu_name": e.gpu_name,
        "gpu_uuid": e.gpu_uuid,
        "driver": e.driver,
        "cuda_driver": e.cuda_driver,
        "compiler": e.compiler,
        "torch": e.torch,
        "ktune": e.ktune,
        "power_limit_w": e.power_limit_w,
        "finished_at": bench.finished_at,
    }


def _timing_cells(timing: Timing | None, regime: str) -> Row:
    return {
        f"time_{regime}_median_us": timing and timing.median_us,
        f"time_{regime}_ci_low_us": timing and timing.ci_low_us,
        f"time_{regime}_ci_high_us": timing and timing.ci_high_us,
        f"time_{regime}_min_us": timing and timing.min_us,
        f"time_{regime}_samples": timing and len(timing.samples_us),
    }


def _cell(value: Any) -> Any:
    if isinstance(value, float):
        return f"{value:.7g}"
    return "" if value is None else value


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _plain(value: Any) -> Any:
    """`value` as strict JSON can hold it."""
    if isinstance(value, Status):
        return value.value
    if isinstance(value, float):
        return value if math.isfinite(value) else _NOT_FINITE[repr(value)]
    if isinstance(value, dict):
        return {name: _plain(item) for name, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
