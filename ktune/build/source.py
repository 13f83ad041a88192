"""The complete source of a variant: its generated prelude and the family's file with local includes in place."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ktune.core.errors import FamilyError
from ktune.core.identity import digest
from ktune.core.loading import LoadedFamily
from ktune.core.model import Variant
from ktune.core.prelude import prelude

# Comments and literals are matched so that an include inside one is left alone.
_TOKENS = re.compile(
    r"//[^\n]*|/\*.*?\*/"
    r"|\"(?:\\.|[^\"\\\n])*\"|'(?:\\.|[^'\\\n])*'"
    r"|^[ \t]*\#[ \t]*include[ \t]*\"(?P<include>[^\"\n]+)\"[ \t]*(?://[^\n]*)?$",
    re.DOTALL | re.MULTILINE,
)
_PRAGMA_ONCE = re.compile(r"^[ \t]*#[ \t]*pragma[ \t]+once[ \t]*$", re.MULTILINE)


def variant_source(loaded: LoadedFamily, variant: Variant, *, line_markers: bool = False) -> str:
    """One self-contained CUDA file, "" for a variant without kernels of its own.

    Files that the family includes in quotes and owns stand in place of their includes, so that the text is
    all that a build depends on besides the toolkit. line_markers: keep the compiler's messages on the
    family's own files and lines.
    """
    name = loaded.family.source_of(variant)
    if not name:
        return ""
    return with_prelude(loaded, variant, family_source(loaded.folder, name, line_markers=line_markers))


def with_prelude(loaded: LoadedFamily, variant: Variant, text: str) -> str:
    """`text`, a family's source, behind the variant's prelude."""
    return prelude(loaded.family, variant).removeprefix("#pragma once\n") + text


def family_source(folder: Path, name: str, *, line_markers: bool = False) -> str:
    """A family's file with its quoted includes in place, looked up beside the including file, then in `folder`."""
    path = folder / name
    if not path.is_file():
        raise FamilyError(
            f"{folder}/family.py names the source {name!r}, and {path} does not exist; write it or correct the name"
        )
    return _Flattener(folder, line_markers).expand(path, ())


class _Flattener:
    def __init__(self, folder: Path, line_markers: bool) -> None:
        self.folder = folder
        self.line_markers = line_markers

    def expand(self, path: Path, including: tuple[Path, ...]) -> str:
        """The text of `path` between line markers; a file that is being included already is not included again."""
        path = path.resolve()
        if path in including:
            return ""
        text = _read(path)
        once = _PRAGMA_ONCE.search(text) is not None
        if once:
            text = _PRAGMA_ONCE.sub("", text)

        def replace(match: re.Match[str]) -> str:
            included = None if match["include"] is None else self._find(match["include"], path)
            if included is None:
                return match[0]
            following = text.count("\n", 0, match.end()) + 2
            return self.expand(included, (*including, path)) + self._marker(path, following).rstrip("\n")

        body = self._marker(path, 1) + _TOKENS.sub(replace, text)
        if not body.endswith("\n"):
            body += "\n"
        if not once or not including:
            return body
        guard = f"KTUNE_ONCE_{digest([self._shown(path)])[:16]}"
        return f"#ifndef {guard}\n#define {guard}\n{body}#endif\n"

    def _find(self, name: str, including: Path) -> Path | None:
        """None for a file that is not the family's: the compiler looks for it among its own."""
        for candidate in (including.parent / name, self.folder / name):
            if candidate.is_file():
                return candidate
        return None

    def _marker(self, path: Path, line: int) -> str:
        return f'#line {line} "{self._shown(path)}"\n' if self.line_markers else ""

    def _shown(self, path: Path) -> str:
        """Relative to the family, so that a moved checkout builds the same text."""
        return os.path.relpath(path, self.folder.resolve())


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise FamilyError(f"{path} can't be read as UTF-8 text: {error}; make it readable") from error
