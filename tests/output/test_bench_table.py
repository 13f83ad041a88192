"""A bench says what was measured and how it compares, in text, JSON and CSV."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from fake_gpu import ENVIRONMENT, fake_timing

from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Accuracy, Source, Status, Timing
from ktune.core.space import Space
from ktune.gpu.protocol import RaceResult
from ktune.output.bench import Bench, Contender, Outcome, Role
from ktune.output.bench_files import bench_json, check_bench_files, csv_text, json_text, write_bench
from ktune.output.bench_table import bench_lines, table_lines
from ktune.study.verdict import Speed, join_processes, spread_percent, time_ratio, usable, verdict

RIGHT = Accuracy(1e-6, 1e-6, 2.0, 1e-7, 0.02, 0.0)
WRONG = Accuracy(1e-2, 1e-2, 9e4, 1e-3, 40.0, 0.5, (3,), "y", "normal")


def timing(median: float, half: float = 0.001, regime: str = "cold") -> Timing:
    """A timing whose interval is `half` of the median to either side."""
    return replace(fake_timing(median, regime), ci_low_us=median * (1 - half), ci_high_us=median * (1 + half))


def result(name: str, cold: float | None, status: Status = Status.OK, detail: str = "") -> RaceResult:
    accuracy = {Status.OK: RIGHT, Status.WRONG: WRONG}.get(status)
    hot = None if cold is None else timing(cold * 0.9, regime="hot")
    return RaceResult(name, status, detail, accuracy, None if cold is None else timing(cold), hot)


def peer(name: str, *times: float | None, status: Status = Status.OK, detail: str = "") -> Outcome:
    return Outcome(Contender(name, Role.PEER), tuple(result(name, t, status, detail) for t in times))


MISSING = Outcome(Contender("library", Role.PEER, install="pip install library"))


@pytest.fixture(scope="module")
def toy(families: Path) -> LoadedFamily:
    return load_family(families / "toy")


def bench(toy: LoadedFamily, *rivals: Outcome, winner: Outcome | None = None, **changes: Any) -> Bench:
    """A bench on the toy family whose winner takes 100 us and differs by 0.1 % between two processes."""
    problem = toy.named_problems["small"]
    default = Space(toy.family, [problem]).default
    found = winner or Outcome(
        Contender("winner #7", Role.SUBJECT, default), (result("winner #7", 100.0), result("winner #7", 100.1))
    )
    made = Bench(
        toy, problem, [found, *rivals], Source.MEASURED, ENVIRONMENT, len(found.results), 0, "2026-01-02T03:04:05+00:00"
    )
    return replace(made, **changes)


def rows(text: str) -> dict[str, dict[str, str]]:
    return {row["name"]: row for row in csv.DictReader(io.StringIO(text))}


@pytest.mark.parametrize(
    ("first", "second", "noise", "expected"),
    [
        (timing(90.0), timing(100.0), None, Speed.FASTER),
        (timing(110.0), timing(100.0), None, Speed.SLOWER),
        (timing(100.1), timing(100.0), None, Speed.TIED),
        (timing(110.0), timing(100.0), 10.5, Speed.TIED),
        (timing(110.0), timing(100.0), 9.5, Speed.SLOWER),
        (timing(90.0, half=0.2), timing(100.0), None, Speed.TIED),
        (timing(math.nan), timing(100.0), None, Speed.TIED),
        (timing(100.0), timing(math.nan), None, Speed.TIED),
    ],
    ids=[
        "faster", "slower", "within-intervals", "below-noise", "above-noise", "one-interval-wide", "NaN-first",
        "NaN-second",
    ],
)  # fmt: skip
def test_the_verdict_claims_no_more_than_intervals_and_noise_allow(
    first: Timing, second: Timing, noise: float | None, expected: Speed
) -> None:
    assert verdict(first, second, noise) is expected
    opposite = {Speed.FASTER: Speed.SLOWER, Speed.SLOWER: Speed.FASTER, Speed.TIED: Speed.TIED}
    assert verdict(second, first, noise) is opposite[expected]


def test_intervals_that_touch_are_tied() -> None:
    first, second = replace(timing(99.0), ci_high_us=99.5), replace(timing(100.0), ci_low_us=99.5)
    assert verdict(first, second) is Speed.TIED
    assert verdict(first, replace(second, ci_low_us=99.51)) is Speed.FASTER


def test_a_ratios_interval_holds_the_ratio_of_any_two_medians_in_theirs() -> None:
    found = time_ratio(timing(300.0, half=0.01), timing(100.0, half=0.02))
    assert found.value == pytest.approx(3.0)
    assert [found.low, found.high] == pytest.approx([297 / 102, 303 / 98])


@pytest.mark.parametrize("bad", [math.nan, math.inf, 0.0, -1.0])
def test_a_time_that_is_no_positive_number_is_no_time(bad: float) -> None:
    assert usable(timing(1.0)) and not usable(None)
    assert not usable(replace(timing(1.0), median_us=bad)) and not usable(replace(timing(1.0), ci_high_us=bad))


def test_processes_count_alike_and_their_difference_widens_the_interval() -> None:
    many = replace(timing(100.0), samples_us=(100.0,) * 90)
    few = replace(timing(104.0), samples_us=(104.0,) * 10, throttle=("sw_power_cap",), sm_clock_mhz=1700)
    joined = join_processes([many, few])
    assert joined.median_us == pytest.approx(102.0)
    assert joined.ci_low_us <= 100.0 and joined.ci_high_us >= 104.0
    assert len(joined.samples_us) == 100 and joined.min_us == 100.0
    assert joined.sm_clock_mhz == 1700 and joined.throttle == ("sw_power_cap",)
    assert join_processes([many]) == many
    assert spread_percent([many, few]) == pytest.approx(4.0) and spread_percent([many]) is None


def test_a_process_that_found_a_peer_host_bound_is_not_mixed_with_one_that_hid_its_launches() -> None:
    hidden, bound = timing(230.0), replace(timing(11_000.0), method="pair with gaps", host_bound=True)
    for both in ([hidden, bound], [bound, hidden]):
        joined = join_processes(both)
        assert replace(joined, method="") == replace(hidden, method="")
        assert joined.method == f"{hidden.method}, host-bound in 1 of 2 processes, which are left out"
    assert join_processes([hidden, bound, timing(232.0)]).median_us == pytest.approx(231.0)
    alike = join_processes([bound, replace(bound, median_us=11_200.0)])
    assert alike.host_bound and alike.median_us == 11_100.0 and alike.method == "pair with gaps"


def test_a_process_that_is_left_out_of_a_rivals_time_is_left_out_of_its_noise(toy: LoadedFamily) -> None:
    slow = result("looped", 11_000.0)
    slow = replace(slow, cold=replace(slow.cold, host_bound=True), hot=replace(slow.hot, host_bound=True))
    rival = Outcome(Contender("looped", Role.PEER), (result("looped", 230.0), slow))
    assert rival.cold.median_us == 230.0 and rival.noise_percent is None
    found = bench(toy, rival)
    assert found.speed(rival) is Speed.SLOWER and found.speed_up(rival).value == pytest.approx(2.3, rel=0.01)
    assert spread_percent([timing(230.0), slow.cold, timing(253.0)]) == pytest.approx(10.0)


def test_a_peer_whose_times_hold_launch_gaps_is_named_below_the_table(toy: LoadedFamily) -> None:
    looped = result("looped", 11_000.0)
    slow = replace(looped, cold=replace(looped.cold, host_bound=True))
    found = bench(toy, Outcome(Contender("looped", Role.PEER), (slow, slow)), peer("quick", 120.0, 121.0))
    told = [line for line in bench_lines(found) if "host-bound" in line]
    assert told == ["looped: host-bound, its times hold the gaps between its launches"]


def test_rows_stand_in_the_order_winner_right_wrong_failed_missing(toy: LoadedFamily) -> None:
    found = bench(
        toy,
        MISSING,
        peer("crasher", None, None, status=Status.CRASHED, detail="illegal address\nmore"),
        peer("wrong and slow", 70.0, 70.0, status=Status.WRONG),
        peer("wrong and fast", 50.0, 50.0, status=Status.WRONG),
        peer("slow", 300.0, 300.0),
        peer("near", 100.05, 100.06),
        peer("fast", 80.0, 80.0),
    )
    names = ["winner #7", "fast", "near", "slow", "wrong and fast", "wrong and slow", "crasher", "library"]
    assert [outcome.name for outcome in found.ordered] == names
    head, *lines = table_lines(found)
    assert [name for name, line in zip(names, lines, strict=True) if line.startswith(name)] == names
    verdicts = ["right", "faster", "tied", "slower", "wrong", "wrong", "crashed", "not installed: pip install library"]
    assert [line.endswith(f"  {word}") for line, word in zip(lines, verdicts, strict=True)] == [True] * len(names)
    assert head.split() == ["cold", "us", "[95", "%]", "hot", "us", "error/tol", "speed-up", "[95", "%]", "verdict"]
    assert "crasher: crashed: illegal address" in bench_lines(found)


def test_the_first_rival_is_the_fastest_that_is_right(toy: LoadedFamily) -> None:
    found = bench(toy, peer("wrong", 10.0, 10.0, status=Status.WRONG), peer("slow", 300.0, 300.6), MISSING)
    assert found.best_rival is not None and found.best_rival.name == "slow"
    text = "\n".join(bench_lines(found))
    assert "best rival that is right: slow; winner #7 is faster, 3.00x [2.99, 3.01] its speed" in text


def test_a_wrong_rivals_times_are_shown_in_parentheses_and_not_compared(toy: LoadedFamily) -> None:
    found = bench(toy, peer("rounded", 50.0, 50.0, status=Status.WRONG, detail="y[3] is off"))
    row = table_lines(found)[2]
    assert "(50.0 [49.9, 50.1])" in row and "(45.00)" in row and "  40  " in row and row.split()[-2:] == ["-", "wrong"]
    assert found.speed(found.outcomes[1]) is None and found.speed_up(found.outcomes[1]) is None
    assert "no rival is right and timed" in bench_lines(found)
    assert "rounded: wrong: y[3] is off" in bench_lines(found)


def test_a_difference_within_the_noise_of_either_is_a_tie(toy: LoadedFamily) -> None:
    steady, shaky = peer("steady", 103.0, 103.0), peer("shaky", 101.0, 106.0)
    found = bench(toy, steady, shaky)
    assert found.speed(steady) is Speed.SLOWER and found.speed(shaky) is Speed.TIED
    noisy = Outcome(found.subject.contender, (result("winner #7", 98.0), result("winner #7", 102.0)))
    assert bench(toy, steady, winner=noisy).speed(steady) is Speed.TIED


def test_right_in_one_process_and_wrong_in_another_is_unstable(toy: LoadedFamily) -> None:
    mixed = Outcome(
        Contender("mixed", Role.PEER), (result("mixed", 90.0), result("mixed", 90.0, Status.WRONG, "y[0] is off"))
    )
    assert mixed.status is Status.UNSTABLE and mixed.detail == "wrong in 1 of 2 processes: y[0] is off"
    assert mixed.accuracy == WRONG
    assert table_lines(bench(toy, mixed))[2].endswith("unstable")


@pytest.mark.parametrize("bad", [math.nan, 0.0, math.inf])
def test_a_time_that_is_no_number_never_wins(toy: LoadedFamily, bad: float) -> None:
    odd = Outcome(Contender("odd", Role.PEER), (result("odd", bad), result("odd", bad)))
    found = bench(toy, odd, peer("slow", 300.0, 300.0))
    assert odd.status is Status.UNSTABLE and odd.cold is None and "no time" in odd.detail
    assert found.best_rival is not None and found.best_rival.name == "slow"
    assert "nan" not in csv_text(found)


def test_an_error_of_nan_is_the_worst_and_survives_in_every_form(toy: LoadedFamily) -> None:
    poisoned = replace(result("odd", 50.0, Status.WRONG), accuracy=replace(WRONG, worst_ratio=math.nan))
    odd = Outcome(Contender("odd", Role.PEER), (poisoned, result("odd", 50.0, Status.WRONG)))
    found = bench(toy, odd)
    assert "  nan  " in table_lines(found)[2]
    assert bench_json(found)["rows"][1]["accuracy"]["worst_ratio"] == "NaN"
    assert rows(csv_text(found))["odd"]["worst_error_ratio"] == "nan"


def test_a_wrong_subject_is_compared_with_nothing(toy: LoadedFamily) -> None:
    configuration = bench(toy).subject.contender.configuration
    wrong = Outcome(
        Contender("winner #7", Role.SUBJECT, configuration), (result("winner #7", 10.0, Status.WRONG, "y[3] is off"),)
    )
    found = bench(toy, peer("slow", 300.0), winner=wrong)
    assert table_lines(found)[2].split()[-2:] == ["-", "right"]
    assert "winner #7 is not right: nothing is compared with it" in bench_lines(found)


def test_the_head_says_where_and_when_it_was_measured(toy: LoadedFamily) -> None:
    capped = replace(timing(100.0), throttle=("sw_power_cap",), sm_clock_mhz=1755)
    winner = bench(toy).subject
    winner = replace(winner, results=(*winner.results, replace(winner.results[0], cold=capped)))
    text = "\n".join(bench_lines(bench(toy, winner=winner)))
    for said in (
        "toy at N1000", "Fake H200", "GPU-00000000-fake", "driver 580.0", "CUDA 13.0", "nvcc 13.0.88", "torch 2.11.0",
        "power limit 700 W", "SM clock 1755 to 1980 MHz", "throttle reasons: sw_power_cap", "2026-01-02T03:04:05",
        "3 fresh processes", "seed 0", "noise floor 0.1 %", "cold: L2 flushed", "winner #7: simple.block_128.items_1",
    ):  # fmt: skip
        assert said in text
    assert "source of all figures" not in text and "warning" not in text


def test_figures_that_no_gpu_gave_say_so_everywhere(toy: LoadedFamily) -> None:
    found = bench(toy, source=Source.FAKE)
    assert "source of all figures: fake: from a formula, not from a GPU" in bench_lines(found)
    assert bench_json(found)["source"] == "fake"
    assert {row["source"] for row in rows(csv_text(found)).values()} == {"fake"}


def test_what_makes_the_figures_doubtful_is_said(toy: LoadedFamily) -> None:
    shaky = Outcome(bench(toy).subject.contender, (result("winner #7", 100.0), result("winner #7", 103.0)))
    busy = replace(ENVIRONMENT, foreign_processes=2, power_limit_w=None)
    found = bench(toy, winner=shaky, environment=busy)
    text = "\n".join(bench_lines(found))
    assert "warning: the noise floor is 3 %, above 1 %" in text
    assert "warning: 2 other compute processes are on this GPU" in text
    assert "power limit not known" in text
    assert bench_json(found)["warnings"] == found.warnings


def test_an_interval_of_too_few_samples_is_called_a_range(toy: LoadedFamily) -> None:
    few = replace(timing(900.0), samples_us=(899.0, 900.0, 901.0))
    slow = Outcome(Contender("slow", Role.PEER), (RaceResult("slow", Status.OK, "", RIGHT, few, few),))
    assert "slow: the interval is the range of 3 samples" in bench_lines(bench(toy, slow))
    assert not any("range" in line for line in bench_lines(bench(toy, peer("slow", 900.0, 900.0))))


def test_one_process_has_no_noise_floor(toy: LoadedFamily) -> None:
    once = Outcome(bench(toy).subject.contender, (result("winner #7", 100.0),))
    found = bench(toy, winner=once)
    assert "noise floor not measured (1 process)" in bench_lines(found)
    assert bench_json(found)["noise_percent"] is None


def test_the_json_is_strict_and_holds_every_sample_and_the_machine(toy: LoadedFamily) -> None:
    slow = peer("slow", 300.0, 301.0)
    found = json.loads(json_text(bench(toy, slow, MISSING)), parse_constant=lambda word: pytest.fail(word))
    assert found["format"] == 1 and found["kind"] == "ktune bench" and found["family"] == "toy"
    assert found["problem"] == {"family": "toy", "sizes": {"N": 1000}, "dtype": "float32"}
    assert found["environment"]["gpu_uuid"] == "GPU-00000000-fake" and found["processes"] == 2
    winner, rival, missing = found["rows"]
    assert winner["role"] == "subject" and winner["configuration"]["block_size"] == 128
    assert winner["configuration_id"].startswith("simple.block_128")
    assert rival["verdict"] == "slower" and rival["speed_up"]["low"] < rival["speed_up"]["value"]
    for process, taken in zip(rival["processes"], slow.results, strict=True):
        assert taken.cold is not None
        assert tuple(process["cold"]["samples_us"]) == taken.cold.samples_us and process["status"] == "ok"
    assert rival["cold"]["samples"] == 10
    assert missing["verdict"] == "not installed" and missing["install"] == "pip install library"
    assert missing["status"] is None and missing["processes"] == [] and missing["cold"] is None


def test_the_csv_has_a_row_each_and_leaves_unknown_cells_empty(toy: LoadedFamily) -> None:
    found = rows(csv_text(bench(toy, peer("a, b", 300.0, 300.0), MISSING)))
    assert set(found) == {"winner #7", "a, b", "library"}
    assert found["a, b"]["verdict"] == "slower" and float(found["a, b"]["speed_up"]) == pytest.approx(2.9985, abs=1e-4)
    assert found["library"]["time_cold_median_us"] == found["library"]["speed_up"] == ""
    assert found["library"]["verdict"] == "not installed" and found["library"]["gpu_name"] == "Fake H200"


def test_files_replace_ours_and_never_someone_elses(toy: LoadedFamily, tmp_path: Path) -> None:
    found = bench(toy, MISSING)
    for _ in range(2):
        check_bench_files(tmp_path)
        paths = write_bench(found, tmp_path)
    assert [path.name for path in paths] == ["bench.json", "bench.csv"]
    (tmp_path / "bench.csv").write_text("mine")
    with pytest.raises(Exception, match="was not written by ktune"):
        check_bench_files(tmp_path)
    check_bench_files(tmp_path, force=True)
    assert (tmp_path / "bench.csv").read_text() == "mine"
