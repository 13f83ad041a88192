"""`ktune search` with several `--problem`: from the command line to the summary's files, with a fake GPU."""

from __future__ import annotations

import csv
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from cli_terminal import Terminal
from fake_gpu import FakeEvaluator, fake_timing

from ktune.core.model import Effort, Measurement, Problem, Request, Status
from ktune.gpu.protocol import Entrant, RaceResult

STUDIES = ("toy-N1048576-Fake-H200", "toy-N1000-Fake-H200", "toy-N5000-Fake-H200")
PROBLEMS = ("--problem", "default", "--problem", "small", "--problem", "N=5000")
NARROW = ("--set", "algorithm=simple", "--set", "items=1", "--set", "fast_math=0")
FILES = ("winners.csv", "winners.json", "best.h", "report.html")
BLOCKS = (32, 64, 128, 256)
LIKES = {"N1048576": 32, "N1000": 256, "N5000": 64}


class AlikeInRaces(FakeEvaluator):
    """Its races give what its answers give."""

    def raced(self, problem: Problem, entrant: Entrant, seed: int) -> RaceResult:
        assert entrant.variant is not None
        m = self.answer(Request(-1, entrant.variant, problem, Effort.FULL))
        self.evaluated.pop()
        return RaceResult(entrant.name, m.status, m.detail, m.accuracy, m.cold, m.hot)


class ShapedGpu(AlikeInRaces):
    """Every problem has a favourite block size; each step away from it costs 10 %."""

    def answer(self, request: Request) -> Measurement:
        m = super().answer(request)
        liked = LIKES.get(request.problem.label, 64)
        steps = abs(BLOCKS.index(int(request.variant.configuration["block_size"])) - BLOCKS.index(liked))
        return m if m.cold is None else replace(m, cold=fake_timing(100.0 * (1 + 0.1 * steps)))


@pytest.fixture
def shaped(ktune: Terminal) -> Terminal:
    ktune.evaluator = ShapedGpu()
    return ktune


def summary(terminal: Terminal, results: str = "results") -> Path:
    (folder,) = (terminal.folder / results).glob("toy-*problems-*")
    return folder


def losses(folder: Path) -> dict[tuple[str, str], str]:
    """{(problem, block size): loss in per cent} of winners.csv."""
    with (folder / "winners.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    block = re.compile(r"block_(\d+)")
    return {(r["problem"], block.search(r["configuration_id"])[1]): r["loss_percent"] for r in rows}  # type: ignore[index]


def test_each_problem_has_its_study_and_all_together_a_summary(shaped: Terminal, toy: Path) -> None:
    out = shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4")
    results = shaped.folder / "results"
    assert {p.name for p in results.iterdir()} == {*STUDIES, summary(shaped).name}
    assert re.fullmatch(r"toy-3problems-[0-9a-f]{8}-Fake-H200", summary(shaped).name)
    assert all((summary(shaped) / name).is_file() for name in FILES)
    assert all((results / study / "best.json").is_file() for study in STUDIES)
    assert "problem small (N1000)" in out and "problem N5000\n" in out and "fake" in out
    assert f"next: ktune report {summary(shaped).name} | ktune export {summary(shaped).name}" in shaped.err
    assert shaped.evaluator.closed


def test_the_losses_and_the_compromise_are_right(shaped: Terminal, toy: Path) -> None:
    out = shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4")
    found = losses(summary(shaped))
    assert {key: float(value) for key, value in found.items()} == pytest.approx(
        {
            ("default", "32"): 0, ("small", "32"): 30, ("N5000", "32"): 10,
            ("default", "256"): 30, ("small", "256"): 0, ("N5000", "256"): 20,
            ("default", "64"): 10, ("small", "64"): 20, ("N5000", "64"): 0,
            ("default", "128"): 20, ("small", "128"): 10, ("N5000", "128"): 10,
        },
        abs=1e-4,
    )  # fmt: skip
    rows = {line.split()[0]: line for line in out.splitlines() if re.match(r"c\d  +1", line)}
    assert re.fullmatch(r"c1 +100\.0+ +\* +130\.0+ +\+30\.0 % +110\.0+ +\+10\.0 %", rows["c1"])
    assert re.search(r"^c3 .*block_64.*\(winner of N5000; best compromise\)", out, re.MULTILINE)
    assert "best compromise c3: +9.7 % on average (geometric mean), at most +20.0 % (small)" in out


def test_the_table_has_seven_columns_at_most(shaped: Terminal, toy: Path) -> None:
    problems = [word for n in range(2, 9) for word in ("--problem", f"N={n}000")]
    out = shaped("search", toy, *problems, *NARROW, "--trials", "1")
    (first, second) = [line.split() for line in out.splitlines() if re.match(r" +N\d000", line)]
    assert first == [f"N{n}000" for n in range(2, 8)] and second == ["N8000"]


def test_the_winners_before_are_tried_right_after_the_default(shaped: Terminal, toy: Path) -> None:
    def asked(*words: str) -> list[object]:
        """The block sizes that the search of the small problem tries."""
        shaped.evaluator.evaluated.clear()
        shaped("search", toy, *words, *NARROW, "--trials", "3", "--sampler", "random", "--seed", "1")
        found = [r for r in shaped.evaluator.evaluated if r.problem.label == "N1000" and r.effort is Effort.SEARCH]
        return [r.variant.configuration["block_size"] for r in found]

    assert asked("--problem", "small", "--results", "alone")[:2] == [128, 256]
    assert asked("--problem", "default", "--problem", "small")[:2] == [128, 32]


def test_the_same_command_measures_nothing_more(shaped: Terminal, toy: Path) -> None:
    first = shaped("search", toy, *PROBLEMS, "--trials", "9")
    measured = len(shaped.evaluator.evaluated)
    again = shaped("search", toy, *PROBLEMS, "--trials", "9")
    assert len(shaped.evaluator.evaluated) == measured
    assert again.split("together")[1] == first.split("together")[1]
    assert shaped.err.count("complete: 9 of 9 trials are on record") == 3


def test_the_order_of_the_problems_does_not_change_the_folder(shaped: Terminal, toy: Path) -> None:
    shaped("search", toy, *NARROW, "--problem", "default", "--problem", "small", "--trials", "2")
    shaped("search", toy, *NARROW, "--problem", "N=1000", "--problem", "default", "--trials", "2")
    assert summary(shaped).is_dir()


def test_a_named_study_names_every_folder(shaped: Terminal, toy: Path) -> None:
    shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "2", "--study", "night")
    names = {p.name for p in (shaped.folder / "results").iterdir()}
    assert {f"{study}-night" for study in STUDIES} < names and all(name.endswith("-night") for name in names)


@pytest.mark.parametrize("after", [0, 9, 21])
def test_ctrl_c_anywhere_keeps_everything_and_the_same_command_resumes(shaped: Terminal, toy: Path, after: int) -> None:
    command = ("search", toy, *PROBLEMS, "--trials", "6", "--finalists", "1", "--seed", "1")

    def interrupt(request: Request) -> Status:
        if len(shaped.evaluator.evaluated) > after:
            raise KeyboardInterrupt
        return Status.OK

    shaped.plant(interrupt)
    shaped(*command, code=130)
    assert "the same command resumes" in shaped.err and shaped.evaluator.closed
    before = kept(shaped)
    assert len(before) >= after
    shaped.evaluator = ShapedGpu()
    shaped(*command)
    assert not before & {(r.problem.label, repr(r.variant), r.effort) for r in shaped.evaluator.evaluated}
    assert all(value != "" for value in losses(summary(shaped)).values())


def test_what_an_interrupted_search_leaves_says_what_lacks(shaped: Terminal, toy: Path) -> None:
    """In the second of three problems: it and the third are unfinished."""
    command = ("search", toy, *PROBLEMS, *NARROW, "--trials", "4", "--finalists", "1")

    def interrupt(request: Request) -> Status:
        if request.problem.label == "N1000" and sum(r.problem.label == "N1000" for r in shaped.evaluator.evaluated) > 2:
            raise KeyboardInterrupt
        return Status.OK

    shaped.plant(interrupt)
    out = shaped(*command, code=130)
    lacks = "not searched to the end: small, N5000; the same command goes on"
    (folder,) = (shaped.folder / "results").glob("*problems*")
    assert lacks in out and lacks in (folder / "report.html").read_text()
    assert json.loads((folder / "winners.json").read_text())["unfinished"] == ["small", "N5000"]
    assert lacks in shaped("report", folder.name)
    shaped.evaluator = ShapedGpu()
    assert "not searched to the end" not in shaped(*command)
    assert json.loads((folder / "winners.json").read_text())["unfinished"] == []


def test_an_interruption_before_all_is_measured_on_all_says_how_much_lacks(shaped: Terminal, toy: Path) -> None:
    command = ("search", toy, *PROBLEMS, *NARROW, "--trials", "1", "--finalists", "1")

    timed_in_full: set[str] = set()

    def interrupt(request: Request) -> Status:
        """After the last problem's final comes what its best is on the others."""
        if request.effort is Effort.FULL:
            if len(timed_in_full) == 3 and request.problem.label != "N5000":
                raise KeyboardInterrupt
            timed_in_full.add(request.problem.label)
        return Status.OK

    shaped.plant(interrupt)
    out = shaped(*command, code=130)
    assert "not searched to the end" not in out
    assert re.search(r"best compromise .*; \d+ cells are not measured yet, the same command goes on", out)
    shaped.evaluator = ShapedGpu()
    assert "not measured yet" not in shaped(*command)


def kept(terminal: Terminal) -> set[tuple[str, str, Effort]]:
    """What the studies have on record."""
    from ktune.study.finding import study_folders
    from ktune.study.study import Study

    found = set()
    for folder in study_folders(terminal.folder / "results"):
        with Study.open_existing(folder) as study:
            found |= {(m.problem.label, repr(m.variant), m.effort) for m in study.measurements()}
    return found


def test_a_problem_where_nothing_passes_is_named_and_the_others_go_on(shaped: Terminal, toy: Path) -> None:
    shaped.plant(lambda request: Status.WRONG if request.problem.label == "N1000" else Status.OK)
    out = shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4", code=4)
    assert "problem small" not in out.split("together")[0] and "problem N5000" in out
    assert "small (N1000): no variant is both right and timed" in out and "best compromise c" in out
    assert "planted: wrong" in shaped.err
    last = shaped.err.strip().splitlines()[-1]
    assert last.startswith("error: no variant of toy passed for small, 1 of 3 problems; `ktune verify toy")
    assert {problem for problem, _ in losses(summary(shaped))} == {"default", "N5000"}


def test_where_nothing_passes_at_all_there_is_no_summary(shaped: Terminal, toy: Path) -> None:
    shaped.plant(lambda request: Status.WRONG)
    shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "2", code=4)
    assert "passed for default, small, N5000, 3 of 3 problems" in shaped.err
    assert {p.name for p in (shaped.folder / "results").iterdir()} == set(STUDIES)


def test_json_is_one_object_with_an_entry_per_problem(shaped: Terminal, toy: Path) -> None:
    found = json.loads(shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4", "--json"))
    assert found["format"] == 1 and found["family"] == "toy" and not found["interrupted"]
    assert [entry["name"] for entry in found["problems"]] == ["default", "small", "N5000"]
    assert [entry["winner"]["configuration_id"].split(".")[1] for entry in found["problems"]] == [
        "block_32", "block_256", "block_64",
    ]  # fmt: skip
    assert all(entry["trials_done"] == 4 for entry in found["problems"])
    (compromise,) = (row for row in found["configurations"] if row["key"] == found["compromise"])
    assert compromise["mean_loss_percent"] == pytest.approx(9.696, abs=1e-3)
    assert compromise["problems"]["small"]["loss_percent"] == pytest.approx(20)


def test_json_of_a_failed_problem_says_so(shaped: Terminal, toy: Path) -> None:
    shaped.plant(lambda request: Status.WRONG if request.problem.label == "N1000" else Status.OK)
    found = json.loads(shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4", "--json", code=4))
    assert [entry["winner"] is None for entry in found["problems"]] == [False, True, False]
    assert found["problems"][1]["counts"] == {"wrong": 4}


def test_a_dry_run_shows_every_problem_and_measures_nothing(shaped: Terminal, toy: Path) -> None:
    out = shaped("search", toy, *PROBLEMS, "--dry-run", "--trials", "30")
    assert out.count("72 valid configurations") == 3 and "toy at N5000" in out and "3 problems: about" in out
    assert shaped.evaluator.evaluated == [] and not (shaped.folder / "results").exists()
    facts = json.loads(shaped("search", toy, *PROBLEMS, "--dry-run", "--json"))
    assert [one["problem"] for one in facts["problems"]] == ["N1048576", "N1000", "N5000"]
    assert facts["estimated_s"] == sum(one["estimated_s"] for one in facts["problems"])


def test_a_file_names_the_problems(shaped: Terminal, toy: Path) -> None:
    path = shaped.folder / "tune.toml"
    path.write_text('problem = ["default", "small"]\ntrials = 3\nfinalists = 2\n')
    shaped("search", toy, "--config", path)
    assert summary(shaped).name.startswith("toy-2problems-")
    measured = len(shaped.evaluator.evaluated)
    shaped("search", toy, "--config", path, "--problem", "N=5000")
    assert {r.problem.label for r in shaped.evaluator.evaluated[measured:]} == {"N5000"}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--problem", "small", "--problem", "smal"], "no problem 'smal'; did you mean small?"),
        (["--problem", "small", "--problem", "small"], "--problem gives N1000 twice, as 'small'; give it once"),
        (["--problem", "small", "--problem", "N=1000"], "N1000 twice, as 'small' and 'N=1000'; give it once"),
        ([*PROBLEMS, "--study", "./mine"], "--study ./mine is one folder, and a study has one problem, got 3"),
        ([*PROBLEMS, "--set", "block_size=48"], "block_size of toy must be one of"),
    ],
    ids=["unknown", "twice", "twice-spelled-apart", "one-folder", "bad-set"],
)
def test_what_cannot_be_is_told_before_anything_runs(
    shaped: Terminal, toy: Path, words: list[str], message: str
) -> None:
    assert shaped("search", toy, *words, code=2) == ""
    assert message in shaped.err and shaped.err.count("\n") == 1
    assert shaped.told is None and not (shaped.folder / "results").exists()


def test_a_later_problems_foreign_file_is_told_before_the_first_is_searched(shaped: Terminal, toy: Path) -> None:
    folder = shaped.folder / "results" / STUDIES[2]
    folder.mkdir(parents=True)
    (folder / "best.h").write_text("int mine;\n")
    shaped("search", toy, *PROBLEMS, "--trials", "2", code=2)
    assert "best.h exists and was not written by ktune" in shaped.err and shaped.evaluator.evaluated == []


def test_a_foreign_summary_is_told_before_the_first_is_searched(shaped: Terminal, toy: Path) -> None:
    shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "2")
    (summary(shaped) / "winners.csv").write_text("mine\n")
    shaped.evaluator.evaluated.clear()
    shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "3", code=2)
    assert "winners.csv exists and was not written by ktune" in shaped.err and shaped.evaluator.evaluated == []


def test_without_finalists_nothing_but_the_crossing_is_measured_in_full(shaped: Terminal, toy: Path) -> None:
    shaped("search", toy, "--problem", "small", *NARROW, "--trials", "4", "--finalists", "0")
    assert all(r.effort is Effort.SEARCH for r in shaped.evaluator.evaluated)
    assert "finalists" not in shaped.err
    shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4", "--finalists", "0")
    assert "finalists" not in shaped.err and "cross" in shaped.err
    assert all(value != "" for value in losses(summary(shaped)).values())


def test_a_negative_number_of_finalists_is_usage(shaped: Terminal, toy: Path) -> None:
    shaped("search", toy, "--finalists", "-1", code=2)


def test_the_exported_winners_are_the_tables_also_where_all_are_tied(ktune: Terminal, toy: Path) -> None:
    class Level(AlikeInRaces):
        def answer(self, request: Request) -> Measurement:
            return replace(super().answer(request), cold=fake_timing(100.0))

    ktune.evaluator = Level()
    narrowed = ("--set", "block_size=64,256", *NARROW)
    found = json.loads(ktune("search", toy, *PROBLEMS, *narrowed, "--trials", "2", "--json"))
    (row,) = (row for row in found["configurations"] if row["key"] == found["compromise"])
    assert row["configuration_id"] == "simple.block_64.items_1.fast_math_0", "the nearest to the family's default"
    assert {entry["winner"]["configuration_id"] for entry in found["problems"]} == {row["configuration_id"]}


@pytest.fixture
def crossed(shaped: Terminal, toy: Path) -> Terminal:
    shaped("search", toy, *PROBLEMS, *NARROW, "--trials", "4")
    return shaped


def test_the_page_links_the_reports_of_the_studies(crossed: Terminal) -> None:
    page = (summary(crossed) / "report.html").read_text()
    links = re.findall(r'href="([^"]+)"', page)
    assert links == [f"../{study}/report.html" for study in STUDIES]
    assert all((summary(crossed) / link).is_file() for link in links)
    assert "Not a measurement" in page and "<script" not in page and "http" not in page
    assert "+30.0 %" in page and "best compromise c3" in page


def test_report_reads_the_folder_anew_from_its_studies(crossed: Terminal) -> None:
    folder = summary(crossed)
    text = (folder / "winners.csv").read_text()
    for name in FILES:
        if name != "winners.json":
            (folder / name).unlink()
    out = crossed("report", folder.name)
    assert out.startswith(folder.name) and "best compromise c3" in out
    assert (folder / "winners.csv").read_text() == text and all((folder / name).is_file() for name in FILES)
    found = json.loads(crossed("report", f"results/{folder.name}", "--json"))
    assert found["kind"] == "ktune winners" and len(found["configurations"]) == 4


def test_the_results_can_be_moved_as_a_whole(crossed: Terminal) -> None:
    (crossed.folder / "results").rename(crossed.folder / "elsewhere")
    out = crossed("report", f"elsewhere/{summary(crossed, 'elsewhere').name}", "--output", "out")
    assert "best compromise c3" in out and (crossed.folder / "out" / "best.h").is_file()
    links = re.findall(r'href="([^"]+)"', (crossed.folder / "out" / "report.html").read_text())
    assert links[0] == f"../elsewhere/{STUDIES[0]}/report.html"


def test_a_study_that_is_gone_is_named(crossed: Terminal) -> None:
    (crossed.folder / "results" / STUDIES[1]).rename(crossed.folder / "aside")
    crossed("report", summary(crossed).name, code=2)
    assert STUDIES[1] in crossed.err and crossed.err.count("\n") == 1


def test_export_writes_one_header_for_all_and_a_kernel_for_each(crossed: Terminal) -> None:
    out = crossed("export", summary(crossed).name, "--with-kernel", "--output", "out")
    folder = crossed.folder / "out"
    kernels = {f"best_{label}_kernel.{kind}" for label in LIKES for kind in ("cu", "cuh")}
    assert {p.name for p in folder.iterdir()} == {"best.h", "winners.json", "best_kernels.cuh", *kernels}
    assert out.count("wrote") == 9
    header = (folder / "best.h").read_text()
    assert "KTUNE_TOY_ENTRY_COUNT 3" in header and "if (size_N == 5000" in header
    described = json.loads(crossed("export", summary(crossed).name, "--json"))
    assert [one["configuration_id"].split(".")[1] for one in described["winners"]] == [
        "block_32", "block_256", "block_64",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("command", "option"),
    [("export", ["--configuration", "#0"]), ("export", ["--problem", "small"]), ("report", ["--problem", "small"])],
)
def test_what_chooses_in_one_study_is_refused_for_several(crossed: Terminal, command: str, option: list[str]) -> None:
    crossed(command, summary(crossed).name, *option, code=2)
    assert f"{option[0]} chooses in one study" in crossed.err


def test_a_broken_summary_is_told_in_one_line(crossed: Terminal) -> None:
    for text in ("{", "[]", '{"kind": "ktune winners", "format": 1}', '{"kind": "ktune winners", "format": 9}'):
        (summary(crossed) / "winners.json").write_text(text)
        crossed("report", summary(crossed).name, code=2)
        assert crossed.err.startswith("error: ") and crossed.err.count("\n") == 1


def test_one_problem_given_leaves_no_summary(shaped: Terminal, toy: Path) -> None:
    found = json.loads(shaped("search", toy, "--problem", "small", *NARROW, "--trials", "4", "--json"))
    assert found["problem"] == "N1000" and "problems" not in found
    assert [p.name for p in (shaped.folder / "results").iterdir()] == [STUDIES[1]]
