"""A study: one family, problem, GPU model and source, in one folder, with everything measured so far."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Any

from ktune.api import Family
from ktune.core.errors import EnvironmentFault, KtuneError, UsageError
from ktune.core.identity import configuration_digest, configuration_id
from ktune.core.model import Configuration, Effort, Measurement, Problem, Source, Status
from ktune.core.space import Space
from ktune.study.claims import Claim, Owner, Refused
from ktune.study.codec import configuration_from_json, configuration_to_json
from ktune.study.database import LOCK_WAIT_S, Locked
from ktune.study.finals import Finals, finals_from_json, finals_to_json
from ktune.study.ledger import Entry, Ledger, StudyRecord
from ktune.study.naming import is_writable, ledger_path, study_folder
from ktune.study.pending import PENDING_NAME, absorb_pending, save_pending
from ktune.study.ranking import Standing, eligible_time_us, latest, stand
from ktune.study.tables import EXTRA_TRIALS
from ktune.study.takeover import CurrentKey, choose_record, take_over

FINALS = "finals"


@dataclass(frozen=True)
class Opening:
    """How a study was opened. resumed: an earlier record goes on; otherwise `reason` says why a new one began.

    taken_over: measurements of earlier studies of the same ledger that still hold. absorbed: results that had
    waited in a file because the ledger was locked.
    """

    resumed: bool
    reason: str = ""
    taken_over: int = 0
    absorbed: int = 0


class Study:
    """Everything measured for one problem on one GPU model. Made by `open_or_create` and `open_existing`."""

    def __init__(
        self,
        folder: Path,
        ledger: Ledger,
        record: StudyRecord,
        opening: Opening,
        family: Family | None = None,
        current_key: CurrentKey | None = None,
    ) -> None:
        self.folder = folder
        self.ledger = ledger
        self.opening = opening
        self._record = record
        self._family = family
        self._current_key = current_key
        self._owner = Owner(record.gpu_name)
        self._claims: dict[tuple[int, Effort], Claim] = {}
        self._unsaved: list[Entry] = []
        self._locked_out = False
        self._entries = ledger.entries(record.id)
        # Up to here, results of other processes are known; their ids interleave with those recorded here.
        self._seen = max((e.id for e in self._entries), default=0)
        self._ids = {e.measurement.variant.configuration: e.configuration_id for e in self._entries}
        default = record.meta.get("default")
        self.default: Configuration | None = None if default is None else configuration_from_json(default)

    @classmethod
    def open_or_create(
        cls,
        results_dir: Path,
        family: Family,
        problem: Problem,
        space: Space,
        gpu_name: str,
        source: Source,
        name: str | None = None,
        *,
        current_key: CurrentKey | None = None,
        ledger_url: str | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
        meta: Mapping[str, Any] | None = None,
        family_folder: Path | None = None,
    ) -> Study:
        """The study of this problem on this GPU model, going on where it stopped, or a new one.

        name: the user's own, or a path to the folder. current_key: the build key that a variant would have now;
        measurements with another are not used. ledger_url: a SQLAlchemy URL instead of a file in the folder.
        meta: what else a new study should remember, as JSON can hold it.
        family_folder: where the family was loaded from, for commands that are given the study alone.
        Raises UsageError if the folder holds a study of another problem, GPU model or source, EnvironmentFault if it
        can't be written or its ledger is damaged; both before anything is measured.
        """
        folder = study_folder(results_dir, family.name, problem, gpu_name, name)
        _make_folder(folder)
        shared_name = folder.name if ledger_url else None
        ledger = Ledger(ledger_url or ledger_path(folder), name=shared_name, lock_wait_s=lock_wait_s)
        about = {
            "default": configuration_to_json(space.default),
            "narrowing": {k: list(v) for k, v in space.narrowing.items()},
            **(meta or {}),
            "family_folder": None if family_folder is None else str(family_folder),
        }
        wanted = StudyRecord(folder.name, family.name, problem, space.digest, gpu_name, source, about)
        try:
            absorbed = absorb_pending(folder, ledger)
            record, reason = choose_record(ledger, wanted, folder, current_key)
            taken_over = take_over(ledger, record, family, space, current_key)
            ledger.touch(record.id)
            opening = Opening(not reason, reason, taken_over, absorbed)
            return cls(folder, ledger, record, opening, family, current_key)
        except BaseException:
            ledger.close()
            raise

    @classmethod
    def open_existing(
        cls,
        path: Path,
        family: Family | None = None,
        *,
        ledger_url: str | None = None,
        lock_wait_s: float = LOCK_WAIT_S,
    ) -> Study:
        """The study opened last in a folder (or of a ledger file), for reading; with `family`, for recording too."""
        folder = path.parent if path.is_file() else path
        file = ledger_path(folder)
        if ledger_url is None and not file.is_file():
            raise UsageError(f"no study in {folder}: it holds no {file.name}; `ktune search` makes one")
        writable = ledger_url is not None or is_writable(folder)
        shared_name = folder.name if ledger_url else None
        ledger = Ledger(ledger_url or file, name=shared_name, lock_wait_s=lock_wait_s, read_only=not writable)
        try:
            absorbed = absorb_pending(folder, ledger) if writable else 0
            records = ledger.studies()
            if not records:
                raise UsageError(f"the ledger of {folder} holds no study yet; `ktune search` fills it")
            return cls(folder, ledger, records[-1], Opening(True, absorbed=absorbed), family)
        except BaseException:
            ledger.close()
            raise

    @property
    def name(self) -> str:
        return self._record.name

    @property
    def family(self) -> str:
        return self._record.family

    @property
    def problem(self) -> Problem:
        return self._record.problem

    @property
    def gpu_name(self) -> str:
        return self._record.gpu_name

    @property
    def source(self) -> Source:
        return self._record.source

    @property
    def space_digest(self) -> str:
        return self._record.space_digest

    @property
    def created_at(self) -> str:
        return self._record.created_at

    @property
    def meta(self) -> Mapping[str, Any]:
        """`default` (configuration), `narrowing`, what else the search that began the study gave, and its `finals`."""
        return self._record.meta

    def measurements(self) -> list[Measurement]:
        """The last measurement of each trial and effort, by trial, the search's before the full one."""
        last = {(e.measurement.trial, e.measurement.effort): e.measurement for e in self._entries}
        return sorted(last.values(), key=lambda m: (m.trial, m.effort is Effort.FULL))

    def record(self, m: Measurement, *, keep_claim: bool = False) -> None:
        """Store a measurement; it is on disk when this returns, and the claim on it given back.

        keep_claim: it is going to be measured once more. If the ledger stays locked, the measurement is put into a
        file beside it, which the next opening absorbs, and EnvironmentFault says so.
        """
        key = m.build.key if m.build else (self._current_key(m.variant) if self._current_key else "")
        self._unsaved.append(Entry(self.identify(m.variant.configuration), key, m))
        self._flush(() if keep_claim else (m,))

    def claim(
        self, configuration: Configuration, total: int | None = None, effort: Effort = Effort.SEARCH
    ) -> int | Refused:
        """The number of a new trial for this configuration, which then is this process's to measure.

        One that begins with the full effort has a number, and does not count among the study's trials.
        """
        claim = self.ledger.claim(self._record, configuration_digest(configuration), effort, self._owner, total=total)
        if isinstance(claim, Refused):
            return claim
        self._claims[claim.trial, effort] = claim
        return claim.trial

    def claim_extra(self, configuration: Configuration) -> int | Refused:
        """Like `claim`, of a short measurement that does not count among the study's trials."""
        trial = self.claim(configuration)
        if not isinstance(trial, Refused):
            self._change_meta(lambda meta: meta.setdefault(EXTRA_TRIALS, []).append(trial))
        return trial

    def settle(self, finals: Finals) -> Finals:
        """Remember the final, with the winner and the tied set that follow from it; every finalist is recorded."""
        standing = stand(self.measurements(), self.default, self.identify, finals)
        if standing is not None:
            winner, *tied = [self.identify(m.variant.configuration) for m in (standing.winner, *standing.tied)]
            finals = replace(finals, winner=winner, tied=tuple(tied))
        self._change_meta(lambda meta: meta.update({FINALS: finals_to_json(finals)}))
        return finals

    @property
    def finals(self) -> Finals | None:
        """The last final; None if the finalists have not raced."""
        found = self._record.meta.get(FINALS)
        return None if found is None else finals_from_json(found)

    def claim_full(self, m: Measurement) -> bool:
        """Whether the full measurement of a trial is this process's to make."""
        digest = configuration_digest(m.variant.configuration)
        claim = self.ledger.claim(self._record, digest, Effort.FULL, self._owner, trial=m.trial)
        if isinstance(claim, Refused):
            return False
        self._claims[claim.trial, Effort.FULL] = claim
        return True

    def release(self) -> None:
        """Save what an interruption left unsaved, and give every claim back."""
        self._flush(())
        if self._claims and not self._locked_out:
            self.ledger.release(self._owner)
            self._claims.clear()

    def refresh(self) -> list[Measurement]:
        """What other processes have recorded in this study since the last look."""
        ids = self.ledger.entry_ids(self._record.id, self._seen)
        if not ids:
            return []
        self._seen = ids[-1]
        foreign = set(ids) - {e.id for e in self._entries}
        if not foreign:
            return []
        fresh = [e for e in self.ledger.entries(self._record.id, min(foreign) - 1) if e.id in foreign]
        self._remember(fresh)
        self._record = replace(self._record, meta=self.ledger.meta(self._record.id))
        return [e.measurement for e in fresh]

    def standing(self) -> Standing | None:
        """The winner so far with those tied with it; None if nothing passed."""
        return stand(self.measurements(), self.default, self.identify, self.finals)

    def best(self) -> Measurement | None:
        """The winner so far; None if nothing passed."""
        standing = self.standing()
        return standing.winner if standing else None

    def counts(self) -> Counter[Status]:
        """Trials by status; a trial that failed its full measurement counts by that."""
        found = self.measurements()
        short, full = latest(found, Effort.SEARCH), latest(found, Effort.FULL)
        failed = {v: m for v, m in full.items() if eligible_time_us(m) is None}
        return Counter(m.status for m in {**short, **failed}.values())

    @property
    def trials_done(self) -> int:
        """How many trials this study has measured itself; those taken over and extra ones don't count."""
        own = (e.measurement for e in self._entries if not e.taken_over)
        extra = self._record.meta.get(EXTRA_TRIALS, [])
        return len({m.trial for m in own if m.effort is Effort.SEARCH}.difference(extra))

    @property
    def next_trial(self) -> int:
        return 1 + max((e.measurement.trial for e in self._entries), default=-1)

    def identify(self, configuration: Configuration) -> str:
        """The configuration's id, as recorded or by the family."""
        known = self._ids.get(configuration)
        if known is None:
            if self._family is None:
                raise KtuneError(f"the study {self.folder} was opened without its family: only to be read")
            known = self._ids[configuration] = configuration_id(self._family, configuration)
        return known

    def find(self, text: str) -> Measurement:
        """The measurement that a user calls `#trial`, configuration id or digest prefix; the full one if there is one.

        Raises UsageError if none or several match.
        """
        found = {m.variant: m for m in self.measurements() if self._is_called(m, text)}
        if len(found) == 1:
            return next(iter(found.values()))
        what = "no configuration" if not found else f"{len(found)} configurations"
        raise UsageError(f"{what} in {self.folder} called {text!r}; give #trial, an id, or more of the digest")

    def close(self) -> None:
        """Give the claims back and close the ledger."""
        try:
            self.release()
            if self._claims:
                # Not worth another wait for the ledger: without this process they lapse.
                with suppress(Locked):
                    self.ledger.release(self._owner, wait_s=0.0)
        finally:
            self.ledger.close()

    def __enter__(self) -> Study:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def _change_meta(self, change: Callable[[dict[str, Any]], None]) -> None:
        self._record = replace(self._record, meta=self.ledger.change_meta(self._record.id, change))

    def _is_called(self, m: Measurement, text: str) -> bool:
        if text.startswith("#"):
            return text[1:] == str(m.trial)
        configuration = m.variant.configuration
        return self.identify(configuration) == text or (
            len(text) >= 4 and configuration_digest(configuration).startswith(text)
        )

    def _flush(self, finished: tuple[Measurement, ...]) -> None:
        done = [c for m in finished if (c := self._claims.get((m.trial, m.effort)))]
        if not self._unsaved and not done:
            return
        try:
            stored = self.ledger.record(self._record.id, self._unsaved, done)
        except EnvironmentFault as fault:
            raise self._kept(fault) from fault
        self._unsaved.clear()
        for m in finished:
            self._claims.pop((m.trial, m.effort), None)
        self._remember(stored)

    def _kept(self, fault: EnvironmentFault) -> EnvironmentFault:
        """The fault, told together with where the results went that could not be stored."""
        self._locked_out = True
        if not self._unsaved:
            return fault
        path = self.folder / PENDING_NAME
        count = f"{len(self._unsaved)} result{'s' if len(self._unsaved) > 1 else ''}"
        try:
            save_pending(self.folder, self._record.id, self._unsaved)
        except OSError as error:
            return EnvironmentFault(f"{fault}; {count} could not be saved in {path} either ({error.strerror})")
        self._unsaved.clear()
        return EnvironmentFault(f"{fault}; {count} not in it yet: kept in {path}, taken in by the next command")

    def _remember(self, entries: list[Entry]) -> None:
        for entry in entries:
            self._ids.setdefault(entry.measurement.variant.configuration, entry.configuration_id)
        self._entries += entries


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise EnvironmentFault(
            f"the study folder {folder} can't be made ({error.strerror}); choose another place for results"
        ) from error
