"""Buffers between canaries, and copies known by digest."""

import math
from pathlib import Path

import pytest
import torch

from ktune.api import Tensor
from ktune.core.errors import FamilyError
from ktune.core.loading import load_family
from ktune.gpu.buffers import Pristine, Region, any_canary_broken, digest, flags
from ktune.gpu.cases import Case, Draw

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", ["float32", "float64", "bfloat16", "float16"])
@pytest.mark.parametrize("shape", [(1,), (3, 5), (4096,)])
def test_a_region_is_aligned_poisoned_with_nan_and_its_canaries_stay_whole(dtype: str, shape: tuple[int, ...]) -> None:
    region = Region(Tensor("y", shape, dtype), CPU)
    assert region.pointer == region.tensor.data_ptr() and region.pointer % 256 == 0
    assert region.tensor.shape == shape and region.tensor.is_contiguous()
    region.tensor.fill_(1.0)
    region.poison()
    assert bool(region.tensor.isnan().all())
    assert not bool(any_canary_broken([region])) and region.broken_canary() == ""
    assert all(canary.numel() == 4096 for canary in region.canaries)


def test_canaries_touch_the_tensor_on_both_sides() -> None:
    region = Region(Tensor("y", (3,)), CPU)
    before, after = region.canaries
    assert before.data_ptr() + 4096 == region.pointer
    assert after.data_ptr() == region.pointer + 12


def test_whole_numbers_are_poisoned_too() -> None:
    region = Region(Tensor("index", (4,), "int32"), CPU)
    region.tensor.zero_()
    region.poison()
    assert region.tensor.tolist() == [-1] * 4


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(FamilyError, match="dtype 'float33'"):
        Region(Tensor("y", (4,), "float33"), CPU)


def test_a_single_stray_bit_changes_the_digest_and_the_host_copy_restores_it() -> None:
    original = torch.randn(1001, dtype=torch.float64)
    pristine = Pristine(original)
    assert flags([pristine.spoilt()]) == [False]
    pristine.device_copy[1000] = torch.nextafter(
        pristine.device_copy[1000], torch.tensor(math.inf, dtype=torch.float64)
    )
    assert flags([pristine.spoilt()]) == [True]
    pristine.restore()
    assert flags([pristine.spoilt()]) == [False] and torch.equal(pristine.device_copy, original)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.uint8, torch.float64])
@pytest.mark.parametrize("size", [5000, 2 * 4096, 3 * 4096 + 17])
def test_writes_that_leave_the_sum_of_all_words_as_it_was_change_the_digest(dtype: torch.dtype, size: int) -> None:
    original = torch.arange(size).remainder(97).to(dtype)
    swapped, turned, flipped = original.clone(), original.flip(0), original.clone()
    swapped[[3, 4099]] = swapped[[4099, 3]]
    flipped[[1, 2, 4098]] *= -1
    found = {int(digest(tensor)) for tensor in (original, swapped, turned, flipped)}
    assert len(found) == 4


def test_rows_of_words_that_change_places_change_the_digest() -> None:
    table = torch.randn(8, 4096)
    assert int(digest(table)) != int(digest(table.flip(0)))
    assert int(digest(table)) != int(digest(table.flip(1)))


def test_two_signs_that_flip_change_the_digest() -> None:
    table = torch.randn(3, 4096, dtype=torch.float64)
    other = table.clone()
    other[0, 0], other[2, 7] = -other[0, 0], -other[2, 7]
    assert int(digest(table)) != int(digest(other))


def test_a_digest_does_not_mind_nan_or_odd_sizes() -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.uint8, torch.float64):
        tensor = torch.zeros(7, dtype=dtype)
        assert int(digest(tensor)) == 0
        tensor[6] = 1
        assert int(digest(tensor)) != 0
    assert int(digest(torch.full((3,), math.nan))) == int(digest(torch.full((3,), math.nan)))


@pytest.mark.parametrize(
    "spoil, message",
    [
        ({"inputs": lambda p: {"x": torch.zeros(p["N"])}}, "must not be all zero"),
        ({"inputs": lambda p: {"x": torch.ones(p["N"] + 1)}}, "of shape"),
        ({"inputs": lambda p: {"x": torch.ones(p["N"], dtype=torch.float64)}}, "x as float32"),
        ({"inputs": lambda p: {"z": torch.ones(p["N"])}}, "must return 'x', got 'z'"),
        ({"truth": lambda p: {"y": torch.ones(p["N"])}}, "as float64"),
        ({"truth": lambda p: {}}, "must return 'y', got nothing"),
        ({"bound": lambda p: {}}, "bound\\(\\) of reference.py must return 'y', got nothing"),
        ({"bound": lambda p: {"y": torch.ones(p["N"])}}, "bound\\(\\) of toy must return y as float64"),
        ({"bound": lambda p: {"y": -torch.ones(p["N"], dtype=torch.float64)}}, "must not be negative anywhere"),
    ],
)
def test_a_reference_module_that_breaks_the_contract_is_named(
    families: Path, monkeypatch: pytest.MonkeyPatch, spoil: dict, message: str
) -> None:
    toy = load_family(families / "toy")
    module = toy.module("reference")
    if "inputs" in spoil:
        monkeypatch.setattr(module, "inputs", lambda problem, seed, device: spoil["inputs"](problem))
    if "truth" in spoil:
        monkeypatch.setattr(module, "reference", lambda problem, inputs: spoil["truth"](problem))
    if "bound" in spoil:
        monkeypatch.setattr(module, "bound", lambda problem, inputs: spoil["bound"](problem), raising=False)
    with pytest.raises(FamilyError, match=message):
        Case(toy, Draw(toy.family.problem(N=10), 0), CPU)
