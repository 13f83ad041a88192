"""Tensor maps: the laws of the hardware, what the driver is asked for, and how a kernel gets them."""

from __future__ import annotations

import ctypes

import pytest
import torch

from ktune.api import KernelLaunch, Tensor, TensorMap
from ktune.core.errors import FamilyError
from ktune.core.tensor_map import check_base, map_layout
from ktune.gpu import driver, plans
from ktune.gpu.buffers import Region

WEIGHT = Tensor("weight", (300, 64))
TILE = TensorMap("weight", (128, 32), swizzle_bytes=128)


def test_dimensions_and_box_run_from_the_innermost_out_and_strides_are_bytes():
    layout = map_layout(TILE, WEIGHT)
    assert (layout.dimensions, layout.stride_bytes, layout.box) == ((64, 300), (256,), (32, 128))
    assert (layout.type_name, layout.swizzle_name, layout.promotion_name) == ("FLOAT32", "128B", "NONE")


def test_a_tensor_of_three_dimensions_has_two_strides():
    layout = map_layout(TensorMap("t", (1, 2, 8), promotion_bytes=256), Tensor("t", (5, 6, 8), "bfloat16"))
    assert (layout.dimensions, layout.stride_bytes, layout.box) == ((8, 6, 5), (16, 96), (8, 2, 1))
    assert (layout.type_name, layout.swizzle_name, layout.promotion_name) == ("BFLOAT16", "NONE", "L2_256B")


@pytest.mark.parametrize(
    ("wanted", "tensor", "law"),
    [
        (TensorMap("t", (8, 32)), Tensor("t", (8, 33)), "strides must be multiples of 16 bytes below 2.40, got 132"),
        (TensorMap("t", (257, 32)), Tensor("t", (300, 64)), r"1 to 256 along each dimension, got \(257, 32\)"),
        (TensorMap("t", (0, 32)), Tensor("t", (300, 64)), r"1 to 256 along each dimension, got \(0, 32\)"),
        (TensorMap("t", (8, 6)), Tensor("t", (300, 64)), "multiple of 16 bytes, got 24"),
        (TensorMap("t", (8, 64), 128), Tensor("t", (300, 64)), "fit in the swizzle of 128 bytes, got 256"),
        (TensorMap("t", (8, 32), 48), Tensor("t", (300, 64)), "swizzle_bytes must be one of 0, 32, 64, 128, got 48"),
        (
            TensorMap("t", (8, 32), 0, 32),
            Tensor("t", (8, 32)),
            "promotion_bytes must be one of 0, 64, 128, 256, got 32",
        ),
        (TensorMap("t", (32,)), Tensor("t", (8, 32)), r"needs a box of as many, got \(32,\)"),
        (TensorMap("t", (1,) * 6), Tensor("t", (1,) * 6), "1 to 5 dimensions"),
        (TensorMap("t", (8, 32)), Tensor("t", (0, 32)), r"dimensions must be 1 to 2\^32"),
        (TensorMap("t", (8, 32)), Tensor("t", (8, 32), "complex64"), "dtype must be one of .*, got 'complex64'"),
    ],
)
def test_what_the_hardware_has_no_map_for_is_refused_by_its_law(wanted, tensor, law):
    with pytest.raises(FamilyError, match=law):
        map_layout(wanted, tensor)


def test_a_tensor_must_start_at_a_multiple_of_16_bytes():
    check_base(TILE, 0x7F00_0000_0010)
    with pytest.raises(FamilyError, match="multiple of 16 bytes, got 0x7f0000000008; copy it"):
        check_base(TILE, 0x7F00_0000_0008)


def test_the_driver_is_asked_for_exactly_the_layout_and_its_answer_is_passed_on(monkeypatch):
    asked = []

    def encode(*arguments):
        asked.append(arguments)
        encoded = driver.cuda.CUtensorMap()
        encoded.opaque = [driver.cuda.cuuint64_t(7 + i) for i in range(16)]
        return driver.cuda.CUresult.CUDA_SUCCESS, encoded

    monkeypatch.setattr(driver.cuda, "cuTensorMapEncodeTiled", encode)
    encoded = driver.encode_tensor_map(map_layout(TILE, WEIGHT), 0x1000)
    assert encoded == b"".join((7 + i).to_bytes(8, "little") for i in range(16))
    kind, rank, pointer, dimensions, strides, box, steps, *options = asked[0]
    assert (kind.name, rank, pointer) == ("CU_TENSOR_MAP_DATA_TYPE_FLOAT32", 2, 0x1000)
    assert [[int(n) for n in numbers] for numbers in (dimensions, strides, box, steps)] == [
        [64, 300], [256], [32, 128], [1, 1],
    ]  # fmt: skip
    assert [option.name for option in options] == [
        "CU_TENSOR_MAP_INTERLEAVE_NONE", "CU_TENSOR_MAP_SWIZZLE_128B", "CU_TENSOR_MAP_L2_PROMOTION_NONE",
        "CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE",
    ]  # fmt: skip


def test_the_drivers_refusal_names_the_map(monkeypatch):
    refused = (driver.cuda.CUresult.CUDA_ERROR_INVALID_VALUE, None)
    monkeypatch.setattr(driver.cuda, "cuTensorMapEncodeTiled", lambda *arguments: refused)
    with pytest.raises(driver.LaunchFault, match=r"dimensions \(64, 300\) and box \(32, 128\).*INVALID_VALUE"):
        driver.encode_tensor_map(map_layout(TILE, WEIGHT), 0x1000)


def test_a_map_is_packed_as_its_128_bytes():
    encoded = bytes(range(128))
    packed = driver.PackedArguments(("y", TILE), {"y": 0x100}, {TILE: encoded})
    pointers = (ctypes.c_void_p * 2).from_address(packed.address)
    assert ctypes.string_at(pointers[1], 128) == encoded


def test_a_launch_is_bound_with_a_map_of_where_its_tensor_lies(monkeypatch):
    bound = []
    monkeypatch.setattr(driver, "encode_tensor_map", lambda layout, pointer: (layout, pointer))
    monkeypatch.setattr(driver, "BoundLaunch", lambda kernel, launch, pointers, maps: bound.append((pointers, maps)))
    region = Region(WEIGHT, torch.device("cpu"))
    launch = KernelLaunch("k", (1, 1, 1), (32, 1, 1), (TILE, "weight"))
    plans.bind_launch(None, launch, {"weight": region})
    assert bound == [({"weight": region.pointer}, {TILE: (map_layout(TILE, WEIGHT), region.pointer)})]
    with pytest.raises(FamilyError, match="'weight', which is no tensor of the problem; it has x"):
        plans.bind_launch(None, launch, {"x": region})


def test_a_programmatic_launch_carries_its_attribute_beside_the_clusters():
    config = driver._extended(KernelLaunch("k", (8, 1, 1), (128, 1, 1), (), 1024, (2, 1, 1), programmatic=True))
    names = [attribute.id.name for attribute in config.attrs]
    assert names == [
        "CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION", "CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION",
    ]  # fmt: skip
    assert config.numAttrs == 2 and config.attrs[0].value.clusterDim.x == 2
    assert config.attrs[1].value.programmaticStreamSerializationAllowed == 1
    alone = driver._extended(KernelLaunch("k", (8, 1, 1), (128, 1, 1), (), programmatic=True))
    assert [attribute.id.name for attribute in alone.attrs] == names[1:]
