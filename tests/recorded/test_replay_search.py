"""`ktune search --replay`: the same search, and no figure anywhere that does not say that it is replayed."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from cli_terminal import Terminal

from ktune.core.model import Effort, Measurement, Request, Source
from ktune.recorded.confirm import Confirmation
from ktune.recorded.evaluator import ReplayEvaluator
from ktune.recorded.table import RecordedTable, table_name, write_table
from ktune.study.study import Study

NAME = "toy-N1048576-Fake-H200-replayed"
NOTE = "replayed from what was recorded on {date} on Fake H200, not measured here"
FIGURE = re.compile(r"\d+\.\d+|\d (?:ok|variants|us|%|faster)\b")


def study_of(terminal: Terminal, name: str = NAME) -> Path:
    return terminal.folder / "results" / name


def lines_with_figures(text: str) -> list[str]:
    """Lines with a time, a count or a percentage; paths and what ktune is called do not count."""
    return [line for line in text.splitlines() if FIGURE.search(line) and not line.startswith(("wrote", "next:"))]


def test_a_replay_finds_what_is_fastest_in_the_recording(
    replay: Terminal, toy: Path, file: Path, table: RecordedTable
) -> None:
    out = replay("search", toy, "--replay", file, "--trials", "30")
    best = json.loads((study_of(replay) / "best.json").read_text())
    fastest = min(table.full.values(), key=lambda m: m.cold_us or 1e9)
    assert best["configuration"] == dict(fastest.variant.configuration)
    assert best["noise_percent"] == table.noise_percent
    assert "30 variants" in out and "noise" in out


def test_every_printed_line_with_a_figure_says_that_it_is_replayed(replay: Terminal, toy: Path, file: Path) -> None:
    texts = []
    for words in (
        ["search", toy, "--replay", file, "--trials", "30"],
        ["search", toy, "--replay", file, "--trials", "36"],
        ["report", NAME],
        ["list", "--study", NAME],
        ["report", NAME, NAME],
        ["export", NAME, "--with-kernel"],
    ):
        out = replay(*words)
        texts.append(f"{out}\n{replay.err}")
        assert "replayed" in texts[-1]
    shown = lines_with_figures("\n".join(texts))
    assert len(shown) > 50
    allowed = ("resuming: 30 of 36 trials",)
    assert [line for line in shown if "replayed" not in line and not line.startswith(allowed)] == []


def test_the_recordings_date_and_gpu_are_told(replay: Terminal, toy: Path, file: Path, table: RecordedTable) -> None:
    note = NOTE.format(date=table.recorded_on)
    out = replay("search", toy, "--replay", file, "--trials", "10")
    assert note in out and f"recorded on {table.recorded_on} on Fake H200; nothing is measured here" in replay.err
    assert note in replay("report", NAME)
    replay("export", NAME)
    assert note in replay.err


def test_every_file_says_that_it_is_replayed_with_date_and_gpu(
    replay: Terminal, toy: Path, file: Path, table: RecordedTable
) -> None:
    replay("search", toy, "--replay", file, "--trials", "30")
    replay("export", NAME, "--with-kernel")
    note = NOTE.format(date=table.recorded_on)
    files = {path.name: path for path in study_of(replay).rglob("*") if path.is_file()}
    texts = {"report.html", "best.h", "best.json", "best_kernel.cu", "best_kernel.cuh"}
    assert texts | {"measurements.csv", "ledger.sqlite"} <= set(files)
    assert set(files) <= texts | {"measurements.csv", "measurements.parquet", "ledger.sqlite"}
    for name in texts:
        assert note in files[name].read_text(), name
    rows = list(csv.DictReader(files["measurements.csv"].open()))
    assert {(row["source"], row["gpu"], row["finished_at"][:10]) for row in rows} == {
        ("replayed", "Fake H200", table.recorded_on)
    }


def test_the_header_and_the_json_never_call_it_measured(replay: Terminal, toy: Path, file: Path) -> None:
    replay("search", toy, "--replay", file, "--trials", "30")
    replay("export", NAME, "--with-kernel")
    header = (study_of(replay) / "best.h").read_text()
    assert '#define KTUNE_TOY_SOURCE "replayed"' in header and "as tuned and verified" not in header
    assert "recorded at:" in header and "measured at" not in header
    assert header.count("/* replayed, not measured */") == 4
    assert "measured and verified" not in (study_of(replay) / "best_kernel.cu").read_text()
    assert json.loads((study_of(replay) / "best.json").read_text())["source"] == "replayed"


def test_captions_and_cards_of_the_page_say_it(replay: Terminal, toy: Path, file: Path, table: RecordedTable) -> None:
    replay("search", toy, "--replay", file, "--trials", "30")
    page = (study_of(replay) / "report.html").read_text()
    assert f'<p class="warning">Not a measurement: {NOTE.format(date=table.recorded_on)}.</p>' in page
    captions = re.findall(r"<figcaption>(.*?)</figcaption>", page, re.DOTALL)
    assert captions and all("replayed from what was recorded" in caption for caption in captions)
    cards = re.findall(r'<div class="card"><span>(.*?)</span>', page)
    assert len(cards) >= 4 and all("(replayed)" in card for card in cards)


def test_the_ledger_holds_replayed_measurements_alone(replay: Terminal, toy: Path, file: Path) -> None:
    replay("search", toy, "--replay", file, "--trials", "30")
    with Study.open_existing(study_of(replay)) as study:
        assert study.source is Source.REPLAYED
        assert {m.source for m in study.measurements()} == {Source.REPLAYED}


def test_json_names_the_recording(replay: Terminal, toy: Path, file: Path, table: RecordedTable) -> None:
    found = json.loads(replay("search", toy, "--replay", file, "--trials", "10", "--json"))
    assert found["source"] == found["winner"]["source"] == "replayed"
    assert found["recording"]["recorded_on"] == table.recorded_on and found["recording"]["points"] == 36
    assert found["recording"]["gpu_name"] == "Fake H200"
    rows = json.loads(replay("report", NAME, "--json"))["measurements"]
    assert {row["source"] for row in rows} == {"replayed"}
    listed = json.loads(replay("list", "--study", NAME, "--json"))["configurations"]
    assert {row["source"] for row in listed} == {"replayed"}


def test_a_shipped_recording_is_called_by_its_gpu(
    replay: Terminal, toy: Path, table: RecordedTable, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.recorded.table.tables_folder", lambda: tmp_path / "shipped")
    write_table(tmp_path / "shipped" / table_name("toy", table.problem, "NVIDIA H200"), table)
    assert "variants: " in replay("search", toy, "--replay", "h200", "--trials", "10")


def test_an_exhaustive_replay_asks_for_every_recorded_point(replay: Terminal, toy: Path, file: Path) -> None:
    out = replay("search", toy, "--replay", file, "--sampler", "exhaustive")
    assert "36 variants: 34 ok, 1 wrong, 1 culled" in out


def test_narrowing_stays_within_the_recording(replay: Terminal, toy: Path, file: Path) -> None:
    assert "18 variants" in replay("search", toy, "--replay", file, "--set", "block_size=64", "--trials", "36")
    replay("search", toy, "--replay", file, "--set", "block_size=32", code=2)
    assert "block_size was recorded with 64, 128" in replay.err


def test_a_replay_and_a_search_of_one_problem_and_gpu_never_share_a_study(
    terminal: Terminal, toy: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.cli.replaying.confirmations", lambda *given: [])
    terminal("search", toy, "--trials", "20")
    terminal("search", toy, "--replay", file, "--trials", "20")
    assert sorted(p.name for p in (terminal.folder / "results").iterdir()) == [NAME.removesuffix("-replayed"), NAME]
    terminal(
        "search", toy, "--replay", file, "--study", str(study_of(terminal, NAME.removesuffix("-replayed"))), code=2
    )
    assert "is of source fake results, not replayed results" in terminal.err
    terminal("search", toy, "--study", "replayed", "--trials", "5", code=2)
    assert "is of source replayed results, not fake results" in terminal.err


def test_a_search_takes_no_hint_from_a_replay_nor_the_other_way(
    terminal: Terminal, toy: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ktune.cli.replaying.confirmations", lambda *given: [])
    terminal("search", toy, "--replay", file, "--trials", "36")
    terminal("search", toy, "--trials", "3", "--sampler", "random", "--seed", "5")
    alone = [r.variant.configuration for r in terminal.evaluator.evaluated]
    terminal.evaluator.evaluated.clear()
    terminal("search", toy, "--trials", "3", "--sampler", "random", "--seed", "5", "--results", "elsewhere")
    assert [r.variant.configuration for r in terminal.evaluator.evaluated] == alone


def test_a_study_called_by_name_says_that_it_is_replayed(replay: Terminal, toy: Path, file: Path) -> None:
    replay("search", toy, "--replay", file, "--trials", "5", "--study", "night")
    assert study_of(replay, "toy-N1048576-Fake-H200-night-replayed").is_dir()
    replay("search", toy, "--replay", file, "--trials", "5", "--study", "toy-N1048576-Fake-H200-night-replayed")
    assert "complete: 5 of 5" in replay.err


def interrupt_after(count: int) -> Callable[[ReplayEvaluator, Request], Measurement]:
    answered = iter(range(count))
    answer = ReplayEvaluator.answer

    def answer_some(self: ReplayEvaluator, request: Request) -> Measurement:
        if next(answered, None) is None:
            raise KeyboardInterrupt
        return answer(self, request)

    return answer_some


def test_an_interrupted_replay_resumes_and_ends_where_it_would_have(
    replay: Terminal, toy: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(ReplayEvaluator, "answer", interrupt_after(12))
        replay("search", toy, "--replay", file, "--trials", "36", code=130)
        assert "the same command resumes the replay" in replay.err
        assert lines_with_figures(replay.err) and "(replayed)" in replay.err
    out = replay("search", toy, "--replay", file, "--trials", "36")
    assert "resuming: 12 of 36 trials" in replay.err and "36 variants" in out
    with Study.open_existing(study_of(replay)) as study:
        asked = [m.variant for m in study.measurements() if m.effort is Effort.SEARCH]
        assert len(asked) == len(set(asked)) == 36


def test_the_same_seed_finds_the_same(replay: Terminal, toy: Path, file: Path) -> None:
    found = []
    for name in ("one", "two"):
        replay("search", toy, "--replay", file, "--trials", "15", "--seed", "3", "--study", name)
        with Study.open_existing(study_of(replay, f"toy-N1048576-Fake-H200-{name}-replayed")) as study:
            found.append([(m.variant, m.cold_us) for m in study.measurements()])
    assert found[0] == found[1]


def test_another_recording_is_another_study_of_the_same_folder(
    replay: Terminal, toy: Path, file: Path, table: RecordedTable, tmp_path: Path
) -> None:
    replay("search", toy, "--replay", file, "--trials", "36")
    slower = {
        c: replace(m, cold=replace(m.cold, median_us=2 * m.cold.median_us) if m.cold else None)
        for c, m in table.measurements.items()
    }
    other = write_table(tmp_path / "other.json.gz", replace(table, measurements=slower, full={}))
    replay("search", toy, "--replay", other, "--trials", "36")
    assert "the recording changed since the last replay" in replay.err and "taken over" not in replay.err
    with Study.open_existing(study_of(replay)) as study:
        times = {m.variant.configuration: m.cold_us for m in study.measurements() if m.effort is Effort.SEARCH}
    assert times == {c: m.cold_us for c, m in slower.items()}
    replay("search", toy, "--replay", file, "--trials", "36")
    assert "complete: 36 of 36" in replay.err


def test_kernels_that_changed_since_are_told(replay: Terminal, toy: Path, table: RecordedTable, tmp_path: Path) -> None:
    old = write_table(tmp_path / "old.json.gz", replace(table, source_digest="0" * 64))
    replay("search", toy, "--replay", old, "--trials", "5")
    assert "the kernels changed since they were recorded" in replay.err


def test_a_dry_run_replays_nothing(replay: Terminal, toy: Path, file: Path) -> None:
    out = replay("search", toy, "--replay", file, "--dry-run", "--trials", "30")
    facts = json.loads(replay("search", toy, "--replay", file, "--dry-run", "--trials", "30", "--json"))
    assert "would replay 30 of 36 recorded points" in out and not (replay.folder / "results").exists()
    assert facts["trials"] == 30 and facts["recording"]["points"] == 36


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--gpu", "0"], "--gpu 0 chooses a GPU to measure on, --replay measures nothing"),
        (["--problem", "small"], "holds toy N1048576, not toy N1000"),
        (["--problem", "small", "--problem", "default"], "--replay answers from a recording of one problem"),
        (["--replay", "h900"], "no recording of toy N1048576 on 'h900' is shipped"),
        (["--replay", "./missing.json.gz"], "cannot read the recording"),
    ],
)
def test_what_a_replay_cannot_do_is_refused(
    replay: Terminal, toy: Path, file: Path, words: list[str], message: str
) -> None:
    replay("search", toy, "--replay", file, *words, code=2)
    assert message in replay.err


def test_the_confirmation_of_the_winner_is_shown_and_a_fault_ends_with_4(
    replay: Terminal, toy: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Measurement] = []

    def confirm(winner: Measurement, *given: object) -> list[Confirmation]:
        asked.append(winner)
        return [Confirmation("built", "78 registers"), Confirmation("executed", "on the CPU: wrong: y", right=False)]

    monkeypatch.setattr("ktune.cli.replaying.confirmations", confirm)
    out = replay("search", toy, "--replay", file, "--trials", "10", code=4)
    assert "built     78 registers" in out and "executed  on the CPU: wrong: y" in out
    assert "error: the replayed winner is not confirmed: executed  on the CPU: wrong: y" in replay.err
    best = json.loads((study_of(replay) / "best.json").read_text())
    assert dict(asked[0].variant.configuration) == best["configuration"]


def test_bench_and_profile_prefer_a_measured_study(
    terminal: Terminal, toy: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ktune.study.finding import latest_study

    monkeypatch.setattr("ktune.cli.replaying.confirmations", lambda *given: [])
    terminal("search", toy, "--replay", file, "--trials", "5")
    results = terminal.folder / "results"
    with latest_study(results, "toy", replays_last=True) as only:
        assert only.source is Source.REPLAYED
    terminal("search", toy, "--trials", "5")
    terminal("search", toy, "--replay", file, "--trials", "6")
    with latest_study(results, "toy", replays_last=True) as measured, latest_study(results, "toy") as last:
        assert measured.source is Source.FAKE and last.source is Source.REPLAYED


def test_a_search_without_a_gpu_ends_with_3_and_names_the_replay(
    bare: Terminal, toy: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    bare("search", toy, code=3)
    assert "hides every GPU" in bare.err and "--replay h200" in bare.err


def test_what_it_says_to_do_next_finds_a_study_in_a_folder_of_its_own(replay: Terminal, toy: Path, file: Path) -> None:
    replay("search", toy, "--replay", file, "--trials", "3", "--study", "elsewhere/mine")
    assert "ktune report elsewhere/mine" in replay.err
    replay("report", "elsewhere/mine")


def test_a_recording_of_another_family_is_told_by_the_family(replay: Terminal, file: Path) -> None:
    replay("search", "selective_scan", "--replay", file, code=2)
    assert "holds toy N1048576, not selective_scan; search toy" in replay.err


@pytest.mark.parametrize("name", ["x" * 300, "a\nb"], ids=["long", "newline"])
def test_a_name_that_no_folder_should_have_is_refused(replay: Terminal, toy: Path, file: Path, name: str) -> None:
    replay("search", toy, "--replay", file, "--study", name, code=2)
    assert "255 bytes at most and no control characters" in replay.err
