"""`ktune search --sampler exhaustive`: the core, completely, into one table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from cli_terminal import Terminal
from fake_gpu import FakeEvaluator
from toy_recording import CULLED, open_core, planted, point, record_toy, toy, toy_core

from ktune.core.model import Effort, Measurement, Request, Status
from ktune.gpu.timing import CULL_FACTOR
from ktune.recorded.record import LONG_US, make_table, patience, source_digest, write_recording
from ktune.recorded.table import RecordedTable, read_table
from ktune.search.run import search

FOLDER = "toy-N1048576-Fake-H200"


def recorded(terminal: Terminal, folder: str = FOLDER) -> Path:
    return terminal.folder / "results" / folder / "recorded.json.gz"


def test_an_exhaustive_search_records_the_core_and_says_so(terminal: Terminal, toy: Path) -> None:
    terminal.plant(planted)
    out = terminal("search", toy, "--sampler", "exhaustive")
    table = read_table(recorded(terminal))
    assert "exhaustive: the core of toy, which is block_size 64,128" in terminal.err
    assert "recorded: 36 points" in terminal.err and "recorded.json.gz" in out
    assert "36 variants: 34 ok, 1 wrong, 1 culled" in out
    assert set(table.measurements) == set(toy_core().points)
    assert table.core == {"block_size": (64, 128)}


def test_a_narrowed_exhaustive_search_is_no_recording(terminal: Terminal, toy: Path) -> None:
    out = terminal("search", toy, "--sampler", "exhaustive", "--set", "block_size=32,64,128,256")
    assert "72 variants" in out and not recorded(terminal).exists()


def test_another_sampler_is_no_recording(terminal: Terminal, toy: Path) -> None:
    out = terminal("search", toy, "--trials", "72")
    assert "72 variants" in out and not recorded(terminal).exists()


def test_a_dry_run_counts_the_core(terminal: Terminal, toy: Path) -> None:
    assert "36 valid configurations" in terminal("search", toy, "--sampler", "exhaustive", "--dry-run")
    assert json.loads(terminal("search", toy, "--sampler", "exhaustive", "--dry-run", "--json"))["valid_points"] == 36


class Interrupted(FakeEvaluator):
    """Ctrl-C comes while the 20th variant is measured."""

    def answer(self, request: Request) -> Measurement:
        if len(self.evaluated) == 19:
            self.evaluated.append(request)
            raise KeyboardInterrupt
        return super().answer(request)


def test_an_interrupted_recording_goes_on_and_is_written_when_it_is_complete(terminal: Terminal, toy: Path) -> None:
    terminal.evaluator = Interrupted()
    terminal("search", toy, "--sampler", "exhaustive", code=130)
    assert not recorded(terminal).exists()
    terminal.evaluator = FakeEvaluator()
    terminal("search", toy, "--sampler", "exhaustive")
    assert len(read_table(recorded(terminal)).measurements) == 36


def test_a_part_of_the_core_is_not_recorded_yet(terminal: Terminal, toy: Path) -> None:
    terminal("search", toy, "--sampler", "exhaustive", "--trials", "10")
    assert "not recorded yet: points are missing" in terminal.err and not recorded(terminal).exists()


def test_the_table_holds_where_and_when_and_how_exactly_it_was_recorded(table: RecordedTable) -> None:
    assert table.environment.gpu_name == "Fake H200" and len(table.recorded_on) == 10
    assert table.noise_percent is not None and table.noise_percent > 0
    assert table.source_digest == source_digest(toy(), toy_core())
    assert all(m.effort is Effort.FULL for m in table.full.values())
    assert min(table.measurements.values(), key=lambda m: m.cold_us or 1e9).variant.configuration in table.full


def test_the_core_gives_a_reference_and_a_bench_in_the_studys_folder_the_others(tmp_path: Path) -> None:
    record_toy(tmp_path)
    with open_core(tmp_path) as study:
        alone = make_table(study, toy(), toy_core())
        rows = [
            {"name": "default", "role": "default", "status": "ok", "cold": {"median_us": 321.0}},
            {"name": "eager", "role": "peer", "status": "ok", "cold": {"median_us": 456.5}},
            {"name": "broken", "role": "peer", "status": "crashed", "cold": None},
            {"name": "best", "role": "subject", "status": "ok", "cold": {"median_us": 1.0}},
        ]
        problem = {"family": "toy", "sizes": {"N": 1 << 20}, "dtype": "float32"}
        (study.folder / "bench.json").write_text(json.dumps({"problem": problem, "rows": rows}))
        benched = make_table(study, toy(), toy_core())
        elsewhere = {**problem, "sizes": {"N": 7}}
        (study.folder / "bench.json").write_text(json.dumps({"problem": elsewhere, "rows": rows}))
        other = make_table(study, toy(), toy_core())
    assert alone is not None and benched is not None and other is not None
    assert list(alone.references) == ["default of the core"] and other.references == alone.references
    assert benched.references == {**alone.references, "default": 321.0, "eager": 456.5}


class Twins(FakeEvaluator):
    """Every variant but the first has the code of the first."""

    def answer(self, request: Request) -> Measurement:
        from dataclasses import replace

        m = super().answer(request)
        return m if request.trial == 0 else replace(m, detail="same code as #0")


def test_a_twin_is_named_by_its_configuration_since_numbers_mean_nothing_elsewhere(tmp_path: Path) -> None:
    table = record_toy(tmp_path, evaluator=Twins())
    details = {m.detail for m in table.measurements.values()}
    assert details == {"", "same code as simple.block_128.items_1.fast_math_0"}


def test_a_recording_culls_later_than_a_search(terminal: Terminal, toy: Path) -> None:
    terminal("search", toy, "--sampler", "exhaustive")
    short = [r for r in terminal.evaluator.evaluated if r.effort is Effort.SEARCH]
    # the first is the default, which is never culled
    assert {r.patience for r in short[1:]} == {5.0 / CULL_FACTOR} and short[0].patience > 5.0 / CULL_FACTOR
    terminal("search", toy, "--trials", "72", "--study", "usual")
    assert terminal.evaluator.evaluated[-1].patience == 1.0


def test_a_long_kernel_is_culled_earlier_because_its_time_costs_more() -> None:
    assert patience(None) == patience(LONG_US) == 5.0 / CULL_FACTOR
    assert patience(LONG_US + 1) == 2.5 / CULL_FACTOR


def test_points_that_an_earlier_search_culled_too_early_are_told(tmp_path: Path) -> None:
    def status_of(request: Request) -> Status:
        return Status.CULLED if request.variant.configuration == point(CULLED) else Status.OK

    with open_core(tmp_path) as study:
        search(study, toy_core(), FakeEvaluator(status_of), sampler="exhaustive", trials=None)
        found = write_recording(study, toy(), toy_core())
    assert found is not None and "1 points were culled below" in found.notes[0] and "--study NAME" in found.notes[0]


def test_a_recording_without_a_final_says_that_its_noise_is_not_known(terminal: Terminal, toy: Path) -> None:
    terminal("search", toy, "--sampler", "exhaustive", "--finalists", "0")
    assert "the noise floor is not known" in terminal.err
    assert read_table(recorded(terminal)).noise_percent is None


@pytest.mark.parametrize("family", ["selective_scan", "linear_swish_scale"])
def test_the_shipped_families_declare_a_core_that_can_be_recorded(family: str) -> None:
    from ktune.core.loading import load_family
    from ktune.core.space import Space

    loaded = load_family(family)
    core = Space(loaded.family, [next(iter(loaded.named_problems.values()))], dict(loaded.family.core))
    assert 300 <= len(core) <= 2000
