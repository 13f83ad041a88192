"""What can vary. A recorded space is known by these, their values and order; an id has them in this order."""

from ktune.api import Parameter
from ktune.core.model import Value

SEQUENTIAL: dict[str, tuple[Value, ...]] = {"algorithm": ("direct", "staged", "piped", "chunked")}
STAGED: dict[str, tuple[Value, ...]] = {"algorithm": ("staged", "piped", "chunked")}
PIPED: dict[str, tuple[Value, ...]] = {"algorithm": ("piped", "chunked")}
CHUNKED: dict[str, tuple[Value, ...]] = {"algorithm": ("chunked",)}
BLOCKSCAN: dict[str, tuple[Value, ...]] = {"algorithm": ("blockscan",)}

PARAMETERS = (
    Parameter(
        "algorithm",
        ("direct", "staged", "piped", "chunked", "blockscan"),
        "direct",
        "sequential in time, with inputs from global memory, staged in shared by all threads, or brought there by "
        "helper warps; the last over chunks of the sequence at once; or a parallel scan over time in each block",
    ),
    Parameter(
        "block_size",
        (32, 64, 128, 256, 512),
        128,
        "threads per block (that compute)",
        when=SEQUENTIAL,
        label="block",
    ),
    Parameter(
        "threads_per_pair",
        (1, 2, 4, 8, 16, 32),
        16,
        "threads that share a pair's N states",
        when=SEQUENTIAL,
        label="tpp",
    ),
    Parameter(
        "reduction",
        ("shuffle", "transposed", "shared"),
        "shuffle",
        "sum over a pair's threads: step by step, for threads_per_pair steps at once, or through shared memory "
        "(with helper warps, a pair's threads are then lanes of several warps, and the helpers sum)",
        when=SEQUENTIAL,
        label="sum",
    ),
    Parameter(
        "prefetch",
        (0, 1, 2, 4, 8, 16),
        0,
        "steps loaded ahead into registers; 0: where used",
        when={"algorithm": ("direct",)},
        label="ahead",
    ),
    Parameter("tile_l", (8, 16, 32, 64, 128), 32, "time steps in a stage", when=STAGED, label="tile"),
    Parameter("chunks", (2, 4, 8, 16, 32), 8, "chunks of the sequence that are scanned at once", when=CHUNKED),
    Parameter("channels", (8, 12, 16, 32), 8, "channels of a block", when=BLOCKSCAN, label="ch"),
    Parameter("lane_channels", (1, 2, 4, 8), 4, "channels of a warp; its other lanes lie along time", when=BLOCKSCAN),
    Parameter("time_warps", (1, 2, 4, 8), 2, "warps along time", when=BLOCKSCAN, label="warps"),
    Parameter("items", (4, 8, 16), 8, "consecutive time steps of a thread", when=BLOCKSCAN),
    Parameter("states_at_once", (1, 2, 4, 8), 4, "states scanned together", when=BLOCKSCAN, label="states"),
    Parameter(
        "stages",
        (1, 2, 3, 4),
        2,
        "stages of shared memory",
        when={"algorithm": ("staged", "piped", "chunked", "blockscan")},
    ),
    Parameter(
        "register_prefetch",
        (False, True),
        False,
        "load the next group of steps before computing this one",
        when={"algorithm": ("staged",)},
        label="regs",
    ),
    Parameter("helpers", (1, 2, 4), 4, "helper warps, which copy, sum and store", when=PIPED),
    Parameter(
        "copies",
        ("lanes", "bulk"),
        "lanes",
        "how tiles are copied: 16 bytes by each lane, or a box of a tensor map for each array",
        when=PIPED,
        label="copy",
    ),
    Parameter(
        "exp_ahead",
        (0, 1, 2),
        2,
        "steps that exponentials are taken ahead",
        when={"algorithm": ("piped",)},
        label="early",
    ),
    Parameter(
        "row_ahead",
        (1, 2, 4),
        4,
        "steps that B and C are loaded ahead",
        when={"algorithm": ("piped",)},
        label="rows",
    ),
    Parameter(
        "min_blocks",
        (1, 2, 3, 4),
        1,
        "blocks a multiprocessor that registers are kept for",
        when={"algorithm": ("piped", "chunked", "blockscan")},
    ),
    Parameter("unroll", (1, 2, 4, 8, 16), 4, "groups of steps in one loop body", when=SEQUENTIAL),
    Parameter(
        "vector_width",
        (1, 2, 4),
        1,
        "floats per copy or load of B and C",
        when={"algorithm": ("direct", "staged", "blockscan")},
        label="vec",
    ),
    Parameter("exp", ("expf", "exp2f", "ex2"), "expf", "expf, exp2f of a prescaled argument, or ex2.approx.ftz"),
    Parameter(
        "static_d",
        (False, True),
        False,
        "compile the number of channels in",
        when={"algorithm": ("direct", "staged", "piped")},
    ),
    Parameter("fast_math", (False, True), False, "--use_fast_math", flags={True: ("--use_fast_math",)}, label="fast"),
)
