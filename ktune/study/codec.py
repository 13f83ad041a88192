"""Measurements and their parts as JSON (format 1), complete in both directions.

A float that JSON has no number for stands as "NaN", "Infinity" or "-Infinity". Unknown keys are skipped, so that
a later ktune may add some within one format; a later format is refused.
"""

from __future__ import annotations

import dataclasses
import json
import math
import types
from collections.abc import Hashable, Mapping
from functools import cache
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ktune.core.errors import UsageError
from ktune.core.model import (
    Accuracy,
    BuildFacts,
    Configuration,
    Effort,
    Environment,
    Measurement,
    Problem,
    Source,
    Status,
    Timing,
    Variant,
)

FORMAT = 1

Json = dict[str, Any]
T = TypeVar("T")


def measurement_to_json(m: Measurement) -> Json:
    """Everything in the measurement, as values that `json` can write."""
    return {
        "format": FORMAT,
        "trial": int(m.trial),
        "variant": variant_to_json(m.variant),
        "problem": problem_to_json(m.problem),
        "status": m.status.value,
        "source": m.source.value,
        "effort": m.effort.value,
        "detail": m.detail,
        "build": _record_to_json(m.build),
        "accuracy": _record_to_json(m.accuracy),
        "cold": _record_to_json(m.cold),
        "hot": _record_to_json(m.hot),
        "bound_us": _encode(float | None, m.bound_us),
        "environment": _record_to_json(m.environment),
        "finished_at": m.finished_at,
        "seconds": _encode(Mapping[str, float], m.seconds),
    }


def measurement_from_json(data: Mapping[str, Any]) -> Measurement:
    """The measurement that `measurement_to_json` wrote. UsageError for a newer format or missing parts."""
    check_format(data, "a measurement")
    try:
        return Measurement(
            trial=data["trial"],
            variant=variant_from_json(data["variant"]),
            problem=problem_from_json(data["problem"]),
            status=Status(data["status"]),
            source=Source(data["source"]),
            effort=Effort(data["effort"]),
            detail=data.get("detail", ""),
            build=_record_from_json(BuildFacts, data.get("build")),
            accuracy=_record_from_json(Accuracy, data.get("accuracy")),
            cold=_record_from_json(Timing, data.get("cold")),
            hot=_record_from_json(Timing, data.get("hot")),
            bound_us=_decode(float | None, data.get("bound_us")),
            environment=_record_from_json(Environment, data.get("environment")),
            finished_at=data.get("finished_at", ""),
            seconds=_decode(Mapping[str, float], data.get("seconds", {})),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise UsageError(f"a measurement of format {FORMAT} is damaged: {type(error).__name__} {error}") from error


def measurement_to_text(m: Measurement) -> str:
    """One line of strict JSON."""
    return json.dumps(measurement_to_json(m), allow_nan=False, separators=(",", ":"))


def measurement_from_text(text: str) -> Measurement:
    """The measurement of one line of JSON."""
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(f"a measurement must be a line of JSON, got {text[:40]!r}: {error}") from error
    return measurement_from_json(data)


def check_format(data: Mapping[str, Any], what: str) -> None:
    """UsageError unless `what` is written in a format that this ktune reads."""
    found = data.get("format")
    if not isinstance(found, int) or found < 1:
        raise UsageError(f"{what} must say format = {FORMAT}, got {found!r}; it was not written by ktune")
    if found > FORMAT:
        raise UsageError(f"{what} is of format {found}, this ktune reads up to format {FORMAT}; upgrade ktune-cuda")


def problem_to_json(problem: Problem) -> Json:
    return {"family": problem.family, "sizes": dict(problem.sizes), "dtype": problem.dtype}


def problem_from_json(data: Mapping[str, Any]) -> Problem:
    return Problem(data["family"], tuple(data["sizes"].items()), data["dtype"])


def configuration_to_json(configuration: Configuration) -> Json:
    """{parameter: value} in the family's order, which JSON text keeps."""
    return dict(configuration.values_)


def configuration_from_json(data: Mapping[str, Any]) -> Configuration:
    return Configuration(tuple(data.items()))


def variant_to_json(variant: Variant) -> Json:
    return {
        "family": variant.family,
        "configuration": configuration_to_json(variant.configuration),
        "constants": dict(variant.constants),
        "target": variant.target,
    }


def variant_from_json(data: Mapping[str, Any]) -> Variant:
    configuration = configuration_from_json(data["configuration"])
    return Variant(data["family"], configuration, tuple(data["constants"].items()), data["target"])


@cache
def _hints(kind: Hashable) -> dict[str, Any]:
    return get_type_hints(kind)


def _record_to_json(record: Any) -> Json | None:
    """A flat dataclass as {field: value}; None stays None."""
    if record is None:
        return None
    return {name: _encode(hint, getattr(record, name)) for name, hint in _hints(cast(Hashable, type(record))).items()}


def _record_from_json(kind: type[T], data: Mapping[str, Any] | None) -> T | None:
    if data is None:
        return None
    fields = {f.name for f in dataclasses.fields(kind)}  # type: ignore[arg-type]
    hints = _hints(cast(Hashable, kind))
    return kind(**{name: _decode(hints[name], value) for name, value in data.items() if name in fields})


def _encode(hint: Any, value: Any) -> Any:
    """`value` of a field annotated `hint`; number-like values of other libraries become plain ones."""
    if value is None:
        return None
    hint = _without_none(hint)
    origin = get_origin(hint)
    if origin is tuple:
        return [_encode(get_args(hint)[0], item) for item in value]
    if origin is not None and issubclass(origin, Mapping):
        return {key: _encode(get_args(hint)[1], item) for key, item in value.items()}
    if hint is float:
        number = float(value)
        return number if math.isfinite(number) else _NOT_FINITE[repr(number)]
    return hint(value)


def _decode(hint: Any, value: Any) -> Any:
    if value is None:
        return None
    hint = _without_none(hint)
    origin = get_origin(hint)
    if origin is tuple:
        return tuple(_decode(get_args(hint)[0], item) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        return {key: _decode(get_args(hint)[1], item) for key, item in value.items()}
    return hint(value)


_NOT_FINITE = {"nan": "NaN", "inf": "Infinity", "-inf": "-Infinity"}


def _without_none(hint: Any) -> Any:
    """The one type of `T | None`; other hints as they are."""
    if get_origin(hint) in (Union, types.UnionType):
        return next(kind for kind in get_args(hint) if kind is not type(None))
    return hint
