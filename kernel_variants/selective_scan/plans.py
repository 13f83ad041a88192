"""What each algorithm launches."""

from ktune.api import Argument, KernelLaunch, Plan, Scalar, Tensor, TensorMap
from ktune.core.model import Configuration, Problem

from .resources import (
    block_count,
    blockscan_bytes,
    blockscan_threads,
    first_pass_bytes,
    is_raw,
    piped_bytes,
    reduction_bytes,
    staged_bytes,
)
from .tensors import inputs, outputs

OPTIONAL_TENSORS = ("delta_bias", "z", "initial_state", "final_state")
STAND_INS = {"skip": "A", "delta_bias": "A", "z": "x", "initial_state": "A", "final_state": "y"}


def plan(configuration: Configuration, problem: Problem) -> Plan:
    if configuration["algorithm"] == "blockscan":
        return blockscan_plan(configuration, problem)
    block = configuration.integer("block_size")
    threads_per_pair = configuration.integer("threads_per_pair")
    reduction = str(configuration["reduction"])
    gate, states = problem["gate"], problem["N"]
    if configuration["algorithm"] == "direct":
        smem = reduction_bytes(reduction, block, threads_per_pair)
    else:
        tile_l, stages = configuration.integer("tile_l"), configuration.integer("stages")
        shape = (block, threads_per_pair, tile_l, stages, reduction, states, gate)
        if configuration["algorithm"] == "staged":
            smem = staged_bytes(*shape, is_raw(problem["bias"], problem["softplus"]), problem.dtype)
        else:
            smem = piped_bytes(*shape, problem.dtype)
    threads = block + (32 * configuration.integer("helpers") if "helpers" in configuration else 0)
    blocks = block_count(block, threads_per_pair, problem["B"], problem["D"])
    if configuration["algorithm"] == "chunked":
        return chunked_plan(configuration, problem, threads, smem)
    # what only chunks have is not touched: another tensor stands in
    of_chunks = ("A", "A") if configuration["algorithm"] == "piped" else ()
    passed = as_copied((*arguments(problem, *OPTIONAL_TENSORS), *of_chunks), configuration, problem)
    kernel = f"selective_scan_{configuration['algorithm']}"
    return Plan((KernelLaunch(kernel, (blocks, 1, 1), (threads, 1, 1), passed, smem),))


def chunked_plan(configuration: Configuration, problem: Problem, threads: int, smem: int) -> Plan:
    """The first pass over all chunks but the last, then the piped kernel with these threads and bytes a block."""
    block, threads_per_pair, chunks = (configuration.integer(k) for k in ("block_size", "threads_per_pair", "chunks"))
    blocks = block_count(block, threads_per_pair, problem["B"], problem["D"])
    found = (problem["B"], chunks - 1, problem["D"])
    workspace = (Tensor("chunk_states", (*found, problem["N"])), Tensor("chunk_sums", found))
    bias = "delta_bias" if problem["bias"] else STAND_INS["delta_bias"]
    sizes = (Scalar(problem["L"]), Scalar(problem["D"]))
    first = KernelLaunch(
        "selective_scan_chunk_states",
        (blocks * (chunks - 1), 1, 1),
        (block, 1, 1),
        ("x", "delta", "A", "B_t", bias, "chunk_states", "chunk_sums", *sizes),
        first_pass_bytes(block, threads_per_pair, problem["N"], problem.dtype),
    )
    second = KernelLaunch(
        "selective_scan_piped",
        (blocks * chunks, 1, 1),
        (threads, 1, 1),
        as_copied(arguments(problem, *OPTIONAL_TENSORS, "chunk_states", "chunk_sums"), configuration, problem),
        smem,
        programmatic=True,
    )
    return Plan((first, second), workspace)


def blockscan_plan(configuration: Configuration, problem: Problem) -> Plan:
    shape = ("channels", "lane_channels", "time_warps", "items", "states_at_once", "stages")
    channels, lane_channels, time_warps, items, states_at_once, stages = (configuration.integer(k) for k in shape)
    smem = blockscan_bytes(channels, lane_channels, time_warps, items, states_at_once, stages, problem["N"])
    blocks = problem["B"] * -(-problem["D"] // channels)
    threads = blockscan_threads(channels, lane_channels, time_warps)
    passed = arguments(problem, *OPTIONAL_TENSORS)
    return Plan((KernelLaunch("selective_scan_blockscan", (blocks, 1, 1), (threads, 1, 1), passed, smem),))


def as_copied(passed: tuple[Argument, ...], configuration: Configuration, problem: Problem) -> tuple[Argument, ...]:
    """With maps of what the piped kernel copies in bulk. A box is a helper warp's rows of a tile."""
    if configuration.get("copies") != "bulk":
        return passed
    rows = configuration.integer("tile_l") // configuration.integer("helpers")
    pairs = configuration.integer("block_size") // configuration.integer("threads_per_pair")
    states = (1, rows, problem["N"]) if problem["G"] == 1 else (1, rows, 1, problem["N"])
    boxes = {**dict.fromkeys(("x", "delta", "z"), (1, rows, pairs)), **dict.fromkeys(("B_t", "C_t"), states)}
    return tuple(TensorMap(a, boxes[a]) if isinstance(a, str) and a in boxes else a for a in passed)


def arguments(problem: Problem, *more: str) -> tuple[Argument, ...]:
    """Of every scan, and `more`. What an option that is off would need is not touched: another tensor stands in."""
    given = {tensor.name for tensor in (*inputs(problem), *outputs(problem))}
    skip, *others = (name if name in given else STAND_INS.get(name, name) for name in ("skip", *more))
    return ("x", "delta", "A", "B_t", "C_t", skip, "y", Scalar(problem["L"]), Scalar(problem["D"]), *others)
