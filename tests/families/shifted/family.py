"""y = 2 x + shift, elementwise: a family whose problems have options and dtypes."""

from ktune.api import Cost, Family, KernelLaunch, Parameter, Plan, Rule, Scalar, Size, Tensor, Tolerance


def plan(configuration, problem):
    block = configuration.integer("block_size")
    blocks = -(-problem["N"] // block)
    return Plan((KernelLaunch("shifted", (blocks, 1, 1), (block, 1, 1), ("x", "y", Scalar(problem["N"], "int64"))),))


def alike(problem, size):
    return family.problem(N=size, shift=problem["shift"], times=problem["times"], dtype=problem.dtype)


family = Family(
    name="shifted",
    summary="y = 2 x + shift, elementwise, so many times over",
    sizes=(
        Size("N", "elements"),
        Size("shift", "1 adds one to each element", default=0, least=0),
        Size("times", "how often it is done", default=1),
    ),
    problems={
        "default": {"N": 1 << 20},
        "small": {"N": 1000},
        "small-shifted": {"N": 1000, "shift": 1},
        "small-bf16": {"N": 1000, "dtype": "bfloat16"},
    },
    parameters=(
        Parameter("block_size", (32, 64, 128), 64, "threads per block", label="block"),
        Parameter("fused", (False, True), True, "add within the multiplication"),
    ),
    rules=(
        Rule("shift is a flag, 0 or 1", lambda shift: shift <= 1),
        Rule("only a shift can be fused", lambda fused, shift: shift == 1 or fused),
    ),
    source=lambda configuration: "shifted.cu",
    inputs=lambda problem: (Tensor("x", (problem["N"],), problem.dtype),),
    outputs=lambda problem: (Tensor("y", (problem["N"],), problem.dtype),),
    plan=plan,
    checks=lambda configuration, problem: (
        alike(problem, 1),
        alike(problem, configuration.integer("block_size") + 1),
    ),
    cost=lambda problem: Cost(4 * problem["N"], 4 * problem["N"], problem["N"] * problem["times"]),
    constants=lambda configuration, problem: {
        "shift": problem["shift"],
        "times": problem["times"],
        "bfloat16": int(problem.dtype == "bfloat16"),
    },
    tolerance=Tolerance(1e-6, 1e-6, 1e-6, "one rounding of float32"),
    dtypes=("float32", "bfloat16"),
    tolerances={"bfloat16": Tolerance(1e-2, 1e-2, 1e-2, "one rounding of bfloat16")},
    core={"block_size": (32, 64)},
)
