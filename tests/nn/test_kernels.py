"""From sizes to a kernel, or to the reason why there is none: all that can be shown without a GPU."""

from __future__ import annotations

import warnings
from pathlib import Path

import pytest
import torch
from plain_layers import narrowed, scan_options, scan_tensors

import ktune.nn
from ktune.api import KernelLaunch, Plan, Scalar
from ktune.core.errors import EnvironmentFault, UsageError
from ktune.core.loading import load_family, shipped_families
from ktune.core.model import Configuration
from ktune.core.space import Space
from ktune.nn import executable, kernels
from ktune.nn.executable import check_limits, with_float
from ktune.nn.kernels import Wanted, find
from ktune.nn.scan import Given, wanted

CPU = torch.device("cpu")
SIZES = (("M", 128), ("N", 4096), ("K", 4096))


@pytest.fixture
def suited(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the CPU were a Hopper GPU, up to the point where a kernel is loaded."""

    class Device:
        def __init__(self, device: object) -> None: ...
        def __enter__(self) -> None: ...
        def __exit__(self, *_: object) -> None: ...

    monkeypatch.setattr(kernels, "_found", {})
    monkeypatch.setattr(kernels, "unsuited", lambda device: "")
    monkeypatch.setattr(executable, "make_current", lambda device: None)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: False)
    monkeypatch.setattr(torch.cuda, "device", Device)


@pytest.fixture
def loads(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Path | None]]:
    """(family, cubin) of every executable that is made."""
    made: list[tuple[str, Path | None]] = []

    class Loaded:
        def __init__(self, loaded, plan, tensors, cubin, device) -> None:
            made.append((loaded.name, cubin))

    monkeypatch.setattr(executable, "Executable", Loaded)
    return made


def test_tensors_on_the_cpu_are_computed_with_one_warning_that_says_why() -> None:
    given = scan_tensors(1, 2, 3, 4)
    with pytest.warns(ktune.nn.PlainPathWarning, match="device 'cpu'"):
        ktune.nn.selective_scan(**given)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        ktune.nn.selective_scan(**given)


@pytest.mark.skipif(torch.cuda.is_available(), reason="shows what is said without a GPU")
def test_preparing_without_a_gpu_says_why_not() -> None:
    with pytest.raises(EnvironmentFault, match="selective_scan has no kernel here: "):
        ktune.nn.prepare("selective_scan", B=1, L=2, D=3, N=4)
    with pytest.raises(EnvironmentFault, match="device 'cpu'"):
        ktune.nn.LinearSwishScale(3, 4).prepare(rows=2)


def test_preparing_asks_for_every_size_and_no_other() -> None:
    with pytest.raises(UsageError, match="must give M, N, K, got M, N"):
        ktune.nn.prepare("linear_swish_scale", M=1, N=2)
    with pytest.raises(UsageError, match="N must be at least 1, got 0"):
        ktune.nn.prepare("linear_swish_scale", M=1, N=0, K=2)
    with pytest.raises(UsageError, match="give both"):
        ktune.nn.SelectiveScan(3, 4, batch=2).prepare()


@pytest.mark.parametrize("groups", [1, 2])
@pytest.mark.parametrize("final", [False, True])
def test_a_scan_asks_for_the_problem_that_its_arguments_are(groups: int, final: bool) -> None:
    given = scan_tensors(2, 5, 4, 3)
    family = load_family("selective_scan").family
    sizes = {"B": 2, "L": 5, "D": 4, "N": 3, "final": int(final)}
    found = wanted(Given(*given.values(), None, None, False, None), final)
    assert family.problem(**sizes).sizes == found.sizes
    full = narrowed(scan_options(given, groups))
    full["D"] = None
    found = wanted(Given(full.pop("u"), delta_softplus=True, **full), final)
    options = {"G": groups, "bias": 1, "softplus": 1, "gate": 1, "skip": 0, "initial": 1}
    problem = family.problem(**sizes, **options, dtype="bfloat16")
    assert (problem.sizes, problem.dtype) == (found.sizes, found.dtype)


@pytest.mark.build
def test_the_kernel_for_options_is_the_one_that_prepare_makes(suited, loads) -> None:
    options = {"softplus": 1, "bias": 1, "gate": 1}
    ktune.nn.prepare("selective_scan", device="cpu", B=2, L=8, D=64, N=16, **options, dtype=torch.bfloat16)
    given = narrowed(scan_options(scan_tensors(2, 8, 64, 16)))
    given["initial_state"] = None
    before = dict(kernels._found)
    assert find(wanted(Given(given.pop("u"), delta_softplus=True, **given), False)) in before.values()
    assert kernels._found == before and len(loads) == 1


@pytest.mark.build
@pytest.mark.parametrize("scale", [2.0, 0.5])
def test_the_kernel_for_a_shape_is_built_once(suited, loads, scale: float) -> None:
    wanted = Wanted("linear_swish_scale", SIZES, CPU, scale)
    found = find(wanted)
    assert not isinstance(found, str), found
    assert find(wanted) is found
    ((name, cubin),) = loads
    assert name == "linear_swish_scale" and cubin is not None and cubin.is_file()


def test_without_a_compiler_the_reason_names_it(suited, loads, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    for name in ("CUDA_HOME", "CUDA_PATH"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("ktune.build.toolchain._installed_nvcc", lambda: None)
    found = find(Wanted("linear_swish_scale", SIZES, CPU, 2.0))
    assert isinstance(found, str) and "nvcc" in found
    assert loads == []


def test_a_configuration_that_does_not_build_gives_way_to_the_next(
    suited, loads, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Configuration] = []

    def build(loaded, configuration, problem):
        asked.append(configuration)
        if len(asked) == 1:
            raise EnvironmentFault("does not build")

    monkeypatch.setattr(kernels, "_build", build)
    found = find(Wanted("linear_swish_scale", SIZES, CPU, 2.0))
    assert not isinstance(found, str)
    assert len(asked) == 2 and len(loads) == 1


def test_a_kernel_that_is_not_loaded_is_refused_during_capture(suited, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: True)
    with pytest.raises(UsageError, match=r'captured.*ktune\.nn\.prepare\("linear_swish_scale", M=128'):
        find(Wanted("linear_swish_scale", SIZES, CPU, 2.0))
    assert kernels._found == {}


def test_shapes_without_end_do_not_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "_found", {})
    monkeypatch.setattr(kernels, "_MOST_KEPT", 8)
    for length in range(1, 50):
        assert isinstance(find(Wanted("selective_scan", (("L", length),), CPU)), str)
        assert len(kernels._found) <= 8


@pytest.mark.parametrize("name", shipped_families())
def test_every_plan_of_the_linear_has_its_scale_as_the_only_float(name: str) -> None:
    """`with_float` sets all of them, so that none may mean anything else."""
    family = load_family(name).family
    problem = load_family(name).named_problems["small"]
    algorithms = family.parameter("algorithm").values
    points = [next((p for p in Space(family, [problem]) if p["algorithm"] == a), None) for a in algorithms]
    expected = {2.0} if name == "linear_swish_scale" else set()
    for point in points:
        if point is not None:
            assert set(floats(family.plan(point, problem))) == expected


def floats(plan: Plan) -> list[float]:
    launches = [launch for launch in plan.launches if isinstance(launch, KernelLaunch)]
    scalars = [a for launch in launches for a in launch.arguments if isinstance(a, Scalar)]
    return [float(scalar.value) for scalar in scalars if scalar.ctype == "float32"]


def test_another_scale_changes_nothing_else_in_a_plan() -> None:
    loaded = load_family("linear_swish_scale")
    problem = loaded.named_problems["record"]
    plan = loaded.family.plan(Space(loaded.family, [problem]).complete({"algorithm": "simt"}), problem)
    changed = with_float(plan, 0.25)
    assert set(floats(changed)) == {0.25}
    assert with_float(changed, 2.0) == plan


def plan_of(*arguments: Scalar, grid: tuple[int, int, int] = (1, 1, 1)) -> Plan:
    return Plan((KernelLaunch("kernel", grid, (32, 1, 1), arguments),))


def test_sizes_that_an_argument_or_a_grid_cannot_carry_are_refused() -> None:
    check_limits(
        plan_of(Scalar(2**31 - 2**17), Scalar(2**40, "int64"), Scalar(1e30, "float32"), grid=(2**31 - 1, 1, 1))
    )
    with pytest.raises(EnvironmentFault, match="2147483648 as int32"):
        check_limits(plan_of(Scalar(2**31)))
    with pytest.raises(EnvironmentFault, match="grid"):
        check_limits(plan_of(grid=(2**31, 1, 1)))
    with pytest.raises(EnvironmentFault, match="grid"):
        check_limits(plan_of(grid=(1, 65_536, 1)))
