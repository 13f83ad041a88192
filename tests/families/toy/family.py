"""y = scale * x: the smallest family, with one of each kind of parameter."""

from ktune.api import Cost, Family, KernelLaunch, Parameter, Plan, Rule, Scalar, Size, Tensor, Tolerance

CAST = 4


def plan(configuration, problem):
    per_block = configuration.integer("block_size") * configuration.integer("items")
    blocks = -(-problem["N"] // per_block)
    return Plan((KernelLaunch("toy", (blocks, 1, 1), (configuration.integer("block_size"), 1, 1),
                              ("x", "y", Scalar(problem["N"], "int64"))),))


family = Family(
    name="toy",
    summary="y = 2 x, elementwise",
    sizes=(Size("N", "elements"),),
    problems={"default": {"N": 1 << 20}, "small": {"N": 1000}},
    parameters=(
        Parameter("algorithm", ("simple", "unrolled"), "simple", "how elements are walked"),
        Parameter("block_size", (32, 64, 128, 256), 128, "threads per block", label="block"),
        Parameter("items", (1, 2, 4), 1, "elements per thread"),
        Parameter("unroll", (1, 2, 4, 8), 1, "unroll factor", when={"algorithm": ("unrolled",)}),
        Parameter("fast_math", (False, True), False, "--use_fast_math", flags={True: ("--use_fast_math",)}),
    ),
    rules=(Rule("unroll may not exceed items", lambda unroll, items: unroll <= items),),
    source=lambda configuration: "toy.cu",
    inputs=lambda problem: (Tensor("x", (problem["N"],)),),
    outputs=lambda problem: (Tensor("y", (problem["N"],)),),
    plan=plan,
    checks=lambda configuration, problem: (
        family.problem(N=1),
        family.problem(N=configuration.integer("block_size") * configuration.integer("items") + 1),
    ),
    cost=lambda problem: Cost(4 * problem["N"], 4 * problem["N"], problem["N"]),
    tolerance=Tolerance(1e-6, 1e-6, 1e-6, "one rounding"),
    core={"block_size": (64, 128)},
)
