"""The selective scan of Mamba (S6) with its options: y from x, delta, A, B, C and more. README.md has the maths."""

from collections.abc import Callable

from ktune.api import (
    Argument,
    Cost,
    Family,
    KernelLaunch,
    Parameter,
    Plan,
    Rule,
    Scalar,
    Size,
    Tensor,
    Tolerance,
)
from ktune.core.model import Configuration, Problem, Value

MULTIPROCESSORS = 132
SMEM_PER_BLOCK = 227 * 1024
SMEM_PER_MULTIPROCESSOR = 228 * 1024
SMEM_RESERVED = 1024
REGISTER_FLOATS = 200
BODY_INSTRUCTIONS = 2600
PIPED_STEPS = 4
PIPED_RING = 8
UNTILED_STEPS = 17
MAX_REGISTERS = 65536
# Beyond, the sequences alone keep the GPU busy, and a first pass only costs.
CHUNKED_WAVES = 2
CHUNKED_BLOCKS = 8
FIRST_PASS_STAGES = 3
# What a thread of blockscan holds beside its steps: states, decays, addresses.
BLOCKSCAN_REGISTERS = 40
BFLOAT16 = "bfloat16"
OPTIONAL_TENSORS = ("delta_bias", "z", "initial_state", "final_state")
STAND_INS = {"skip": "A", "delta_bias": "A", "z": "x", "initial_state": "A", "final_state": "y"}
PIPED: dict[str, tuple[Value, ...]] = {"algorithm": ("piped", "chunked")}
STAGED: dict[str, tuple[Value, ...]] = {"algorithm": ("staged", "piped", "chunked")}
SEQUENTIAL: dict[str, tuple[Value, ...]] = {"algorithm": ("direct", "staged", "piped", "chunked")}
CHUNKED: dict[str, tuple[Value, ...]] = {"algorithm": ("chunked",)}
BLOCKSCAN: dict[str, tuple[Value, ...]] = {"algorithm": ("blockscan",)}


def states_per_thread(threads_per_pair: int, states: int) -> int:
    return -(-states // threads_per_pair)


def group_steps(reduction: str, threads_per_pair: int) -> int:
    """Time steps whose partial sums are reduced together."""
    return 1 if reduction == "shuffle" else threads_per_pair


def reduction_bytes(reduction: str, block_size: int, threads_per_pair: int) -> int:
    if reduction != "shared" or threads_per_pair == 1:
        return 0
    return block_size // 32 * 2 * threads_per_pair * (32 + 32 // threads_per_pair) * 4


def element_bytes(dtype: str) -> int:
    """Of x, delta, B, C, z and y; all else is fp32."""
    return 2 if dtype == BFLOAT16 else 4


def staged_bytes(
    block_size: int,
    threads_per_pair: int,
    tile_l: int,
    stages: int,
    reduction: str,
    N: int,
    gate: int,
    raw: bool,
    dtype: str,
) -> int:
    """Dynamic shared memory of the staged kernel; the layout is at the top of staged.cu. raw: delta is transformed."""
    padded = states_per_thread(threads_per_pair, N) * threads_per_pair
    pairs = block_size // threads_per_pair
    row = ((2 + gate) * pairs + 2 * padded) * element_bytes(dtype) + (4 * pairs if raw and dtype == BFLOAT16 else 0)
    return stages * tile_l * row + reduction_bytes(reduction, block_size, threads_per_pair)


def piped_bytes(
    block_size: int, threads_per_pair: int, tile_l: int, stages: int, reduction: str, N: int, gate: int, dtype: str
) -> int:
    """Dynamic shared memory of the piped kernel: a ring of stages, then two tiles of sums for the helper warps."""
    row = (2 + gate) * (block_size // threads_per_pair) + 2 * N
    row_bytes = row * (4 if dtype != BFLOAT16 else 4 + element_bytes(dtype))
    return stages * tile_l * row_bytes + (2 * block_size * tile_l * 4 if reduction == "shared" else 0)


def first_pass_bytes(block_size: int, threads_per_pair: int, N: int, dtype: str) -> int:
    """Dynamic shared memory of the pass that finds what chunks do to the states; the layout is in chunk_states.cuh."""
    pairs = block_size // threads_per_pair
    tile = 32 if pairs <= 64 else max(8, 2048 // pairs)
    return tile * (FIRST_PASS_STAGES * (2 * pairs + N) * element_bytes(dtype) + 8 * pairs)


def blockscan_threads(channels: int, lane_channels: int, time_warps: int) -> int:
    return 32 * time_warps * channels // lane_channels


def blockscan_tile(lane_channels: int, time_warps: int, items: int) -> int:
    """Time steps in a tile of blockscan."""
    return 32 // lane_channels * time_warps * items


def run_floats(items: int, row: int, shift: int) -> int:
    """Floats of shared memory from one thread's steps to the next one's, a multiple of 32 banks and `shift` further."""
    return items * row + (shift - items * row) % 32


def blockscan_bytes(
    channels: int, lane_channels: int, time_warps: int, items: int, states_at_once: int, stages: int, N: int
) -> int:
    """Dynamic shared memory of blockscan; the layout is at the top of blockscan.cu."""
    padded = -(-N // states_at_once) * states_at_once
    runs = 32 // lane_channels * time_warps
    stage = 2 * runs * (run_floats(items, channels, max(4, lane_channels)) + run_floats(items, padded, 4))
    pairs = 2 * time_warps * channels * 2 * states_at_once if time_warps > 1 else 0
    return 4 * (stages * stage + 3 * channels * padded + pairs)


def blockscan_registers(items: int, states_at_once: int) -> int:
    """About what a thread needs: of each step y, delta and delta x, and of its states a decay and an input."""
    return items * (2 * states_at_once + 3) + 6 * states_at_once + BLOCKSCAN_REGISTERS


def block_count(block_size: int, threads_per_pair: int, B: int, D: int) -> int:
    return B * -(-D // (block_size // threads_per_pair))


def batch_steps(prefetch: int, reduction: str, threads_per_pair: int) -> int:
    """Time steps that the direct kernel loads together."""
    return prefetch or group_steps(reduction, threads_per_pair)


def step_floats(threads_per_pair: int, N: int) -> int:
    """Registers that one time step's inputs take in a thread: delta, x and its part of B and C."""
    return 2 + 2 * states_per_thread(threads_per_pair, N)


def step_instructions(threads_per_pair: int, N: int) -> int:
    """About what one time step compiles to: 5 instructions a state and 9 beside them."""
    return 5 * states_per_thread(threads_per_pair, N) + 9


def direct_registers(prefetch: int, reduction: str, threads_per_pair: int, N: int) -> int:
    buffers = 2 if prefetch else 1
    steps = batch_steps(prefetch, reduction, threads_per_pair)
    return buffers * steps * step_floats(threads_per_pair, N) + 2 * states_per_thread(threads_per_pair, N)


def arguments(problem: Problem, *more: str) -> tuple[Argument, ...]:
    """Of every scan, and `more`. What an option that is off would need is not touched: another tensor stands in."""
    given = {tensor.name for tensor in (*inputs(problem), *outputs(problem))}
    skip, *others = (name if name in given else STAND_INS.get(name, name) for name in ("skip", *more))
    return ("x", "delta", "A", "B_t", "C_t", skip, "y", Scalar(problem["L"]), Scalar(problem["D"]), *others)


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
    passed = (*arguments(problem, *OPTIONAL_TENSORS), *of_chunks)
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
        arguments(problem, *OPTIONAL_TENSORS, "chunk_states", "chunk_sums"),
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


def is_raw(bias: int, softplus: int) -> bool:
    """Whether delta is not yet what the recurrence takes."""
    return bool(bias or softplus)


def inputs(problem: Problem) -> tuple[Tensor, ...]:
    batch, length, channels, states = (problem[s] for s in "BLDN")
    rows = (batch, length, channels)
    shared = (batch, length, states) if problem["G"] == 1 else (batch, length, problem["G"], states)
    found = [
        Tensor("x", rows, problem.dtype),
        Tensor("delta", rows, problem.dtype),
        Tensor("A", (channels, states)),
        Tensor("B_t", shared, problem.dtype),
        Tensor("C_t", shared, problem.dtype),
    ]
    options = (
        ("skip", Tensor("skip", (channels,))),
        ("bias", Tensor("delta_bias", (channels,))),
        ("gate", Tensor("z", rows, problem.dtype)),
        ("initial", Tensor("initial_state", (batch, channels, states))),
    )
    return (*found, *(tensor for option, tensor in options if problem[option]))


def outputs(problem: Problem) -> tuple[Tensor, ...]:
    batch, length, channels, states = (problem[s] for s in "BLDN")
    y = Tensor("y", (batch, length, channels), problem.dtype)
    return (y, Tensor("final_state", (batch, channels, states))) if problem["final"] else (y,)


def constants(configuration: Configuration, problem: Problem) -> dict[str, int]:
    """N is always compiled in; D only where static_d asks for it (0: an argument); options where they are given."""
    options = {name: problem[name] for name, default in OPTIONS.items() if problem[name] != default}
    narrow = {BFLOAT16: 1} if problem.dtype == BFLOAT16 else {}
    return {"N": problem["N"], "D": problem["D"] if configuration.get("static_d") else 0, **options, **narrow}


def checks(configuration: Configuration, problem: Problem) -> tuple[Problem, ...]:
    """One step, and a length one past two tiles; with D an argument, also channels that no block divides."""
    width = configuration.integer("vector_width") if "vector_width" in configuration else PIPED_STEPS
    if problem.dtype == BFLOAT16 and configuration["algorithm"] in ("piped", "chunked"):
        width = 2 * PIPED_STEPS
    if configuration["algorithm"] == "blockscan":
        pairs = configuration.integer("channels")
        tile = blockscan_tile(*(configuration.integer(k) for k in ("lane_channels", "time_warps", "items")))
    else:
        pairs = configuration.integer("block_size") // configuration.integer("threads_per_pair")
        tile = int(configuration.get("tile_l", UNTILED_STEPS)) * int(configuration.get("chunks", 1))
    groups = problem["G"]
    if configuration.get("static_d"):
        channels = problem["D"]
    elif groups == 1:
        channels = pairs + width
    elif configuration["algorithm"] == "direct":
        channels = -(-(pairs + width) // groups) * groups
    else:
        channels = groups * pairs
    options = {name: problem[name] for name in OPTIONS}
    return (
        family.problem(B=3, L=1, D=channels, N=problem["N"], **options, dtype=problem.dtype),
        family.problem(B=2, L=2 * tile + 1, D=channels, N=problem["N"], **options, dtype=problem.dtype),
    )


def cost(problem: Problem) -> Cost:
    batch, length, channels, states = (problem[s] for s in "BLDN")
    steps = batch * length * channels
    elements = (2 + problem["gate"]) * steps + 2 * batch * length * problem["G"] * states
    numbers = channels * (states + problem["skip"] + problem["bias"]) + problem["initial"] * batch * channels * states
    item = element_bytes(problem.dtype)
    # softplus: an exponential and a logarithm; the gate: an exponential and a reciprocal
    beside = 2 * problem["softplus"] + 2 * problem["gate"]
    return Cost(
        bytes_read=item * elements + 4 * numbers,
        bytes_written=item * steps + 4 * problem["final"] * batch * channels * states,
        flops=steps * (6 * states + 1 + 2 * problem["skip"] + problem["bias"] + 2 * beside),
        special=steps * (states + beside),
    )


# Twice the model's width.
MAMBA_CHANNELS = {"mamba-130m": 1536, "mamba-370m": 2048, "mamba-790m": 3072, "mamba-1.4b": 4096, "mamba-2.8b": 5120}
OPTIONS = {"G": 1, "bias": 0, "softplus": 0, "gate": 0, "skip": 1, "initial": 0, "final": 0}
BLOCK = {"softplus": 1, "bias": 1, "gate": 1}
FLAGS: dict[str, Callable[..., bool]] = {
    "bias": lambda bias: bias <= 1,
    "softplus": lambda softplus: softplus <= 1,
    "gate": lambda gate: gate <= 1,
    "skip": lambda skip: skip <= 1,
    "initial": lambda initial: initial <= 1,
    "final": lambda final: final <= 1,
}

family = Family(
    name="selective_scan",
    summary="selective scan of Mamba (S6), layout [batch, length, channels]",
    sizes=(
        Size("B", "batch"),
        Size("L", "sequence length"),
        Size("D", "channels"),
        Size("N", "states per channel"),
        Size("G", "groups of channels, each with rows of B and C of its own", default=OPTIONS["G"]),
        Size("bias", "1: delta + delta_bias", default=OPTIONS["bias"], minimum=0),
        Size("softplus", "1: softplus(delta), after the bias", default=OPTIONS["softplus"], minimum=0),
        Size("gate", "1: y z sigmoid(z)", default=OPTIONS["gate"], minimum=0),
        Size("skip", "0: without x skip", default=OPTIONS["skip"], minimum=0),
        Size("initial", "1: starts from initial_state, not from 0", default=OPTIONS["initial"], minimum=0),
        Size("final", "1: final_state is an output too", default=OPTIONS["final"], minimum=0),
    ),
    problems={
        "record": {"B": 16, "L": 2048, "D": 256, "N": 16},
        "small": {"B": 2, "L": 100, "D": 40, "N": 16},
        "tails": {"B": 3, "L": 1023, "D": 123, "N": 5},
        "one": {"B": 1, "L": 1, "D": 1, "N": 1},
        "wide-state": {"B": 4, "L": 512, "D": 128, "N": 64},
        "mamba-130m": {"B": 8, "L": 2048, "D": 1536, "N": 16},
        "mamba-370m": {"B": 8, "L": 2048, "D": 2048, "N": 16},
        "mamba-790m": {"B": 8, "L": 2048, "D": 3072, "N": 16},
        "mamba-1.4b": {"B": 8, "L": 2048, "D": 4096, "N": 16},
        "mamba-2.8b": {"B": 8, "L": 2048, "D": 5120, "N": 16},
        **{
            f"{model}-b{batch}-l{length}": {"B": batch, "L": length, "D": channels, "N": 16}
            for model, channels in MAMBA_CHANNELS.items()
            for batch in (1, 8)
            for length in (512, 2048, 8192)
            if (batch, length) != (8, 2048)
        },
        "long": {"B": 1, "L": 65536, "D": 1536, "N": 16},
        # x has more than 2^31 elements: offsets need 64 bits, in the last batch and within each.
        "beyond": {"B": 8, "L": 65536, "D": 4100, "N": 16},
        "mamba-block": {"B": 8, "L": 2048, "D": 1536, "N": 16, **BLOCK, "final": 1},
        "mamba-block-bf16": {"B": 8, "L": 2048, "D": 1536, "N": 16, **BLOCK, "final": 1, "dtype": BFLOAT16},
        "continued": {"B": 1, "L": 512, "D": 5120, "N": 16, **BLOCK, "initial": 1, "final": 1},
        "vmamba": {"B": 16, "L": 3136, "D": 768, "N": 16, "G": 4, "softplus": 1, "bias": 1},
    },
    parameters=(
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
        Parameter(
            "lane_channels", (1, 2, 4, 8), 4, "channels of a warp; its other lanes lie along time", when=BLOCKSCAN
        ),
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
        Parameter(
            "fast_math", (False, True), False, "--use_fast_math", flags={True: ("--use_fast_math",)}, label="fast"
        ),
    ),
    rules=(
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
        Rule("vector_width divides N", lambda vector_width, N: N % vector_width == 0),
        Rule(
            "vector_width divides the states of a thread",
            lambda prefetch, vector_width, threads_per_pair, N: (
                states_per_thread(threads_per_pair, N) % vector_width == 0
            ),
        ),
        Rule(
            "chunks are computed beside 4 helper warps: fewer were slower in all that was measured",
            lambda chunks, helpers: helpers == 4,
        ),
        Rule("helper warps need a stage that lands while another is computed", lambda helpers, stages: stages >= 2),
        Rule(
            "with helper warps the pairs of a block are a multiple of 32, a helper's lanes, and at most 128",
            lambda helpers, block_size, threads_per_pair: block_size // threads_per_pair in (32, 64, 128),
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
            f"a helper warp takes whole groups of {PIPED_STEPS} rows of a tile",
            lambda helpers, tile_l: tile_l % (helpers * PIPED_STEPS) == 0,
        ),
        Rule(
            f"a loop body of {PIPED_STEPS} unroll steps divides tile_l and holds whole turns of {PIPED_RING} steps",
            lambda helpers, tile_l, unroll: (
                tile_l % (unroll * PIPED_STEPS) == 0 and unroll * PIPED_STEPS % PIPED_RING == 0
            ),
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
        Rule(
            f"more than one block runs on a multiprocessor: the grid has that many for each of {MULTIPROCESSORS}",
            lambda chunks, min_blocks, block_size, threads_per_pair, B, D: (
                min_blocks == 1
                or chunks * block_count(block_size, threads_per_pair, B, D) > MULTIPROCESSORS * (min_blocks - 1)
            ),
        ),
        Rule(
            f"chunks are for few pairs: at most {CHUNKED_BLOCKS} blocks for each of {MULTIPROCESSORS} multiprocessors, "
            f"and at most {CHUNKED_WAVES} without chunks",
            lambda chunks, block_size, threads_per_pair, B, D: (
                block_count(block_size, threads_per_pair, B, D) <= CHUNKED_WAVES * MULTIPROCESSORS
                and chunks * block_count(block_size, threads_per_pair, B, D) <= CHUNKED_BLOCKS * MULTIPROCESSORS
            ),
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
        Rule(
            "the channels of a warp divide those of the block",
            lambda channels, lane_channels: channels % lane_channels == 0,
        ),
        Rule(
            "a block of the parallel scan has 64 to 768 threads",
            lambda channels, lane_channels, time_warps: (
                64 <= blockscan_threads(channels, lane_channels, time_warps) <= 768
            ),
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
                * (
                    blockscan_bytes(channels, lane_channels, time_warps, items, states_at_once, stages, N)
                    + SMEM_RESERVED
                )
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
        ),
        Rule("with helper warps exponentials are ex2, one instruction", lambda helpers, exp: exp == "ex2"),
        Rule("fast_math changes nothing but expf", lambda exp, fast_math: exp == "expf" or not fast_math),
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
    ),
    source=lambda configuration: f"{configuration['algorithm']}.cu",
    inputs=inputs,
    outputs=outputs,
    plan=plan,
    checks=checks,
    cost=cost,
    constants=constants,
    # A pair's threads were once lanes of one warp or of several by choice, whatever the reduction.
    retired={"lanes": lambda values: (values["lanes"] == "channels") == (values.get("reduction") == "shared")},
    tolerance=Tolerance(
        1e-4,
        1e-4,
        1e-5,
        "fp32 with the state kept in fp32: at most about 1.2e-5 seen over 2048 steps; a kernel that drops a term or "
        "a step is beyond 1e-2",
    ),
    dtypes=("float32", BFLOAT16),
    tolerances={
        BFLOAT16: Tolerance(
            1e-4, 4.1e-3, 4.1e-3, "y is rounded to bfloat16 once, at most 2^-8 of it; all else as in fp32"
        ),
    },
    core={
        "algorithm": ("staged", "piped"),
        "block_size": (64, 128, 256),
        "threads_per_pair": (2, 4, 8),
        "reduction": ("transposed", "shared"),
        "tile_l": (32, 64),
        "stages": (2, 3, 4),
        "helpers": (4,),
        "exp_ahead": (0, 1, 2),
        "row_ahead": (2, 4),
        "min_blocks": (1,),
        "unroll": (4, 8, 16),
        "vector_width": (4,),
        "exp": ("ex2",),
        "static_d": (True,),
        "fast_math": (False,),
    },
)
