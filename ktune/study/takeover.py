"""Which record a search goes on with, and which measurements of earlier ones still hold for it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ktune.api import Family
from ktune.core.errors import UsageError
from ktune.core.model import Effort, Measurement, Source, Status, Variant
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.study.ledger import Entry, Ledger, StudyRecord

CurrentKey = Callable[[Variant], str]

# In `meta` of a study: the digest of the recording that it replays.
RECORDING = "recording"


def choose_record(
    ledger: Ledger, wanted: StudyRecord, folder: Path, current_key: CurrentKey | None
) -> tuple[StudyRecord, str]:
    """The record to go on with and "", or a new one and why it began.

    An earlier record of the same space goes on, unless something it measured would now be built differently, or it
    replays another recording.
    """
    earlier = ledger.studies()
    for record in earlier:
        _refuse_another(record, wanted, folder)
    same = [r for r in earlier if r.space_digest == wanted.space_digest and _recording(r) == _recording(wanted)]
    for record in reversed(same):
        if all(holds(entry, current_key) for entry in ledger.entries(record.id)):
            return record, ""
    if earlier and _recording(earlier[-1]) != _recording(wanted):
        reason = "the recording changed since the last replay"
    elif same:
        reason = "the kernel's source, flags or compiler changed since the last search"
    else:
        reason = "the space changed since the last search" if earlier else "new"
    return ledger.add_study(wanted, [record.id for record in earlier]), reason


def take_over(ledger: Ledger, record: StudyRecord, family: Family, space: Space, current_key: CurrentKey | None) -> int:
    """Copy into `record` what other records of the ledger know about its space and that still holds; the trials."""
    mine = ledger.entries(record.id)
    known = {e.measurement.variant for e in mine}
    trial = 1 + max((e.measurement.trial for e in mine), default=-1)
    copies: list[Entry] = []
    taken: set[Variant] = set()
    for other in reversed(ledger.studies()):
        if other.id == record.id or _recording(other) != _recording(record):
            continue
        found: dict[Variant, dict[Effort, Entry]] = {}
        for entry in ledger.entries(other.id):
            m = entry.measurement
            if (
                m.variant not in known
                and m.variant not in taken
                and _fits(m, family, space)
                and holds(entry, current_key)
            ):
                found.setdefault(m.variant, {})[m.effort] = entry
        for variant, efforts in found.items():
            if Effort.SEARCH not in efforts:
                continue
            taken.add(variant)
            for entry in efforts.values():
                measurement = replace(entry.measurement, trial=trial)
                copies.append(Entry(entry.configuration_id, entry.build_key, measurement, taken_over=True))
            trial += 1
    if copies:
        ledger.record(record.id, copies)
    return len(taken)


def holds(entry: Entry, current_key: CurrentKey | None) -> bool:
    """Whether the variant would be built now as it was when it was measured. True where that can't be known."""
    return current_key is None or not entry.build_key or entry.build_key == current_key(entry.measurement.variant)


def _fits(m: Measurement, family: Family, space: Space) -> bool:
    """Whether a measurement answers for a point of the space. Crashes and time-outs are tried again instead."""
    if m.status in (Status.CRASHED, Status.TIMED_OUT) or m.variant.configuration not in space:
        return False
    return m.variant == make_variant(family, m.variant.configuration, m.problem, m.variant.target)


def _recording(record: StudyRecord) -> object:
    """The digest of the recording that a study replays; None where it replays none."""
    return record.meta.get(RECORDING)


def _refuse_another(found: StudyRecord, wanted: StudyRecord, folder: Path) -> None:
    """UsageError if the folder's study is of another family, problem, GPU model or source."""
    pairs = (
        ("family", found.family, wanted.family),
        ("problem", found.problem.label, wanted.problem.label),
        ("GPU", found.gpu_name, wanted.gpu_name),
        ("source", _sourced(found.source), _sourced(wanted.source)),
    )
    for what, has, wants in pairs:
        if has != wants:
            raise UsageError(
                f"the study in {folder} is of {what} {has}, not {wants}; "
                "give this search a name of its own with --study NAME, or leave --study out"
            )


def _sourced(source: Source) -> str:
    return f"{source.value} results"
