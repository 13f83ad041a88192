"""Theoretical occupancy: the warps that one SM can hold, by the documented rules. No GPU needed.

Source: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability"; cuda_occupancy.h of the toolkit.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass

WARP = 32
SCHEDULERS = 4
MAX_BLOCK_THREADS = 1024
REGISTER_UNIT = 256
SMEM_UNIT = 128
SMEM_RESERVED = 1024
REGISTERS = 64 * 1024


@dataclass(frozen=True)
class SmLimits:
    """What one SM of a target holds. Registers are split evenly over its 4 schedulers.

    barriers: None where their number never keeps a block out, which is before Hopper.
    """

    warps: int
    blocks: int
    smem_bytes: int
    smem_per_block_bytes: int
    barriers: int | None = None


_LIMITS: Mapping[int, SmLimits] = {
    80: SmLimits(64, 32, 164 << 10, 163 << 10),
    86: SmLimits(48, 16, 100 << 10, 99 << 10),
    87: SmLimits(48, 16, 164 << 10, 163 << 10),
    89: SmLimits(48, 24, 100 << 10, 99 << 10),
    90: SmLimits(64, 32, 228 << 10, 227 << 10, 64),
    100: SmLimits(64, 32, 228 << 10, 227 << 10, 64),
    120: SmLimits(48, 24, 100 << 10, 99 << 10, 24),
}


@dataclass(frozen=True)
class Footprint:
    """What one block of a launch takes. registers: per thread. barriers: named ones that the block uses."""

    threads: int
    registers: int
    smem_bytes: int
    barriers: int = 0

    @property
    def warps(self) -> int:
        return math.ceil(self.threads / WARP)


@dataclass(frozen=True)
class Occupancy:
    """Resident blocks and warps of one SM. `limiter` names what allows no more; "" where the SM is full of warps.

    allowed: {resource: blocks that it alone would allow}; a resource that is not used is absent.
    """

    blocks: int
    warps: int
    max_warps: int
    limiter: str
    allowed: Mapping[str, int]

    @property
    def percent(self) -> float:
        return 100.0 * self.warps / self.max_warps


def limits_of(target: str) -> SmLimits | None:
    """The limits of `sm_90a` and its kin; None for a target that is not in the table."""
    match = re.fullmatch(r"sm_(\d+)[af]?", target)
    return _LIMITS.get(int(match[1])) if match else None


def known_targets() -> list[str]:
    return [f"sm_{number}" for number in _LIMITS]


def occupancy(footprint: Footprint, limits: SmLimits) -> Occupancy:
    """The blocks that fit by each resource, and the least of them; 0 for a block that never fits."""
    allowed = _allowed(footprint, limits)
    blocks = min(allowed.values())
    warps = blocks * footprint.warps
    scarce = [name for name, count in allowed.items() if count == blocks]
    limiter = "" if warps == limits.warps else " and ".join(scarce)
    return Occupancy(blocks, warps, limits.warps, limiter, allowed)


def resident_warps_per_scheduler(blocks_per_sm: int, warps_per_block: int, blocks: int, sm_count: int) -> float:
    """The mean over the whole GPU while the first wave runs: a grid that is too small leaves schedulers idle."""
    resident = min(blocks, blocks_per_sm * sm_count)
    return resident * warps_per_block / (sm_count * SCHEDULERS)


def _allowed(footprint: Footprint, limits: SmLimits) -> dict[str, int]:
    fits = 0 < footprint.threads <= MAX_BLOCK_THREADS
    allowed = {
        "warps": limits.warps // footprint.warps if fits else 0,
        "blocks": limits.blocks,
        "shared memory": _by_shared_memory(footprint, limits),
    }
    if footprint.registers and fits:
        allowed["registers"] = _by_registers(footprint)
    if footprint.barriers and limits.barriers is not None:
        allowed["barriers"] = limits.barriers // footprint.barriers
    return allowed


def _by_registers(footprint: Footprint) -> int:
    """Registers are given to whole warps in units of 256, and a warp lives in one scheduler's quarter of them."""
    per_warp = _round_up(footprint.registers * WARP, REGISTER_UNIT)
    if per_warp * _round_up(footprint.warps, SCHEDULERS) > REGISTERS:
        return 0
    warps = REGISTERS // SCHEDULERS // per_warp * SCHEDULERS
    return warps // footprint.warps


def _by_shared_memory(footprint: Footprint, limits: SmLimits) -> int:
    """The system reserves 1 KB of each block's; without a carve-out set, the driver makes room for what is asked."""
    if footprint.smem_bytes > limits.smem_per_block_bytes:
        return 0
    return limits.smem_bytes // _round_up(footprint.smem_bytes + SMEM_RESERVED, SMEM_UNIT)


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit
