"""What the driver is told when it encodes a tensor map, and the laws that the hardware sets for one.

Source: CUDA driver API, cuTensorMapEncodeTiled.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ktune.api import Tensor, TensorMap
from ktune.core.errors import FamilyError

# How the driver calls each dtype, and its bytes.
TYPES = {
    "uint8": ("UINT8", 1), "int8": ("UINT8", 1), "bool": ("UINT8", 1), "float8_e4m3fn": ("UINT8", 1),
    "float8_e5m2": ("UINT8", 1), "int16": ("UINT16", 2), "float16": ("FLOAT16", 2), "bfloat16": ("BFLOAT16", 2),
    "int32": ("INT32", 4), "float32": ("FLOAT32", 4), "int64": ("INT64", 8), "float64": ("FLOAT64", 8),
}  # fmt: skip
# By bytes: of a swizzle, and of what L2 fetches at once.
SWIZZLES = {0: "NONE", 32: "32B", 64: "64B", 128: "128B"}
PROMOTIONS = {0: "NONE", 64: "L2_64B", 128: "L2_128B", 256: "L2_256B"}

BASE_ALIGNMENT = 16
_STRIDE_STEP = 16
_MOST_DIMENSIONS = 5
_LONGEST_BOX = 256
_LONGEST_DIMENSION = 1 << 32
_LONGEST_STRIDE = 1 << 40


@dataclass(frozen=True)
class MapLayout:
    """The driver's arguments. Dimensions run from the innermost out; strides, in bytes, leave that one out."""

    type_name: str
    dimensions: tuple[int, ...]
    stride_bytes: tuple[int, ...]
    box: tuple[int, ...]
    swizzle_name: str
    promotion_name: str


def map_layout(wanted: TensorMap, tensor: Tensor) -> MapLayout:
    """The layout of a map of this tensor. FamilyError where the hardware has no such map."""
    what = f"the tensor map of {tensor.name} [{', '.join(map(str, tensor.shape))}]"
    if tensor.dtype not in TYPES:
        raise FamilyError(f"{what}: dtype must be one of {', '.join(TYPES)}, got {tensor.dtype!r}")
    type_name, item_bytes = TYPES[tensor.dtype]
    _check_box(what, wanted, tensor, item_bytes)
    stride_bytes = tuple(item_bytes * math.prod(tensor.shape[axis:]) for axis in range(len(tensor.shape) - 1, 0, -1))
    for stride in stride_bytes:
        if stride % _STRIDE_STEP or stride >= _LONGEST_STRIDE:
            raise FamilyError(
                f"{what}: strides must be multiples of {_STRIDE_STEP} bytes below 2^40, got {stride}; "
                "add a rule that keeps such sizes from this configuration"
            )
    return MapLayout(
        type_name,
        tensor.shape[::-1],
        stride_bytes,
        wanted.box[::-1],
        SWIZZLES[wanted.swizzle_bytes],
        PROMOTIONS[wanted.promotion_bytes],
    )


def _check_box(what: str, wanted: TensorMap, tensor: Tensor, item_bytes: int) -> None:
    if wanted.swizzle_bytes not in SWIZZLES:
        raise FamilyError(f"{what}: swizzle_bytes must be one of {_listed(SWIZZLES)}, got {wanted.swizzle_bytes}")
    if wanted.promotion_bytes not in PROMOTIONS:
        raise FamilyError(f"{what}: promotion_bytes must be one of {_listed(PROMOTIONS)}, got {wanted.promotion_bytes}")
    if not 1 <= len(tensor.shape) <= _MOST_DIMENSIONS or len(wanted.box) != len(tensor.shape):
        raise FamilyError(
            f"{what}: a tensor of 1 to {_MOST_DIMENSIONS} dimensions needs a box of as many, got {wanted.box}"
        )
    if not all(1 <= extent <= _LONGEST_DIMENSION for extent in tensor.shape):
        raise FamilyError(f"{what}: dimensions must be 1 to 2^32")
    if not all(1 <= extent <= _LONGEST_BOX for extent in wanted.box):
        raise FamilyError(f"{what}: a box must be 1 to {_LONGEST_BOX} along each dimension, got {wanted.box}")
    row_bytes = wanted.box[-1] * item_bytes
    if row_bytes % BASE_ALIGNMENT:
        raise FamilyError(f"{what}: a row of the box must be a multiple of {BASE_ALIGNMENT} bytes, got {row_bytes}")
    if wanted.swizzle_bytes and row_bytes > wanted.swizzle_bytes:
        raise FamilyError(
            f"{what}: a row of the box must fit in the swizzle of {wanted.swizzle_bytes} bytes, got {row_bytes}"
        )


def check_base(wanted: TensorMap, pointer: int) -> None:
    """FamilyError for a tensor that does not start where the copies can."""
    if pointer % BASE_ALIGNMENT:
        raise FamilyError(
            f"the tensor map of {wanted.tensor} needs a tensor that starts at a multiple of {BASE_ALIGNMENT} bytes, "
            f"got {pointer:#x}; copy it to an aligned one"
        )


def _listed(values: dict[int, str]) -> str:
    return ", ".join(map(str, values))
