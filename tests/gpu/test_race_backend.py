"""A race on the backend with torch operations on the CPU in the place of kernels, against peers of the family."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from ktune.core.errors import FamilyError, UsageError
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Status
from ktune.core.variant import make_variant
from ktune.gpu import backend as backend_module
from ktune.gpu.backend import CudaBackend
from ktune.gpu.protocol import Entrant, RaceResult, StickyFault
from ktune.gpu.timing import Pace, Reading

FAMILY = """
from ktune.api import *

HOWS = (
    "right", "again", "nan", "tail", "rounds", "spoils", "illegal", "varies", "late_nan", "late_spoil", "absent",
    "signed",
)
family = Family(
    name="halves", summary="y = 2 x by way of h = x / 2",
    sizes=(Size("N", "elements"),), problems={"default": {"N": 100}},
    parameters=(Parameter("algorithm", HOWS, "right", "how"),),
    rules=(), source=lambda c: "none.cu", inputs=lambda p: (Tensor("x", (p["N"],)),),
    outputs=lambda p: (Tensor("y", (p["N"],)),),
    plan=lambda c, p: Plan(
        (TorchOperation("halve", ("x", "h")), TorchOperation(c["algorithm"], ("h", "y", "x"))),
        workspace=(Tensor("h", (p["N"],)),)),
    checks=lambda c, p: (family.problem(N=1), family.problem(N=7)), kinds=lambda p: {"uniform": 1.0},
    cost=lambda p: Cost(4 * p["N"], 4 * p["N"], p["N"]), tolerance=Tolerance(1e-3, 1e-3, 1e-3, "exact"),
)
"""
OPERATIONS = """
import torch

# of the measured problem alone: verification makes 2
runs = 0

def halve(x, h): torch.mul(x, 0.5, out=h)
def right(h, y, x): torch.mul(h, 4.0, out=y)
def again(h, y, x): right(h, y, x)
def nan(h, y, x): y.fill_(float("nan"))
def signed(h, y, x): torch.mul(h, 4.0 if len(y) == 1 or (x < 0).any() else 5.0, out=y)
def rounds(h, y, x): torch.mul(h, 4.0 + 1e-4, out=y)
def illegal(h, y, x): raise RuntimeError("CUDA error: an illegal memory access was encountered")

def tail(h, y, x): y[:len(y) // 2 * 2] = 4.0 * h[:len(y) // 2 * 2]

def spoils(h, y, x):
    right(h, y, x)
    x[0] += 1.0

def count(y):
    global runs
    runs += len(y) == 100
    return runs > 2

def varies(h, y, x):
    right(h, y, x)
    if count(y): y[3] *= 1.0 + 1e-6

def late_nan(h, y, x):
    right(h, y, x)
    if count(y): y[3] = float("nan")

def late_spoil(h, y, x):
    right(h, y, x)
    if count(y): x[0] += 1.0
"""
REFERENCE = """
import torch

def inputs(problem, seed, kind="normal", device="cpu"):
    draw = torch.rand if kind == "uniform" else torch.randn
    return {"x": draw(problem["N"], generator=torch.Generator().manual_seed(seed)).to(device)}

def reference(problem, inputs): return {"y": 2.0 * inputs["x"].double()}
def bound(problem, inputs): return {"y": 1e-5 * inputs["x"].double().abs()}
"""
PEERS = """
import torch
from ktune.api import Peer

def fails(problem, inputs): raise ImportError("half of the library is gone")
def raising(error):
    def call(): raise error
    return lambda problem, inputs: call

def spoiling(problem, inputs):
    def call():
        inputs["x"].zero_()
        return {"y": inputs["x"]}
    return call

def here(): return None

PEERS = (
    Peer("double", here, lambda p, i: lambda: {"y": i["x"] + i["x"]}),
    Peer("float64", here, lambda p, i: lambda: {"y": 2.0 * i["x"].double()}),
    Peer("bf16", here, lambda p, i: lambda: {"y": (2.0 * i["x"].bfloat16()).float()}),
    Peer("varies", here, lambda p, i: lambda: {"y": 2.0 * i["x"] * (1.0 + 1e-6 * torch.rand(1))}),
    Peer("flat", here, lambda p, i: lambda: {"y": (2.0 * i["x"])[None]}),
    Peer("other name", here, lambda p, i: lambda: {"z": 2.0 * i["x"]}),
    Peer("no dict", here, lambda p, i: lambda: 2.0 * i["x"]),
    Peer("absent", lambda: "pip install absent", fails),
    Peer("half there", here, fails),
    Peer("out of memory", here, raising(torch.cuda.OutOfMemoryError("CUDA out of memory. Tried 9 GiB.\\nmore"))),
    Peer("illegal", here, raising(RuntimeError("CUDA error: an illegal memory access was encountered"))),
    Peer("spoils", here, spoiling),
)
"""


class InstantTimer:
    """Runs the plan once a sample and says that it took 50 us."""

    def __init__(self, device: object, sensor: object) -> None:
        self.bound: list[Pace] = []

    def bind(self, run: Callable[[], None], pace: Pace | None = None) -> None:
        self.run = run

    def cold(self, samples: int) -> Reading:
        for _ in range(samples):
            self.run()
        return Reading((50.0,) * samples, 1980)

    def hot(self, samples: int, launches: int) -> Reading:
        return self.cold(samples)

    def method(self, regime: str, launches: int) -> str:
        return "instant"


@pytest.fixture
def halves(tmp_path: Path) -> LoadedFamily:
    texts = {"family": FAMILY, "operations": OPERATIONS, "reference": REFERENCE, "peers": PEERS}
    for name, text in texts.items():
        (tmp_path / f"{name}.py").write_text(text)
    return load_family(tmp_path)


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


@pytest.fixture
def race(backend: CudaBackend, halves: LoadedFamily) -> Callable[..., dict[str, RaceResult]]:
    """race("right", "peer double", ...) -> {name: result}; a name is an algorithm, or a peer's after `peer `."""
    problem = halves.named_problems["default"]

    def entrant(name: str) -> Entrant:
        if name.startswith("peer "):
            return Entrant(name, peer=name.removeprefix("peer "))
        return Entrant(name, make_variant(halves.family, Configuration((("algorithm", name),)), problem))

    def run(*names: str, steps: list[tuple[str, str]] | None = None) -> dict[str, RaceResult]:
        kept = steps if steps is not None else []
        backend.prepare(problem)
        results = backend.race(problem, [entrant(name) for name in names], 0, lambda *step: kept.append(step))
        assert [r.name for r in results] == list(names)
        return {r.name: r for r in results}

    return run


def test_variants_and_peers_share_inputs_and_outputs_and_are_all_right(race) -> None:
    steps: list[tuple[str, str]] = []
    found = race("right", "peer double", "again", "peer float64", steps=steps)
    for result in found.values():
        assert result.status is Status.OK and result.detail == "", result
        assert result.cold is not None and result.hot is not None and len(result.cold.samples_us) == 30
        assert result.accuracy is not None and result.accuracy.bound_ratio is not None
        assert result.accuracy.bound_ratio <= 1.0
    assert steps[:4] == [("load", "right"), ("compile", "peer double"), ("load", "again"), ("compile", "peer float64")]
    assert steps[4:8] == [
        ("verify", "right"),
        ("compile", "peer double"),
        ("verify", "peer double"),
        ("verify", "again"),
    ]
    assert all(name in found for _, name in steps)


def test_wrong_entrants_are_timed_and_say_where_they_are_wrong(race) -> None:
    found = race("nan", "right", "tail", "rounds", "peer bf16")
    assert {name: r.status for name, r in found.items() if r.status is not Status.OK} == dict.fromkeys(
        ("nan", "tail", "rounds", "peer bf16"), Status.WRONG
    )
    assert all(r.cold is not None for r in found.values())
    assert found["tail"].accuracy is not None and found["tail"].accuracy.check == "N1"
    assert "componentwise bound" in found["rounds"].detail, "within the tolerance, and beyond the bound"
    assert found["peer bf16"].accuracy is not None and found["peer bf16"].accuracy.check == "N100"


def test_an_entrant_that_changes_an_input_is_not_timed_and_spoils_nobody_else(race) -> None:
    found = race("spoils", "right", "peer spoils", "peer double", "again")
    for name in ("spoils", "peer spoils"):
        assert found[name].status is Status.WRONG and found[name].cold is None
        assert "input x was changed" in found[name].detail
    assert [found[name].status for name in ("right", "peer double", "again")] == [Status.OK] * 3


def test_outputs_of_timed_launches_that_vary_within_the_tolerance_make_a_variant_unstable_and_no_peer(race) -> None:
    found = race("varies", "right", "peer varies")
    assert found["varies"].status is Status.UNSTABLE and found["varies"].cold is not None
    assert "the timed and the verified run differ in y" in found["varies"].detail
    assert found["peer varies"].status is found["right"].status is Status.OK


def test_wrong_outputs_of_timed_launches_are_found_out(race) -> None:
    found = race("late_nan", "right")
    assert found["late_nan"].status is Status.UNSTABLE
    assert found["late_nan"].detail.startswith("right when verified, not after the timed launches: y[3] is the first")
    assert found["right"].status is Status.OK


def test_damage_done_while_timed_is_put_down_to_the_one_who_did_it(race) -> None:
    found = race("right", "late_spoil", "again", "peer double")
    assert found["late_spoil"].status is Status.WRONG and found["late_spoil"].cold is None
    assert "input x was changed, while timed" in found["late_spoil"].detail
    assert [found[name].status for name in ("right", "again", "peer double")] == [Status.OK] * 3


@pytest.mark.parametrize(
    "peer, words",
    [
        ("flat", "returned y of shape (1, 100), the problem's is (100,)"),
        ("other name", "returned no tensor 'y'"),
        ("no dict", "returned no tensor 'y'"),
    ],
)
def test_a_peer_that_returns_something_else_is_wrong(race, peer: str, words: str) -> None:
    found = race(f"peer {peer}", "right")
    assert found[f"peer {peer}"].status is Status.WRONG and found[f"peer {peer}"].detail == words
    assert found["right"].status is Status.OK


@pytest.mark.parametrize(
    "peer, words",
    [
        ("absent", "not installed: pip install absent"),
        ("half there", "ImportError: half of the library is gone"),
        ("out of memory", "OutOfMemoryError: CUDA out of memory. Tried 9 GiB."),
    ],
)
def test_a_peer_that_cannot_run_has_failed_and_the_others_race(race, peer: str, words: str) -> None:
    found = race("right", f"peer {peer}")
    assert found[f"peer {peer}"] == RaceResult(f"peer {peer}", Status.LAUNCH_FAILED, words)
    assert found["right"].status is Status.OK


@pytest.mark.parametrize("name", ["illegal", "peer illegal"])
def test_an_illegal_access_is_sticky_whoever_makes_it_and_its_step_was_announced(race, name: str) -> None:
    steps: list[tuple[str, str]] = []
    with pytest.raises(StickyFault, match="an illegal memory access"):
        race("right", name, "again", steps=steps)
    assert steps[-1] == ("compile" if name.startswith("peer") else "verify", name)


def test_an_unknown_peer_is_refused_with_the_names_that_there_are(race) -> None:
    with pytest.raises(UsageError, match=r"halves has no peer 'thrice'; its peers.py names in PEERS: double, float64"):
        race("right", "peer thrice")


def test_a_variant_whose_operation_is_absent_is_the_familys_fault(race) -> None:
    with pytest.raises(FamilyError, match="no function 'absent'"):
        race("absent")


def test_a_racing_variant_must_be_right_for_every_kind_of_inputs(race) -> None:
    found = race("right", "signed")
    assert found["right"].status is Status.OK
    assert found["signed"].status is Status.WRONG and "in check N7, inputs uniform" in found["signed"].detail


def test_variants_are_measured_one_by_one_after_a_race(backend: CudaBackend, halves: LoadedFamily, race) -> None:
    from ktune.gpu.protocol import Job

    race("right", "nan")
    problem = halves.named_problems["default"]
    variant = make_variant(halves.family, Configuration((("algorithm", "right"),)), problem)
    backend.load(Job(0, variant, problem, None))
    assert backend.verify().status is Status.OK and backend.time().status is Status.OK
    assert backend.recheck().status is Status.OK
