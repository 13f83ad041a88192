"""Races on a real GPU: variants of the smallest family in turn with peers, and with entrants that go wrong."""

from __future__ import annotations

import dataclasses
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from ktune.api import Plan, Scalar
from ktune.build.builder import Builder
from ktune.build.toolchain import find_toolchain
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Problem, Status
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.cuda_evaluator import CudaEvaluator
from ktune.gpu.protocol import Entrant, RaceResult

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.build,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: torch sees none"),
]

# Long enough (256 MB of traffic) for 3 % to be more than the timer resolves.
N = 1 << 25
PEERS = """
import importlib.util

import torch

from ktune.api import Peer

LAUNCHES = 8000


def looped(problem, inputs):
    x = inputs["x"][: 1 << 10]

    def call():
        y = 2.0 * inputs["x"]
        for _ in range(LAUNCHES):
            torch.mul(x, 2.0, out=y[: 1 << 10])
        return {"y": y}

    return call


def compiled(problem, inputs):
    double = torch.compile(lambda x: x * 2.0)
    return lambda: {"y": double(inputs["x"])}


def here():
    return None


PEERS = (
    Peer("eager", here, lambda problem, inputs: lambda: {"y": 2.0 * inputs["x"]}),
    Peer("wrong", here, lambda problem, inputs: lambda: {"y": 2.001 * inputs["x"]}),
    Peer("looped", here, looped),
    Peer("compiled", lambda: None if importlib.util.find_spec("triton") else "pip install triton", compiled),
    Peer("absent", lambda: "pip install absent", compiled),
)
"""


@pytest.fixture(scope="module")
def toy(families: Path, tmp_path_factory: pytest.TempPathFactory) -> LoadedFamily:
    folder = tmp_path_factory.mktemp("family") / "toy"
    shutil.copytree(families / "toy", folder)
    (folder / "peers.py").write_text(PEERS)
    return load_family(folder)


@pytest.fixture(scope="module")
def problem(toy: LoadedFamily) -> Problem:
    return toy.family.problem(N=N)


@pytest.fixture(scope="module")
def enter(toy: LoadedFamily, problem: Problem, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable]:
    """enter(name, block_size=...) -> Entrant, built"""
    with Builder(toy, find_toolchain(read_settings()), tmp_path_factory.mktemp("cache")) as builder:

        def make(name: str, **values: object) -> Entrant:
            variant = make_variant(toy.family, Space(toy.family, [problem]).complete(values), problem)
            (built,) = builder.build([variant])
            assert built.status is Status.OK, built.detail
            return Entrant(name, variant, str(built.cubin))

        yield make


@pytest.fixture(scope="module")
def backend(toy: LoadedFamily, problem: Problem) -> Iterator[object]:
    from ktune.gpu.backend import cuda_backend

    made = cuda_backend(str(toy.folder), "")
    made.prepare(problem)
    yield made
    made.close()


def peer(name: str) -> Entrant:
    return Entrant(name, peer=name)


def race(backend, problem: Problem, *entrants: Entrant, seed: int = 0) -> dict[str, RaceResult]:
    results = backend.race(problem, entrants, seed, lambda step, name: None)
    assert [r.name for r in results] == [e.name for e in entrants]
    return {r.name: r for r in results}


@pytest.mark.timed
def test_the_same_variant_twice_differs_by_less_than_3_per_cent_cold_and_hot(backend, problem, enter) -> None:
    found = race(backend, problem, enter("a"), enter("other", block_size=256), enter("b"))
    assert {r.status for r in found.values()} == {Status.OK}, found
    for regime in ("cold", "hot"):
        one, other = (getattr(found[name], regime) for name in "ab")
        assert abs(one.median_us - other.median_us) <= 0.03 * one.median_us, (regime, one, other)
        assert len(one.samples_us) >= 30 and "host-bound" not in one.method
    assert found["a"].cold.sm_clock_mhz


@pytest.mark.timed
def test_a_race_reads_what_a_measurement_of_one_variant_alone_reads(backend, problem, enter) -> None:
    from ktune.core.model import Effort
    from ktune.gpu.protocol import Job

    entrant = enter("a")
    raced = race(backend, problem, entrant, enter("b", block_size=64))["a"]
    backend.load(Job(0, entrant.variant, problem, entrant.cubin, Effort.FULL))
    assert backend.verify().status is Status.OK
    alone = backend.time()
    backend.unload()
    assert abs(raced.cold.median_us - alone.cold.median_us) <= 0.05 * alone.cold.median_us


def test_a_wrong_entrant_is_timed_and_says_wrong_and_the_outputs_of_the_others_stay_right(
    backend, toy, problem, enter, monkeypatch: pytest.MonkeyPatch
) -> None:
    entrants = [enter("right"), enter("wrong", fast_math=True), enter("right too", items=2), peer("eager")]
    real = toy.family.plan

    def plan(configuration: Configuration, given: Problem) -> Plan:
        launch = real(configuration, given).launches[0]
        short = ("x", "y", Scalar(given["N"] - 1, "int64")) if configuration["fast_math"] else launch.arguments
        return Plan((dataclasses.replace(launch, arguments=short),))

    with monkeypatch.context() as patch:
        patch.setitem(toy.family.__dict__, "plan", plan)
        found = race(backend, problem, *entrants)
    assert found["wrong"].status is Status.WRONG and f"y[{N - 1}]" in found["wrong"].detail
    assert found["wrong"].cold is not None and found["wrong"].hot is not None
    for name in ("right", "right too", "eager"):
        assert found[name].status is Status.OK and found[name].accuracy.worst_ratio == 0.0, found[name]


def test_peers_are_checked_and_timed_on_the_same_inputs(backend, problem, enter) -> None:
    found = race(backend, problem, enter("variant"), peer("eager"), peer("wrong"), peer("absent"))
    assert found["eager"].status is found["variant"].status is Status.OK
    # both move 256 MB, by kernels of unlike quality: only a mistake in the timing sets them an order apart
    assert 0.1 < found["eager"].cold.median_us / found["variant"].cold.median_us < 10.0
    assert found["wrong"].status is Status.WRONG and found["wrong"].cold is not None
    assert found["absent"] == RaceResult("absent", Status.LAUNCH_FAILED, "not installed: pip install absent")


@pytest.mark.timed
def test_a_peer_of_thousands_of_launches_is_timed_with_its_gaps_and_says_host_bound(backend, problem, enter) -> None:
    found = race(backend, problem, enter("variant"), peer("looped"))
    looped = found["looped"]
    assert looped.status is Status.OK and "host-bound" in looped.cold.method
    # no host launches 8000 kernels in less than 1.5 us each
    assert looped.cold.median_us > 12_000.0
    assert "host-bound" not in found["variant"].cold.method


@pytest.mark.timed
@pytest.mark.skipif(importlib.util.find_spec("triton") is None, reason="torch.compile needs triton")
def test_a_compiled_peer_is_compiled_before_it_is_timed(backend, problem, enter) -> None:
    found = race(backend, problem, peer("compiled"), enter("variant"))
    compiled = found["compiled"]
    assert compiled.status is Status.OK, compiled
    assert compiled.cold.samples_us[0] < 10.0 * compiled.cold.median_us


@pytest.fixture
def bad_evaluator(families: Path, tmp_path: Path) -> Iterator[CudaEvaluator]:
    loaded = load_family(families / "bad")
    with Builder(loaded, find_toolchain(read_settings()), tmp_path / "cache") as builder:
        evaluator = CudaEvaluator(
            loaded, builder, log_dir=tmp_path / "logs", step_deadlines_s={"verify": 8.0, "time": 8.0}
        )
        yield evaluator
        evaluator.close()


@pytest.mark.timeout(600)
def test_entrants_that_spoil_the_process_are_blamed_and_the_rest_race_in_a_fresh_one(
    bad_evaluator: CudaEvaluator, families: Path
) -> None:
    family = load_family(families / "bad").family
    problem = family.problem(N=1 << 20)

    def entrant(behaviour: str, name: str = "", **values: int) -> Entrant:
        variant = make_variant(family, Configuration((("behaviour", behaviour), *values.items())), problem)
        return Entrant(name or behaviour, variant, bad_evaluator.cubin_of(variant))

    entrants = [
        entrant("good", "a", block_size=128), entrant("illegal_address"), entrant("zeros"), entrant("changes_input"),
        entrant("writes_past_end"), entrant("sometimes_right"), entrant("too_much_shared_memory"),
        entrant("endless_loop"), entrant("good", "b", block_size=256),
    ]  # fmt: skip
    results = bad_evaluator.race(problem, entrants, fresh=True)
    found = {r.name: r for r in results}
    assert {name: r.status for name, r in found.items()} == {
        "a": Status.OK,
        "illegal_address": Status.CRASHED,
        "zeros": Status.WRONG,
        "changes_input": Status.WRONG,
        "writes_past_end": Status.WRONG,
        "sometimes_right": Status.UNSTABLE,
        "too_much_shared_memory": Status.LAUNCH_FAILED,
        "endless_loop": Status.TIMED_OUT,
        "b": Status.OK,
    }, found
    assert [name for name, r in found.items() if r.cold is None] == [
        "illegal_address", "changes_input", "writes_past_end", "too_much_shared_memory", "endless_loop"
    ]  # fmt: skip
