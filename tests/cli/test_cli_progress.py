"""Progress on stderr: one live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import io
from dataclasses import replace
from pathlib import Path

import pytest
from fake_gpu import FakeEvaluator, fake_timing

from ktune.cli.progress import ShownProgress, counts_text, duration, idle_percent, status_line
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Measurement, Request, Status
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.search.progress import Snapshot


@pytest.fixture
def loaded(toy: Path) -> LoadedFamily:
    return load_family(toy)


def measured(loaded: LoadedFamily, trial: int, time_us: float, **given: object) -> Measurement:
    problem = loaded.named_problems["small"]
    configuration = Space(loaded.family, [problem]).complete(given)  # type: ignore[arg-type]
    request = Request(trial, make_variant(loaded.family, configuration, problem), problem)
    return replace(FakeEvaluator().answer(request), cold=fake_timing(time_us))


def snapshot(done: int, best: Measurement | None) -> Snapshot:
    return Snapshot("search", done, 200, {Status.OK: done - 1, Status.WRONG: 1}, best, 12.0, 41.0)


def default(loaded: LoadedFamily) -> Configuration:
    return Space(loaded.family, [loaded.named_problems["small"]]).default


def test_the_default_and_each_better_variant_are_told(loaded: LoadedFamily) -> None:
    stream = io.StringIO()
    progress = ShownProgress(loaded.family, default(loaded), stream=stream, live=False)
    first = measured(loaded, 0, 970.0)
    better = measured(loaded, 31, 212.0, block_size=64, items=2)
    progress.on_start(200, 0, 0)
    progress.on_result(first, snapshot(1, first))
    progress.on_result(better, snapshot(31, better))
    progress.on_result(measured(loaded, 32, 300.0, items=4), snapshot(32, better))
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("default     970.0 us +-")
    assert lines[1] == "12s   #31   212.0 us  block 64, items 2"
    assert len(lines) == 2


def test_times_of_another_gpu_are_told_when_a_search_goes_on(loaded: LoadedFamily) -> None:
    def told(resumed: int, elsewhere: int) -> list[str]:
        stream = io.StringIO()
        ShownProgress(loaded.family, default(loaded), stream=stream, live=False).on_start(200, resumed, elsewhere)
        return stream.getvalue().splitlines()

    assert told(145, 0) == ["resuming: 145 of 200 trials are on record"]
    assert told(145, 140)[1].startswith("note: 140 of them were timed on another GPU")
    assert len(told(200, 140)) == 1


def test_a_terminal_has_one_line_that_is_written_over(loaded: LoadedFamily) -> None:
    stream = io.StringIO()
    progress = ShownProgress(loaded.family, default(loaded), stream=stream, live=True)
    first = measured(loaded, 0, 970.0)
    progress.on_result(first, snapshot(1, first))
    progress.say("done")
    assert stream.getvalue().endswith("\r\x1b[Kdone\n") and "\r\x1b[K1/200" in stream.getvalue()


def test_a_default_that_fails_says_why(loaded: LoadedFamily) -> None:
    stream = io.StringIO()
    progress = ShownProgress(loaded.family, default(loaded), stream=stream, live=False)
    failed = replace(measured(loaded, 0, 1.0), status=Status.WRONG, cold=None, detail="y[3] is NaN\nmore")
    progress.on_result(failed, snapshot(1, None))
    assert stream.getvalue() == "default     wrong: y[3] is NaN\n"


def test_the_status_line_counts_and_says_how_long(loaded: LoadedFamily) -> None:
    best = measured(loaded, 3, 212.0)
    assert status_line(snapshot(31, best)) == "31/200      30 ok  1 wrong   best 212.0 us   41 s left"
    assert "best" not in status_line(snapshot(31, None))
    for phase in ("simplify", "neighbours", "pairs"):
        around = replace(snapshot(31, best), phase=phase, done=5, total=12)
        assert status_line(around) == "around 5/12  30 ok  1 wrong   best 212.0 us", "more may follow: no time is left"
    assert counts_text({Status.WRONG: 2, Status.OK: 1, Status.CRASHED: 0}) == "1 ok  2 wrong"


@pytest.mark.parametrize(("seconds", "text"), [(41.2, "41 s"), (100, "2 min"), (7500, "2 h 05 min")])
def test_durations_are_readable(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_idle_time_is_a_share_of_the_whole_and_absent_where_nobody_counted() -> None:
    assert idle_percent({"gpu_idle_for_builds": 1.0, "total": 4.0}) == 25.0
    assert idle_percent({}) is None
