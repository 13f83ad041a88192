"""This GPU's peaks: the calibration kernels as something to build, and their results, kept per GPU and driver."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from ktune.api import Cost, Family, Parameter, Plan, Size, Tolerance
from ktune.core.loading import LoadedFamily
from ktune.core.model import Configuration, Problem, Variant
from ktune.core.variant import make_variant
from ktune.output.files import write_file
from ktune.profile.model import Peaks

FORMAT = 1
KIND = "ktune peaks"
SOURCE = "calibration.cu"


def calibration_variant(target: str) -> tuple[LoadedFamily, Variant]:
    """What the builder needs to compile `calibration.cu`: all of its kernels in one cubin."""
    family = Family(
        name="calibration",
        summary="kernels that each keep one unit busy",
        sizes=(Size("N", "unused"),),
        problems={"default": {"N": 1}},
        parameters=(Parameter("kernels", ("all",), "all", "every kernel of the file"),),
        rules=(),
        source=lambda configuration: SOURCE,
        inputs=lambda problem: (),
        outputs=lambda problem: (),
        plan=lambda configuration, problem: Plan(()),
        checks=lambda configuration, problem: (),
        cost=lambda problem: Cost(0, 0, 0),
        tolerance=Tolerance(0.0, 0.0, 0.0, "nothing is compared"),
    )
    loaded = LoadedFamily(family, Path(__file__).resolve().parent)
    only = Configuration((("kernels", "all"),))
    return loaded, make_variant(family, only, Problem("calibration", (("N", 1),)), target)


def load_peaks(cache_dir: Path, gpu_uuid: str, driver: str, code: str = "") -> Peaks | None:
    """The peaks measured before on this GPU with this driver; None if there are none that can be read.

    code: the calibration's build key; peaks of another one don't count. "" takes any.
    """
    try:
        stored = json.loads(_path(cache_dir, gpu_uuid, driver).read_text())
        if stored["format"] != FORMAT or stored["kind"] != KIND or (code and stored["code"] != code):
            return None
        return peaks_from_json(stored["peaks"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def save_peaks(cache_dir: Path, peaks: Peaks, code: str) -> Path:
    """Keep them for later profiles on this GPU. Raises UsageError or EnvironmentFault where that cannot be written."""
    stored = {"format": FORMAT, "kind": KIND, "code": code, "peaks": asdict(peaks)}
    return write_file(
        _path(cache_dir, peaks.gpu_uuid, peaks.driver), json.dumps(stored, indent=1) + "\n", KIND, force=True
    )


def peaks_from_json(stored: dict[str, Any]) -> Peaks:
    """The inverse of `asdict`; KeyError or TypeError for anything else."""
    known = {field.name: stored[field.name] for field in fields(Peaks)}
    throttle: Sequence[str] = known["throttle"]
    return Peaks(**{**known, "throttle": tuple(throttle)})


def _path(cache_dir: Path, gpu_uuid: str, driver: str) -> Path:
    name = re.sub(r"[^A-Za-z0-9.-]", "_", f"{gpu_uuid}-{driver}")
    return cache_dir / "peaks" / f"{name}.json"
