"""The names and digests of things, each made by one function here and nowhere else."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

from ktune.core.model import Configuration, Value

if TYPE_CHECKING:
    from ktune.api import Family


def digest(parts: Iterable[str | bytes]) -> str:
    """sha256 over length-prefixed parts, as 64 hexadecimal digits."""
    hasher = hashlib.sha256()
    for part in parts:
        data = part.encode() if isinstance(part, str) else part
        hasher.update(len(data).to_bytes(8, "little"))
        hasher.update(data)
    return hasher.hexdigest()


def value_text(value: Value) -> str:
    """A value as it stands in ids, CSV and headers: booleans are 0 and 1."""
    return str(int(value)) if isinstance(value, bool) else str(value)


def configuration_id(family: Family, configuration: Configuration) -> str:
    """Readable and complete: `staged.block_128.tpp_4.tile_32`. An `algorithm` stands without its name."""
    parts = []
    for name, value in configuration.items():
        text = value_text(value)
        parts.append(text if name == "algorithm" else f"{family.parameter(name).short}_{text}")
    return ".".join(parts)


def configuration_digest(configuration: Configuration) -> str:
    """What `ktune ... DIGEST_PREFIX` matches: a digest of the parameter values alone."""
    return digest([json.dumps([[n, value_text(v)] for n, v in configuration.items()])])


def space_digest(family: Family, narrowing: Mapping[str, tuple[Value, ...]]) -> str:
    """Changes when the points of the space may have: parameters, values, conditions, rules, narrowing."""
    parameters = [
        [p.name, _texts(p.values), sorted((name, _texts(values)) for name, values in (p.when or {}).items())]
        for p in family.parameters
    ]
    narrowed = sorted((name, _texts(values)) for name, values in narrowing.items())
    return digest([json.dumps([parameters, [r.law for r in family.rules], narrowed])])


def _texts(values: Iterable[Value]) -> list[str]:
    return [value_text(v) for v in values]
