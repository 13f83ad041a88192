"""Wrong edits of the shipped kernels are found by executing them on the CPU; the table says which are not, and why."""

from __future__ import annotations

import random

import pytest
from mutant_table import MUTANTS, Mutant
from mutant_trial import execute, mutated, try_mutant, variant_of

from ktune.core.loading import load_family
from ktune.cpu.compiler import ProgramStore
from ktune.cpu.source import host_source

SEED = 4
LEAST = 40
each_mutant = pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.id)


def one_of_each_kind() -> list[Mutant]:
    draw = random.Random(SEED)
    kinds = dict.fromkeys(mutant.kind for mutant in MUTANTS)
    return [draw.choice([m for m in MUTANTS if m.kind == kind and not m.survives]) for kind in kinds]


def one_of_each_place() -> list[Mutant]:
    """A mutant of each variant and of each of the problems and inputs that any mutant is tried with."""
    ordered = sorted(MUTANTS, key=lambda m: bool(m.far))
    return list({repr((variant_of(m), m.inputs, m.scaled, m.outliers)): m for m in ordered}.values())


def test_the_table_is_long_and_its_names_are_its_own() -> None:
    assert len(MUTANTS) >= LEAST and len({mutant.id for mutant in MUTANTS}) == len(MUTANTS)
    assert sum(bool(mutant.survives) for mutant in MUTANTS) <= len(MUTANTS) // 20
    assert all(bool(mutant.found_by) is not bool(mutant.survives) for mutant in MUTANTS)


@each_mutant
def test_an_edit_changes_one_place_of_a_kernel_that_is_there(mutant: Mutant, tmp_path: object) -> None:
    variant, _ = variant_of(mutant)
    assert host_source(mutated(mutant, tmp_path), variant) != host_source(load_family(mutant.family), variant)  # type: ignore[arg-type]


@pytest.mark.parametrize("mutant", one_of_each_kind(), ids=lambda mutant: mutant.id)
def test_a_drawn_mutant_of_each_kind_is_found(mutant: Mutant, programs: ProgramStore) -> None:
    trial = try_mutant(mutant, programs, (mutant.found_by,))
    assert trial.killed, f"{mutant.file}: {mutant.new!r} in place of {mutant.old!r} was not found"


@pytest.mark.slow
@each_mutant
def test_every_mutant_is_found_or_survives_for_its_reason(mutant: Mutant, programs: ProgramStore) -> None:
    trial = try_mutant(mutant, programs)
    assert trial.as_expected, trial.detail or "it was not found"


@pytest.mark.slow
@pytest.mark.parametrize("mutant", one_of_each_place(), ids=lambda mutant: f"as-{mutant.id}")
def test_the_kernels_themselves_are_clean_in_the_same_checks(mutant: Mutant, programs: ProgramStore) -> None:
    variant, _ = variant_of(mutant)
    by, found = execute(mutant, programs, host_source(load_family(mutant.family), variant))
    assert not by, found.detail
