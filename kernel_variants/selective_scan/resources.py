"""What a configuration takes, as rules and plans ask: blocks, threads, registers, instructions, shared memory."""

from .tensors import BFLOAT16, element_bytes

PIPED_STEPS = 4
# Of at most 4 helper warps, for each stage.
BARRIER_BYTES = 4 * 8
FIRST_PASS_STAGES = 3
# What a thread of blockscan holds beside its steps: states, decays, addresses.
BLOCKSCAN_REGISTERS = 40


def states_per_thread(threads_per_pair: int, states: int) -> int:
    return -(-states // threads_per_pair)


def block_count(block_size: int, threads_per_pair: int, B: int, D: int) -> int:
    return B * -(-D // (block_size // threads_per_pair))


def group_steps(reduction: str, threads_per_pair: int) -> int:
    """Time steps whose partial sums are reduced together."""
    return 1 if reduction == "shuffle" else threads_per_pair


def reduction_bytes(reduction: str, block_size: int, threads_per_pair: int) -> int:
    if reduction != "shared" or threads_per_pair == 1:
        return 0
    return block_size // 32 * 2 * threads_per_pair * (32 + 32 // threads_per_pair) * 4


def sums_two_groups(reduction: str, block_size: int, threads_per_pair: int) -> bool:
    """Whether a helper warp's lanes sum the 16 channels of a block for two groups of steps at once."""
    return reduction == "shared" and block_size // threads_per_pair < 32


def batch_steps(prefetch: int, reduction: str, threads_per_pair: int) -> int:
    """Time steps that the direct kernel loads together."""
    return prefetch or group_steps(reduction, threads_per_pair)


def step_floats(threads_per_pair: int, N: int) -> int:
    """Registers that one time step's inputs take in a thread: delta, x and its part of B and C."""
    return 2 + 2 * states_per_thread(threads_per_pair, N)


def step_instructions(threads_per_pair: int, N: int) -> int:
    """About what one time step compiles to: 5 instructions a state and 9 beside them."""
    return 5 * states_per_thread(threads_per_pair, N) + 9


def direct_registers(prefetch: int, reduction: str, threads_per_pair: int, N: int) -> int:
    buffers = 2 if prefetch else 1
    steps = batch_steps(prefetch, reduction, threads_per_pair)
    return buffers * steps * step_floats(threads_per_pair, N) + 2 * states_per_thread(threads_per_pair, N)


def is_raw(bias: int, softplus: int) -> bool:
    """Whether delta is not yet what the recurrence takes."""
    return bool(bias or softplus)


def staged_bytes(
    block_size: int,
    threads_per_pair: int,
    tile_l: int,
    stages: int,
    reduction: str,
    N: int,
    gate: int,
    raw: bool,
    dtype: str,
) -> int:
    """Dynamic shared memory of the staged kernel; the layout is at the top of staged.cu. raw: delta is transformed."""
    padded = states_per_thread(threads_per_pair, N) * threads_per_pair
    pairs = block_size // threads_per_pair
    row = ((2 + gate) * pairs + 2 * padded) * element_bytes(dtype) + (4 * pairs if raw and dtype == BFLOAT16 else 0)
    return stages * tile_l * row + reduction_bytes(reduction, block_size, threads_per_pair)


def piped_bytes(
    block_size: int, threads_per_pair: int, tile_l: int, stages: int, reduction: str, N: int, gate: int, dtype: str
) -> int:
    """Dynamic shared memory of the piped kernel: a ring of stages, two tiles of sums for the helper warps, barriers."""
    row = (2 + gate) * (block_size // threads_per_pair) + 2 * N
    row_bytes = row * (4 if dtype != BFLOAT16 else 4 + element_bytes(dtype))
    sums = 2 * block_size * tile_l * 4 if reduction == "shared" else 0
    return stages * (tile_l * row_bytes + BARRIER_BYTES) + sums


def first_pass_bytes(block_size: int, threads_per_pair: int, N: int, dtype: str) -> int:
    """Dynamic shared memory of the pass that finds what chunks do to the states; the layout is in chunk_states.cuh."""
    pairs = block_size // threads_per_pair
    tile = 32 if pairs <= 64 else max(8, 2048 // pairs)
    return tile * (FIRST_PASS_STAGES * (2 * pairs + N) * element_bytes(dtype) + 8 * pairs)


def blockscan_threads(channels: int, lane_channels: int, time_warps: int) -> int:
    return 32 * time_warps * channels // lane_channels


def blockscan_tile(lane_channels: int, time_warps: int, items: int) -> int:
    """Time steps in a tile of blockscan."""
    return 32 // lane_channels * time_warps * items


def run_floats(items: int, row: int, shift: int) -> int:
    """Floats of shared memory from one thread's steps to the next one's, a multiple of 32 banks and `shift` further."""
    return items * row + (shift - items * row) % 32


def blockscan_bytes(
    channels: int, lane_channels: int, time_warps: int, items: int, states_at_once: int, stages: int, N: int
) -> int:
    """Dynamic shared memory of blockscan; the layout is at the top of blockscan.cu."""
    padded = -(-N // states_at_once) * states_at_once
    runs = 32 // lane_channels * time_warps
    stage = 2 * runs * (run_floats(items, channels, max(4, lane_channels)) + run_floats(items, padded, 4))
    pairs = 2 * time_warps * channels * 2 * states_at_once if time_warps > 1 else 0
    return 4 * (stages * stage + 3 * channels * padded + pairs)


def blockscan_registers(items: int, states_at_once: int) -> int:
    """About what a thread needs: of each step y, delta and delta x, and of its states a decay and an input."""
    return items * (2 * states_at_once + 3) + 6 * states_at_once + BLOCKSCAN_REGISTERS
