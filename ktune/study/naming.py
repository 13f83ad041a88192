"""Where studies lie and what their folders are called."""

from __future__ import annotations

import os
import re
from pathlib import Path

from ktune.core.errors import UsageError
from ktune.core.model import Problem

LEDGER_NAME = "ledger.sqlite"
# Of a file's name, on the file systems in use.
_MOST_BYTES = 255


def gpu_slug(gpu_name: str) -> str:
    """`NVIDIA H100 80GB HBM3` -> `H100-80GB-HBM3`: the model, fit for a file name."""
    words = re.sub(r"[^A-Za-z0-9.]+", " ", gpu_name).split()
    kept = [word for word in words if word.lower() not in ("nvidia", "tesla", "graphics")]
    return "-".join(kept) or "gpu"


def study_name(family: str, problem: Problem, gpu_name: str, suffix: str | None = None) -> str:
    """`selective_scan-B16-L2048-D256-N16-H200`, and the user's own name for it at the end."""
    parts = [family, problem.label, gpu_slug(gpu_name)]
    return "-".join([*parts, suffix] if suffix else parts)


def study_folder(results_dir: Path, family: str, problem: Problem, gpu_name: str, name: str | None = None) -> Path:
    """The folder of a study. A `name` that is a path, or the folder of a study that exists, is taken as it is."""
    if name and "/" in name:
        return Path(name).expanduser()
    folder = study_name(family, problem, gpu_name, name)
    if len(os.fsencode(folder)) > _MOST_BYTES or not folder.isprintable():
        raise UsageError(
            f"the study's folder would be called {folder!r}; a folder's name may have {_MOST_BYTES} bytes at most and "
            "no control characters; give --study another name"
        )
    if name and ledger_path(results_dir / name).is_file():
        return results_dir / name
    return results_dir / folder


def ledger_path(folder: Path) -> Path:
    return folder / LEDGER_NAME


def is_writable(folder: Path) -> bool:
    """Whether the ledger in this folder can be written by this user."""
    return os.access(folder, os.W_OK) and os.access(ledger_path(folder), os.W_OK)
