"""The files that a study is left with: measurements.csv, report.html, best.h, best.json."""

from __future__ import annotations

from pathlib import Path

from ktune.core.loading import LoadedFamily
from ktune.output.files import check_writable
from ktune.output.page import MARK
from ktune.output.report import TABLE_MARK, write_report
from ktune.output.summary import Report, finding_of
from ktune.output.winner import KIND, Winner, write_winner
from ktune.study.study import Study

CSV, HTML, HEADER, JSON = "measurements.csv", "report.html", "best.h", "best.json"


def report_of(study: Study, loaded: LoadedFamily) -> Report:
    """The study as reports see it, with the winner that its own default and noise floor decide."""
    finding = finding_of(study)
    command = str(study.meta.get("command") or "")
    return Report(study.name, loaded.family, study.measurements(), [finding] if finding else [], command)


def winner_of(study: Study, loaded: LoadedFamily) -> Winner | None:
    """What exports of the study are made of; None if nothing passed."""
    report = report_of(study, loaded)
    finding = report.finding(study.problem)
    return None if finding is None else Winner(loaded, finding, report.command)


def check_results(folder: Path) -> None:
    """Raise now what writing the results would raise after the search."""
    from ktune.output.header import MARK as HEADER_MARK

    for name, mark in ((CSV, TABLE_MARK), (HTML, MARK), (HEADER, HEADER_MARK), (JSON, KIND)):
        check_writable(folder / name, mark)


def write_results(study: Study, loaded: LoadedFamily) -> list[Path]:
    """Write every file of the study from what its ledger holds; the paths."""
    from ktune.output.header import write_header

    paths = list(write_report(report_of(study, loaded), study.folder).paths)
    winner = winner_of(study, loaded)
    if winner is not None:
        paths += [write_header([winner], study.folder / HEADER), write_winner(winner, study.folder / JSON)]
    return paths
