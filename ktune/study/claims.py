"""Claims: which process is measuring what, so that several searches can share one study."""

from __future__ import annotations

import json
import os
import socket
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum

from sqlalchemy import (
    Connection,
    Integer,
    String,
    and_,
    bindparam,
    case,
    delete,
    false,
    func,
    insert,
    select,
    union_all,
)

from ktune.core.model import Effort
from ktune.core.processes import is_running
from ktune.study.tables import EXTRA_TRIALS, claims, measurements, studies

CLAIM_S = 1800.0


@dataclass(frozen=True)
class Owner:
    """One process's hold on one study."""

    gpu_name: str
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    host: str = field(default_factory=socket.gethostname)
    pid: int = field(default_factory=os.getpid)


@dataclass(frozen=True)
class Claim:
    """The right to measure one configuration. `trial` is its number in the study."""

    id: int
    trial: int


class Refused(Enum):
    """Why there is no claim: the configuration is measured or being measured, or the study has all its trials."""

    TAKEN = "taken"
    FULL = "full"


def make_claim(
    connection: Connection,
    study_id: int,
    problem_label: str,
    configuration: str,
    effort: Effort,
    owner: Owner,
    total: int | None,
    trial: int | None,
    hold_s: float,
) -> Claim | Refused:
    """See `Ledger.claim`. Part of one write transaction."""
    if connection.dialect.name != "sqlite":
        # Serialise here, on the study's row; SQLite's one writer holds its lock already.
        connection.execute(select(studies.c.id).where(studies.c.id == study_id).with_for_update())
    _expire(connection, study_id, owner.host)
    this = {"study": study_id, "configuration": configuration, "effort": effort.value}
    if connection.execute(_CLAIMED if trial is not None else _TAKEN, this).first():
        return Refused.TAKEN
    if trial is None:
        numbers = connection.execute(_NUMBERS, {"study": study_id}).one()
        if total is not None and numbers.started >= total and numbers.started - _extra(connection, study_id) >= total:
            return Refused.FULL
        trial = 0 if numbers.last is None else numbers.last + 1
    values = {
        "study_id": study_id,
        "trial": trial,
        "configuration_digest": configuration,
        "problem_label": problem_label,
        "effort": effort.value,
        "owner": owner.token,
        "host": owner.host,
        "pid": owner.pid,
        "gpu_name": owner.gpu_name,
        "deadline_s": time.time() + hold_s,
    }
    key = connection.execute(insert(claims).values(values)).inserted_primary_key
    assert key is not None
    return Claim(int(key[0]), trial)


def release_claims(connection: Connection, ids: Sequence[int]) -> None:
    for claim_id in ids:
        connection.execute(_RELEASE, {"claim": claim_id})


def _extra(connection: Connection, study_id: int) -> int:
    """How many of the trials that were started don't count."""
    meta = connection.execute(select(studies.c.meta).where(studies.c.id == study_id)).scalar_one()
    return len(json.loads(meta).get(EXTRA_TRIALS, []))


def _expire(connection: Connection, study_id: int, host: str) -> None:
    """Drop claims past their deadline, and those of processes of this host that are gone."""
    rows = connection.execute(_HELD, {"study": study_id}).all()
    now = time.time()
    own = os.getpid()
    gone = {pid for pid in {r.pid for r in rows if r.host == host and r.pid != own} if not is_running(pid)}
    release_claims(connection, [r.id for r in rows if r.deadline_s < now or (r.host == host and r.pid in gone)])


# Built once: building a statement costs as much as running it.
_STUDY = bindparam("study", type_=Integer)
_CONFIGURATION = bindparam("configuration", type_=String)
_EFFORT = bindparam("effort", type_=String)
_RELEASE = delete(claims).where(claims.c.id == bindparam("claim"))
_HELD = select(claims.c.id, claims.c.host, claims.c.pid, claims.c.deadline_s).where(claims.c.study_id == _STUDY)
_CLAIMED = select(claims.c.id).where(
    claims.c.study_id == _STUDY, claims.c.configuration_digest == _CONFIGURATION, claims.c.effort == _EFFORT
)
_TAKEN = _CLAIMED.union_all(
    select(measurements.c.id).where(
        measurements.c.study_id == _STUDY,
        measurements.c.configuration_digest == _CONFIGURATION,
        measurements.c.effort == _EFFORT,
    )
)


_GIVEN = union_all(
    select(measurements.c.trial, measurements.c.effort, measurements.c.taken_over).where(
        measurements.c.study_id == _STUDY
    ),
    select(claims.c.trial, claims.c.effort, false()).where(claims.c.study_id == _STUDY),
).subquery()
_OWN = case((and_(_GIVEN.c.effort == Effort.SEARCH.value, _GIVEN.c.taken_over.is_(False)), _GIVEN.c.trial))
# started: the trials that the study has measured or claimed itself; one claimed for another attempt counts once.
_NUMBERS = select(func.count(_OWN.distinct()).label("started"), func.max(_GIVEN.c.trial).label("last"))
