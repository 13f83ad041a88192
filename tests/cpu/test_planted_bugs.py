"""Each planted bug of kernels/planted.cu is found, and the report names the line, the thread and the memory."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from cpu_kernels import SCHEDULES, Runner, line_of

from ktune.core.model import Status
from ktune.cpu.compiler import Check
from ktune.cpu.process import ExecutionFault, Schedule

FILE = "planted.cu"
OLDEST, NEWEST, RANDOM = SCHEDULES
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.label.replace(" ", "-"))


def x_and_y(threads: int) -> dict[str, torch.Tensor]:
    return {"x": torch.arange(threads, dtype=torch.float32) + 1.0, "y": torch.full((threads,), float("nan"))}


def fault_of(run_kernel: Runner, kernel: str, takes: str, threads: int = 32, **how: Any) -> ExecutionFault:
    """The fault that a kernel ends with. takes: `x y` or `y`."""
    tensors = {name: tensor for name, tensor in x_and_y(threads).items() if name in takes.split()}
    with pytest.raises(ExecutionFault) as caught:
        run_kernel(FILE, kernel, takes.split(), tensors, block=(threads,), **how)
    return caught.value


def values_of(run_kernel: Runner, kernel: str, takes: str, threads: int = 32, **how: Any) -> torch.Tensor:
    tensors = {name: tensor for name, tensor in x_and_y(threads).items() if name in takes.split()}
    return run_kernel(FILE, kernel, takes.split(), tensors, block=(threads,), **how)["y"]


@each_schedule
def test_a_shuffle_under_a_condition_is_a_deadlock_with_threads_and_lines(
    run_kernel: Runner, schedule: Schedule
) -> None:
    fault = fault_of(run_kernel, "divergent_shuffle", "y", schedule=schedule)
    assert fault.status is Status.TIMED_OUT
    assert str(fault).startswith("deadlock in block (0,0,0); thread (0,0,0) and 23 more wait in __syncthreads")
    assert (
        f"thread (1,0,0) and 7 more wait in __shfl_xor_sync at {line_of(FILE, 'divergent shuffle')} "
        "with mask 0xffffffff; 0 of 32 threads have exited" in str(fault)
    )


@each_schedule
def test_shuffles_in_two_branches_do_not_meet(run_kernel: Runner, schedule: Schedule) -> None:
    said = str(fault_of(run_kernel, "shuffle_in_two_branches", "y", schedule=schedule))
    assert "deadlock" in said and line_of(FILE, "first branch") in said and line_of(FILE, "second branch") in said


@each_schedule
def test_a_barrier_in_two_branches_names_both(run_kernel: Runner, schedule: Schedule) -> None:
    fault = fault_of(run_kernel, "divergent_barrier", "y", 64, schedule=schedule)
    assert fault.status is Status.TIMED_OUT and str(fault).startswith("divergent barrier: thread (")
    assert line_of(FILE, "barrier of the first warp") in str(fault)
    assert line_of(FILE, "barrier of the others") in str(fault)


@each_schedule
def test_barriers_that_some_threads_pass_more_often_are_a_deadlock(run_kernel: Runner, schedule: Schedule) -> None:
    said = str(fault_of(run_kernel, "barrier_in_a_loop", "y", schedule=schedule))
    assert "deadlock" in said and "wait in __syncthreads" in said and line_of(FILE, "after the loop") in said


def test_a_mask_without_the_calling_lane_is_refused(run_kernel: Runner) -> None:
    fault = fault_of(run_kernel, "wrong_mask", "y")
    assert fault.status is Status.WRONG
    assert f"at {line_of(FILE, 'wrong mask')}: thread (16,0,0) of block (0,0,0) is lane 16, which is not in" in str(
        fault
    )


def test_a_lane_outside_of_the_mask_gives_nothing_that_could_pass(run_kernel: Runner) -> None:
    y = values_of(run_kernel, "lane_outside_of_the_mask", "y")
    assert y[:8].tolist() == [1.0] * 8 and y[8:16].isnan().all()


def test_a_width_that_is_no_power_of_two_is_refused(run_kernel: Runner) -> None:
    said = str(fault_of(run_kernel, "bad_width", "y"))
    assert line_of(FILE, "bad width") in said and "width must be 1, 2, 4, 8, 16 or 32, got 12" in said


@pytest.mark.parametrize(
    ("kernel", "takes", "threads", "lines"),
    [
        ("missing_barrier", "x y", 64, ("row is written", "row is read")),
        ("missing_barrier_unseen", "y", 64, ("one is written", "one is written")),
        ("missing_barrier_after_reading", "x y", 64, ("row is written again",)),
        ("missing_syncwarp", "x y", 32, ("lane's own", "other lane's")),
        ("left_before_the_barrier", "y", 64, ("not ordered",)),
        ("written_after_arriving", "x y", 64, ("row is handed over late", "row is taken")),
        ("read_after_arriving", "x y", 64, ("row is read unasked", "row is written by those that wait")),
        ("handed_over_through_another", "x y", 64, ("row is for barrier 1", "row is taken at barrier 2")),
    ],
)
@each_schedule
def test_accesses_that_no_barrier_orders_are_a_race_with_both_lines(
    run_kernel: Runner, kernel: str, takes: str, threads: int, lines: tuple[str, ...], schedule: Schedule
) -> None:
    fault = fault_of(run_kernel, kernel, takes, threads, check=Check.RACES, schedule=schedule)
    assert fault.status is Status.WRONG and str(fault).startswith("race on byte ")
    assert all(line_of(FILE, line) in str(fault) for line in lines), str(fault)


@each_schedule
def test_what_was_written_before_arriving_is_ordered_before_those_that_wait(
    run_kernel: Runner, schedule: Schedule
) -> None:
    y = values_of(run_kernel, "handed_over", "x y", 64, check=Check.RACES, schedule=schedule)
    assert y[32:].tolist() == [32.0 - i for i in range(32)]


@each_schedule
def test_a_barrier_at_which_nobody_arrives_is_a_deadlock(run_kernel: Runner, schedule: Schedule) -> None:
    fault = fault_of(run_kernel, "never_handed_over", "x y", 64, schedule=schedule)
    assert fault.status is Status.TIMED_OUT and str(fault).startswith("deadlock in block (0,0,0); ")
    assert line_of(FILE, "nobody arrives") in str(fault)


def test_blocks_that_write_the_same_element_race(run_kernel: Runner) -> None:
    said = str(fault_of(run_kernel, "blocks_share_an_output", "y", check=Check.RACES, grid=(2,)))
    assert said.startswith("race on y[0] (32 elements): write by thread (0,0,0) of block (1,0,0)")
    assert "by a thread of another block" in said


def test_an_order_made_by_an_atomic_is_no_race(run_kernel: Runner) -> None:
    found = run_kernel(
        "semantics.cu", "last_block", ["parts", "arrived", "total"],
        {"parts": torch.zeros(5), "arrived": torch.zeros(1, dtype=torch.int32), "total": torch.zeros(1)},
        grid=(5,), check=Check.RACES,
    )  # fmt: skip
    assert found["total"].item() == 15.0


@pytest.mark.parametrize(
    ("kernel", "takes", "line", "place"),
    [
        ("reads_past_the_end", "x y", "x is read", "thread (31,0,0) of block (0,0,0) reads x[32] (32 elements)"),
        ("writes_past_the_end", "y", "y is written", "thread (31,0,0) of block (0,0,0) writes y[32] (32 elements)"),
        ("writes_before_the_start", "y", "y is written before", "thread (0,0,0) of block (0,0,0) writes y[-1]"),
        ("static_shared_overrun", "y", "row is overrun", "writes byte 128 of row (128 bytes)"),
        ("dynamic_shared_overrun", "y", "dynamic is overrun", "reads byte 128 of dynamic shared memory (128 bytes)"),
        ("copy_past_the_end", "x y", "x is copied", "thread (31,0,0) of block (0,0,0) copies from x[32]"),
    ],
)
def test_the_first_byte_out_of_bounds_is_reported(
    run_kernel: Runner, kernel: str, takes: str, line: str, place: str
) -> None:
    fault = fault_of(run_kernel, kernel, takes, check=Check.ADDRESS, smem_bytes=128)
    assert fault.status is Status.WRONG
    assert str(fault).startswith(f"out of bounds at {line_of(FILE, line)}: ") and place in str(fault)


def test_a_register_array_is_not_left(run_kernel: Runner) -> None:
    with pytest.raises(ExecutionFault, match=r"index 4 out of bounds for type 'float \[4\]' at planted.cu"):
        run_kernel(FILE, "register_array_overrun", ["y", (4, "int32")], {"y": torch.zeros(32)}, check=Check.ADDRESS)


def test_a_misaligned_vector_is_reported(run_kernel: Runner) -> None:
    said = str(fault_of(run_kernel, "misaligned_vector", "y", check=Check.ADDRESS))
    assert "misaligned address" in said and said.endswith(line_of(FILE, "misaligned"))


def test_shared_memory_written_outside_is_seen_without_a_sanitizer(run_kernel: Runner) -> None:
    said = str(fault_of(run_kernel, "static_shared_overrun", "y"))
    assert "wrote outside of shared memory: byte 128 of row (128 bytes) was overwritten" in said


def test_what_a_kernel_does_not_write_stays_poisoned(run_kernel: Runner) -> None:
    y = values_of(run_kernel, "unwritten_output", "y")
    assert y[0].isnan() and not y[1:].isnan().any()


@pytest.mark.parametrize("kernel", ["uninitialised_sum", "uninitialised_shared"])
def test_what_has_no_value_yet_can_not_pass_for_one(run_kernel: Runner, kernel: str) -> None:
    y = values_of(run_kernel, kernel, "y")
    assert bool((y.isnan() | (y.abs() > 1e30)).all())


def test_a_copy_without_a_wait_is_seen_where_copies_land_late(run_kernel: Runner) -> None:
    assert not values_of(run_kernel, "copy_without_wait", "x y", schedule=OLDEST).isnan().any()
    assert values_of(run_kernel, "copy_without_wait", "x y", schedule=NEWEST).isnan().all()
    assert values_of(run_kernel, "copy_without_wait", "x y", schedule=RANDOM).isnan().any()


@pytest.mark.parametrize(
    ("kernel", "sentence"),
    [
        ("wild_address", r"thread \(0,0,0\) of block \(0,0,0\) accessed address 0x8, far from every tensor"),
        ("deep", r"thread \(0,0,0\) of block \(0,0,0\) used more stack than a thread has here"),
    ],
)
def test_a_crash_says_which_thread_and_where(run_kernel: Runner, kernel: str, sentence: str) -> None:
    fault = fault_of(run_kernel, kernel, "y", 1)
    assert fault.status is Status.CRASHED
    with pytest.raises(ExecutionFault, match=sentence):
        raise fault


def test_a_division_by_zero_is_a_crash(run_kernel: Runner) -> None:
    with pytest.raises(ExecutionFault, match=r"thread \(0,0,0\) of block \(0,0,0\) divided by zero"):
        run_kernel(FILE, "divides_by_zero", ["y", (0, "int32")], {"y": torch.zeros(1)}, block=(1,))


def test_a_kernel_that_never_ends_is_ended(run_kernel: Runner) -> None:
    fault = fault_of(run_kernel, "endless", "y", 1, timeout_s=0.3)
    assert fault.status is Status.TIMED_OUT and "did not end within" in str(fault)


def test_a_failed_assertion_names_its_thread(run_kernel: Runner) -> None:
    said = str(fault_of(run_kernel, "asserts", "y"))
    assert said == (
        f"assertion threadIdx.x < 5 failed at {line_of(FILE, 'assertion')} in thread (5,0,0) of block (0,0,0)"
    )


def test_an_instruction_without_a_cpu_form_matters_only_where_it_is_reached(run_kernel: Runner) -> None:
    tensors: Mapping[str, torch.Tensor] = {"y": torch.zeros(32)}
    assert run_kernel(FILE, "tensor_cores", ["y", (0, "int32")], tensors)["y"].tolist() == [1.0] * 32
    with pytest.raises(ExecutionFault) as caught:
        run_kernel(FILE, "tensor_cores", ["y", (1, "int32")], tensors)
    assert caught.value.status is None
    assert str(caught.value) == "not executable on the CPU: inline PTX `wgmma.fence.sync.aligned`"
