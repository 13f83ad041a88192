"""y = 2 x + 1, by a kernel that misbehaves on demand in each way that a real one may."""

from ktune.api import Cost, Family, KernelLaunch, Parameter, Plan, Scalar, Size, Tensor, Tolerance

# More than any GPU so far gives one block.
TOO_MUCH_SHARED_MEMORY = 300 * 1024

# What a verification says of each; the rest does not get that far.
WRONG = {
    "all_nan": "every element is NaN",
    "last_nan": "the last element is NaN",
    "zeros": "every element is 0",
    "writes_nothing": "no element is written",
    "writes_past_end": "y[N] is written",
    "writes_before": "y[-1] is written",
    "changes_input": "x[0] is changed",
    "sometimes_right": "the first launches are right, the later ones are not",
}
BEHAVIOURS = (
    "good", "illegal_address", "endless_loop", "does_not_compile", "too_much_shared_memory", *WRONG,
)


def plan(configuration, problem):
    block = configuration.get("block_size", 128)
    too_much = configuration["behaviour"] == "too_much_shared_memory"
    return Plan((KernelLaunch("bad", (-(-problem["N"] // block), 1, 1), (block, 1, 1),
                              ("x", "y", Scalar(problem["N"], "int64")),
                              smem_bytes=TOO_MUCH_SHARED_MEMORY if too_much else 0),))


family = Family(
    name="bad",
    summary="y = 2 x + 1, with planted faults",
    sizes=(Size("N", "elements"),),
    problems={"default": {"N": 1 << 20}, "small": {"N": 1000}},
    parameters=(
        Parameter("behaviour", BEHAVIOURS, "good", "what the kernel does wrong"),
        Parameter("block_size", (64, 96, 128, 160, 192, 256, 320, 384, 512, 1024), 128, "threads per block",
                  when={"behaviour": ("good",)}, label="block"),
    ),
    rules=(),
    source=lambda configuration: "bad.cu",
    inputs=lambda problem: (Tensor("x", (problem["N"],)),),
    outputs=lambda problem: (Tensor("y", (problem["N"],)),),
    plan=plan,
    checks=lambda configuration, problem: (
        family.problem(N=1),
        family.problem(N=configuration.get("block_size", 128) + 1),
    ),
    cost=lambda problem: Cost(4 * problem["N"], 4 * problem["N"], 2 * problem["N"]),
    tolerance=Tolerance(1e-6, 1e-6, 1e-6, "two roundings"),
    expected_wrong=lambda configuration: WRONG.get(configuration["behaviour"], ""),
)
