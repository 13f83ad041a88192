"""y = (2^-)^E (1 -)^F x, elementwise: a problem's sizes say which unit of the GPU it keeps busy.

Its problems are what a verdict must be right on: nothing to compute (`copy`), only multiply-adds (`fma`), only
exponentials (`ex2`), and multiply-adds in so few threads that each waits for the one before it (`chain`).
"""

from ktune.api import Cost, Family, KernelLaunch, Parameter, Plan, Scalar, Size, Tensor, Tolerance


def plan(configuration, problem):
    block, items = configuration.integer("block_size"), configuration.integer("items")
    blocks = -(-problem["N"] // (block * items))
    arguments = ("x", "y", Scalar(problem["N"], "int64"), Scalar(problem["F"]), Scalar(problem["E"]),
                 Scalar(-1.0, "float32"))
    return Plan((KernelLaunch("calibration", (blocks, 1, 1), (block, 1, 1), arguments),))


def checks(configuration, problem):
    per_block = configuration.integer("block_size") * configuration.integer("items")
    return (family.problem(N=1, F=3, E=0), family.problem(N=per_block + 1, F=2, E=1))


family = Family(
    name="calibration",
    summary="a known amount of one kind of work for each element",
    sizes=(Size("N", "elements"), Size("F", "multiply-adds", least=0), Size("E", "exponentials", least=0)),
    problems={
        "copy": {"N": 1 << 27, "F": 0, "E": 0},
        "fma": {"N": 1 << 20, "F": 1 << 14, "E": 0},
        "ex2": {"N": 1 << 20, "F": 0, "E": 1 << 11},
        "chain": {"N": 1 << 12, "F": 1 << 16, "E": 0},
        "tiny": {"N": 32, "F": 0, "E": 0},
    },
    parameters=(
        Parameter("block_size", (128, 256), 256, "threads per block", label="block"),
        Parameter("items", (1, 4), 1, "elements per thread, side by side"),
    ),
    rules=(),
    source=lambda configuration: "calibration.cu",
    inputs=lambda problem: (Tensor("x", (problem["N"],)),),
    outputs=lambda problem: (Tensor("y", (problem["N"],)),),
    plan=plan,
    checks=checks,
    cost=lambda problem: Cost(
        4 * problem["N"], 4 * problem["N"], 2 * problem["N"] * problem["F"], problem["N"] * problem["E"]
    ),
    tolerance=Tolerance(1e-5, 1e-5, 1e-5, "x and 1 - x are exact after the first step; 2^-x draws values together"),
)
