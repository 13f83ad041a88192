"""The one place that reads the environment: where things are kept and found."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Settings:
    """cache_dir: where builds are kept. cuda_home, path: where nvcc is looked for. visible_devices: as set, or None."""

    cache_dir: Path
    cuda_home: Path | None
    path: str
    visible_devices: str | None


def read_settings() -> Settings:
    """KTUNE_CACHE_DIR, CUDA_HOME (or CUDA_PATH), PATH, CUDA_VISIBLE_DEVICES."""
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH")
    return Settings(
        cache_dir=_cache_dir(),
        cuda_home=Path(home) if home else None,
        path=os.environ.get("PATH", os.defpath),
        visible_devices=os.environ.get("CUDA_VISIBLE_DEVICES"),
    )


def _cache_dir() -> Path:
    chosen = os.environ.get("KTUNE_CACHE_DIR")
    if chosen:
        # Compilers run in folders of their own.
        return Path(chosen).expanduser().absolute()
    import platformdirs

    return Path(platformdirs.user_cache_dir("ktune", appauthor=False))
