"""How a plan is bound to tensors, with a driver that only takes notes."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ktune.api import KernelLaunch, Plan, Scalar, Tensor, TensorMap, TorchOperation
from ktune.core.errors import EnvironmentFault, FamilyError
from ktune.core.loading import LoadedFamily, load_family
from ktune.nn import executable
from ktune.nn.executable import Executable

CPU = torch.device("cpu")
X, Y = Tensor("x", (4, 8)), Tensor("y", (4, 8))


@dataclass
class Notes:
    """What the driver was asked for. stream: the current one."""

    stream: int = 7
    modules: list[Path] = field(default_factory=list)
    allowed: list[str] = field(default_factory=list)
    packed: list[dict[str, int]] = field(default_factory=list)
    encoded: list[int] = field(default_factory=list)
    launched: list[tuple[str, int, dict[str, int]]] = field(default_factory=list)


@pytest.fixture
def notes(monkeypatch: pytest.MonkeyPatch) -> Notes:
    taken = Notes()

    class Module:
        def __init__(self, cubin: Path) -> None:
            taken.modules.append(cubin)

        def kernel(self, name: str) -> SimpleNamespace:
            return SimpleNamespace(name=name, allow=lambda launch: taken.allowed.append(launch.kernel))

    class BoundLaunch:
        def __init__(self, kernel, launch, pointers, maps) -> None:
            self.name, self.pointers = kernel.name, dict(pointers)
            taken.packed.append(self.pointers)

        def __call__(self) -> None:
            taken.launched.append((self.name, taken.stream, self.pointers))

    def encode_tensor_map(layout, pointer: int) -> bytes:
        taken.encoded.append(pointer)
        return bytes(128)

    fake = SimpleNamespace(Module=Module, BoundLaunch=BoundLaunch, encode_tensor_map=encode_tensor_map)
    monkeypatch.setattr(executable, "driver", fake)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda device: SimpleNamespace(cuda_stream=taken.stream))
    executable._module.cache_clear()
    return taken


@pytest.fixture
def toy(families: Path) -> LoadedFamily:
    return load_family(families / "toy")


def launch(name: str, *arguments: object, smem_bytes: int = 0) -> KernelLaunch:
    return KernelLaunch(name, (1, 1, 1), (32, 1, 1), arguments, smem_bytes)  # type: ignore[arg-type]


def test_launches_run_in_the_plans_order_on_the_tensors_given(notes: Notes, toy: LoadedFamily) -> None:
    run = Executable(toy, Plan((launch("first", "x"), launch("second", "x", "y"))), (X, Y), Path("a.cubin"), CPU)
    assert notes.allowed == ["first", "second"]
    x, y = torch.zeros(4, 8), torch.zeros(4, 8)
    run({"x": x, "y": y})
    where = {"x": x.data_ptr(), "y": y.data_ptr()}
    assert notes.launched == [("first", 7, where), ("second", 7, where)]


def test_a_launch_is_packed_once_for_the_same_addresses_and_stream(notes: Notes, toy: LoadedFamily) -> None:
    run = Executable(toy, Plan((launch("only", "x", "y"),)), (X, Y), Path("a.cubin"), CPU)
    x, y, other = torch.zeros(4, 8), torch.zeros(4, 8), torch.zeros(4, 8)
    run({"x": x, "y": y})
    run({"x": x, "y": y})
    assert len(notes.packed) == 1
    run({"x": other, "y": y})
    assert len(notes.packed) == 2
    notes.stream = 8
    run({"x": x, "y": y})
    assert len(notes.packed) == 3
    assert [stream for _, stream, _ in notes.launched] == [7, 7, 7, 8]


def test_workspace_is_allocated_in_each_call_and_a_tensor_map_follows_it(notes: Notes, toy: LoadedFamily) -> None:
    plan = Plan((launch("only", TensorMap("scratch", (1, 8)), "y"),), (Tensor("scratch", (2, 8)),))
    run = Executable(toy, plan, (X, Y), Path("a.cubin"), CPU)
    run({"x": torch.zeros(4, 8), "y": torch.zeros(4, 8)})
    assert notes.encoded == [notes.packed[0]["scratch"]]


def test_a_tensor_map_of_an_unaligned_tensor_is_refused(notes: Notes, toy: LoadedFamily) -> None:
    run = Executable(toy, Plan((launch("only", TensorMap("x", (1, 8)), "y"),)), (X, Y), Path("a.cubin"), CPU)
    with pytest.raises(FamilyError, match="multiple of 16 bytes"):
        run({"x": torch.zeros(33)[1:].view(4, 8), "y": torch.zeros(4, 8)})


def test_plans_that_ask_for_the_same_shared_memory_share_a_loaded_binary(notes: Notes, toy: LoadedFamily) -> None:
    for smem_bytes in (1024, 1024, 2048):
        Executable(toy, Plan((launch("only", "x", smem_bytes=smem_bytes),)), (X, Y), Path("a.cubin"), CPU)
    assert len(notes.modules) == 2


def test_a_torch_operation_runs_between_launches(notes: Notes, families: Path) -> None:
    loaded = load_family(families / "gemm_epilogue")
    plan = Plan((TorchOperation("gemm", ("x", "weight", "y")), launch("epilogue", "y")))
    tensors = (Tensor("x", (2, 3)), Tensor("weight", (4, 3)), Tensor("y", (2, 4)))
    run = Executable(loaded, plan, tensors, Path("a.cubin"), CPU)
    given = {"x": torch.randn(2, 3), "weight": torch.randn(4, 3), "y": torch.empty(2, 4)}
    run(given)
    torch.testing.assert_close(given["y"], given["x"] @ given["weight"].t())
    assert [name for name, _, _ in notes.launched] == ["epilogue"]


def test_a_launch_without_a_binary_and_a_size_beyond_its_argument_are_refused(notes: Notes, toy: LoadedFamily) -> None:
    with pytest.raises(EnvironmentFault, match="nothing was built"):
        Executable(toy, Plan((launch("only", "x"),)), (X, Y), None, CPU)
    with pytest.raises(EnvironmentFault, match="too small"):
        Executable(toy, Plan((launch("only", Scalar(2**31)),)), (X, Y), Path("a.cubin"), CPU)
