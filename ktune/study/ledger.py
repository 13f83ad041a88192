"""The ledger: studies, their measurements, and claims on what is being measured, in one database."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Row, bindparam, delete, insert, select, update

from ktune.core.identity import configuration_digest, digest
from ktune.core.model import Effort, Measurement, Problem, Source
from ktune.study import tables
from ktune.study.claims import CLAIM_S, Claim, Owner, Refused, make_claim, release_claims
from ktune.study.codec import (
    FORMAT,
    check_format,
    measurement_from_text,
    measurement_to_text,
    problem_from_json,
    problem_to_json,
)
from ktune.study.database import LOCK_WAIT_S, Database


@dataclass(frozen=True)
class StudyRecord:
    """One row of `studies`: what was searched, where. `id` is 0 before it is stored."""

    name: str
    family: str
    problem: Problem
    space_digest: str
    gpu_name: str
    source: Source
    meta: Mapping[str, Any] = field(default_factory=dict)
    created_at: str = ""
    opened_at: str = ""
    id: int = 0


@dataclass(frozen=True)
class Entry:
    """One row of `measurements`. `taken_over` ones were made by an earlier study of the same ledger."""

    configuration_id: str
    build_key: str
    measurement: Measurement
    taken_over: bool = False
    id: int = 0


class Ledger:
    """Reads and writes one ledger. Methods that write return once the rows are on disk.

    name: limits `studies` to those of one name, where many studies share a database.
    """

    def __init__(
        self,
        target: Path | str,
        *,
        name: str | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
        read_only: bool = False,
    ) -> None:
        self._database = Database(target, lock_wait_s=lock_wait_s, read_only=read_only)
        self._name = name
        try:
            self._database.check()
            if not read_only:
                self._database.write(tables.metadata.create_all)
            self._database.read(self._check_formats)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        self._database.close()

    def studies(self) -> list[StudyRecord]:
        """Every study, the one opened last at the end."""
        return self._database.read(self._read_studies)

    def add_study(self, record: StudyRecord, seen: Sequence[int] = ()) -> StudyRecord:
        """Store a new study, and return it with its id and times.

        seen: the ids known to the caller; a study of this space that another process added since is returned instead.
        """
        now = timestamp()
        values = {
            "name": record.name,
            "family": record.family,
            "problem": json.dumps(problem_to_json(record.problem)),
            "problem_label": record.problem.label,
            "space_digest": record.space_digest,
            "gpu_name": record.gpu_name,
            "source": record.source.value,
            "format": FORMAT,
            "created_at": now,
            "opened_at": now,
            "meta": json.dumps(dict(record.meta)),
        }

        def work(connection: Connection) -> StudyRecord:
            for other in self._read_studies(connection):
                if other.id not in seen and other.space_digest == record.space_digest:
                    return other
            key = connection.execute(insert(tables.studies).values(values)).inserted_primary_key
            return replace(record, id=_new_id(key), created_at=now, opened_at=now)

        return self._database.write(work)

    def touch(self, study_id: int) -> None:
        """Mark a study as the one opened last."""
        statement = update(tables.studies).where(tables.studies.c.id == study_id).values(opened_at=timestamp())
        self._database.write(lambda connection: connection.execute(statement))

    def change_meta(self, study_id: int, change: Callable[[dict[str, Any]], None]) -> dict[str, Any]:
        """Let `change` alter what a study remembers, as it is on disk now; the meta that results."""

        def work(connection: Connection) -> dict[str, Any]:
            row = connection.execute(
                select(tables.studies.c.meta).where(tables.studies.c.id == study_id).with_for_update()
            ).one()
            meta: dict[str, Any] = json.loads(row.meta)
            change(meta)
            statement = update(tables.studies).where(tables.studies.c.id == study_id).values(meta=json.dumps(meta))
            connection.execute(statement)
            return meta

        return self._database.write(work)

    def meta(self, study_id: int) -> dict[str, Any]:
        """What a study remembers, as it is on disk now."""
        statement = select(tables.studies.c.meta).where(tables.studies.c.id == study_id)
        text = self._database.read(lambda connection: connection.execute(statement).scalar_one())
        found: dict[str, Any] = json.loads(text)
        return found

    def record(self, study_id: int, entries: Sequence[Entry], done: Sequence[Claim] = ()) -> list[Entry]:
        """Store results and give back the claims `done`, in one transaction. A result already there is not doubled."""

        def work(connection: Connection) -> list[Entry]:
            stored = [_insert(connection, study_id, entry) for entry in entries]
            release_claims(connection, [claim.id for claim in done])
            return stored

        return self._database.write(work)

    def entries(self, study_id: int, after: int = 0) -> list[Entry]:
        """The results of a study in the order recorded; only those with an id above `after`."""
        table = tables.measurements
        columns = (table.c.id, table.c.configuration_id, table.c.build_key, table.c.taken_over, table.c.payload)
        statement = select(*columns).where(table.c.study_id == study_id, table.c.id > after).order_by(table.c.id)
        rows = self._database.read(lambda connection: connection.execute(statement).all())
        return [
            Entry(r.configuration_id, r.build_key, measurement_from_text(r.payload), r.taken_over, r.id) for r in rows
        ]

    def entry_ids(self, study_id: int, after: int = 0) -> list[int]:
        """The ids of a study's results above `after`, ascending."""
        given = {"study": study_id, "after": after}
        return self._database.read(lambda connection: list(connection.execute(_IDS, given).scalars()))

    def claim(
        self,
        study: StudyRecord,
        configuration: str,
        effort: Effort,
        owner: Owner,
        *,
        total: int | None = None,
        trial: int | None = None,
        hold_s: float = CLAIM_S,
    ) -> Claim | Refused:
        """The right to measure a configuration (by digest), with the number of its trial.

        trial: the number that it has already; None for the study's next one.
        Refused.TAKEN if it is measured or claimed, Refused.FULL if the study has `total` trials already.
        """
        return self._database.write(
            lambda connection: make_claim(
                connection, study.id, study.problem.label, configuration, effort, owner, total, trial, hold_s
            )
        )

    def release(self, owner: Owner, wait_s: float | None = None) -> None:
        """Give back every claim of this owner."""
        statement = delete(tables.claims).where(tables.claims.c.owner == owner.token)
        self._database.write(lambda connection: connection.execute(statement), wait_s)

    def _read_studies(self, connection: Connection) -> list[StudyRecord]:
        statement = select(tables.studies).order_by(tables.studies.c.opened_at, tables.studies.c.id)
        if self._name is not None:
            statement = statement.where(tables.studies.c.name == self._name)
        return [_study(row) for row in connection.execute(statement)]

    def _check_formats(self, connection: Connection) -> None:
        for found in connection.execute(select(tables.studies.c.format).distinct()).scalars():
            check_format({"format": found}, "this ledger")


def timestamp() -> str:
    """Now, UTC, to the microsecond: sorts as text."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def _study(row: Row[Any]) -> StudyRecord:
    return StudyRecord(
        name=row.name,
        family=row.family,
        problem=problem_from_json(json.loads(row.problem)),
        space_digest=row.space_digest,
        gpu_name=row.gpu_name,
        source=Source(row.source),
        meta=json.loads(row.meta),
        created_at=row.created_at,
        opened_at=row.opened_at,
        id=row.id,
    )


def _insert(connection: Connection, study_id: int, entry: Entry) -> Entry:
    """Store one result unless it is there; the entry with its id."""
    m = entry.measurement
    payload = measurement_to_text(m)
    payload_digest = digest([payload])
    found = connection.execute(_SAME, {"study": study_id, "payload": payload_digest}).scalar()
    if found is None:
        values = {
            "study_id": study_id,
            "trial": m.trial,
            "configuration_id": entry.configuration_id,
            "configuration_digest": configuration_digest(m.variant.configuration),
            "build_key": entry.build_key,
            "code_digest": m.build.code_digest if m.build else "",
            "problem_label": m.problem.label,
            "status": m.status.value,
            "effort": m.effort.value,
            "source": m.source.value,
            "gpu_uuid": m.gpu_uuid,
            "time_cold_median_us": m.cold.median_us if m.cold else None,
            "time_cold_ci_low_us": m.cold.ci_low_us if m.cold else None,
            "time_cold_ci_high_us": m.cold.ci_high_us if m.cold else None,
            "time_hot_median_us": m.hot.median_us if m.hot else None,
            "registers": m.build.registers if m.build else None,
            "taken_over": entry.taken_over,
            "finished_at": m.finished_at,
            "payload": payload,
            "payload_digest": payload_digest,
        }
        found = _new_id(connection.execute(_INSERT, values).inserted_primary_key)
    return Entry(entry.configuration_id, entry.build_key, m, entry.taken_over, found)


def _new_id(key: Any) -> int:
    return int(key[0])


# Built once: building a statement costs as much as running it.
_INSERT = insert(tables.measurements)
_SAME = select(tables.measurements.c.id).where(
    tables.measurements.c.study_id == bindparam("study"), tables.measurements.c.payload_digest == bindparam("payload")
)
_IDS = (
    select(tables.measurements.c.id)
    .where(tables.measurements.c.study_id == bindparam("study"), tables.measurements.c.id > bindparam("after"))
    .order_by(tables.measurements.c.id)
)
