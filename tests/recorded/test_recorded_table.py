"""The table file: what is written is read again, and nothing else is."""

from __future__ import annotations

import gzip
import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from toy_recording import CULLED, WRONG, point, toy

from ktune.core.errors import UsageError
from ktune.core.model import Status
from ktune.recorded.table import RecordedTable, find_table, read_table, table_name, write_table

ROOT = Path(__file__).resolve().parents[2]


def content(file: Path) -> dict[str, object]:
    return json.loads(gzip.decompress(file.read_bytes()))  # type: ignore[no-any-return]


def write_content(file: Path, data: object) -> Path:
    file.write_bytes(gzip.compress(json.dumps(data).encode()))
    return file


def test_a_table_is_read_as_it_was_written(table: RecordedTable, file: Path) -> None:
    assert read_table(file) == table
    assert len(table.measurements) == 36 and table.full


def test_failures_and_bounds_are_kept(file: Path) -> None:
    table = read_table(file)
    wrong, culled = table.measurements[point(WRONG)], table.measurements[point(CULLED)]
    assert wrong.status is Status.WRONG and wrong.accuracy is not None and wrong.accuracy.worst_ratio == 40.0
    assert culled.status is Status.CULLED and culled.bound_us is not None and culled.bound_us > table.best_us


def test_the_best_is_the_fastest_that_may_win(table: RecordedTable) -> None:
    eligible = [m.cold_us for m in table.measurements.values() if m.status is Status.OK]
    assert table.best_us == min(time_us for time_us in eligible if time_us is not None)
    failed = {c: replace(m, status=Status.WRONG) for c, m in table.measurements.items()}
    assert math.isinf(replace(table, measurements=failed).best_us)


def test_a_figure_that_is_no_number_survives(table: RecordedTable, tmp_path: Path) -> None:
    m = table.measurements[point(WRONG)]
    assert m.accuracy is not None
    broken = replace(m, accuracy=replace(m.accuracy, worst_ratio=math.inf))
    changed = replace(table, measurements={**table.measurements, point(WRONG): broken})
    found = read_table(write_table(tmp_path / "infinite.json.gz", changed)).measurements[point(WRONG)]
    assert found.accuracy is not None and math.isinf(found.accuracy.worst_ratio)


def test_the_same_table_gives_the_same_bytes_and_another_one_another_digest(
    table: RecordedTable, file: Path, tmp_path: Path
) -> None:
    assert write_table(tmp_path / "again.json.gz", read_table(file)).read_bytes() == file.read_bytes()
    assert read_table(file).digest == table.digest
    assert replace(table, noise_percent=9.0).digest != table.digest


def test_sixteen_hundred_points_take_well_below_a_megabyte_and_a_half(file: Path) -> None:
    """The toy's own digests and samples are as random as real ones; 36 points with all that is said once."""
    assert file.stat().st_size / 36 * 1600 < 1_000_000


def test_a_plain_json_file_is_read_too(table: RecordedTable, file: Path, tmp_path: Path) -> None:
    plain = tmp_path / "plain.json"
    plain.write_bytes(gzip.decompress(file.read_bytes()))
    assert read_table(plain) == table


def test_a_truncated_or_changed_file_is_refused(file: Path) -> None:
    whole = file.read_bytes()
    for damaged in (whole[: len(whole) // 2], whole[:-1], whole[:-40] + b"\0" * 40, b"\x1f\x8b", b"", b"[1, 2"):
        file.write_bytes(damaged)
        with pytest.raises(UsageError, match="is damaged"):
            read_table(file)


@pytest.mark.parametrize("part", ["family", "problem", "environment", "environments", "rows", "core", "noise_percent"])
def test_a_file_without_a_part_is_refused(file: Path, part: str) -> None:
    data = content(file)
    del data[part]
    with pytest.raises(UsageError, match=r"is damaged.*writes such files"):
        read_table(write_content(file, data))


def test_a_row_without_its_status_is_refused(file: Path) -> None:
    data = content(file)
    del data["rows"][3]["status"]  # type: ignore[index]
    with pytest.raises(UsageError, match="is damaged"):
        read_table(write_content(file, data))


def test_a_newer_format_is_refused_with_the_remedy(file: Path) -> None:
    with pytest.raises(UsageError, match="is of format 2, this ktune reads up to format 1; upgrade"):
        read_table(write_content(file, {**content(file), "format": 2}))


@pytest.mark.parametrize("data", [[], {}, {"format": 1, "kind": "ktune winner"}])
def test_another_kind_of_file_is_refused(tmp_path: Path, data: object) -> None:
    with pytest.raises(UsageError, match="is no recording of ktune"):
        read_table(write_content(tmp_path / "other.json.gz", data))


def test_a_missing_file_is_told(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the recording"):
        read_table(tmp_path / "none.json.gz")


def test_a_file_of_someone_else_is_not_overwritten(table: RecordedTable, tmp_path: Path) -> None:
    other = tmp_path / "mine.json.gz"
    other.write_bytes(b"mine")
    with pytest.raises(UsageError, match="was not written by ktune"):
        write_table(other, table)
    assert other.read_bytes() == b"mine"


def test_a_table_is_written_over_an_earlier_one(table: RecordedTable, file: Path) -> None:
    write_table(file, replace(table, recorded_on="2030-01-01"))
    assert read_table(file).recorded_on == "2030-01-01"


def test_a_shipped_table_is_found_by_its_gpus_short_name(
    table: RecordedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.recorded.table.tables_folder", lambda: tmp_path / "shipped")
    name = table_name("toy", table.problem, "NVIDIA H200")
    assert name == "toy-N1048576-h200.json.gz"
    write_table(tmp_path / "shipped" / name, table)
    assert find_table("h200", "toy", table.problem) == find_table("H200", "toy", table.problem) == table


def test_what_is_shipped_is_named_where_there_is_no_such_table(
    table: RecordedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.recorded.table.tables_folder", lambda: tmp_path / "shipped")
    write_table(tmp_path / "shipped" / "toy-N1048576-h200.json.gz", table)
    with pytest.raises(UsageError, match="on 'h100' is shipped; there are: toy-N1048576-h200"):
        find_table("h100", "toy", table.problem)


def test_a_file_of_another_family_or_problem_is_refused(table: RecordedTable, file: Path) -> None:
    with pytest.raises(UsageError, match="holds toy N1048576, not selective_scan"):
        find_table(str(file), "selective_scan", table.problem)
    with pytest.raises(UsageError, match="holds toy N1048576, not toy N1000"):
        find_table(str(file), "toy", toy().named_problems["small"])


def test_reading_imports_neither_torch_nor_pandas_nor_sqlalchemy(file: Path) -> None:
    code = (
        "import sys; from ktune.recorded.table import read_table; t = read_table(sys.argv[1]); "
        "print(len(t.measurements), [m for m in ('torch', 'pandas', 'sqlalchemy', 'optuna') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code, file], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split(maxsplit=1) == ["36", "[]\n"]


@pytest.mark.parametrize("path", sorted((ROOT / "recorded").glob("*.json.gz")), ids=lambda path: path.name)
def test_a_shipped_table_is_complete_and_called_by_what_it_holds(path: Path) -> None:
    from ktune.core.loading import load_family
    from ktune.recorded.evaluator import recorded_space

    table = read_table(path)
    assert path.name == table_name(table.family, table.problem, table.environment.gpu_name)
    assert len(recorded_space(table, load_family(table.family).family, {})) == len(table.measurements)
    assert all(m.source.value == "measured" for m in table.measurements.values())


def test_shipped_tables_take_less_than_five_megabytes() -> None:
    assert sum(path.stat().st_size for path in (ROOT / "recorded").iterdir()) < 5_000_000


@pytest.mark.parametrize(
    ("part", "value"),
    [
        ("noise_percent", math.nan),
        ("noise_percent", "0.1"),
        ("references", "abc"),
        ("references", {"eager": "fast"}),
        ("recorded_on", 7),
        ("core", {"block_size": 5}),
    ],
)
def test_a_part_of_the_wrong_kind_is_refused(file: Path, part: str, value: object) -> None:
    with pytest.raises(UsageError, match="is damaged"):
        read_table(write_content(file, {**content(file), part: value}))


def test_a_point_that_stands_twice_is_refused(file: Path) -> None:
    data = content(file)
    data["rows"] = [*data["rows"], data["rows"][0]]  # type: ignore[misc,index]
    with pytest.raises(UsageError, match=r"is damaged.*twice"):
        read_table(write_content(file, data))


def test_json_that_is_nested_too_deeply_is_refused(tmp_path: Path) -> None:
    deep = tmp_path / "deep.json"
    deep.write_text("[" * 200_000)
    with pytest.raises(UsageError, match="is damaged"):
        read_table(deep)
