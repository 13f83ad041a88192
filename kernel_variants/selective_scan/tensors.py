"""What a problem reads and writes, and what that costs at least."""

from ktune.api import Cost, Tensor
from ktune.core.model import Problem

BFLOAT16 = "bfloat16"


def element_bytes(dtype: str) -> int:
    """Of x, delta, B, C, z and y; all else is fp32."""
    return 2 if dtype == BFLOAT16 else 4


def inputs(problem: Problem) -> tuple[Tensor, ...]:
    batch, length, channels, states = (problem[s] for s in "BLDN")
    rows = (batch, length, channels)
    shared = (batch, length, states) if problem["G"] == 1 else (batch, length, problem["G"], states)
    found = [
        Tensor("x", rows, problem.dtype),
        Tensor("delta", rows, problem.dtype),
        Tensor("A", (channels, states)),
        Tensor("B_t", shared, problem.dtype),
        Tensor("C_t", shared, problem.dtype),
    ]
    options = (
        ("skip", Tensor("skip", (channels,))),
        ("bias", Tensor("delta_bias", (channels,))),
        ("gate", Tensor("z", rows, problem.dtype)),
        ("initial", Tensor("initial_state", (batch, channels, states))),
    )
    return (*found, *(tensor for option, tensor in options if problem[option]))


def outputs(problem: Problem) -> tuple[Tensor, ...]:
    batch, length, channels, states = (problem[s] for s in "BLDN")
    y = Tensor("y", (batch, length, channels), problem.dtype)
    return (y, Tensor("final_state", (batch, channels, states))) if problem["final"] else (y,)


def cost(problem: Problem) -> Cost:
    batch, length, channels, states = (problem[s] for s in "BLDN")
    steps = batch * length * channels
    elements = (2 + problem["gate"]) * steps + 2 * batch * length * problem["G"] * states
    numbers = channels * (states + problem["skip"] + problem["bias"]) + problem["initial"] * batch * channels * states
    item = element_bytes(problem.dtype)
    # softplus: an exponential and a logarithm; the gate: an exponential and a reciprocal
    beside = 2 * problem["softplus"] + 2 * problem["gate"]
    return Cost(
        bytes_read=item * elements + 4 * numbers,
        bytes_written=item * steps + 4 * problem["final"] * batch * channels * states,
        flops=steps * (6 * states + 1 + 2 * problem["skip"] + problem["bias"] + 2 * beside),
        special=steps * (states + beside),
    )
