"""Device memory that tells what was done to it: tensors between canaries, and copies that are known by digest."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

import torch

from ktune.api import Tensor
from ktune.checks.compare import bits
from ktune.core.errors import FamilyError

CANARY_BYTES = 4096
_PATTERN = 0xA5
_ALIGNMENT = 256

# Larger tensors stay pageable: pinning them takes longer than the copy that it would speed up.
_PIN_LIMIT_BYTES = 1 << 30

_ROW_WORDS = 4096

# Odd factors of SplitMix64, as signed 64-bit numbers.
_MIX = (0x9E3779B97F4A7C15 - (1 << 64), 0xBF58476D1CE4E5B9 - (1 << 64), 0x94D049BB133111EB - (1 << 64))


def dtype_of(tensor: Tensor) -> torch.dtype:
    """The torch dtype of a declared tensor; FamilyError for a name that torch does not have."""
    dtype = getattr(torch, tensor.dtype, None)
    if not isinstance(dtype, torch.dtype):
        raise FamilyError(
            f"tensor {tensor.name} has dtype {tensor.dtype!r}, which torch does not know; say float32, bfloat16, ..."
        )
    return dtype


class Region:
    """One tensor in a buffer of its own, aligned to 256 bytes, with 4 KiB of canary right before and after it."""

    def __init__(self, declared: Tensor, device: torch.device) -> None:
        self.declared = declared
        self.name = declared.name
        dtype = dtype_of(declared)
        self.bytes = math.prod(declared.shape) * dtype.itemsize
        self._itemsize = dtype.itemsize
        self._buffer = torch.full(
            (self.bytes + 2 * CANARY_BYTES + _ALIGNMENT,), _PATTERN, dtype=torch.uint8, device=device
        )
        start = CANARY_BYTES + -(self._buffer.data_ptr() + CANARY_BYTES) % _ALIGNMENT
        self._start, self._end = start, start + self.bytes
        self.tensor = self._buffer[start : self._end].view(dtype).view(declared.shape)
        self.pointer = self.tensor.data_ptr() if self.bytes else self._buffer.data_ptr() + start

    @property
    def canaries(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The 4 KiB before and the 4 KiB after, as bytes."""
        return (
            self._buffer[self._start - CANARY_BYTES : self._start],
            self._buffer[self._end : self._end + CANARY_BYTES],
        )

    def poison(self) -> None:
        """Every byte 0xFF: NaN in each floating type, -1 in each whole one."""
        self._buffer[self._start : self._end].fill_(0xFF)

    def broken_canary(self) -> str:
        """`y[-1]` or `y[n]`: the overwritten element nearest to the tensor on either side; empty if intact."""
        before, after = (canary != _PATTERN for canary in self.canaries)
        places = []
        if bool(before.any()):
            last = int(before.nonzero()[-1])
            places.append(f"{self.name}[{-((CANARY_BYTES - last - 1) // self._itemsize + 1)}]")
        if bool(after.any()):
            first = int(after.nonzero()[0])
            places.append(f"{self.name}[{(self.bytes + first) // self._itemsize}]")
        return " and ".join(places)

    def mend_canaries(self) -> None:
        for canary in self.canaries:
            canary.fill_(_PATTERN)


def any_canary_broken(regions: Sequence[Region]) -> torch.Tensor:
    """A boolean scalar on the device: one comparison over all canaries, no synchronisation."""
    return (torch.cat([canary for region in regions for canary in region.canaries]) != _PATTERN).any()


class Pristine:
    """A tensor kept on the host, with a device copy that is trusted only while its digest is the host's.

    A kernel that writes outside its buffers can reach the device copy, never the host's.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.device_copy = tensor.detach().clone(memory_format=torch.contiguous_format)
        self._host = torch.empty(
            tensor.shape,
            dtype=tensor.dtype,
            pin_memory=tensor.is_cuda and tensor.numel() * tensor.element_size() <= _PIN_LIMIT_BYTES,
        )
        self._host.copy_(self.device_copy)
        self._digest = int(digest(self.device_copy))

    @property
    def bytes(self) -> int:
        return self._host.numel() * self._host.element_size()

    def spoilt(self) -> torch.Tensor:
        """A boolean scalar on the device: the device copy is no longer the host's; no synchronisation."""
        return digest(self.device_copy) != self._digest

    def restore(self) -> None:
        """Make the device copy the host's again."""
        self.device_copy.copy_(self._host)


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """A whole scalar on the device that depends on the memory's words and on their places; no synchronisation.

    The sum of word times weight modulo 2^64, the weight being one of its row plus one of its column, where a row
    is 4096 words. A change of one word always changes it. Changes of several cancel out by coincidence of the weights
    alone, except in words that make a rectangle of rows and columns.
    """
    words = bits(tensor)
    if words.dtype is torch.int64:
        # of a 64-bit word the highest bit, a sign, would lose its weight in the modulus
        words = words.view(torch.int32)
    whole = words.numel() // _ROW_WORDS * _ROW_WORDS
    table, rest = words[:whole].view(-1, _ROW_WORDS), words[whole:]
    columns = table.sum(dim=0, dtype=torch.int64)
    columns[: rest.numel()] += rest
    rows = torch.cat([table.sum(dim=1, dtype=torch.int64), rest.sum(dtype=torch.int64).view(1)])
    # odd and even, so that every sum of the two is odd
    of_columns, of_rows = _weights(columns, 1) | 1, _weights(rows, 2) << 1
    return (columns * of_columns).sum() + (rows * of_rows).sum()


def _weights(like: torch.Tensor, salt: int) -> torch.Tensor:
    """Fixed whole numbers of 64 bits, one for each element of `like`, in no visible order.

    Source: the finaliser of SplitMix64 (Steele, Lea and Flood, Fast Splittable Pseudorandom Number Generators, 2014).
    """
    mixed = torch.arange(like.numel(), dtype=torch.int64, device=like.device) + (salt << 40)
    for factor in _MIX:
        mixed = (mixed ^ (mixed >> 30)) * factor
    return mixed ^ (mixed >> 31)


def flags(found: Iterable[torch.Tensor]) -> list[bool]:
    """Boolean scalars of the device, read in one synchronisation."""
    scalars = list(found)
    return [bool(flag) for flag in torch.stack(scalars).tolist()] if scalars else []
