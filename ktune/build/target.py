"""GPU targets: how a user or a driver names one, and the one spelling that ktune keeps."""

from __future__ import annotations

import re

from ktune.core.errors import UsageError

_SPELLINGS = re.compile(r"(?:sm_(?P<number>\d{2,3})|(?P<major>\d{1,2})\.(?P<minor>\d))(?P<suffix>[af]?)", re.ASCII)
_FIRST_WITH_OWN_FEATURES = {"a": 90, "f": 100}


def normalise_target(text: str) -> str:
    """`sm_90a` for "sm_90a" and "9.0a"; "9.0" is `sm_90`, without Hopper's own instructions.

    Raises UsageError for anything else, lists of targets included.
    """
    match = _SPELLINGS.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"a target is one GPU architecture such as sm_90a, 9.0a or sm_80, got {text!r}; name one")
    number = match["number"] or match["major"] + match["minor"]
    suffix = match["suffix"]
    if suffix and int(number) < _FIRST_WITH_OWN_FEATURES[suffix]:
        raise UsageError(f"sm_{number} has no {suffix!r} variant, got target {text!r}; use sm_{number}")
    return f"sm_{number}{suffix}"


def target_of_capability(major: int, minor: int) -> str:
    """The target with every instruction of a GPU of this compute capability: (9, 0) -> `sm_90a`."""
    number = 10 * major + minor
    return f"sm_{number}a" if number >= _FIRST_WITH_OWN_FEATURES["a"] else f"sm_{number}"
