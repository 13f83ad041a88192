"""Who takes part in a bench: the winner or what was named, the family's default, and its peers."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from ktune.api import Peer
from ktune.cli.configurations import find_configuration
from ktune.cli.options import parse_problem, parse_space
from ktune.core.errors import FamilyError, NothingPassed, UsageError
from ktune.core.identity import configuration_digest
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Problem
from ktune.output.bench import Contender, Role
from ktune.output.winner import load_winner
from ktune.study.finding import find_study, latest_study
from ktune.study.study import Study

LONGEST_NAME = 24
DIGEST_DIGITS = 10


@dataclass(frozen=True)
class StudyPlace:
    """The study that something came from: its folder, and the GPU model that it was made on."""

    name: str
    folder: Path
    gpu_name: str


@dataclass(frozen=True)
class Lineup:
    """The configurations that take part, the subject first and each once, and the study that one of them is from."""

    problem: Problem
    contenders: tuple[Contender, ...]
    study: StudyPlace | None = None


@dataclass(frozen=True)
class _Wanted:
    """What the command line says about configurations."""

    loaded: LoadedFamily
    names: Sequence[str]
    problem: Sequence[str] | None
    study: str
    results: Path


def find_lineup(
    loaded: LoadedFamily, names: Sequence[str], problem: Sequence[str] | None, study: str, results: Path
) -> Lineup:
    """The named configurations, or the winner of the study if there are none, and the family's default.

    Without a problem, it is that of the study, else that of the first JSON file named, else the family's first.
    UsageError where there is no such study or configuration, NothingPassed if the study has no winner.
    """
    wanted = _Wanted(loaded, names, problem, study, results)
    with ExitStack() as stack:
        past = _open_study(wanted)
        if past is not None:
            stack.enter_context(past)
        chosen = _choose_problem(wanted, past)
        space = parse_space(loaded, chosen, None)
        if names:
            # The same study for every `#trial`, whatever else is written to the results meanwhile.
            where = study if past is None else str(past.folder)
            given = [(_name(text), find_configuration(text, space, where, results)) for text in names]
        else:
            assert past is not None
            given = [_winner(past)]
            space.complete(given[0][1])
        place = None if past is None else StudyPlace(past.name, past.folder, past.gpu_name)
    return Lineup(chosen, _contenders(given, space.default), place)


def find_peers(loaded: LoadedFamily, names: Sequence[str], taken: Iterable[str]) -> list[Contender]:
    """The family's peers, or those of these names; a missing one says how to install it.

    taken: names that other contenders have. UsageError for a name that no peer has, FamilyError for a peers.py that
    does not keep the contract. Imports torch.
    """
    peers = {peer.name: peer for peer in _all_peers(loaded)}
    for name in names:
        if name not in peers:
            near = difflib.get_close_matches(name, list(peers), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(map(repr, peers)) or 'none'}"
            raise UsageError(f"{loaded.name} has no peer {name!r}; {hint}")
    for name in set(taken) & set(peers):
        raise FamilyError(f"{loaded.folder}/peers.py calls a peer {name!r}, which means a configuration; rename it")
    chosen = [peers[name] for name in dict.fromkeys(names)] if names else list(peers.values())
    return [Contender(peer.name, Role.PEER, install=_missing(loaded, peer)) for peer in chosen]


def _all_peers(loaded: LoadedFamily) -> Sequence[Peer]:
    if not loaded.has_module("peers"):
        return ()
    found = getattr(loaded.module("peers"), "PEERS", None)
    if not isinstance(found, list | tuple) or not all(isinstance(peer, Peer) for peer in found):
        raise FamilyError(f"{loaded.folder}/peers.py must define `PEERS = (Peer(...), ...)` from ktune.api")
    if len({peer.name for peer in found}) < len(found):
        raise FamilyError(f"{loaded.folder}/peers.py gives two peers one name; names must be distinct")
    return found


def _missing(loaded: LoadedFamily, peer: Peer) -> str:
    """How to install the peer; empty if it can run."""
    try:
        return peer.missing() or ""
    except Exception as error:
        raise FamilyError(
            f"{loaded.folder}/peers.py: `missing` of {peer.name!r} must return None or how to install it, "
            f"it raised {type(error).__name__}: {error}"
        ) from error


def _open_study(wanted: _Wanted) -> Study | None:
    """The study named, or the latest that a `#trial` or the winner is looked up in; None if nothing asks for one."""
    if wanted.study:
        past = find_study(wanted.results, wanted.study)
        if past.family == wanted.loaded.name:
            return past
        past.close()
        raise UsageError(f"study {past.name} is of {past.family}, not of {wanted.loaded.name}; name that family")
    if wanted.names and not any(name.startswith("#") for name in wanted.names):
        return None
    problem = parse_problem(wanted.loaded, wanted.problem) if wanted.problem else None
    return latest_study(wanted.results, wanted.loaded.name, problem, replays_last=True)


def _choose_problem(wanted: _Wanted, past: Study | None) -> Problem:
    if past is not None:
        given = parse_problem(wanted.loaded, wanted.problem) if wanted.problem else past.problem
        if given != past.problem:
            raise UsageError(
                f"study {past.name} is of {past.problem.label}, --problem asks for {given.label}; "
                "leave one of --study and --problem out"
            )
        return given
    files = [name for name in wanted.names if name.endswith(".json")]
    if files and not wanted.problem:
        loaded, problem, _ = load_winner(Path(files[0]))
        if loaded.name == wanted.loaded.name:
            return problem
    return parse_problem(wanted.loaded, wanted.problem)


def _winner(past: Study) -> tuple[str, Configuration]:
    best = past.best()
    if best is None:
        raise NothingPassed(
            f"study {past.name} has no winner to compare: no variant is both right and timed; `ktune report` says why, "
            "or name a configuration"
        )
    return f"winner #{best.trial}", best.variant.configuration


def _name(text: str) -> str:
    """What a row is called: the text given where that is short, else the file's name or the end of the id."""
    name = Path(text).name if text.endswith(".json") else text
    return name if len(name) <= LONGEST_NAME else ""


def _contenders(given: Sequence[tuple[str, Configuration]], default: Configuration) -> tuple[Contender, ...]:
    """Each configuration once, under the first name that it was given; equal names are told apart by digest."""
    named: dict[Configuration, str] = {}
    for name, configuration in [*given, ("default", default)]:
        digest = configuration_digest(configuration)[:DIGEST_DIGITS]
        if configuration not in named:
            unique = name if name and name not in named.values() else f"{name} {digest}".strip()
            named[configuration] = unique
    roles = {next(iter(named)): Role.SUBJECT}
    return tuple(
        Contender(name, roles.get(c, Role.DEFAULT if c == default else Role.CONFIGURATION), c)
        for c, name in named.items()
    )
