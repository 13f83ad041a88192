"""A profile as profile.json (format 1) and profile.txt."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any

from ktune.core.identity import configuration_digest
from ktune.core.model import Configuration, Timing
from ktune.output.files import check_writable, write_file
from ktune.profile.mix import Mix
from ktune.profile.model import KernelFacts, Missing, OperationFacts, Profile
from ktune.profile.occupancy import Occupancy
from ktune.profile.text import MARK, profile_text
from ktune.study.codec import problem_to_json

FORMAT = 1
_DIGEST_DIGITS = 8


def profile_json(profile: Profile) -> dict[str, Any]:
    """Everything in profile.json. An unknown figure is null, an unknown part `{"missing": reason}`."""
    body = {field.name: _encoded(getattr(profile, field.name)) for field in fields(profile)}
    return {"format": FORMAT, "kind": MARK, **body, "problem": problem_to_json(profile.problem)}


def profile_stem(configuration: Configuration | None) -> str:
    """`profile`, or with a configuration that was named, `profile-` and the beginning of its digest."""
    return "profile" if configuration is None else f"profile-{configuration_digest(configuration)[:_DIGEST_DIGITS]}"


def check_profile_files(folder: Path, stem: str, force: bool) -> None:
    """Raise now what `write_profile` would raise after the work is done."""
    for suffix in (".json", ".txt"):
        check_writable(folder / f"{stem}{suffix}", MARK, force=force)


def write_profile(profile: Profile, folder: Path, stem: str, *, force: bool = False) -> list[Path]:
    """Both files; their paths."""
    text = json.dumps(profile_json(profile), indent=2, allow_nan=False, ensure_ascii=False)
    return [
        write_file(folder / f"{stem}.json", f"{text}\n", MARK, force=force),
        write_file(folder / f"{stem}.txt", f"{profile_text(profile)}\n", MARK, force=force),
    ]


def _encoded(value: Any) -> Any:
    if isinstance(value, Missing):
        return {"missing": value.reason}
    if isinstance(value, Timing):
        figures = _fields(value)
        return {**{name: v for name, v in figures.items() if name != "samples_us"}, "samples": len(value.samples_us)}
    if isinstance(value, Occupancy):
        return {**_fields(value), "percent": round(value.percent, 2)}
    if isinstance(value, Mix):
        shares = {name: round(value.share(name), 2) for name in value.counts}
        return {**_fields(value), "percent": shares}
    if isinstance(value, KernelFacts | OperationFacts):
        return {"step": "kernel" if isinstance(value, KernelFacts) else "torch operation", **_fields(value)}
    if is_dataclass(value) and not isinstance(value, Mapping):
        return _fields(value)
    if isinstance(value, Mapping):
        return {str(name): _encoded(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_encoded(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _fields(value: Any) -> dict[str, Any]:
    return {field.name: _encoded(getattr(value, field.name)) for field in fields(value)}
