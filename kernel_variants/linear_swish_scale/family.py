"""Linear + swish + scale, fp32: y = scale z sigmoid(z), z = x weight^T + bias. README.md has the numerics."""

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
    TensorMap,
    Tolerance,
    TorchOperation,
)
from ktune.core.model import Configuration, Problem

SCALE = 2.0
SMEM_PER_BLOCK = 227 * 1024
SIMT_PAD = 4
SIMT_LANES = (4, 8)
COMBINE_THREADS = 256
WGMMA_BATCH = 128
WGMMA_DEPTH = 32
WGMMA_ROW_BYTES = 128
WGMMA_ALIGNMENT = 1024
SPLIT_X_THREADS = 256
PAD_THREADS = 256
# TMA copies rows that begin at multiples of 16 bytes.
TMA_FLOATS = 4
LEAST_PADDED = 16
# Columns that tensor cores may sum before fp32 does. They drop bits as they add: of twice as many the normwise error is
# 1.5e-5 to 1.6e-5 at K = 32,768, or the componentwise bound is broken.
LONGEST_SUMS = {"tf32x3": 1024, "bf16x3": 2048, "fp16x3": 4096}
FRAGMENT_REGISTERS = 160
SMALL_BATCH_REGISTERS = 160


def ceil_div(a: int, b: int) -> int:
    return -(-a // b)


def simt_threads(bm: int, bn: int, tm: int, tn: int) -> int:
    return (bm // tm) * (bn // tn)


def simt_bytes(bm: int, bn: int, bk: int, stages: int) -> int:
    """Dynamic shared memory of simt.cu: slices [bk, bm + pad] and [bk, bn + pad] per stage."""
    return stages * bk * (bm + bn + 2 * SIMT_PAD) * 4


def simt_registers(bm: int, bn: int, bk: int, tm: int, tn: int) -> int:
    """Sums, one fragment of each operand, and the next slice on its way to shared memory."""
    return tm * tn + tm + tn + ceil_div((bm + bn) * bk, simt_threads(bm, bn, tm, tn))


def plan(configuration: Configuration, problem: Problem) -> Plan:
    return {"cublas_epilogue": plan_cublas, "simt": plan_simt, "small_batch": plan_small_batch, "wgmma": plan_wgmma}[
        str(configuration["algorithm"])
    ](configuration, problem)


def plan_cublas(configuration: Configuration, problem: Problem) -> Plan:
    block = configuration.integer("block_size")
    elements = problem["M"] * problem["N"]
    per_block = block * configuration.integer("items") * configuration.integer("vector_width")
    gemm = "gemm" if configuration["scheme"] == "fp32" else "gemm_tf32"
    return Plan(
        (
            TorchOperation(gemm, ("x", "weight", "y")),
            KernelLaunch(
                "epilogue",
                (ceil_div(elements, per_block), 1, 1),
                (block, 1, 1),
                ("y", "bias", Scalar(elements, "int64"), Scalar(problem["N"]), Scalar(SCALE, "float32")),
            ),
        )
    )


def plan_simt(configuration: Configuration, problem: Problem) -> Plan:
    bm, bn, bk, tm, tn, stages, split = (
        configuration.integer(name) for name in ("bm", "bn", "bk", "tm", "tn", "stages", "split_k")
    )
    blocks = ceil_div(problem["M"], bm) * ceil_div(problem["N"], bn) * split
    sizes = tuple(Scalar(problem[s]) for s in "MNK")
    out = "parts" if split > 1 else "y"
    main = KernelLaunch(
        "simt",
        (blocks, 1, 1),
        (simt_threads(bm, bn, tm, tn), 1, 1),
        ("x", "weight", "bias", out, *sizes, Scalar(SCALE, "float32")),
        simt_bytes(bm, bn, bk, stages),
    )
    return with_combine((main,), (), split, problem)


def with_combine(
    launches: tuple[KernelLaunch, ...], workspace: tuple[Tensor, ...], split: int, problem: Problem
) -> Plan:
    """The launches and, where K is split, the sum of the parts after them."""
    if split == 1:
        return Plan(launches, workspace)
    elements = problem["M"] * problem["N"]
    combine = KernelLaunch(
        "combine",
        (ceil_div(elements, COMBINE_THREADS), 1, 1),
        (COMBINE_THREADS, 1, 1),
        ("parts", "bias", "y", Scalar(elements, "int64"), Scalar(problem["N"]), Scalar(SCALE, "float32")),
    )
    return Plan((*launches, combine), (*workspace, Tensor("parts", (split, problem["M"], problem["N"]))))


def x_row_bytes(operands: str) -> int:
    """Of one slice of x, as split_x writes it: of tf32x3 two tiles, else one."""
    return WGMMA_ROW_BYTES * (2 if operands == "tf32x3" else 1)


def wgmma_bytes(warpgroups: int, ring: int, operands: str) -> int:
    """Dynamic shared memory of wgmma.cu: aligned stages of x and w, and two barriers for each."""
    stage = WGMMA_BATCH * x_row_bytes(operands) + 64 * warpgroups * WGMMA_ROW_BYTES
    return WGMMA_ALIGNMENT + ring * (stage + 16)


def weight_map(tensor: str, warpgroups: int) -> TensorMap:
    """A block's rows of one slice, in the swizzle that wgmma.cu reads. L2 fetches no more than asked."""
    return TensorMap(tensor, (64 * warpgroups, WGMMA_DEPTH), swizzle_bytes=WGMMA_ROW_BYTES)


def plan_wgmma(configuration: Configuration, problem: Problem) -> Plan:
    groups, ring, split, cluster = (
        configuration.integer(name) for name in ("warpgroups", "ring", "split_k", "cluster")
    )
    # An odd tile of a cluster works on rows beyond N, which are zeros and are not stored.
    clusters = ceil_div(problem["N"], 64 * groups * cluster)
    tiles_m = ceil_div(problem["M"], WGMMA_BATCH)
    slices = ceil_div(problem["K"], WGMMA_DEPTH)
    operands = str(configuration["operands"])
    rows = tiles_m * WGMMA_BATCH
    split_x = KernelLaunch(
        "split_x",
        (ceil_div(rows * slices * 4, SPLIT_X_THREADS), 1, 1),
        (SPLIT_X_THREADS, 1, 1),
        ("x", "x_tiles", Scalar(problem["M"]), Scalar(problem["K"])),
    )
    # A weight whose rows TMA cannot copy is copied first into one with rows that it can.
    pads, padded = pad_weight(problem)
    weight = weight_map("weight_padded" if pads else "weight", groups)
    out = "parts" if split > 1 else "y"
    sizes = tuple(Scalar(problem[s]) for s in "MNK")
    main = KernelLaunch(
        "wgmma",
        (tiles_m * clusters * split * cluster, 1, 1),
        (128 * (groups + 1), 1, 1),
        ("x_tiles", weight, "bias", out, *sizes, Scalar(SCALE, "float32")),
        wgmma_bytes(groups, ring, operands),
        cluster=(cluster, 1, 1),
        # it fetches slices of the weight before it waits for its predecessor
        programmatic=not pads,
    )
    x_tiles = Tensor("x_tiles", (rows * slices * x_row_bytes(operands) // 4,), "int32")
    return with_combine((*pads, split_x, main), (x_tiles, *padded), split, problem)


def pad_weight(problem: Problem) -> tuple[tuple[KernelLaunch, ...], tuple[Tensor, ...]]:
    """Where 4 does not divide K: the launch that copies the weight into rows of whole 16 bytes, and these."""
    n, k = problem["N"], problem["K"]
    if k % TMA_FLOATS == 0:
        return (), ()
    launch = KernelLaunch("pad_weight", (n, 1, 1), (PAD_THREADS, 1, 1), ("weight", "weight_padded", Scalar(k)))
    return (launch,), (Tensor("weight_padded", (n, ceil_div(k, TMA_FLOATS) * TMA_FLOATS)),)


def plan_small_batch(configuration: Configuration, problem: Problem) -> Plan:
    block = configuration.integer("block_size")
    groups = block // 32 // configuration.integer("warps_per_row")
    blocks = ceil_div(problem["N"], groups * configuration.integer("rows_per_warp")) * ceil_div(
        problem["M"], configuration.integer("batch_tile")
    )
    sizes = tuple(Scalar(problem[s]) for s in "MNK")
    launch = KernelLaunch(
        "small_batch",
        (blocks, 1, 1),
        (block, 1, 1),
        ("x", "weight", "bias", "y", *sizes, Scalar(SCALE, "float32")),
    )
    return Plan((launch,))


def checks(configuration: Configuration, problem: Problem) -> tuple[Problem, ...]:
    """A tiny product, one that no tile divides, of wgmma an odd K; else N and K are multiples of the vector width."""
    width = int(configuration.get("vector_width", 4))
    odd = (family.problem(M=19, N=37, K=261),) if configuration["algorithm"] == "wgmma" else ()
    return (
        family.problem(M=1, N=4 * width, K=width),
        family.problem(M=19, N=36 + width, K=260 + width),
        *odd,
    )


def cost(problem: Problem) -> Cost:
    m, n, k = (problem[s] for s in "MNK")
    return Cost(
        bytes_read=4 * (n * k + m * k + n), bytes_written=4 * m * n, flops=2 * m * n * k + 5 * m * n, special=m * n
    )


def expected_wrong(configuration: Configuration) -> str:
    if "tf32" in (configuration.get("scheme"), configuration.get("operands")):
        return "TF32 rounds the operands to 11 bits of significand"
    if configuration.get("operands") == "fp16_e5m2":
        return "corrections of 3 bits of significand leave a normwise error of 2e-5 at every K, twice what is allowed"
    return ""


FAST = {True: ("--use_fast_math",)}
SIMT = {"algorithm": ("simt",)}
SMALL = {"algorithm": ("small_batch",)}
CUBLAS = {"algorithm": ("cublas_epilogue",)}
WGMMA = {"algorithm": ("wgmma",)}

family = Family(
    name="linear_swish_scale",
    summary="scale * swish(x W^T + b), fp32",
    sizes=(Size("M", "batch rows"), Size("N", "out features"), Size("K", "in features")),
    problems={
        "record": {"M": 128, "N": 32768, "K": 32768},
        "small": {"M": 16, "N": 96, "K": 128},
        "tails": {"M": 19, "N": 101, "K": 251},
        "one": {"M": 1, "N": 1, "K": 1},
        "batch1-4096x11008": {"M": 1, "N": 4096, "K": 11008},
        "batch1-11008x4096": {"M": 1, "N": 11008, "K": 4096},
        "batch16-4096x11008": {"M": 16, "N": 4096, "K": 11008},
        "batch128-4096x4096": {"M": 128, "N": 4096, "K": 4096},
        "batch128-8192x28672": {"M": 128, "N": 8192, "K": 28672},
        "batch1-8192x28672": {"M": 1, "N": 8192, "K": 28672},
        "batch16-4099x4097": {"M": 16, "N": 4099, "K": 4097},
        "batch64-4096x4096": {"M": 64, "N": 4096, "K": 4096},
        "batch64-11008x4096": {"M": 64, "N": 11008, "K": 4096},
        "batch127-4096x11008": {"M": 127, "N": 4096, "K": 11008},
        "batch128-11008x4096": {"M": 128, "N": 11008, "K": 4096},
        "batch128-4099x4097": {"M": 128, "N": 4099, "K": 4097},
        "batch256-4096x11008": {"M": 256, "N": 4096, "K": 11008},
        "batch256-8192x28672": {"M": 256, "N": 8192, "K": 28672},
    },
    parameters=(
        Parameter(
            "algorithm",
            ("cublas_epilogue", "simt", "small_batch", "wgmma"),
            "cublas_epilogue",
            "cuBLAS and one kernel after it; a fused GEMM in CUDA cores; a fused kernel bound by reading the weight; "
            "a fused GEMM on Hopper's tensor cores, operands split into numbers of fewer bits",
        ),
        Parameter("scheme", ("fp32", "tf32"), "fp32", "precision of the cuBLAS product", when=CUBLAS),
        Parameter("bm", (32, 64, 128), 128, "rows of the batch in a block's tile", when=SIMT),
        Parameter("bn", (64, 128, 256), 128, "output features in a block's tile", when=SIMT),
        Parameter("bk", (8, 16, 32), 16, "depth of a slice", when=SIMT),
        Parameter("tm", (4, 8, 16), 8, "rows of the batch in a thread's tile", when=SIMT),
        Parameter("tn", (4, 8, 16), 8, "output features in a thread's tile", when=SIMT),
        Parameter("stages", (1, 2), 2, "slices in shared memory", when=SIMT),
        Parameter(
            "split_k",
            (1, 2, 4, 8),
            1,
            "blocks that share K for one tile",
            when={"algorithm": ("simt", "wgmma")},
            label="split",
        ),
        Parameter(
            "warpgroups", (1, 2), 2, "warpgroups that multiply, 64 rows of the weight each", when=WGMMA, label="wg"
        ),
        Parameter("ring", (3, 4, 5, 6, 7, 8), 6, "slices of 32 columns in shared memory", when=WGMMA),
        Parameter(
            "promote_k",
            (256, 512, 1024, 2048, 4096, 32768),
            1024,
            "columns after which tensor-core sums move to fp32",
            when=WGMMA,
            label="promote",
        ),
        Parameter(
            "operands",
            ("tf32", "tf32x3", "bf16x3", "fp16x3", "fp16_e5m2"),
            "bf16x3",
            "what an operand becomes: one tf32; or two tf32, bf16 or fp16 and three products; or fp16 with two "
            "corrections in e5m2",
            when=WGMMA,
            label="op",
        ),
        Parameter("cluster", (1, 2), 2, "blocks that share the tiles of x", when=WGMMA),
        Parameter(
            "order",
            ("small_first", "large_first"),
            "small_first",
            "which of the three products is summed first",
            when={"operands": ("tf32x3", "bf16x3")},
        ),
        Parameter("hints", (False, True), True, "L2 keeps x and lets go of the weight", when=WGMMA),
        Parameter(
            "batch_tile", (1, 2, 4, 8, 16), 1, "rows of the batch that a warp multiplies", when=SMALL, label="batch"
        ),
        Parameter("rows_per_warp", (1, 2, 4), 2, "rows of the weight that a warp reads", when=SMALL, label="rows"),
        Parameter("warps_per_row", (1, 2, 4, 8), 1, "warps that share K for one row", when=SMALL, label="wpr"),
        Parameter(
            "block_size",
            (64, 128, 256, 512),
            256,
            "threads per block",
            when={"algorithm": ("cublas_epilogue", "small_batch")},
            label="block",
        ),
        Parameter("items", (1, 2, 4, 8), 4, "vectors per thread of the epilogue", when=CUBLAS),
        Parameter(
            "unroll",
            (1, 2, 4, 8),
            4,
            "steps of the inner loop in one body",
            when={"algorithm": ("simt", "small_batch")},
        ),
        Parameter(
            "vector_width",
            (1, 2, 4),
            1,
            "floats per access",
            when={"algorithm": ("cublas_epilogue", "simt", "small_batch")},
            label="vec",
        ),
        Parameter("fast_math", (False, True), False, "--use_fast_math", flags=FAST, label="fast"),
    ),
    rules=(
        Rule("vector_width divides N", lambda items, vector_width, N: N % vector_width == 0),
        Rule("vector_width divides K", lambda unroll, vector_width, K: K % vector_width == 0),
        Rule(
            "a tile is whole warps of 4 x 8 threads: 4 tm divides bm and 8 tn divides bn",
            lambda bm, bn, tm, tn: bm % (SIMT_LANES[0] * tm) == 0 and bn % (SIMT_LANES[1] * tn) == 0,
        ),
        Rule(
            "a block has 64 to 512 threads",
            lambda bm, bn, tm, tn: 64 <= simt_threads(bm, bn, tm, tn) <= 512,
        ),
        Rule(
            f"stages fit in {SMEM_PER_BLOCK} bytes of shared memory",
            lambda bm, bn, bk, stages: simt_bytes(bm, bn, bk, stages) <= SMEM_PER_BLOCK,
        ),
        Rule(
            f"sums, fragments and the next slice fit in {FRAGMENT_REGISTERS + 60} registers of a thread",
            lambda bm, bn, bk, tm, tn: simt_registers(bm, bn, bk, tm, tn) <= FRAGMENT_REGISTERS + 60,
        ),
        Rule("the tile is not more than twice as tall as the batch", lambda bm, M: bm <= 32 or bm < 2 * M),
        Rule(
            "the warps of a row are in one block", lambda block_size, warps_per_row: block_size // 32 >= warps_per_row
        ),
        Rule(
            f"a step's rows of the weight and the sums fit in {SMALL_BATCH_REGISTERS} registers",
            lambda batch_tile, rows_per_warp, unroll, vector_width: (
                rows_per_warp * (unroll * vector_width + batch_tile) <= SMALL_BATCH_REGISTERS
            ),
        ),
        Rule("the batch tile is less than twice the batch", lambda batch_tile, M: batch_tile < 2 * M),
        Rule(
            "the weight is read at most 4 times: M is at most 4 batch tiles",
            lambda batch_tile, M: 4 * batch_tile >= M,
        ),
        Rule(
            f"wgmma copies the weight first where 4 does not divide K, which a batch above {LEAST_PADDED} repays",
            lambda ring, M, K: K % TMA_FLOATS == 0 or M > LEAST_PADDED,
        ),
        Rule(
            f"the ring fits in {SMEM_PER_BLOCK} bytes of shared memory",
            lambda warpgroups, ring, operands: wgmma_bytes(warpgroups, ring, operands) <= SMEM_PER_BLOCK,
        ),
        Rule(
            "the tensor cores sum at most 1,024 (tf32x3), 2,048 (bf16x3) or 4,096 (fp16x3) columns, of more they lose "
            "more than the tolerance",
            lambda split_k, promote_k, operands, K: (
                operands not in LONGEST_SUMS or min(promote_k, ceil_div(K, split_k)) <= LONGEST_SUMS[operands]
            ),
        ),
        Rule("unroll divides bk", lambda unroll, bk: bk % unroll == 0),
    ),
    source=lambda configuration: {
        "cublas_epilogue": "epilogue.cu",
        "simt": "simt.cu",
        "small_batch": "small_batch.cu",
        "wgmma": "wgmma.cu",
    }[str(configuration["algorithm"])],
    inputs=lambda problem: (
        Tensor("x", (problem["M"], problem["K"])),
        Tensor("weight", (problem["N"], problem["K"])),
        Tensor("bias", (problem["N"],)),
    ),
    outputs=lambda problem: (Tensor("y", (problem["M"], problem["N"])),),
    plan=plan,
    checks=checks,
    kinds=lambda problem: {"uniform": 1.0, "large": 1e3, "small": 1.0},
    cost=cost,
    expected_wrong=expected_wrong,
    tolerance=Tolerance(
        1e-4,
        1e-4,
        1e-5,
        "fp32 sums of 32768 products err by about 6e-5 at most with cuBLAS; the componentwise bound of reference.py "
        "holds at every K and is what TF32 breaks",
    ),
    core={
        "algorithm": ("simt",),
        "bn": (64, 128),
        "tm": (4, 8),
        "tn": (4, 8),
        "split_k": (1, 2),
        "unroll": (2, 4, 8),
        "vector_width": (4,),
        "fast_math": (False,),
    },
)
