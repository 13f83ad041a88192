"""Results survive kills, locks and full disks."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ktune.core.errors import EnvironmentFault
from ktune.core.model import Effort
from ktune.search.run import search
from ktune.study import study as study_module
from ktune.study.database import Database
from ktune.study.pending import PENDING_NAME
from tests.fake_gpu import FakeEvaluator
from tests.search.toy_search import ScriptedEvaluator, measure, open_toy, search_toy, searched, toy_problem, toy_space

ROOT = Path(__file__).resolve().parent.parent.parent
FOLDER = "toy-N1048576-Fake-H200"

KILLED = """
import sys, time
sys.path.insert(0, {root!r})
from pathlib import Path
from tests.search.toy_search import ScriptedEvaluator, search_toy

def change(request, m):
    if request.trial == 10:
        print("ten", flush=True)
        time.sleep(600)
    return m

search_toy(Path({results!r}), 30, ScriptedEvaluator(change), sampler="random")
"""

HOLDER = """
import sqlite3, sys, time
connection = sqlite3.connect({ledger!r}, isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("held", flush=True)
time.sleep(600)
"""


def start(script: str, word: str) -> subprocess.Popen[str]:
    """A Python process that has printed `word`."""
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline().strip() == word
    return process


def test_a_search_killed_after_trial_ten_leaves_ten_results_and_is_resumed(tmp_path: Path) -> None:
    process = start(KILLED.format(root=str(ROOT), results=str(tmp_path)), "ten")
    process.send_signal(signal.SIGKILL)
    process.wait()
    with open_toy(tmp_path) as study:
        kept = study.measurements()
        assert [m.trial for m in kept] == list(range(10))
    evaluator = FakeEvaluator()
    outcome = search_toy(tmp_path, 30, evaluator, sampler="random")
    assert outcome.trials_done == 30
    assert sum(request.trial < 30 for request in evaluator.evaluated if request.effort is Effort.SEARCH) == 20
    assert {m.variant.configuration for m in kept}.isdisjoint(searched(evaluator))


def test_two_processes_share_a_study_without_measuring_anything_twice(tmp_path: Path) -> None:
    script = (
        f"import sys; sys.path.insert(0, {str(ROOT)!r})\n"
        "from pathlib import Path\n"
        "from tests.fake_gpu import FakeEvaluator\n"
        "from ktune.core.model import Effort\n"
        "from tests.search.toy_search import search_toy\n"
        "evaluator = FakeEvaluator()\n"
        f"search_toy(Path({str(tmp_path)!r}), 60, evaluator, sampler='random', seed=int(sys.argv[1]))\n"
        "print(sum(r.trial < 60 for r in evaluator.evaluated if r.effort is Effort.SEARCH))\n"
    )
    both = [
        subprocess.Popen([sys.executable, "-c", script, seed], stdout=subprocess.PIPE, text=True) for seed in ("1", "2")
    ]
    counts = [int(process.communicate()[0]) for process in both]
    assert sum(counts) == 60
    with open_toy(tmp_path) as study:
        assert study.trials_done == 60
        assert len({m.variant for m in study.measurements() if m.trial < 60}) == 60


def lock(results: Path) -> sqlite3.Connection:
    connection = sqlite3.connect(results / FOLDER / "ledger.sqlite", isolation_level=None, check_same_thread=False)
    connection.execute("BEGIN IMMEDIATE")
    return connection


def test_a_lock_that_is_let_go_in_time_is_waited_for(tmp_path: Path) -> None:
    m = measure(toy_space().default)
    with open_toy(tmp_path, lock_wait_s=20) as study:
        holder = lock(tmp_path)
        timer = threading.Timer(0.5, holder.rollback)
        timer.start()
        begun = time.monotonic()
        study.record(m)
        assert time.monotonic() - begun >= 0.4
        timer.join()
        holder.close()
    with open_toy(tmp_path) as study:
        assert study.measurements() == [m]


def test_a_result_that_finds_the_ledger_locked_waits_beside_it_and_is_taken_in_later(tmp_path: Path) -> None:
    m = measure(toy_space().default)
    study = open_toy(tmp_path, lock_wait_s=0.2)
    holder = lock(tmp_path)
    with pytest.raises(EnvironmentFault, match=r"locked .* for 0.2 s; end that process.*1 result.*kept in") as caught:
        study.record(m)
    pending = study.folder / PENDING_NAME
    assert str(pending) in str(caught.value) and pending.is_file()
    study.close()
    holder.rollback()
    holder.close()
    with open_toy(tmp_path) as study:
        assert study.measurements() == [m]
        assert study.opening.absorbed == 1
        assert list(study.folder.glob("pending*")) == []
    with open_toy(tmp_path) as study:
        assert study.opening.absorbed == 0
        assert study.measurements() == [m]


def test_the_process_that_holds_the_lock_is_named(tmp_path: Path) -> None:
    open_toy(tmp_path).close()
    holder = start(HOLDER.format(ledger=str(tmp_path / FOLDER / "ledger.sqlite")), "held")
    try:
        with pytest.raises(EnvironmentFault, match=f"locked by .*process {holder.pid} "):
            open_toy(tmp_path, lock_wait_s=0.2)
    finally:
        holder.kill()
        holder.wait()


def test_a_search_that_meets_a_lock_loses_none_of_its_results(tmp_path: Path) -> None:
    holders: list[sqlite3.Connection] = []

    def change(request, m):  # type: ignore[no-untyped-def]
        if request.trial == 7 and not holders:
            holders.append(lock(tmp_path))
        return m

    space = toy_space()
    with open_toy(tmp_path, lock_wait_s=0.2) as study:
        with pytest.raises(EnvironmentFault, match="locked"):
            search(study, space, ScriptedEvaluator(change), trials=20, sampler="random")
        holders[0].rollback()
        holders[0].close()
    with open_toy(tmp_path) as study:
        assert [m.trial for m in study.measurements()] == list(range(8))
    assert search_toy(tmp_path, 20).trials_done == 20


def test_a_torn_last_line_of_waiting_results_is_skipped_and_the_whole_ones_kept(tmp_path: Path) -> None:
    points = toy_space().points
    with open_toy(tmp_path, lock_wait_s=0.1) as study:
        holder = lock(tmp_path)
        for trial in (0, 1):
            with pytest.raises(EnvironmentFault):
                study.record(measure(points[trial], trial))
        holder.rollback()
        holder.close()
        pending = study.folder / PENDING_NAME
        pending.write_text(pending.read_text()[:-40])
    with open_toy(tmp_path) as study:
        assert [m.trial for m in study.measurements()] == [0]


def test_an_interruption_inside_record_does_not_lose_the_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    m = measure(toy_space().default)
    study = open_toy(tmp_path)
    record = study.ledger.record

    def interrupted(*given, **named):  # type: ignore[no-untyped-def]
        monkeypatch.setattr(study.ledger, "record", record)
        raise KeyboardInterrupt

    monkeypatch.setattr(study.ledger, "record", interrupted)
    with pytest.raises(KeyboardInterrupt):
        study.record(m)
    study.close()
    with open_toy(tmp_path) as study:
        assert study.measurements() == [m]


def test_a_ledger_can_be_read_from_a_place_without_write_access(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    search_toy(tmp_path, 5)
    monkeypatch.setattr(study_module, "is_writable", lambda folder: False)
    with study_module.Study.open_existing(tmp_path / FOLDER) as study:
        assert study.trials_done == 5
        assert study.best() is not None
        with pytest.raises(EnvironmentFault, match="can't be written"):
            study.ledger.touch(1)


def test_a_ledger_at_a_url_holds_several_studies_apart(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'shared.sqlite'}"
    small = toy_space(toy_problem("small"))
    with open_toy(tmp_path, ledger_url=url) as study:
        study.record(measure(toy_space().default))
    with open_toy(tmp_path, small, ledger_url=url) as study:
        assert study.measurements() == []
    with open_toy(tmp_path, ledger_url=url) as study:
        assert study.opening.resumed
        assert study.trials_done == 1


def test_a_ledger_url_that_cannot_be_used_says_what_to_write() -> None:
    with pytest.raises(EnvironmentFault, match="can't be used") as caught:
        Database("nonsense://user:secret@host/base")
    assert "postgresql+psycopg://" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_a_ledger_lies_in_a_folder_whose_name_is_not_utf_8(tmp_path: Path) -> None:
    folder = tmp_path / os.fsdecode(b"caf\xe9 100%")
    folder.mkdir()
    database = Database(folder / "ledger.sqlite")
    database.check()
    database.close()
    assert (folder / "ledger.sqlite").is_file()
