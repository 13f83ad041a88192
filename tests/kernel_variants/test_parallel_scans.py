"""The scans that are parallel over time, executed on the CPU: lengths around tiles and chunks, extreme inputs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import pytest

from ktune.core.errors import EnvironmentFault
from ktune.core.loading import load_family
from ktune.core.model import Configuration, Problem, Status
from ktune.core.settings import read_settings
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.cpu.compiler import Check, ProgramStore, find_compiler
from ktune.cpu.execute import Execution, Executor

LOADED = load_family("selective_scan")
FAMILY = LOADED.family
MULTIPROCESSORS = 132


def point(**given: Any) -> Configuration:
    """These values, and the defaults of the other parameters that exist beside them."""
    chosen: dict[str, Any] = {}
    for parameter in FAMILY.parameters:
        if all(chosen.get(name) in values for name, values in (parameter.when or {}).items()):
            chosen[parameter.name] = given.get(parameter.name, parameter.default)
    assert set(given) <= set(chosen)
    return Configuration(tuple(chosen.items()))


# Tiles of 32 steps (8 lanes of 4) and 128 (16 lanes in 2 warps, 4 steps each).
WARPS = point(algorithm="blockscan", channels=8, lane_channels=4, time_warps=1, items=4, vector_width=4, exp="ex2")
BLOCKS = point(algorithm="blockscan", channels=12, lane_channels=2, time_warps=2, items=4, states_at_once=2, stages=3)
# 4 chunks of whole tiles of 16 steps.
CHUNKS = point(algorithm="chunked", threads_per_pair=4, reduction="shared", tile_l=16, chunks=4, unroll=2, exp="ex2")
LENGTHS = {
    WARPS: (1, 2, 31, 32, 33, 64, 97),
    BLOCKS: (1, 2, 127, 128, 129, 257),
    # one chunk alone, empty last chunks, whole chunks, a last one of one step
    CHUNKS: (1, 2, 15, 16, 17, 33, 63, 64, 65, 128, 129, 193, 251),
}
SIZES = {WARPS: {"D": 12, "N": 16}, BLOCKS: {"D": 17, "N": 5}, CHUNKS: {"D": 36, "N": 16}}
NAMES = {WARPS: "warps", BLOCKS: "blocks", CHUNKS: "chunks"}

each_point = pytest.mark.parametrize("configuration", LENGTHS, ids=NAMES.get)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> ProgramStore:
    try:
        compiler = find_compiler(read_settings().path)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    return ProgramStore(compiler, tmp_path_factory.mktemp("parallel-scans"))


def problems(configuration: Configuration, lengths: tuple[int, ...], **options: int) -> list[Problem]:
    return [FAMILY.problem(B=2, L=length, **SIZES[configuration], **options) for length in lengths]


def execute(
    store: ProgramStore, configuration: Configuration, lengths: tuple[int, ...], check: Check, **options: int
) -> Execution:
    given = problems(configuration, lengths, **options)
    return Executor(LOADED, store).verify(make_variant(FAMILY, configuration, given[0]), given, (check,))


@each_point
def test_every_length_around_a_tile_or_chunk_is_right_under_every_schedule(
    configuration: Configuration, store: ProgramStore
) -> None:
    found = execute(store, configuration, LENGTHS[configuration], Check.PLAIN)
    assert found.status is Status.OK, found.detail


@each_point
def test_no_thread_races_with_another_and_none_waits_at_another_barrier(
    configuration: Configuration, store: ProgramStore
) -> None:
    found = execute(store, configuration, LENGTHS[configuration][-1:], Check.RACES)
    assert found.status is Status.OK, found.detail


@each_point
def test_options_are_taken_in_and_the_state_goes_from_call_to_call(
    configuration: Configuration, store: ProgramStore
) -> None:
    options = {"bias": 1, "softplus": 1, "gate": 1, "initial": 1, "final": 1}
    found = execute(store, configuration, LENGTHS[configuration][::3], Check.PLAIN, **options)
    assert found.status is Status.OK, found.detail


@each_point
def test_decays_that_underflow_and_inputs_of_any_scale_are_right(
    configuration: Configuration, store: ProgramStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    reference = LOADED.module("reference")
    made = reference.inputs
    for kind in set(reference.KINDS) - {"normal", "uniform"}:
        monkeypatch.setattr(reference, "inputs", partial(made, kind=kind))
        found = execute(store, configuration, LENGTHS[configuration][-1:], Check.PLAIN)
        assert found.accuracy is not None, (kind, found.detail)
        assert found.accuracy.normwise <= FAMILY.tolerance.normwise, kind
        # Beside sums of 1e4 an error of fp32 exceeds the absolute tolerance of elements that cancel out.
        assert found.status is Status.OK or kind == "large", (kind, found.detail)


def test_chunks_are_offered_only_where_few_blocks_would_run_and_each_chunk_has_two_tiles() -> None:
    narrowing = {"algorithm": ("chunked",), "unroll": (4,), "exp_ahead": (0,), "row_ahead": (1,), "min_blocks": (1,)}
    for name in ("mamba-2.8b", "mamba-1.4b-b8-l8192"):
        for found in Space(FAMILY, [LOADED.named_problems[name]], narrowing):
            assert found.integer("block_size") // found.integer("threads_per_pair") == 128
    long = Space(FAMILY, [LOADED.named_problems["long"]], narrowing)
    assert {found["chunks"] for found in long} == {2, 4, 8, 16, 32}
    short = LOADED.named_problems["mamba-130m-b1-l512"]
    for found in Space(FAMILY, [short], narrowing):
        assert found.integer("chunks") * 2 * found.integer("tile_l") <= short["L"]


def test_the_first_pass_leaves_out_the_last_chunk_and_its_states_are_workspace() -> None:
    problem = LOADED.named_problems["long"]
    first, second = FAMILY.plan(CHUNKS, problem).launches
    chunks = CHUNKS.integer("chunks")
    assert first.grid[0] * chunks == second.grid[0] * (chunks - 1)
    assert second.programmatic and not first.programmatic
    shapes = {tensor.name: tensor.shape for tensor in FAMILY.plan(CHUNKS, problem).workspace}
    assert shapes == {
        "chunk_states": (1, chunks - 1, problem["D"], problem["N"]),
        "chunk_sums": (1, chunks - 1, problem["D"]),
    }


def test_the_shipped_searches_of_many_shapes_cover_the_layers_of_mamba() -> None:
    import tomllib

    configs = Path(__file__).resolve().parents[2] / "configs"
    named = [
        name
        for batch in (1, 8)
        for name in tomllib.loads((configs / f"scan-batch{batch}.toml").read_text(encoding="utf-8"))["problem"]
    ]
    layers = {name for name in FAMILY.problems if name.startswith("mamba-") and "block" not in name}
    assert len(layers) == 5 * 2 * 3
    assert set(named) == {*layers, "record", "long"}
    assert len(named) == len(layers) + 3
