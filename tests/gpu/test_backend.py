"""The backend's steps with torch operations on the CPU in the place of kernels."""

import math
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from ktune.core.errors import EnvironmentFault, FamilyError
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Effort, Status
from ktune.core.variant import make_variant
from ktune.gpu import backend as backend_module
from ktune.gpu.backend import CudaBackend
from ktune.gpu.protocol import Job, LaunchFault, StickyFault
from ktune.gpu.timing import Reading

FAMILY = """
from ktune.api import *

family = Family(
    name="halves", summary="y = 2 x by way of h = x / 2",
    sizes=(Size("N", "elements"),), problems={"default": {"N": 100}},
    parameters=(
        Parameter("algorithm",
                  ("right", "nan", "tail", "raises", "illegal", "absent", "stranger", "sized", "signed"),
                  "right", "how"),
    ),
    rules=(), source=lambda c: "none.cu", inputs=lambda p: (Tensor("x", (p["N"],)),),
    outputs=lambda p: (Tensor("y", (p["N"],)),),
    plan=lambda c, p: Plan(
        (TorchOperation("halve", ("x", "h")),
         TorchOperation(c["algorithm"], ("h" if c["algorithm"] != "stranger" else "z", "y"))),
        workspace=(Tensor("h", (p["N"],)),)),
    checks=lambda c, p: (family.problem(N=1), family.problem(N=7)), kinds=lambda p: {"uniform": 1.0, "small": 1e-4},
    constants=lambda c, p: {"N": p["N"]} if c["algorithm"] == "sized" else {},
    cost=lambda p: Cost(4 * p["N"], 4 * p["N"], p["N"]), tolerance=Tolerance(1e-6, 1e-6, 1e-6, "exact"),
)
"""
OPERATIONS = """
import torch

def halve(x, h): torch.mul(x, 0.5, out=h)
def right(h, y): torch.mul(h, 4.0, out=y)
def nan(h, y): pass
def tail(h, y): y[:len(y) // 2 * 2] = 4.0 * h[:len(y) // 2 * 2]
def raises(h, y): raise RuntimeError("shapes disagree")
def illegal(h, y): raise RuntimeError("CUDA error: an illegal memory access was encountered")
def stranger(z, y): pass
def sized(h, y): right(h, y)
def signed(h, y): torch.mul(h, 4.0 if len(h) == 1 or (h < 0).any() else 5.0, out=y)
"""
REFERENCE = """
import torch

def inputs(problem, seed, kind="normal", device="cpu"):
    draw = torch.rand if kind == "uniform" else torch.randn
    x = draw(problem["N"], generator=torch.Generator().manual_seed(seed))
    return {"x": (x * 1e-4 if kind == "small" else x).to(device)}

def reference(problem, inputs): return {"y": 2.0 * inputs["x"].double()}
"""


class InstantTimer:
    """Runs the plan once a sample and says that it took 50 us."""

    def __init__(self, device: object, sensor: object) -> None:
        self.runs = 0

    def bind(self, run) -> None:
        self.run = run

    def cold(self, samples: int) -> Reading:
        for _ in range(samples):
            self.run()
        self.runs += samples
        return Reading((50.0,) * samples, 1980)

    def hot(self, samples: int, launches: int) -> Reading:
        return self.cold(samples)

    def method(self, regime: str, launches: int) -> str:
        return "instant"


@pytest.fixture(scope="module")
def halves(tmp_path_factory: pytest.TempPathFactory) -> LoadedFamily:
    folder = tmp_path_factory.mktemp("halves")
    for name, text in {"family": FAMILY, "operations": OPERATIONS, "reference": REFERENCE}.items():
        (folder / f"{name}.py").write_text(text)
    return load_family(folder)


@pytest.fixture
def backend(halves: LoadedFamily, monkeypatch: pytest.MonkeyPatch) -> Iterator[CudaBackend]:
    properties = SimpleNamespace(
        name="NVIDIA H200", uuid="1234", total_memory=1 << 30, multi_processor_count=132, L2_cache_size=60 << 20
    )
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: properties)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    monkeypatch.setattr(backend_module, "CudaTimer", InstantTimer)
    grad = torch.is_grad_enabled()
    yield CudaBackend(halves, torch.device("cpu"))
    torch.set_grad_enabled(grad)


def job(
    halves: LoadedFamily, algorithm: str = "right", effort: Effort = Effort.SEARCH, cull: float | None = None
) -> Job:
    problem = halves.named_problems["default"]
    variant = make_variant(halves.family, Configuration((("algorithm", algorithm),)), problem)
    return Job(0, variant, problem, None, effort, cull)


@pytest.mark.parametrize("effort, samples", [(Effort.SEARCH, 8), (Effort.FULL, 30)])
def test_a_right_variant_goes_through_every_step(
    backend: CudaBackend, halves: LoadedFamily, effort: Effort, samples: int
) -> None:
    backend.prepare(halves.named_problems["default"])
    for _ in range(2):
        backend.load(job(halves, effort=effort))
        verdict = backend.verify()
        assert verdict.status is Status.OK and verdict.accuracy is not None
        timings = backend.time()
        assert timings.status is Status.OK and timings.cold is not None and len(timings.cold.samples_us) == samples
        assert backend.recheck().status is Status.OK
        backend.unload()
    backend.close()


def test_bad_variants_are_wrong_and_the_next_is_not_blamed(backend: CudaBackend, halves: LoadedFamily) -> None:
    for algorithm, status in [
        ("nan", Status.WRONG),
        ("right", Status.OK),
        ("tail", Status.WRONG),
        ("right", Status.OK),
    ]:
        backend.load(job(halves, algorithm))
        verdict = backend.verify()
        assert verdict.status is status, (algorithm, verdict)
        assert verdict.accuracy is not None
        if algorithm == "tail":
            assert verdict.accuracy.check == "N1" and math.isnan(verdict.accuracy.worst_ratio)


def test_a_variant_wrong_for_a_kind_of_inputs_is_found_by_a_thorough_job_alone(
    backend: CudaBackend, halves: LoadedFamily
) -> None:
    for thorough in (False, True):
        backend.load(replace(job(halves, "signed"), thorough=thorough))
        verdict = backend.verify()
        assert verdict.status is (Status.WRONG if thorough else Status.OK), verdict
    assert "in check N7, inputs uniform" in verdict.detail
    backend.load(replace(job(halves), thorough=True))
    assert backend.verify().status is Status.OK


def test_timed_launches_that_write_nothing_are_found_out(backend: CudaBackend, halves: LoadedFamily) -> None:
    backend.load(job(halves))
    assert backend.verify().status is Status.OK
    backend._timer.bind = lambda run: setattr(backend._timer, "run", lambda: None)  # type: ignore[method-assign]
    backend.time()
    assert backend.recheck().status is Status.WRONG


def test_a_slow_variant_is_culled_with_its_bound(backend: CudaBackend, halves: LoadedFamily) -> None:
    backend.load(job(halves, cull=10.0))
    timings = backend.time()
    assert timings.status is Status.CULLED and timings.bound_us == 50.0


def test_an_error_of_cuda_is_sticky_and_a_defect_stays_a_defect(backend: CudaBackend, halves: LoadedFamily) -> None:
    backend.load(job(halves, "illegal"))
    with pytest.raises(StickyFault, match="verifying: CUDA error: an illegal memory access"):
        backend.verify()
    backend.load(job(halves, "raises"))
    with pytest.raises(RuntimeError, match="shapes disagree"):
        backend.verify()


@pytest.mark.parametrize(
    "algorithm, words",
    [
        ("absent", "no function 'absent'"),
        ("stranger", "passes 'z' to stranger"),
        ("sized", "checks must keep the compiled-in"),
    ],
)
def test_plans_that_name_what_is_not_there_are_the_familys_fault(
    backend: CudaBackend, halves: LoadedFamily, algorithm: str, words: str
) -> None:
    with pytest.raises(FamilyError, match=words):
        backend.load(job(halves, algorithm))
    backend.load(job(halves))
    assert backend.verify().status is Status.OK


def test_a_reference_is_computed_once_for_many_variants(
    backend: CudaBackend, halves: LoadedFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    module = halves.module("reference")
    real, computed = module.reference, []
    draw, drawn = module.inputs, []
    monkeypatch.setattr(module, "reference", lambda p, given: (computed.append(p.label), real(p, given))[1])
    monkeypatch.setattr(module, "inputs", lambda p, seed, **on: (drawn.append(seed), draw(p, seed, **on))[1])
    backend.prepare(halves.named_problems["default"])
    for algorithm in ("right", "nan", "right"):
        backend.load(job(halves, algorithm))
        backend.verify()
    assert computed == ["N100", "N1", "N7"]
    assert drawn[1] == drawn[2] != drawn[0], "the check problems come from another seed"


def test_memory_that_runs_out_is_told_in_one_sentence(
    backend: CudaBackend, halves: LoadedFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*arguments: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory. Tried to allocate 9 GiB.\nmore")

    monkeypatch.setattr(backend_module, "Case", full)
    with pytest.raises(EnvironmentFault, match=r"N100 of halves needs more memory than NVIDIA H200 has free: .* 9 GiB"):
        backend.prepare(halves.named_problems["default"])
    monkeypatch.undo()


def test_a_workspace_without_room_is_the_variants_fault(
    backend: CudaBackend, halves: LoadedFamily, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ktune.gpu import plans

    def full(*arguments: object) -> None:
        raise torch.cuda.OutOfMemoryError("CUDA out of memory.")

    monkeypatch.setattr(plans, "Region", full)
    with pytest.raises(LaunchFault, match="no room for the workspace"):
        backend.load(job(halves))


def test_the_environment_leaves_unknown_figures_empty(backend: CudaBackend) -> None:
    environment = backend.environment()
    assert environment.gpu_name == "NVIDIA H200" and environment.gpu_uuid == "GPU-1234"
    assert environment.torch == torch.__version__ and environment.sm_count == 132
    if not torch.cuda.is_available():
        assert environment.power_limit_w is None and environment.foreign_processes is None
