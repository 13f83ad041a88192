"""Kernels see threads, blocks, shared memory, shuffles, votes and copies as CUDA defines them, in any order."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from cpu_kernels import SCHEDULES, Runner, launch

from ktune.api import TensorMap
from ktune.core.errors import FamilyError
from ktune.cpu.compiler import ProgramStore
from ktune.cpu.process import ExecutionFault, Schedule

FILE = "semantics.cu"
each_schedule = pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda s: s.label.replace(" ", "-"))


def shuffled(kind: str, lane: int, argument: int, width: int) -> int:
    """The lane that is read, as the PTX ISA writes it for shfl.sync with clamp and segment mask."""
    segment = ~(width - 1) & 31
    clamp = 0 if kind == "up" else 31
    highest = (lane & segment) | (clamp & ~segment & 31)
    lowest = lane & segment
    source, valid = {
        "idx": (lowest | (argument & ~segment & 31), True),
        "up": (lane - argument, lane - argument >= highest),
        "down": (lane + argument, lane + argument <= highest),
        "xor": (lane ^ argument, lane ^ argument <= highest),
    }[kind]
    return source if valid else lane


@each_schedule
@pytest.mark.parametrize(("argument", "width"), [(1, 32), (5, 32), (3, 16), (2, 8), (4, 4), (0, 2), (9, 8), (31, 32)])
def test_shuffles_read_the_lane_that_the_ptx_isa_says(
    run_kernel: Runner, argument: int, width: int, schedule: Schedule
) -> None:
    out = run_kernel(
        FILE, "shuffles", ["out", (argument, "int32"), (width, "int32")],
        {"out": torch.zeros(4, 32, dtype=torch.int32)}, schedule=schedule,
    )["out"]  # fmt: skip
    for row, kind in enumerate(("idx", "up", "down", "xor")):
        expected = [100 + shuffled(kind, lane, argument, width) for lane in range(32)]
        assert out[row].tolist() == expected, kind


@each_schedule
def test_half_warps_meet_apart_with_masks_of_their_own(run_kernel: Runner, schedule: Schedule) -> None:
    out = run_kernel(FILE, "halves", ["out"], {"out": torch.zeros(32, dtype=torch.float64)}, schedule=schedule)["out"]
    assert out.tolist() == [i + (i ^ 1) if i < 16 else i * (i ^ 2) for i in range(32)]


@each_schedule
def test_votes_count_the_lanes_of_the_warp(run_kernel: Runner, schedule: Schedule) -> None:
    out = run_kernel(FILE, "votes", ["out"], {"out": torch.zeros(7, 32, dtype=torch.int64).int()}, schedule=schedule)
    rows = out["out"].numpy().astype(np.uint32)
    for row, expected in zip(rows[[0, 1, 2, 3, 4, 6]], (0xAAAAAAAA, 1, 0, 1, 0, 16), strict=True):
        assert (row == expected).all()
    assert rows[5].tolist() == [0xFF << (lane // 8 * 8) for lane in range(32)]


@each_schedule
def test_barriers_vote_over_the_block(run_kernel: Runner, schedule: Schedule) -> None:
    out = run_kernel(
        FILE, "block_votes", ["out"], {"out": torch.zeros(5, dtype=torch.int32)}, block=(100,), schedule=schedule
    )["out"]
    assert out.tolist() == [34, 1, 0, 1, 0]


@each_schedule
def test_shared_memory_is_the_blocks_own(run_kernel: Runner, schedule: Schedule) -> None:
    x = torch.arange(3 * 48, dtype=torch.float32)
    found = run_kernel(
        FILE, "reverse", ["x", "y", "counts"],
        {"x": x, "y": torch.zeros(3 * 48, 2), "counts": torch.zeros(3, dtype=torch.int32)},
        block=(48,), grid=(3,), smem_bytes=48 * 4, schedule=schedule,
    )  # fmt: skip
    reversed_ = x.view(3, 48).flip(1).reshape(-1)
    assert torch.equal(found["y"], torch.stack([reversed_, 10.0 * reversed_], dim=1))
    assert found["counts"].tolist() == [48, 48, 48]


@each_schedule
def test_blocks_and_threads_have_three_dimensions_x_fastest(run_kernel: Runner, schedule: Schedule) -> None:
    out = run_kernel(
        FILE, "places", ["out"], {"out": torch.zeros(3 * 2 * 2, 4 * 3 * 2, 6, dtype=torch.int32)},
        grid=(3, 2, 2), block=(4, 3, 2), schedule=schedule,
    )["out"]  # fmt: skip
    expected = [
        [[bx, by, bz, x, y, z] for z in range(2) for y in range(3) for x in range(4)]
        for bz in range(2) for by in range(2) for bx in range(3)
    ]  # fmt: skip
    assert out.tolist() == expected


def test_arguments_arrive_by_value_and_by_pointer(run_kernel: Runner) -> None:
    out = run_kernel(
        FILE, "arguments",
        ["x", "out", (-5, "int32"), (4_000_000_000, "uint32"), (-(1 << 40), "int64"), (1 << 63, "uint64"),
         (0.5, "float32")],
        {"x": torch.tensor([1.0, 2.0, 3.0, 4.0]), "out": torch.zeros(7, dtype=torch.float64)}, block=(1,),
    )["out"]  # fmt: skip
    assert out.tolist() == [-5, 4e9, -(2.0**40), 2.0**63, 0.5, 1 + 20 + 300 + 4000, -(2.0**40) + 3 + 2]


def test_a_tensor_map_arrives_as_the_pointer_of_its_tensor_where_the_kernel_takes_one(run_kernel: Runner) -> None:
    scalars = [(1, "int32"), (1, "uint32"), (1, "int64"), (1, "uint64"), (1.0, "float32")]
    tensors = {"x": torch.tensor([1.0, 2.0, 3.0, 4.0]), "out": torch.zeros(7, dtype=torch.float64)}
    out = run_kernel(FILE, "arguments", [TensorMap("x", (4,)), "out", *scalars], tensors, block=(1,))["out"]
    assert out[5] == 1 + 20 + 300 + 4000
    with pytest.raises(ExecutionFault, match="not executable on the CPU: argument 2 of kernel arguments is a"):
        run_kernel(FILE, "arguments", ["x", "out", TensorMap("x", (4,)), *scalars[1:]], tensors)
    with pytest.raises(FamilyError, match="the plan passes 'z' to arguments; the problem has x, out"):
        run_kernel(FILE, "arguments", [TensorMap("z", (4,)), "out", *scalars], tensors)


def test_arguments_of_another_number_or_kind_are_refused(run_kernel: Runner) -> None:
    out = {"out": torch.zeros(4, 32, dtype=torch.int32)}
    with pytest.raises(ExecutionFault, match="kernel shuffles takes 3 arguments, the plan passes 2"):
        run_kernel(FILE, "shuffles", ["out", (1, "int32")], out)
    with pytest.raises(ExecutionFault, match=r"argument 2 of kernel shuffles is of kind 'i', the plan passes 'l'"):
        run_kernel(FILE, "shuffles", ["out", (1, "int32"), (32, "int64")], out)
    with pytest.raises(ExecutionFault, match="the source has no kernel shuffle"):
        run_kernel(FILE, "shuffle", ["out"], out)


@pytest.mark.parametrize("sizes", [{"block": (1025,)}, {"grid": (1, 65536)}, {"smem_bytes": 228 * 1024}])
def test_a_launch_that_no_gpu_takes_is_refused(run_kernel: Runner, sizes: dict[str, object]) -> None:
    with pytest.raises(ExecutionFault, match=r"at most|1 to 1024 threads"):
        run_kernel(FILE, "block_votes", ["out"], {"out": torch.zeros(5, dtype=torch.int32)}, **sizes)


def test_intrinsics_and_inline_ptx_compute_what_they_say(run_kernel: Runner) -> None:
    out = run_kernel(FILE, "arithmetic", ["out"], {"out": torch.full((32,), 9.0)}, block=(1,))["out"]
    expected = [8.0, 11.0, 0.0, 1.0, 16.0, 0.25, 0.25, math.pi, 127.0, 31.0, 4.0, 9.0, 1.0, 2.0, 1.0, 3.0]
    torch.testing.assert_close(out[:16], torch.tensor(expected), rtol=1e-6, atol=0.0)


@each_schedule
def test_asynchronous_copies_land_by_their_wait_with_zeros_where_nothing_is_read(
    run_kernel: Runner, schedule: Schedule
) -> None:
    x = torch.arange(96, dtype=torch.float32)
    y = run_kernel(FILE, "copies", ["x", "y"], {"x": x, "y": torch.zeros(64)}, schedule=schedule)["y"]
    even = torch.arange(32) % 2 == 0
    assert torch.equal(y[:32], x[:32] + torch.where(even, x[32:64], torch.zeros(32)))
    assert torch.equal(y[32:], x[64:])


@each_schedule
def test_a_named_barrier_waits_for_as_many_threads_as_it_names(run_kernel: Runner, schedule: Schedule) -> None:
    out = run_kernel(
        FILE, "named_barriers", ["out"], {"out": torch.zeros(64, dtype=torch.int32)}, block=(64,), schedule=schedule
    )["out"]
    assert out.tolist() == list(range(63, -1, -1))


@each_schedule
def test_barriers_and_shuffles_wait_for_no_thread_that_has_left(run_kernel: Runner, schedule: Schedule) -> None:
    out = run_kernel(FILE, "early_exit", ["out"], {"out": torch.zeros(8, dtype=torch.int32)}, schedule=schedule)["out"]
    assert out.tolist() == [1, 0, 3, 2, 5, 4, 7, 6]


@each_schedule
def test_machines_without_a_switch_of_their_own_give_the_same(
    programs: ProgramStore, tmp_path_factory: pytest.TempPathFactory, schedule: Schedule
) -> None:
    compiler = replace(programs.compiler, flags=(*programs.compiler.flags, "-DKTUNE_UCONTEXT"))
    portable = ProgramStore(compiler, tmp_path_factory.getbasetemp() / "ucontext")
    x = torch.arange(3 * 48, dtype=torch.float32)
    tensors = {"x": x, "y": torch.zeros(3 * 48, 2), "counts": torch.zeros(3, dtype=torch.int32)}
    how = {"block": (48,), "grid": (3,), "smem_bytes": 48 * 4, "schedule": schedule}
    found = [launch(store, FILE, "reverse", list(tensors), tensors, **how) for store in (programs, portable)]
    assert torch.equal(found[0]["y"], found[1]["y"]) and found[1]["counts"].tolist() == [48, 48, 48]
