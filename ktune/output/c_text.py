"""Names, literals and comments that C, C++ and CUDA all accept."""

from __future__ import annotations

import re
from collections.abc import Iterable

from ktune.core.errors import FamilyError

_KEYWORDS = frozenset(
    """alignas alignof and asm auto bool break case catch char class const constexpr continue decltype default delete do
    double else enum explicit export extern false float for friend goto if inline int long mutable namespace new not
    nullptr operator or private protected public register requires restrict return short signed sizeof static struct
    switch template this throw true try typedef typename union unsigned using virtual void volatile while xor
    """.split()  # noqa: SIM905
)


def macro(*parts: str) -> str:
    """`KTUNE_TOY_BLOCK_SIZE` of `toy`, `block_size`."""
    return "_".join(["KTUNE", *(re.sub(r"[^A-Za-z0-9]", "_", part).upper() for part in parts)])


def identifier(name: str) -> str:
    """A name that C++ takes: other characters become underscores, keywords get one at the end."""
    text = re.sub(r"[^A-Za-z0-9_]", "_", name)
    if text[:1].isdigit() or not text:
        text = f"_{text}"
    return f"{text}_" if text in _KEYWORDS else text


def string(text: str) -> str:
    """A string literal: quotes, backslashes, trigraphs and everything beyond printable ASCII escaped."""
    escaped = []
    for byte in text.encode():
        character = chr(byte)
        if character in '"\\?':
            escaped.append(f"\\{character}")
        elif 32 <= byte < 127:
            escaped.append(character)
        else:
            escaped.append(f"\\{byte:03o}")
    return f'"{"".join(escaped)}"'


def integer(value: int) -> str:
    """An integer literal, with a suffix where int may be too small."""
    return str(value) if -(2**31) < value < 2**31 else f"{value}LL"


def comment(lines: Iterable[str]) -> list[str]:
    """A block comment. What would end or nest it, or make a trigraph, is broken up."""
    flat = [part for line in lines for part in (line.splitlines() or [""])]
    safe = [part.replace("*/", "* /").replace("/*", "/ *").replace("??", "? ?").rstrip("\\ ") for part in flat]
    if len(safe) == 1:
        return [f"/* {safe[0]} */"]
    return ["/*", *(f" * {part}".rstrip() for part in safe), " */"]


def require_distinct(names: Iterable[str], what: str) -> None:
    """FamilyError if two different things would share a name in the generated file."""
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise FamilyError(
                f"two {what} would both be called {name}; rename one of the family's names that differ too little"
            )
        seen.add(name)
