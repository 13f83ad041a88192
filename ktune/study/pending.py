"""Results that could not be written to the ledger wait in a file beside it, one JSON object a line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from ktune.core.errors import UsageError
from ktune.study.codec import FORMAT, check_format, measurement_from_json, measurement_to_json
from ktune.study.ledger import Entry, Ledger

PENDING_NAME = "pending.jsonl"


def save_pending(folder: Path, study_id: int, entries: Sequence[Entry]) -> Path:
    """Append results to the folder's file of pending ones, on disk before it returns."""
    path = folder / PENDING_NAME
    lines = "".join(json.dumps(_to_json(study_id, entry), allow_nan=False) + "\n" for entry in entries)
    with path.open("a", encoding="utf-8") as stream:
        stream.write(lines)
        stream.flush()
        os.fsync(stream.fileno())
    return path


def absorb_pending(folder: Path, ledger: Ledger) -> int:
    """Move pending results into the ledger; how many. A file goes once all of it is stored."""
    path = folder / PENDING_NAME
    if path.is_file():
        # Under another name nobody appends to it between the reading and the end.
        path.rename(folder / f"pending-{os.getpid()}.jsonl")
    return sum(_absorb(found, ledger) for found in sorted(folder.glob("pending-*.jsonl")))


def _absorb(path: Path, ledger: Ledger) -> int:
    known = {study.id for study in ledger.studies()}
    waiting = list(_read(path))
    for study_id, entry in waiting:
        if study_id not in known:
            raise UsageError(
                f"{path} holds results of a study that the ledger beside it does not know; "
                "put the ledger that belongs to it back, or move the file away"
            )
        ledger.record(study_id, [entry])
    path.unlink(missing_ok=True)
    return len(waiting)


def _to_json(study_id: int, entry: Entry) -> dict[str, object]:
    return {
        "format": FORMAT,
        "study_id": study_id,
        "configuration_id": entry.configuration_id,
        "build_key": entry.build_key,
        "measurement": measurement_to_json(entry.measurement),
    }


def _read(path: Path) -> Iterator[tuple[int, Entry]]:
    for line in path.read_text(encoding="utf-8").splitlines():
        try:
            data = json.loads(line)
        except ValueError:
            # The process was killed while it wrote this line: nobody was told that the result is safe.
            continue
        check_format(data, str(path))
        measurement = measurement_from_json(data["measurement"])
        yield data["study_id"], Entry(data["configuration_id"], data["build_key"], measurement)
