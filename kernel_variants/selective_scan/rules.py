"""The laws that a valid configuration keeps. A recorded space is known by their sentences and order."""

from collections.abc import Callable

from ktune.api import Rule

from .resources import (
    PIPED_STEPS,
    batch_steps,
    block_count,
    blockscan_bytes,
    blockscan_registers,
    blockscan_threads,
    direct_registers,
    first_pass_bytes,
    group_steps,
    is_raw,
    piped_bytes,
    staged_bytes,
    states_per_thread,
    step_instructions,
    sums_two_groups,
)
from .tensors import BFLOAT16, element_bytes

MULTIPROCESSORS = 132
# Where a copy in bulk may end.
BOX_ALIGNMENT = 128
SMEM_PER_BLOCK = 227 * 1024
SMEM_PER_MULTIPROCESSOR = 228 * 1024
SMEM_RESERVED = 1024
MAX_REGISTERS = 65536
REGISTER_FLOATS = 200
BODY_INSTRUCTIONS = 2600
PIPED_RING = 8
# Beyond, the sequences alone keep the GPU busy, and a first pass only costs.
CHUNKED_WAVES = 2
CHUNKED_BLOCKS = 8

PAIRS = (
    Rule(
        "a block holds at least 8 pairs, one 32-byte sector of a row of x",
        lambda block_size, threads_per_pair: block_size // threads_per_pair >= 8,
    ),
    Rule(
        "a thread holds at most 64 states",
        lambda threads_per_pair, N: states_per_thread(threads_per_pair, N) <= 64,
    ),
    Rule(
        "with one thread per pair there is nothing to reduce: reduction is shuffle",
        lambda threads_per_pair, reduction: threads_per_pair > 1 or reduction == "shuffle",
    ),
)

DIRECT = (
    Rule(
        "prefetch holds whole groups of the reduction (threads_per_pair steps unless shuffle)",
        lambda threads_per_pair, reduction, prefetch: (
            batch_steps(prefetch, reduction, threads_per_pair) % group_steps(reduction, threads_per_pair) == 0
        ),
    ),
    Rule(
        f"the steps loaded ahead fit in {REGISTER_FLOATS} registers",
        lambda prefetch, reduction, threads_per_pair, N: (
            direct_registers(prefetch, reduction, threads_per_pair, N) <= REGISTER_FLOATS
        ),
    ),
    Rule(
        f"a loop body holds at most about {BODY_INSTRUCTIONS} instructions, which the instruction cache keeps",
        lambda prefetch, reduction, threads_per_pair, unroll, N: (
            batch_steps(prefetch, reduction, threads_per_pair) * unroll * step_instructions(threads_per_pair, N)
            <= BODY_INSTRUCTIONS
        ),
    ),
)

STAGED = (
    Rule(
        f"a loop body holds at most about {BODY_INSTRUCTIONS} instructions, which the instruction cache keeps",
        lambda register_prefetch, reduction, threads_per_pair, unroll, N: (
            group_steps(reduction, threads_per_pair) * unroll * step_instructions(threads_per_pair, N)
            <= BODY_INSTRUCTIONS
        ),
    ),
    Rule(
        f"stages and reduction fit in {SMEM_PER_BLOCK} bytes of shared memory",
        lambda block_size, threads_per_pair, tile_l, stages, register_prefetch, reduction, N, gate, bias, softplus, dtype: (  # noqa: E501
            staged_bytes(
                block_size, threads_per_pair, tile_l, stages, reduction, N, gate, is_raw(bias, softplus), dtype
            )
            <= SMEM_PER_BLOCK
        ),
    ),
    Rule(
        "unroll times the reduction's group divides tile_l",
        lambda tile_l, register_prefetch, unroll, reduction, threads_per_pair: (
            tile_l % (unroll * group_steps(reduction, threads_per_pair)) == 0
        ),
    ),
    Rule("vector_width divides D", lambda tile_l, vector_width, D: D % vector_width == 0),
)

VECTORS = (
    Rule("vector_width divides N", lambda vector_width, N: N % vector_width == 0),
    Rule(
        "vector_width divides the states of a thread",
        lambda prefetch, vector_width, threads_per_pair, N: states_per_thread(threads_per_pair, N) % vector_width == 0,
    ),
)

HELPERS = (
    Rule(
        "chunks are computed beside 4 helper warps where lanes copy: fewer were slower in all that was measured",
        lambda chunks, helpers, copies: helpers == 4 or copies == "bulk",
        prunes=True,
    ),
    Rule("helper warps need a stage that lands while another is computed", lambda helpers, stages: stages >= 2),
    Rule(
        "with helper warps a block holds 16, 32, 64 or 128 pairs, whose lanes of a helper are the same ones again",
        lambda helpers, block_size, threads_per_pair: block_size // threads_per_pair in (16, 32, 64, 128),
    ),
    Rule(
        f"blocks of 16 pairs are for few pairs: at most one for each of {MULTIPROCESSORS} multiprocessors",
        lambda helpers, block_size, threads_per_pair, B, D: (
            block_size // threads_per_pair > 16 or block_count(block_size, threads_per_pair, B, D) <= MULTIPROCESSORS
        ),
        prunes=True,
    ),
    Rule(
        "with helper warps several steps are reduced at once, and a warp that sums holds at least 4 channels",
        lambda helpers, threads_per_pair, reduction: (
            threads_per_pair == 1 or reduction == "shared" or (reduction == "transposed" and threads_per_pair <= 8)
        ),
    ),
    Rule(
        f"more than one block runs on a multiprocessor: the grid has that many for each of {MULTIPROCESSORS}",
        lambda algorithm, min_blocks, block_size, threads_per_pair, B, D: (
            min_blocks == 1
            or algorithm == "chunked"
            or block_count(block_size, threads_per_pair, B, D) > MULTIPROCESSORS * (min_blocks - 1)
        ),
        prunes=True,
    ),
    Rule(
        f"min_blocks blocks fit in the {SMEM_PER_MULTIPROCESSOR} bytes of a multiprocessor, with "
        f"{SMEM_RESERVED} reserved for each",
        lambda helpers, min_blocks, block_size, threads_per_pair, tile_l, stages, reduction, N, gate, dtype: (
            piped_bytes(block_size, threads_per_pair, tile_l, stages, reduction, N, gate, dtype)
            <= SMEM_PER_MULTIPROCESSOR // min_blocks - SMEM_RESERVED
        ),
    ),
    Rule(
        "with helper warps D and N are multiples of 4, so that rows are 16-byte vectors, and threads_per_pair "
        "divides N",
        lambda helpers, threads_per_pair, D, N: D % 4 == 0 and N % 4 == 0 and N % threads_per_pair == 0,
    ),
    Rule(
        f"a box of B or C, a helper warp's rows, is a multiple of {BOX_ALIGNMENT} bytes",
        lambda copies, helpers, tile_l, N, dtype: (
            copies != "bulk" or tile_l // helpers * N * element_bytes(dtype) % BOX_ALIGNMENT == 0
        ),
    ),
    Rule(
        f"a helper warp takes whole groups of {PIPED_STEPS} rows of a tile, two at once if it sums 16 pairs",
        lambda helpers, tile_l, reduction, block_size, threads_per_pair: (
            tile_l % (helpers * PIPED_STEPS * (1 + sums_two_groups(reduction, block_size, threads_per_pair))) == 0
        ),
    ),
    Rule(
        f"a loop body of {PIPED_STEPS} unroll steps divides tile_l and holds whole turns of {PIPED_RING} steps",
        lambda helpers, tile_l, unroll: tile_l % (unroll * PIPED_STEPS) == 0 and unroll * PIPED_STEPS % PIPED_RING == 0,
    ),
    Rule(
        f"a loop body holds at most about {BODY_INSTRUCTIONS} instructions, which the instruction cache keeps",
        lambda helpers, threads_per_pair, unroll, N: (
            PIPED_STEPS * unroll * step_instructions(threads_per_pair, N) <= BODY_INSTRUCTIONS
        ),
    ),
    Rule(
        f"stages and sums fit in {SMEM_PER_BLOCK} bytes of shared memory",
        lambda helpers, block_size, threads_per_pair, tile_l, stages, reduction, N, gate, dtype: (
            piped_bytes(block_size, threads_per_pair, tile_l, stages, reduction, N, gate, dtype) <= SMEM_PER_BLOCK
        ),
    ),
)

CHUNKED = (
    Rule(
        f"more than one block runs on a multiprocessor: the grid has that many for each of {MULTIPROCESSORS}",
        lambda chunks, min_blocks, block_size, threads_per_pair, B, D: (
            min_blocks == 1
            or chunks * block_count(block_size, threads_per_pair, B, D) > MULTIPROCESSORS * (min_blocks - 1)
        ),
        prunes=True,
    ),
    Rule(
        f"chunks are for few pairs: at most {CHUNKED_BLOCKS} blocks for each of {MULTIPROCESSORS} multiprocessors, "
        f"and at most {CHUNKED_WAVES} without chunks",
        lambda chunks, block_size, threads_per_pair, B, D: (
            block_count(block_size, threads_per_pair, B, D) <= CHUNKED_WAVES * MULTIPROCESSORS
            and chunks * block_count(block_size, threads_per_pair, B, D) <= CHUNKED_BLOCKS * MULTIPROCESSORS
        ),
        prunes=True,
    ),
    Rule(
        "chunks are for long sequences: each has at least 2 tiles",
        lambda chunks, tile_l, L: chunks * 2 * tile_l <= L,
    ),
    Rule(
        f"stages of the first pass fit in {SMEM_PER_BLOCK} bytes of shared memory",
        lambda chunks, block_size, threads_per_pair, N, dtype: (
            first_pass_bytes(block_size, threads_per_pair, N, dtype) <= SMEM_PER_BLOCK
        ),
    ),
)

BLOCKSCAN = (
    Rule(
        "the channels of a warp divide those of the block",
        lambda channels, lane_channels: channels % lane_channels == 0,
    ),
    Rule(
        "a block of the parallel scan has 64 to 768 threads",
        lambda channels, lane_channels, time_warps: 64 <= blockscan_threads(channels, lane_channels, time_warps) <= 768,
    ),
    Rule(
        "the parallel scan copies a tile while it computes another: 2 or 3 stages",
        lambda items, stages: stages in (2, 3),
    ),
    Rule(
        f"a thread's steps and states fit in 255 registers, and min_blocks blocks in {MAX_REGISTERS}",
        lambda channels, lane_channels, time_warps, items, states_at_once, min_blocks: (
            blockscan_registers(items, states_at_once)
            <= min(255, MAX_REGISTERS // (min_blocks * blockscan_threads(channels, lane_channels, time_warps)))
        ),
    ),
    Rule(
        f"stages fit in {SMEM_PER_BLOCK} bytes of shared memory, and min_blocks blocks in the "
        f"{SMEM_PER_MULTIPROCESSOR} of a multiprocessor, {SMEM_RESERVED} of each reserved",
        lambda channels, lane_channels, time_warps, items, states_at_once, stages, min_blocks, N: (
            min_blocks
            * (blockscan_bytes(channels, lane_channels, time_warps, items, states_at_once, stages, N) + SMEM_RESERVED)
            <= SMEM_PER_MULTIPROCESSOR
        ),
    ),
    Rule("vector_width divides D", lambda items, vector_width, D: D % vector_width == 0),
    Rule("states_at_once is at most N, rounded up to 4", lambda states_at_once, N: states_at_once <= max(4, N)),
    Rule(
        f"more than one block runs on a multiprocessor: the grid has that many for each of {MULTIPROCESSORS}",
        lambda min_blocks, channels, B, D: (
            min_blocks == 1 or B * -(-D // channels) > MULTIPROCESSORS * (min_blocks - 1)
        ),
        prunes=True,
    ),
)

EXPONENTIALS = (
    Rule("with helper warps exponentials are ex2, one instruction", lambda helpers, exp: exp == "ex2"),
    Rule("fast_math changes nothing but expf", lambda exp, fast_math: exp == "expf" or not fast_math),
)

FLAGS: dict[str, Callable[..., bool]] = {
    "bias": lambda bias: bias <= 1,
    "softplus": lambda softplus: softplus <= 1,
    "gate": lambda gate: gate <= 1,
    "skip": lambda skip: skip <= 1,
    "initial": lambda initial: initial <= 1,
    "final": lambda final: final <= 1,
}

OPTIONS = (
    *(Rule(f"{name} is a flag, 0 or 1", FLAGS[name]) for name in FLAGS),
    Rule("G, the number of groups, divides D", lambda G, D: D % G == 0),
    Rule(
        "with tiles in shared memory a block's channels are of one group: the pairs of a block divide D / G",
        lambda tile_l, block_size, threads_per_pair, D, G: G == 1 or D // G % (block_size // threads_per_pair) == 0,
    ),
    Rule(
        "the channels of a block of the parallel scan are of one group: they divide D / G",
        lambda channels, D, G: G == 1 or D // G % channels == 0,
    ),
    Rule("the parallel scan is of fp32", lambda channels, dtype: dtype != BFLOAT16),
    Rule(
        "a copy is 4 bytes at least: vector_width is 2 or 4 for bfloat16",
        lambda tile_l, vector_width, dtype: dtype != BFLOAT16 or vector_width >= 2,
    ),
    Rule(
        "with helper warps D and N are multiples of 8 for bfloat16, so that rows are 16-byte vectors",
        lambda helpers, D, N, dtype: dtype != BFLOAT16 or (D % 8 == 0 and N % 8 == 0),
    ),
)

RULES = (*PAIRS, *DIRECT, *STAGED, *VECTORS, *HELPERS, *CHUNKED, *BLOCKSCAN, *EXPONENTIALS, *OPTIONS)
