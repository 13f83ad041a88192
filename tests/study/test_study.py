"""Opening, refusing, taking over, claiming and ranking: what a study promises."""

from __future__ import annotations

import math
import re
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.core.errors import EnvironmentFault, KtuneError, UsageError
from ktune.core.identity import configuration_digest
from ktune.core.model import Effort, Measurement, Source, Status, Variant
from ktune.study.claims import Refused
from ktune.study.finals import Finals, Lap, RaceRecord
from ktune.study.finding import find_study, latest_study
from ktune.study.naming import gpu_slug
from ktune.study.study import Study
from tests.search.toy_search import GPU, measure, open_toy, search_toy, timing, toy, toy_problem, toy_space

FOLDER = "toy-N1048576-Fake-H200"


@pytest.mark.parametrize(
    ("name", "slug"),
    [
        ("NVIDIA H200", "H200"),
        ("NVIDIA H100 80GB HBM3", "H100-80GB-HBM3"),
        ("NVIDIA H200 MIG 1g.18gb", "H200-MIG-1g.18gb"),
        ("../../etc", "..-..-etc"),
        ("", "gpu"),
    ],
)
def test_a_gpu_model_becomes_part_of_a_folder_name(name: str, slug: str) -> None:
    assert gpu_slug(name) == slug


def test_the_study_folder_is_named_by_family_problem_and_gpu(tmp_path: Path) -> None:
    with open_toy(tmp_path / "results") as study:
        assert study.folder == tmp_path / "results" / FOLDER
        assert (study.folder / "ledger.sqlite").is_file()
        assert not study.opening.resumed


def test_a_name_of_the_users_own_comes_last_and_a_path_is_the_folder(tmp_path: Path) -> None:
    with open_toy(tmp_path, name="mine") as study:
        assert study.folder == tmp_path / f"{FOLDER}-mine"
    with open_toy(tmp_path, name=f"{FOLDER}-mine") as study:
        assert study.folder == tmp_path / f"{FOLDER}-mine"
        assert study.opening.resumed
    with open_toy(tmp_path, name=str(tmp_path / "elsewhere")) as study:
        assert study.folder == tmp_path / "elsewhere"


def test_what_is_recorded_is_there_when_the_study_is_opened_again(tmp_path: Path) -> None:
    made = [measure(point, trial) for trial, point in enumerate(toy_space().points[:4])]
    with open_toy(tmp_path) as study:
        for m in made:
            study.record(m)
        assert study.measurements() == made
    with open_toy(tmp_path) as study:
        assert study.opening.resumed
        assert study.measurements() == made
        assert study.trials_done == study.next_trial == 4


def test_a_result_is_on_disk_before_record_returns(tmp_path: Path) -> None:
    with open_toy(tmp_path) as study:
        study.record(measure(toy_space().default))
        with sqlite3.connect(study.folder / "ledger.sqlite") as other:
            rows = other.execute("SELECT trial, status, configuration_id FROM measurements").fetchall()
    assert rows == [(0, "ok", "simple.block_128.items_1.fast_math_0")]


def test_the_same_result_recorded_twice_is_one_row_and_a_later_one_stands_in_for_it(tmp_path: Path) -> None:
    m = measure(toy_space().default)
    with open_toy(tmp_path) as study:
        study.record(m)
        study.record(m)
        assert len(study.ledger.entries(1)) == 1
        demoted = replace(m, status=Status.WRONG, detail="found later")
        study.record(demoted)
        assert study.measurements() == [demoted]
        assert study.best() is None


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"problem": "small"}, "is of problem N1048576, not N1000"),
        ({"gpu_name": "NVIDIA H100"}, "is of GPU Fake H200, not NVIDIA H100"),
        ({"source": Source.MEASURED}, "is of source fake results, not measured results"),
    ],
)
def test_a_study_of_another_problem_gpu_or_source_is_refused_with_the_remedy(
    tmp_path: Path, changes: dict, what: str
) -> None:
    with open_toy(tmp_path, name=str(tmp_path / "one")) as study:
        study.record(measure(toy_space().default))
    problem = toy_problem(changes.get("problem", "default"))
    with pytest.raises(UsageError, match=re.escape(what)) as caught:
        Study.open_or_create(
            tmp_path,
            toy().family,
            problem,
            toy_space(problem),
            changes.get("gpu_name", GPU),
            changes.get("source", Source.FAKE),
            str(tmp_path / "one"),
        )
    assert "--study NAME" in str(caught.value) and caught.value.exit_code == 2
    with Study.open_existing(tmp_path / "one") as study:
        assert study.trials_done == 1


def test_a_changed_space_begins_a_new_study_that_takes_over_what_fits(tmp_path: Path) -> None:
    wide, narrow = toy_space(), toy_space(block_size=(64, 128))
    with open_toy(tmp_path, wide) as study:
        for trial, point in enumerate(wide.points):
            study.record(measure(point, trial))
    with open_toy(tmp_path, narrow) as study:
        assert not study.opening.resumed
        assert study.opening.reason == "the space changed since the last search"
        assert study.opening.taken_over == len(narrow)
        assert {m.variant.configuration for m in study.measurements()} == set(narrow.points)
        assert study.trials_done == 0
        assert study.next_trial == len(narrow)
    with open_toy(tmp_path, wide) as study:
        assert study.opening.resumed
        assert study.opening.taken_over == 0
        assert study.trials_done == len(wide)


def test_what_a_narrowed_study_measured_serves_the_wide_one_too(tmp_path: Path) -> None:
    narrow = toy_space(block_size=(64,))
    with open_toy(tmp_path) as study:
        study.record(measure(toy_space().default))
    with open_toy(tmp_path, narrow) as study:
        study.record(measure(narrow.points[0]))
        study.record(measure(narrow.points[0], effort=Effort.FULL))
    with open_toy(tmp_path) as study:
        assert study.opening.resumed and study.opening.taken_over == 1
        assert [(m.trial, m.effort) for m in study.measurements()][1:] == [(1, Effort.SEARCH), (1, Effort.FULL)]
        assert study.trials_done == 1
    with open_toy(tmp_path) as study:
        assert study.opening.taken_over == 0


def test_crashes_and_time_outs_are_not_taken_over(tmp_path: Path) -> None:
    wide, narrow = toy_space(), toy_space(block_size=(64,))
    kinds = [Status.CRASHED, Status.TIMED_OUT, Status.WRONG, Status.BUILD_FAILED]
    with open_toy(tmp_path, wide) as study:
        for trial, (point, status) in enumerate(zip(narrow.points, kinds, strict=False)):
            study.record(measure(point, trial, status=status))
    with open_toy(tmp_path, narrow) as study:
        assert sorted(m.status for m in study.measurements()) == [Status.BUILD_FAILED, Status.WRONG]


def test_variants_that_would_be_built_differently_now_are_measured_anew(tmp_path: Path) -> None:
    """The kernel's source was edited for one algorithm: the other's measurements stay."""

    def key_of(version: str):  # type: ignore[no-untyped-def]
        def key(variant: Variant) -> str:
            edited = version if variant.configuration["algorithm"] == "unrolled" else ""
            return f"key{edited}-{hash(variant)}"

        return key

    with open_toy(tmp_path, current_key=key_of("")) as study:
        for trial, point in enumerate(toy_space().points):
            m = measure(point, trial)
            assert m.build is not None
            study.record(replace(m, build=replace(m.build, key=key_of("")(m.variant))))
    with open_toy(tmp_path, current_key=key_of("")) as study:
        assert study.opening.resumed
    with open_toy(tmp_path, current_key=key_of("2")) as study:
        assert not study.opening.resumed
        assert "source, flags or compiler changed" in study.opening.reason
        assert {m.variant.configuration["algorithm"] for m in study.measurements()} == {"simple"}
        assert study.opening.taken_over == sum(p["algorithm"] == "simple" for p in toy_space().points)


def test_a_variant_that_failed_to_build_is_tried_again_once_its_source_is_mended(tmp_path: Path) -> None:
    broken = measure(toy_space().default, status=Status.BUILD_FAILED, build=None, cold=None)
    with open_toy(tmp_path, current_key=lambda variant: "before") as study:
        study.record(broken)
    with open_toy(tmp_path, current_key=lambda variant: "before") as study:
        assert study.measurements() == [broken]
    with open_toy(tmp_path, current_key=lambda variant: "after") as study:
        assert study.measurements() == []


@pytest.mark.parametrize("place", ["a file/results", "/proc/ktune/results"])
def test_a_place_that_cannot_be_written_is_refused_before_anything_is_measured(tmp_path: Path, place: str) -> None:
    (tmp_path / "a file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"can't be made .*; choose another place for results"):
        open_toy(tmp_path / place)


def test_a_ledger_that_is_a_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / FOLDER / "ledger.sqlite").mkdir(parents=True)
    with pytest.raises(EnvironmentFault, match="can't be written"):
        open_toy(tmp_path)


@pytest.mark.parametrize("damage", ["not a database", "torn in the middle"])
def test_a_damaged_ledger_is_named_and_left_as_it_is(tmp_path: Path, damage: str) -> None:
    search_toy(tmp_path, 20)
    file = tmp_path / FOLDER / "ledger.sqlite"
    whole = file.read_bytes()
    half = len(whole) // 2
    torn = whole[:half] + b"\xa5" * 4096 + whole[half + 4096 :] if damage == "torn in the middle" else b"x" * 5000
    file.write_bytes(torn)
    for attempt in (lambda: open_toy(tmp_path), lambda: Study.open_existing(tmp_path / FOLDER)):
        with pytest.raises(EnvironmentFault, match=r"is damaged .*move it aside") as caught:
            attempt().close()
        assert str(file) in str(caught.value)
    assert file.read_bytes() == torn


def test_a_ledger_of_a_newer_format_is_refused(tmp_path: Path) -> None:
    open_toy(tmp_path).close()
    with sqlite3.connect(tmp_path / FOLDER / "ledger.sqlite") as connection:
        connection.execute("UPDATE studies SET format = 2")
    with pytest.raises(UsageError, match="format 2, this ktune reads up to format 1; upgrade"):
        open_toy(tmp_path)


def test_a_folder_without_a_study_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"no study in .*; `ktune search` makes one"):
        Study.open_existing(tmp_path)


def test_a_study_opened_without_its_family_can_be_ranked_but_not_added_to(tmp_path: Path) -> None:
    search_toy(tmp_path, 10)
    with Study.open_existing(tmp_path / FOLDER) as study:
        best = study.best()
        assert best is not None
        assert study.identify(best.variant.configuration).startswith(("simple.", "unrolled."))
        new = next(p for p in toy_space().points if all(p != m.variant.configuration for m in study.measurements()))
        with pytest.raises(KtuneError, match="opened without its family"):
            study.record(measure(new, 99))


def test_the_latest_study_of_a_family_and_problem_is_found(tmp_path: Path) -> None:
    small = toy_problem("small")
    open_toy(tmp_path).close()
    open_toy(tmp_path, toy_space(small)).close()
    open_toy(tmp_path, name="again").close()
    with latest_study(tmp_path, "toy") as study:
        assert study.folder.name == f"{FOLDER}-again"
    with latest_study(tmp_path, "toy", small) as study:
        assert study.problem == small
    with pytest.raises(UsageError, match=r"no study of rope in .*; `ktune search rope` makes one"):
        latest_study(tmp_path, "rope")


def test_a_study_is_found_by_its_folder_or_its_own_name(tmp_path: Path) -> None:
    open_toy(tmp_path, name="mine").close()
    for name in ("mine", f"{FOLDER}-mine", str(tmp_path / f"{FOLDER}-mine")):
        with find_study(tmp_path, name) as study:
            assert study.folder.name == f"{FOLDER}-mine"
    with pytest.raises(UsageError, match=f"no study is called 'yours' .*there are: {FOLDER}-mine"):
        find_study(tmp_path, "yours")
    open_toy(tmp_path, toy_space(toy_problem("small")), name="mine").close()
    with pytest.raises(UsageError, match="2 studies are called 'mine'"):
        find_study(tmp_path, "mine")


def test_a_measurement_is_found_by_trial_id_and_digest(tmp_path: Path) -> None:
    search_toy(tmp_path, 10)
    with open_toy(tmp_path) as study:
        m = study.find("#0")
        assert m.variant.configuration == toy_space().default
        assert study.find("simple.block_128.items_1.fast_math_0") == m
        assert study.find(configuration_digest(m.variant.configuration)[:10]) == m
        with pytest.raises(UsageError, match=r"no configuration in .* called '#77'"):
            study.find("#77")


def test_a_claim_is_given_once_and_given_back_with_the_result(tmp_path: Path) -> None:
    point, other = toy_space().points[:2]
    with open_toy(tmp_path) as one, open_toy(tmp_path) as two:
        assert one.claim(point) == 0
        assert two.claim(point) is Refused.TAKEN
        assert two.claim(other) == 1
        one.record(measure(point, 0))
        assert two.claim(point) is Refused.TAKEN
        assert [m.trial for m in two.refresh()] == [0]
        assert two.refresh() == []


def test_claims_count_towards_the_total(tmp_path: Path) -> None:
    points = toy_space().points
    with open_toy(tmp_path) as one, open_toy(tmp_path) as two:
        assert one.claim(points[0], total=2) == 0
        assert two.claim(points[1], total=2) == 1
        assert one.claim(points[2], total=2) is Refused.FULL
        two.release()
        assert one.claim(points[2], total=2) == 1


def test_an_extra_measurement_is_recorded_but_not_counted(tmp_path: Path) -> None:
    points = toy_space().points
    with open_toy(tmp_path) as study:
        study.record(measure(points[0], study.claim(points[0], total=2)))  # type: ignore[arg-type]
        extra = study.claim_extra(points[1])
        assert extra == 1 and study.claim_extra(points[1]) is Refused.TAKEN
        study.record(measure(points[1], extra))
        assert (study.trials_done, len(study.measurements())) == (1, 2)
        assert study.claim(points[2], total=2) == 2
        assert study.claim(points[3], total=2) is Refused.FULL
    with open_toy(tmp_path) as study:
        assert study.trials_done == 1


def test_what_another_process_measured_beyond_the_total_is_not_counted_here_either(tmp_path: Path) -> None:
    points = toy_space().points
    with open_toy(tmp_path) as first, open_toy(tmp_path) as second:
        extra = second.claim_extra(points[1])
        assert not isinstance(extra, Refused)
        second.record(measure(points[1], extra))
        first.refresh()
        assert first.trials_done == 0
        assert first.claim(points[0], total=1) == 1


def test_a_final_is_remembered_with_the_winner_and_ties_that_its_noise_decides(tmp_path: Path) -> None:
    fast, near, slow = toy_space().points[1:4]
    lap = Lap("x", 0, "ok", True, 50.0, 49.9, 50.1, 45.0, 1980, ("sw_power_cap",))
    given = Finals(1.0, ("noisy",), (RaceRecord(7, True, (lap,)),), "GPU-1")
    with open_toy(tmp_path) as study:
        for trial, (point, time_us) in enumerate([(fast, 50.0), (near, 50.4), (slow, 51.0)]):
            study.record(measure(point, trial, cold=timing(time_us)))
            study.record(measure(point, trial, cold=timing(time_us), effort=Effort.FULL))
        assert study.finals is None
        assert study.standing() is not None and study.standing().tied == ()  # type: ignore[union-attr]
        settled = study.settle(given)
    with open_toy(tmp_path) as study:
        assert study.finals == settled == replace(given, winner=settled.winner, tied=settled.tied)
        assert {settled.winner, *settled.tied} == {study.identify(fast), study.identify(near)}
        standing = study.standing()
        assert standing is not None and len(standing.tied) == 1
    with Study.open_existing(tmp_path / FOLDER) as study:
        assert study.finals == settled


def test_a_claim_past_its_deadline_is_void(tmp_path: Path) -> None:
    point = toy_space().default
    with open_toy(tmp_path) as one, open_toy(tmp_path) as two:
        one.claim(point)
        with sqlite3.connect(one.folder / "ledger.sqlite") as connection:
            connection.execute("UPDATE claims SET deadline_s = 5")
        connection.close()
        assert two.claim(point) == 0


def test_a_claim_of_another_host_holds_until_its_deadline(tmp_path: Path) -> None:
    point = toy_space().default
    with open_toy(tmp_path) as one, open_toy(tmp_path) as two:
        one.claim(point)
        with sqlite3.connect(one.folder / "ledger.sqlite") as connection:
            connection.execute("UPDATE claims SET host = 'elsewhere', pid = 999999999")
        connection.close()
        assert two.claim(point) is Refused.TAKEN


def ranked(tmp_path: Path, *given: Measurement) -> Measurement | None:
    with open_toy(tmp_path) as study:
        for m in given:
            study.record(m)
        return study.best()


def test_the_best_is_eligible_and_its_time_a_number(tmp_path: Path) -> None:
    points = toy_space().points
    nan = measure(points[0], 0, cold=timing(math.nan))
    wrong = measure(points[1], 1, cold=timing(1.0), status=Status.WRONG)
    culled = measure(points[2], 2, status=Status.CULLED, bound_us=2.0, cold=timing(2.0))
    good = measure(points[3], 3, cold=timing(9.0))
    assert ranked(tmp_path, nan, wrong, culled, good) == good


def test_equal_times_go_to_the_default_then_to_fewer_registers_then_by_id(tmp_path: Path) -> None:
    space = toy_space()
    others = [point for point in space.points if point != space.default]

    def with_registers(index: int, registers: int) -> Measurement:
        m = measure(others[index], index, cold=timing(5.0))
        assert m.build is not None
        return replace(m, build=replace(m.build, registers=registers))

    many, few, few_too = with_registers(0, 64), with_registers(1, 32), with_registers(2, 32)
    by_default = measure(space.default, 90, cold=timing(5.0))
    assert ranked(tmp_path / "a", many, few_too, few) == few
    assert ranked(tmp_path / "b", few, many, by_default) == by_default


def test_a_search_result_faster_than_every_finalist_was_leads_until_it_is_measured_in_full(tmp_path: Path) -> None:
    points = toy_space().points
    old = measure(points[0], 0, cold=timing(10.0))
    old_full = replace(old, effort=Effort.FULL, cold=timing(10.2))
    new = measure(points[1], 1, cold=timing(8.0))
    slower = measure(points[2], 2, cold=timing(10.1))
    assert ranked(tmp_path / "a", old, slower, old_full) == old_full
    assert ranked(tmp_path / "b", old, slower, old_full, new) == new
