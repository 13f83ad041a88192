"""The selective scan of Mamba (S6) with its options: y from x, delta, A, B, C and more. README.md has the maths."""

from ktune.api import Family, Size, Tolerance
from ktune.core.model import Configuration, Problem

from .parameters import PARAMETERS
from .plans import plan
from .resources import PIPED_STEPS, blockscan_tile
from .rules import RULES
from .tensors import BFLOAT16, cost, inputs, outputs

UNTILED_STEPS = 17
OPTIONS = {"G": 1, "bias": 0, "softplus": 0, "gate": 0, "skip": 1, "initial": 0, "final": 0}
BLOCK = {"softplus": 1, "bias": 1, "gate": 1}
# Twice the model's width.
MAMBA_CHANNELS = {"mamba-130m": 1536, "mamba-370m": 2048, "mamba-790m": 3072, "mamba-1.4b": 4096, "mamba-2.8b": 5120}


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


def kinds(problem: Problem) -> dict[str, float]:
    """y is linear in x and delta, but for what an initial state gives, and exp(delta A) is at most 1."""
    scales = {"uniform": 1.0, "large": 1e3, "small": 1e-4, "small_delta": 1.0, "large_delta": 20.0, "huge_delta": 1.0}
    return {kind: max(scale, 1.0) if problem["initial"] else scale for kind, scale in scales.items()}


def nearness(problem: Problem) -> tuple[float, ...]:
    """The pairs of batch and channel, which fill the GPU, and states; lengths count a tenth.

    In the results of 17 shapes a winner lost at most 9 % at another length, and up to 170 % at another number of pairs;
    that of B=16, D=256 lost nothing at B=1, D=4096.
    """
    return (problem["B"] * problem["D"], problem["L"] ** 0.1, problem["N"])


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
    parameters=PARAMETERS,
    rules=RULES,
    source=lambda configuration: f"{configuration['algorithm']}.cu",
    inputs=inputs,
    outputs=outputs,
    nearness=nearness,
    plan=plan,
    checks=checks,
    kinds=kinds,
    cost=cost,
    constants=constants,
    retired={
        # A pair's threads were once lanes of one warp or of several by choice, whatever the reduction.
        "lanes": lambda values: (values["lanes"] == "channels") == (values.get("reduction") == "shared"),
        # The half of a block that only tells could once go on without waiting.
        "barriers": lambda values: values["barriers"] == "joint",
    },
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
        "block_size": (128, 256),
        "threads_per_pair": (2, 4, 8),
        "reduction": ("transposed", "shared"),
        "tile_l": (32, 64),
        "stages": (2, 3, 4),
        "helpers": (2, 4),
        "copies": ("lanes", "bulk"),
        "exp_ahead": (1, 2),
        "row_ahead": (2, 4),
        "min_blocks": (1,),
        "unroll": (2, 16),
        "vector_width": (4,),
        "exp": ("ex2",),
        "static_d": (True,),
        "fast_math": (False,),
    },
)
