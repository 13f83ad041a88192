"""ncu's table is read whatever stands around it, and where there is none the reason is told."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from ktune.profile.counters import command, parse_counters, read_counters, unknown_metrics
from ktune.profile.evidence import COUNTERS, DURATION
from ktune.profile.isolated import Ended
from ktune.profile.model import KernelCounters, Missing

TABLE = """==PROF== Connected to process 41 (/usr/bin/python3.11)
==PROF== Profiling "scale" - 0: 0%....50%....100% - 3 passes
hello from the program
==PROF== Disconnected from process 41
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","dram__bytes.sum","gpu__time_duration.sum","sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"
"","","","","","","","","","","","byte","ns","%"
"0","41","python3.11","127.0.0.1","scale(const float *, float *)","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0","1,048,576","2,000","12.5"
"1","41","python3.11","127.0.0.1","scale(const float *, float *)","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0","1,048,576","3,000","13.5"
"2","41","python3.11","127.0.0.1","scale(const float *, float *)","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0","n/a","4,000","nan"
"3","41","python3.11","127.0.0.1","combine","1","7","(256, 1, 1)","(512, 1, 1)","0","9.0","100","500","1"
"""  # noqa: E501
WANTED = ["dram__bytes.sum", "dram__bytes_read.sum", "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed"]


def ask(*answers: Ended) -> tuple[tuple[KernelCounters, ...] | Missing, list[list[str]]]:
    """What is made of these runs of ncu, one after the other, and the metrics that each was asked for."""
    remaining = list(answers)
    asked: list[list[str]] = []

    def run(words: Sequence[str]) -> Ended:
        asked.append(words[words.index("--metrics") + 1].split(","))
        return remaining.pop(0)

    return read_counters(Path("ncu"), Path("order.json"), run), asked


def test_the_table_is_read_among_other_output() -> None:
    scale, combine = parse_counters(TABLE)
    assert scale == KernelCounters(
        "scale",
        3,
        {
            "dram__bytes.sum": 1048576.0,
            DURATION: 3000.0,
            "sm__inst_executed_pipe_fma.avg.pct_of_peak_sustained_elapsed": 13.0,
        },
    )
    assert (combine.kernel, combine.launches, combine.values[DURATION]) == ("combine", 1, 500.0)


@pytest.mark.parametrize("text", ["", "garbage", '"ID","Kernel Name"', TABLE.replace("gpu__time_duration", "gone")])
def test_output_without_such_a_table_gives_nothing(text: str) -> None:
    assert parse_counters(text) == ()


def test_ncu_is_told_to_leave_the_clocks_and_to_flush_the_caches() -> None:
    words = command(Path("/opt/ncu"), ["a", "b"], Path("order.json"))
    text = " ".join(words)
    assert "--clock-control none --cache-control all --csv --page raw --print-units base" in text
    assert words[-3:] == ["-m", "ktune.profile.launch", "order.json"]


@pytest.mark.parametrize(
    ("said", "expected"),
    [
        ("==ERROR== Failed to find metric dram__bytes_read.sum", ["dram__bytes_read.sum"]),
        ("==ERROR== Failed to find metric regex:^dram__bytes_read\\.(sum|min|max)$", ["dram__bytes_read.sum"]),
        ("==ERROR== Failed to find metric regex:^dram__bytes\\.sum$", ["dram__bytes.sum"]),
        ("==ERROR== Failed to find metric something_else", []),
        ("all is well", []),
    ],
)
def test_the_metric_that_ncu_does_not_know_is_found_in_its_complaint(said: str, expected: list[str]) -> None:
    assert unknown_metrics(said, WANTED) == expected


def test_it_is_tried_again_without_the_metric_that_is_not_known() -> None:
    unknown = "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_elapsed"
    refused = Ended("", f"==ERROR== Failed to find metric {unknown}\n", "ended with code 1")
    found, asked = ask(refused, Ended(TABLE, ""))
    assert not isinstance(found, Missing)
    assert set(asked[0]) == set(COUNTERS)
    assert set(asked[0]) - set(asked[1]) == {unknown}


CODE = "ended with code 1"


@pytest.mark.parametrize(
    ("ended", "said"),
    [
        (Ended("==ERROR== ERR_NVGPUCTRPERM - The user does not have permission", "", CODE), "run as root, or see"),
        (Ended("", "==ERROR== A driver resource was unavailable.", CODE), "ncu: A driver resource was unavailable."),
        (Ended("==WARNING== No kernels were profiled.", ""), "it profiled no kernel, ended well and last said: ==WARN"),
        (Ended("", "", "did not end within 300 s"), "did not end within 300 s"),
        (Ended("", "", "ncu does not run: Exec format error"), "ncu does not run: Exec format error"),
        (Ended(TABLE, "", "killed by SIGKILL"), "killed by SIGKILL"),
    ],
    ids=["permission", "busy", "none", "hangs", "not-a-program", "killed"],
)
def test_without_counters_the_reason_is_told(ended: Ended, said: str) -> None:
    found, asked = ask(ended)
    assert isinstance(found, Missing)
    assert said in found.reason
    assert len(asked) == 1


def test_an_ncu_that_knows_nothing_is_given_up() -> None:
    refusals = [Ended("", f"==ERROR== Failed to find metric {metric}\n", "ended with code 1") for metric in COUNTERS]
    found, asked = ask(*refusals)
    assert isinstance(found, Missing)
    assert "newer Nsight Compute" in found.reason
    assert len(asked) < len(COUNTERS)
