"""The projections of the selective scan, fp32: delta = softplus(x W_delta^T + bias), B = x W_B^T, C = x W_C^T."""

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
    return {"cublas": plan_cublas, "bf16_gemm": plan_bf16_gemm, "wgmma": plan_wgmma}[str(configuration["algorithm"])](
        configuration, problem
    )


def over_vectors(
    configuration: Configuration, kernel: str, elements: int, arguments: tuple[Argument, ...]
) -> KernelLaunch:
    """A kernel of take_apart.cuh's kind; the number of elements goes behind its tensors."""
    block = configuration.integer("block_size")
    per_block = block * configuration.integer("items") * configuration.integer("vector_width")
    tensors = tuple(a for a in arguments if isinstance(a, str))
    scalars = arguments[len(tensors) :]
    return KernelLaunch(
        kernel, (ceil_div(elements, per_block), 1, 1), (block, 1, 1), (*tensors, Scalar(elements, "int64"), *scalars)
    )


def take_apart(configuration: Configuration, problem: Problem) -> KernelLaunch:
    elements = problem["R"] * joined_columns(problem)
    arguments = ("z", "bias", "delta", "B", "C", Scalar(problem["P"]), Scalar(problem["S"]))
    return over_vectors(configuration, "take_apart", elements, arguments)


def plan_cublas(configuration: Configuration, problem: Problem) -> Plan:
    if configuration["products"] == "separate":
        gemms = tuple(TorchOperation("gemm", ("x", f"W_{name}", name)) for name in ("delta", "B", "C"))
        elements = problem["R"] * problem["P"]
        finish = over_vectors(configuration, "softplus_in_place", elements, ("delta", "bias", Scalar(problem["P"])))
        return Plan((*gemms, finish))
    columns = joined_columns(problem)
    join = TorchOperation("join", ("W_delta", "W_B", "W_C", "joined"))
    gemm = TorchOperation("gemm", ("x", "joined", "z"))
    workspace = (Tensor("joined", (columns, problem["K"])), Tensor("z", (problem["R"], columns)))
    return Plan((join, gemm, take_apart(configuration, problem)), workspace)


def plan_bf16_gemm(configuration: Configuration, problem: Problem) -> Plan:
    rows, channels, states, k = (problem[s] for s in "RPSK")
    columns = joined_columns(problem)
    # (what is split, into what, its rows, from which row on)
    matrices = (
        ("x", "x_split", rows, 0),
        ("W_delta", "w_split", channels, 0),
        ("W_B", "w_split", states, channels),
        ("W_C", "w_split", states, channels + states),
    )
    splits = tuple(
        over_vectors(
            configuration, "split_rows", n * k, (name, to, Scalar(k), Scalar(first), Scalar(int(to == "w_split")))
        )
        for name, to, n, first in matrices
    )
    gemm = TorchOperation("gemm_bf16", ("x_split", "w_split", "z"))
    workspace = (
        Tensor("x_split", (rows, 3 * k), "bfloat16"),
        Tensor("w_split", (columns, 3 * k), "bfloat16"),
        Tensor("z", (rows, columns)),
    )
    return Plan((*splits, gemm, take_apart(configuration, problem)), workspace)


def wgmma_bytes(columns: int, stages: int, warpgroups: int, K: int) -> int:
    """Dynamic shared memory of wgmma.cu: the weights' slices, the ring of x and the biases."""
    weights = ceil_div(K, SLICE_DEPTH) * columns * ROW_BYTES
    return ALIGNMENT + weights + stages * 128 * warpgroups * STAGE_BYTES_PER_THREAD + 4 * columns


def plan_wgmma(configuration: Configuration, problem: Problem) -> Plan:
    columns, stages, groups, blocks = (
        configuration.integer(name) for name in ("columns", "stages", "warpgroups", "blocks")
    )
    parts = ceil_div(joined_columns(problem), columns)
    # No more blocks than there are tiles for.
    row_blocks = min(max(1, blocks // parts), ceil_div(problem["R"], TILE_ROWS))
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
    deep = 33 * width if configuration["algorithm"] == "cublas" else 36
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
LIBRARY = {"algorithm": ("cublas", "bf16_gemm")}
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
            ("cublas", "bf16_gemm", "wgmma"),
            "cublas",
            "products of cuBLAS and one kernel after them; its bf16 product of split operands; one kernel on Hopper's "
            "tensor cores that splits operands itself",
        ),
        Parameter(
            "products",
            ("separate", "joined"),
            "separate",
            "a product for each output, or one with the weights joined, in each call",
            when=CUBLAS,
        ),
        Parameter("block_size", (128, 256, 512), 256, "threads per block", when=LIBRARY, label="block"),
        Parameter("items", (1, 2, 4, 8), 4, "vectors per thread", when=LIBRARY),
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
        Rule(
            "split rows are whole vectors: with bf16_gemm vector_width divides K",
            lambda algorithm, vector_width, K: algorithm != "bf16_gemm" or K % vector_width == 0,
        ),
        Rule(
            f"tensor cores cut off as they add: with bf16_gemm K is at most {LONGEST_SUM}",
            lambda algorithm, K: algorithm != "bf16_gemm" or K <= LONGEST_SUM,
        ),
        Rule("wgmma reads 16 bytes at once: 4 divides K", lambda columns, K: K % 4 == 0),
        Rule(
            f"tensor cores cut off as they add: with wgmma K is at most {LONGEST_SUM}",
            lambda columns, K: K <= LONGEST_SUM,
        ),
        Rule(
            f"a block's weights, all of K, and the ring fit in {SMEM_PER_BLOCK} bytes of shared memory",
            lambda columns, warpgroups, stages, K: wgmma_bytes(columns, stages, warpgroups, K) <= SMEM_PER_BLOCK,
        ),
        Rule(
            f"the sums of a thread and {REGISTERS_BESIDE_SUMS} registers more fit in {REGISTERS} a multiprocessor",
            lambda columns, warpgroups: 128 * warpgroups * (columns + REGISTERS_BESIDE_SUMS) <= REGISTERS,
        ),
    ),
    source=lambda configuration: {"cublas": "epilogue.cu", "bf16_gemm": "bf16_gemm.cu", "wgmma": "wgmma.cu"}[
        str(configuration["algorithm"])
    ],
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
    kinds=lambda problem: {"uniform": 1.0, "large": 1e3, "small": 1.0},
    cost=cost,
    tolerance=Tolerance(
        1e-4, 1e-4, 1e-5, "fp32 sums; the componentwise bound of reference.py holds at every K and is what TF32 breaks"
    ),
    core={"fast_math": (False,)},
)
