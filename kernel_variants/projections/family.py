"""The projections of the selective scan, fp32: delta = softplus(x W_delta^T + bias), B = x W_B^T, C = x W_C^T."""

from ktune.api import (
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
    TorchOperation,
)
from ktune.core.model import Configuration, Problem

SMEM_PER_BLOCK = 227 * 1024
ALIGNMENT = 1024
ROW_BYTES = 128
TILE_ROWS = 64
SLICE_DEPTH = 32
STAGE_BYTES_PER_THREAD = 64
# As far as tensor-core sums, which are cut off and not rounded, are exact enough without moving to fp32 in between.
LONGEST_SUM = 1024
REGISTERS = 65536
REGISTERS_BESIDE_SUMS = 84


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def joined_columns(problem: Problem) -> int:
    return problem["P"] + 2 * problem["S"]


def plan(configuration: Configuration, problem: Problem) -> Plan:
    return (
        plan_wgmma(configuration, problem)
        if configuration["algorithm"] == "wgmma"
        else plan_cublas(configuration, problem)
    )


def plan_cublas(configuration: Configuration, problem: Problem) -> Plan:
    rows, channels, states, k = (problem[s] for s in "RPSK")
    block = configuration.integer("block_size")
    per_block = block * configuration.integer("items") * configuration.integer("vector_width")
    if configuration["products"] == "separate":
        gemms = tuple(TorchOperation("gemm", ("x", f"W_{name}", name)) for name in ("delta", "B", "C"))
        elements = rows * channels
        arguments = ("delta", "bias", Scalar(elements, "int64"), Scalar(channels))
        launch = KernelLaunch("softplus_in_place", (ceil_div(elements, per_block), 1, 1), (block, 1, 1), arguments)
        return Plan((*gemms, launch))
    columns = joined_columns(problem)
    elements = rows * columns
    sizes = (Scalar(elements, "int64"), Scalar(channels), Scalar(states))
    launch = KernelLaunch(
        "take_apart",
        (ceil_div(elements, per_block), 1, 1),
        (block, 1, 1),
        ("z", "bias", "delta", "B", "C", *sizes),
    )
    join = TorchOperation("join", ("W_delta", "W_B", "W_C", "joined"))
    workspace = (Tensor("joined", (columns, k)), Tensor("z", (rows, columns)))
    return Plan((join, TorchOperation("gemm", ("x", "joined", "z")), launch), workspace)


def wgmma_bytes(columns: int, stages: int, warpgroups: int, K: int) -> int:
    """Dynamic shared memory of wgmma.cu: the weights' slices, the ring of x and the biases."""
    weights = ceil_div(K, SLICE_DEPTH) * columns * ROW_BYTES
    return ALIGNMENT + weights + stages * 128 * warpgroups * STAGE_BYTES_PER_THREAD + 4 * columns


def plan_wgmma(configuration: Configuration, problem: Problem) -> Plan:
    columns, stages, groups, blocks = (
        configuration.integer(name) for name in ("columns", "stages", "warpgroups", "blocks")
    )
    parts = ceil_div(joined_columns(problem), columns)
    # No more blocks than there are tiles for, so that each warpgroup but the last few has one.
    row_blocks = min(max(1, blocks // parts), ceil_div(ceil_div(problem["R"], TILE_ROWS), groups))
    launch = KernelLaunch(
        "wgmma",
        (parts * row_blocks, 1, 1),
        (128 * groups, 1, 1),
        ("x", "W_delta", "W_B", "W_C", "bias", "delta", "B", "C", *(Scalar(problem[s]) for s in "RPSK")),
        wgmma_bytes(columns, stages, groups, problem["K"]),
    )
    return Plan((launch,))


def checks(configuration: Configuration, problem: Problem) -> tuple[Problem, ...]:
    """One row, and a product that no tile divides; P and S stay multiples of the vector width.

    Outputs of very few elements are left out: where all of them happen to cancel, no sum keeps the normwise rule.
    """
    width = configuration.integer("vector_width")
    deep = 36 if configuration["algorithm"] == "wgmma" else 33 * width
    return (
        family.problem(R=1, P=4 * width, S=16, K=4),
        family.problem(R=131, P=40 + width, S=4 + width, K=deep),
    )


def cost(problem: Problem) -> Cost:
    rows, channels, k = (problem[s] for s in "RPK")
    columns = joined_columns(problem)
    return Cost(
        bytes_read=4 * (rows * k + columns * k + channels),
        bytes_written=4 * rows * columns,
        flops=2 * rows * columns * k + 12 * rows * channels,
        special=rows * channels,
    )


CUBLAS = {"algorithm": ("cublas",)}
WGMMA = {"algorithm": ("wgmma",)}

family = Family(
    name="projections",
    summary="delta = softplus(x W_delta^T + bias), B = x W_B^T, C = x W_C^T of the selective scan, fp32",
    sizes=(
        Size("R", "rows: batch times length"),
        Size("P", "channels of delta"),
        Size("S", "states: columns of B and of C"),
        Size("K", "in features"),
    ),
    problems={
        "record": {"R": 32768, "P": 256, "S": 16, "K": 256},
        "small": {"R": 100, "P": 40, "S": 16, "K": 64},
        "tails": {"R": 131, "P": 41, "S": 5, "K": 37},
        "one": {"R": 1, "P": 1, "S": 1, "K": 1},
        "batch1": {"R": 2048, "P": 256, "S": 16, "K": 256},
        "d512": {"R": 32768, "P": 512, "S": 16, "K": 512},
        "d1024": {"R": 16384, "P": 1024, "S": 16, "K": 1024},
        "wide-state": {"R": 32768, "P": 128, "S": 64, "K": 128},
    },
    parameters=(
        Parameter(
            "algorithm",
            ("cublas", "wgmma"),
            "cublas",
            "products of cuBLAS and one kernel after them; one kernel on Hopper's tensor cores, operands split "
            "into two bf16 numbers",
        ),
        Parameter(
            "products",
            ("separate", "joined"),
            "separate",
            "a product for each output, or one with the weights joined, in each call",
            when=CUBLAS,
        ),
        Parameter("block_size", (128, 256, 512), 256, "threads per block", when=CUBLAS, label="block"),
        Parameter("items", (1, 2, 4, 8), 4, "vectors per thread", when=CUBLAS),
        Parameter("columns", (48, 96, 144), 144, "columns of the joined product in a block", when=WGMMA),
        Parameter("warpgroups", (1, 2, 3, 4), 2, "warpgroups of a block, each with 64 rows", when=WGMMA, label="wg"),
        Parameter("stages", (2, 3, 4, 5, 6, 8), 4, "slices of 32 columns of x in shared memory", when=WGMMA),
        Parameter("blocks", (66, 132, 264, 528), 132, "blocks of the grid, at most", when=WGMMA),
        Parameter("vector_width", (1, 4), 1, "floats per store", label="vec"),
        Parameter(
            "fast_math", (False, True), False, "--use_fast_math", flags={True: ("--use_fast_math",)}, label="fast"
        ),
    ),
    rules=(
        Rule(
            "vector_width divides P and S", lambda vector_width, P, S: P % vector_width == 0 and S % vector_width == 0
        ),
        Rule("wgmma reads 16 bytes at once: 4 divides K", lambda columns, K: K % 4 == 0),
        Rule(
            f"tensor cores cut off as they add: a sum of the products of at most {LONGEST_SUM} columns, K, stays there",
            lambda columns, K: K <= LONGEST_SUM,
        ),
        Rule(
            f"a block's weights, all of K, and the ring fit in {SMEM_PER_BLOCK} bytes of shared memory",
            lambda columns, warpgroups, stages, K: wgmma_bytes(columns, stages, warpgroups, K) <= SMEM_PER_BLOCK,
        ),
        Rule(
            f"the sums of a thread and {REGISTERS_BESIDE_SUMS} registers more fit in {REGISTERS} a multiprocessor",
            lambda columns, warpgroups: 128 * warpgroups * (columns // 2 + REGISTERS_BESIDE_SUMS) <= REGISTERS,
        ),
    ),
    source=lambda configuration: "wgmma.cu" if configuration["algorithm"] == "wgmma" else "epilogue.cu",
    inputs=lambda problem: (
        Tensor("x", (problem["R"], problem["K"])),
        Tensor("W_delta", (problem["P"], problem["K"])),
        Tensor("W_B", (problem["S"], problem["K"])),
        Tensor("W_C", (problem["S"], problem["K"])),
        Tensor("bias", (problem["P"],)),
    ),
    outputs=lambda problem: (
        Tensor("delta", (problem["R"], problem["P"])),
        Tensor("B", (problem["R"], problem["S"])),
        Tensor("C", (problem["R"], problem["S"])),
    ),
    plan=plan,
    checks=checks,
    cost=cost,
    tolerance=Tolerance(
        1e-4, 1e-4, 1e-5, "fp32 sums; the componentwise bound of reference.py holds at every K and is what TF32 breaks"
    ),
    core={"fast_math": (False,)},
)
