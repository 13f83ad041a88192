"""`ktune report`, `ktune export` and `ktune list` on studies that a search left behind."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.core.model import Status

FOLDER = "toy-N1048576-Fake-H200"
SMALL = "toy-N1000-Fake-H200"


@pytest.fixture
def searched(ktune: Terminal, toy: Path) -> Terminal:
    """Two studies: the default problem, then the small one."""
    ktune("search", toy, "--trials", "12")
    ktune("search", toy, "--trials", "6", "--problem", "small")
    return ktune


def test_without_a_name_the_latest_study_is_meant(searched: Terminal, toy: Path) -> None:
    assert searched("report").startswith(SMALL)
    assert searched("report", toy).startswith(SMALL)
    assert searched("report", toy, "--problem", "N=1048576").startswith(FOLDER)
    assert searched("report", FOLDER).startswith(FOLDER)
    assert searched("report", "--study", f"results/{FOLDER}").startswith(FOLDER)


def test_a_report_shows_the_fastest_and_writes_its_files(searched: Terminal) -> None:
    out = searched("report", FOLDER, "--output", "out")
    measured = re.search(r"(\d+) variants: \1 ok", out)
    assert measured and "winner #" in out and f"{int(measured[1]) - 10} more in measurements.csv" in out
    assert {"measurements.csv", "report.html"} <= {p.name for p in (searched.folder / "out").iterdir()}


def test_a_report_as_json_has_every_measurement(searched: Terminal) -> None:
    found = json.loads(searched("report", FOLDER, "--json"))
    assert len({row["configuration_id"] for row in found["measurements"]}) >= 12
    assert {row["source"] for row in found["measurements"]} == {"fake"}


def test_two_studies_are_compared(searched: Terminal) -> None:
    out = searched("report", FOLDER, SMALL, "--output", "out")
    assert f"first:  {FOLDER}" in out and "second against first:" in out
    assert (searched.folder / "out" / "comparison.csv").is_file()
    searched("report", FOLDER, SMALL, "extra", code=2)


def test_a_study_is_read_after_its_family_moved_only_with_the_family(ktune: Terminal, toy: Path) -> None:
    shutil.copytree(toy, ktune.folder / "mine")
    ktune("search", "./mine", "--trials", "3")
    assert ktune("report").startswith(FOLDER)
    shutil.rmtree(ktune.folder / "mine")
    ktune("report", code=2)
    assert "put it back to read the study" in ktune.err


def test_export_writes_header_and_json_and_with_kernel_the_source(searched: Terminal) -> None:
    out = searched("export", FOLDER, "--output", "out", "--with-kernel")
    names = {p.name for p in (searched.folder / "out").iterdir()}
    assert names == {"best.h", "best.json", "best_kernel.cu", "best_kernel.cuh"} and out.count("wrote") == 4
    assert "toy" in (searched.folder / "out" / "best.h").read_text().lower()


def test_export_does_not_replace_a_foreign_file_unless_forced(searched: Terminal) -> None:
    folder = searched.folder / "out"
    folder.mkdir()
    (folder / "best.h").write_text("int mine;\n")
    searched("export", "--output", "out", code=2)
    assert "best.h exists and was not written by ktune" in searched.err
    searched("export", "--output", "out", "--force")
    assert "int mine" not in (folder / "best.h").read_text()


def test_export_without_a_winner_exits_with_4(ktune: Terminal, toy: Path) -> None:
    ktune.plant(lambda request: Status.WRONG)
    ktune("search", toy, "--trials", "3", code=4)
    ktune("export", code=4)
    assert "no winner to export" in ktune.err


def test_list_shows_families_a_family_and_a_study(
    searched: Terminal, toy: Path, families: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.core.loading.shipped_folder", lambda: families)
    assert "toy" in searched("list") and "y = 2 x" in searched("list")
    out = searched("list", toy, "--problem", "small")
    assert "unroll may not exceed items" in out and "72 valid configurations for N1000" in out and "128*" in out
    rows = searched("list", "--study", FOLDER).splitlines()
    assert len(rows) >= 13 and rows[0].split()[0] == "trial"


def test_list_as_json(searched: Terminal, toy: Path) -> None:
    family = json.loads(searched("list", toy, "--set", "block_size=64,128", "--json"))
    assert family["valid_points"] == 36
    assert next(p for p in family["parameters"] if p["name"] == "block_size")["values"] == [64, 128]
    study = json.loads(searched("list", "--study", SMALL, "--json"))
    assert len(study["configurations"]) >= 6
