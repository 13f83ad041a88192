"""y = relu(x W^T + b) and its row sums: a library GEMM with an epilogue kernel, or a split kernel with a main one."""

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

FLOAT_BYTES = 4


def plan(configuration, problem):
    m, n, k = problem["M"], problem["N"], problem["K"]
    rows = dict(grid=(m, 1, 1), block=(configuration.integer("block_size"), 1, 1))
    if configuration["algorithm"] == "library":
        epilogue = KernelLaunch("epilogue", arguments=("z", "bias", "y", "row_sum", Scalar(n)), **rows)
        return Plan((TorchOperation("gemm", ("x", "weight", "z")), epilogue), (Tensor("z", (m, n)),))
    tile, splits = configuration.integer("tile"), configuration.integer("splits")
    partial = KernelLaunch(
        "partial_products",
        grid=(-(-n // tile), -(-m // tile), splits),
        block=(tile, tile, 1),
        arguments=("x", "weight", "partials", Scalar(m), Scalar(n), Scalar(k)),
    )
    combine = KernelLaunch("combine", arguments=("partials", "bias", "y", "row_sum", Scalar(m), Scalar(n)), **rows)
    return Plan((partial, combine), (Tensor("partials", (splits, m, n)),))


def checks(configuration, problem):
    tile = configuration.get("tile", 16)
    return (
        family.problem(M=1, N=1, K=1),
        family.problem(M=3, N=tile + 1, K=33),
    )


def cost(problem):
    m, n, k = problem["M"], problem["N"], problem["K"]
    return Cost(FLOAT_BYTES * (m * k + n * k + n), FLOAT_BYTES * (m * n + m), 2 * m * n * k)


family = Family(
    name="gemm_epilogue",
    summary="y = relu(x W^T + b), row_sum = y 1",
    sizes=(Size("M", "rows of x"), Size("N", "output features"), Size("K", "input features")),
    problems={"default": {"M": 128, "N": 512, "K": 1024}, "small": {"M": 5, "N": 12, "K": 40}},
    parameters=(
        Parameter("algorithm", ("library", "split"), "library", "who multiplies: torch, or the split kernel"),
        Parameter("block_size", (64, 128, 256), 128, "threads per row of the epilogue", label="block"),
        Parameter("vector_width", (1, 2, 4), 1, "floats per load of z", when={"algorithm": ("library",)}, label="vec"),
        Parameter("tile", (8, 16), 16, "rows and columns per block", when={"algorithm": ("split",)}),
        Parameter("splits", (2, 4, 8), 4, "parts that K is cut into", when={"algorithm": ("split",)}),
        Parameter("fast_math", (False, True), False, "--use_fast_math", flags={True: ("--use_fast_math",)}),
        Parameter("registers", (0, 64), 0, "register limit, 0 for none", flags={64: ("--maxrregcount=64",)}),
    ),
    rules=(
        Rule("vector_width must divide N", lambda vector_width, N: N % vector_width == 0),
        Rule("each split must hold at least one column of x", lambda splits, K: splits <= K),
        Rule("a tile may not have more threads than a block", lambda tile, block_size: tile * tile <= block_size),
    ),
    source=lambda configuration: f"{configuration['algorithm']}.cu",
    inputs=lambda problem: (
        Tensor("x", (problem["M"], problem["K"])),
        Tensor("weight", (problem["N"], problem["K"])),
        Tensor("bias", (problem["N"],)),
    ),
    outputs=lambda problem: (Tensor("y", (problem["M"], problem["N"])), Tensor("row_sum", (problem["M"],))),
    plan=plan,
    checks=checks,
    cost=cost,
    tolerance=Tolerance(1e-3, 1e-4, 1e-5, "K and N fp32 additions of N(0,1) products"),
    core={"fast_math": (False,), "registers": (0,)},
)
