"""Sums and largest values of rows, in two kernels with scratch between them: what an export must cope with."""

from ktune.api import Cost, Family, KernelLaunch, Parameter, Plan, Scalar, Size, Tensor, Tolerance, TorchOperation


def plan(configuration, problem):
    if configuration["algorithm"] == "torch":
        return Plan((TorchOperation("sum_rows", ("x", "total", "largest")),))
    splits, block = configuration.integer("splits"), configuration.integer("block_size")
    shape = (Scalar(problem["rows"], "int64"), Scalar(problem["columns"], "int32"))
    partial = KernelLaunch(
        "row_sums_partial",
        (splits, problem["rows"], 1),
        (block, 1, 1),
        ("x", "part_total", "part_largest", *shape, Scalar(0.1, "float32")),
        smem_bytes=64 * 1024,
        cluster=(splits, 1, 1) if configuration["clustered"] else (1, 1, 1),
    )
    arguments = ("part_total", "part_largest", "total", "largest", *shape[:1], Scalar(splits, "uint32"))
    combine = KernelLaunch("row_sums_combine", (-(-problem["rows"] // 32), 1, 1), (32, 1, 1), arguments)
    return Plan((partial, combine), scratch(splits, problem["rows"]))


def scratch(splits, rows):
    return (Tensor("part_total", (splits, rows)), Tensor("part_largest", (splits, rows)))


family = Family(
    name="row_sums",
    summary="total and largest of 0.1 x for each row, <b>split</b> over blocks",
    sizes=(Size("rows", "rows"), Size("columns", "columns")),
    problems={"default": {"rows": 1000, "columns": 777}, "one": {"rows": 1, "columns": 1}},
    parameters=(
        Parameter("algorithm", ("split", "torch"), "split", "who does it"),
        Parameter("block_size", (64, 128), 128, "threads per block", label="block"),
        Parameter("splits", (1, 2, 4), 4, "blocks that share a row", when={"algorithm": ("split",)}),
        Parameter("clustered", (False, True), False, "those blocks as a cluster", when={"algorithm": ("split",)}),
        Parameter("order", ("forward", "backward"), "backward", "which way a thread walks"),
        Parameter("fast_math", (False, True), True, "--use_fast_math", flags={True: ("--use_fast_math",)}),
    ),
    rules=(),
    source=lambda configuration: "" if configuration["algorithm"] == "torch" else "row_sums.cu",
    inputs=lambda problem: (Tensor("x", (problem["rows"], problem["columns"])),),
    outputs=lambda problem: (Tensor("total", (problem["rows"],)), Tensor("largest", (problem["rows"],))),
    plan=plan,
    checks=lambda configuration, problem: (family.problem(rows=1, columns=1),),
    cost=lambda problem: Cost(
        4 * problem["rows"] * problem["columns"], 8 * problem["rows"], 2 * problem["rows"] * problem["columns"]
    ),
    tolerance=Tolerance(1e-4, 1e-4, 1e-4, "sums of a thousand"),
    constants=lambda configuration, problem: {"columns": problem["columns"]},
)
