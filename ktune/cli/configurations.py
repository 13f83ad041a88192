"""What a user calls a configuration: `#trial`, id, digest prefix, or a JSON file; the same in every command."""

from __future__ import annotations

from pathlib import Path

from ktune.cli.studies import OpenStudy
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_digest
from ktune.core.loading import load_family
from ktune.core.model import Configuration, Measurement
from ktune.core.space import Space
from ktune.output.winner import load_winner, read_winner
from ktune.study.finding import find_study, latest_study

SHORTEST_PREFIX = 4


def find_configuration(text: str, space: Space, study: str, results: Path) -> Configuration:
    """The valid configuration called `text`; a trial is looked up in the study (the family's latest if "").

    UsageError if there is none, several, or an impossible one.
    """
    if text.startswith("#"):
        return _of_trial(text, space, study, results)
    if text.endswith(".json"):
        return space.complete(_of_file(Path(text), space))
    known = space.from_id(text)
    if known is not None:
        return known
    if len(text) >= SHORTEST_PREFIX:
        found = [point for point in space.points if configuration_digest(point).startswith(text)]
        if len(found) == 1:
            return found[0]
        if found:
            raise UsageError(f"{len(found)} configurations have digests that begin with {text!r}; give more of it")
    raise UsageError(
        f"no valid configuration {text!r} of {space.family.name} for {space.problems[0].label}; "
        "give '#trial', an id, a digest's beginning or a JSON file"
    )


def find_measurement(text: str, opened: OpenStudy) -> Measurement:
    """The study's measurement of the configuration called `text`, the full one if there is one."""
    if not text.endswith(".json"):
        return opened.study.find(text)
    _, problem, configuration = load_winner(Path(text))
    study = opened.study
    if problem != study.problem:
        raise UsageError(
            f"{text} is for {problem.label}, study {study.name} is of {study.problem.label}; name another study"
        )
    return study.find(study.identify(configuration))


def _of_trial(text: str, space: Space, study: str, results: Path) -> Configuration:
    problem = space.problems[0]
    past = find_study(results, study) if study else latest_study(results, space.family.name, problem, replays_last=True)
    with past:
        return space.complete(past.find(text).variant.configuration)


def _of_file(path: Path, space: Space) -> Configuration:
    family, _, configuration = read_winner(path)
    if load_family(family).name != space.family.name:
        raise UsageError(f"{path} is a configuration of {family}, not of {space.family.name}; name that family")
    return configuration
