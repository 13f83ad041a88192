"""The winner of a study as a file, best.json (format 1), which every `--from FILE.json` reads back."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NamedTuple

from ktune.api import Argument, KernelLaunch, Plan, Scalar, Tensor, TensorMap, TorchOperation
from ktune.build.key import nvcc_flags
from ktune.build.source import variant_source
from ktune.core.errors import UsageError
from ktune.core.identity import configuration_digest, configuration_id, digest
from ktune.core.loading import LoadedFamily, load_family, shipped_folder
from ktune.core.model import Configuration, Measurement, Problem, Timing
from ktune.core.space import Space
from ktune.output.files import write_file
from ktune.output.ranking import has_time
from ktune.output.summary import Finding, source_note
from ktune.study.codec import (
    FORMAT,
    check_format,
    configuration_from_json,
    configuration_to_json,
    problem_from_json,
    problem_to_json,
)

KIND = "ktune winner"
WORKSPACE_ALIGNMENT = 256

# For the artefact that ktune loads and for what it reads from the compiler's log; a user's build wants neither.
_OWN_FLAGS = ("-cubin", "-Xptxas", "-v,-warn-spills")


@dataclass(frozen=True)
class Winner:
    """What exports are made of: a finding, its family, and the command that led to it.

    UsageError for a measurement that is not right and timed: what is exported has been verified.
    """

    loaded: LoadedFamily
    finding: Finding
    command: str = ""

    def __post_init__(self) -> None:
        m = self.measurement
        if not has_time(m):
            ended = f"{m.status}: {m.detail}" if m.detail else f"{m.status}, without a time"
            raise UsageError(f"cannot export #{m.trial} {self.identity}: it ended as {ended}; choose one that is ok")

    @property
    def measurement(self) -> Measurement:
        return self.finding.winner

    @property
    def problem(self) -> Problem:
        """With the defaults of the family's options."""
        return self.loaded.family.completed(self.measurement.problem)

    @property
    def configuration(self) -> Configuration:
        return self.measurement.variant.configuration

    @property
    def identity(self) -> str:
        return configuration_id(self.loaded.family, self.configuration)

    @property
    def plan(self) -> Plan:
        return self.loaded.family.plan(self.configuration, self.problem)

    @property
    def source_digest(self) -> str:
        """Of the complete source, prelude and local includes; "" for a plan without kernels of the family's own."""
        text = variant_source(self.loaded, self.measurement.variant)
        return digest([text]) if text else ""

    @property
    def flags(self) -> tuple[str, ...]:
        """What nvcc needs to compile the kernel as it was measured."""
        given = nvcc_flags(self.loaded.family, self.measurement.variant)
        return tuple(flag for flag in given if flag not in _OWN_FLAGS)

    @property
    def workspace_bytes(self) -> int:
        """One allocation that holds every scratch tensor, each at a multiple of 256 bytes."""
        return workspace_layout(self.plan.workspace)[1]


class WinnerFile(NamedTuple):
    """What a best.json names. family: a shipped name, or the folder of a user's own."""

    family: str
    problem: Problem
    configuration: Configuration


class Choice(NamedTuple):
    """What a program says to choose among winners of a family: sizes by name, and the dtype where they differ in it."""

    sizes: tuple[str, ...]
    dtype: bool


def choice_among(winners: Sequence[Winner]) -> Choice:
    """Every dimension, and each option that one of the winners gives."""
    given = {name for winner in winners for name, _ in winner.problem.sizes}
    sizes = tuple(size.name for size in winners[0].loaded.family.sizes if size.name in given)
    return Choice(sizes, len({winner.problem.dtype for winner in winners}) > 1)


def write_winner(winner: Winner, path: Path, *, force: bool = False) -> Path:
    """Write best.json."""
    text = json.dumps(winner_json(winner), indent=2, allow_nan=False, ensure_ascii=False)
    return write_file(path, f"{text}\n", KIND, force=force)


def winner_json(winner: Winner) -> dict[str, Any]:
    """Everything in best.json. A figure that is not known, or not a number, is null."""
    m = winner.measurement
    shipped = winner.loaded.folder.parent == shipped_folder().resolve()
    environment = None if m.environment is None else asdict(m.environment)
    found = {
        "format": FORMAT,
        "kind": KIND,
        "family": winner.loaded.name,
        "family_folder": None if shipped else str(winner.loaded.folder),
        "problem": problem_to_json(m.problem),
        "configuration_id": winner.identity,
        "configuration": configuration_to_json(winner.configuration),
        "constants": dict(m.variant.constants),
        "target": m.variant.target,
        "nvcc_flags": list(winner.flags),
        "launches": [_launch_json(launch) for launch in winner.plan.launches],
        "workspace_bytes": winner.workspace_bytes,
        "source": m.source.value,
        "figures": source_note([m]),
        "effort": m.effort.value,
        "trial": m.trial,
        "cold": _timing_json(m.cold),
        "hot": _timing_json(m.hot),
        "noise_percent": winner.finding.noise_percent,
        "tied": [_named(winner, other) for other in winner.finding.tied],
        "default": None if winner.finding.default is None else _named(winner, winner.finding.default),
        "verdict": winner.finding.verdict,
        "warnings": list(winner.finding.warnings),
        "accuracy": None if m.accuracy is None else asdict(m.accuracy),
        "build": None if m.build is None else asdict(m.build),
        "digests": {
            "configuration": configuration_digest(winner.configuration),
            "source": winner.source_digest or None,
            "build_key": None if m.build is None else m.build.key,
            "code": None if m.build is None else m.build.code_digest,
        },
        "environment": environment,
        "finished_at": m.finished_at or None,
        "command": winner.command,
    }
    return {name: _finite(value) for name, value in found.items()}


def read_winner(path: Path) -> WinnerFile:
    """(family, problem, configuration) of a best.json. UsageError for any other file."""
    remedy = "`ktune export` writes such files"
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot read {path}: {error.strerror}; {remedy}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{path} is not text; name a best.json: {remedy}") from error
    try:
        data = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{path} is not JSON ({error}); a configuration is named by a best.json, and {remedy}"
        ) from error
    if not isinstance(data, dict) or data.get("kind") != KIND:
        raise UsageError(f'{path} is JSON without "kind": "{KIND}"; {remedy}')
    check_format(data, str(path))
    try:
        problem = problem_from_json(data["problem"])
        configuration = configuration_from_json(data["configuration"])
        family = str(data["family"])
        folder = data.get("family_folder")
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} lacks or garbles {error}; {remedy}, export it again") from error
    _check_values(path, problem, configuration)
    return WinnerFile(str(folder) if folder else family, problem, configuration)


def load_winner(path: Path) -> tuple[LoadedFamily, Problem, Configuration]:
    """What a best.json names, with its family loaded and the configuration checked against it."""
    family, problem, configuration = read_winner(path)
    loaded = load_family(family)
    try:
        problem = loaded.family.problem_of(dict(problem.sizes), problem.dtype)
    except UsageError as error:
        raise UsageError(
            f"{path} gives the problem {problem.label}: {error}; "
            "it was written for another version of the family: search again"
        ) from error
    return loaded, problem, Space(loaded.family, [problem]).complete(configuration)


def workspace_layout(workspace: Iterable[Tensor]) -> tuple[dict[str, int], int]:
    """({scratch tensor: its offset in bytes}, total bytes)."""
    offsets, total = {}, 0
    for tensor in workspace:
        offsets[tensor.name] = total
        total += -(-tensor_bytes(tensor) // WORKSPACE_ALIGNMENT) * WORKSPACE_ALIGNMENT
    return offsets, total


def tensor_bytes(tensor: Tensor) -> int:
    """Bytes of a dense tensor. UsageError for a dtype that this does not know."""
    if tensor.dtype not in _ITEM_BYTES:
        known = ", ".join(_ITEM_BYTES)
        raise UsageError(f"tensor {tensor.name} has dtype {tensor.dtype!r}; exports know {known}")
    return math.prod(tensor.shape) * _ITEM_BYTES[tensor.dtype]


_ITEM_BYTES = {
    "float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "float8_e4m3fn": 1, "float8_e5m2": 1,
    "int64": 8, "int32": 4, "int16": 2, "int8": 1, "uint8": 1, "bool": 1,
}  # fmt: skip


def _check_values(path: Path, problem: Problem, configuration: Configuration) -> None:
    for name, size in problem.sizes:
        if not isinstance(size, int) or isinstance(size, bool):
            raise UsageError(f"{path}: size {name} must be a whole number, got {size!r}; export it again")
    for name, value in configuration.items():
        if not isinstance(value, bool | int | str):
            raise UsageError(f"{path}: {name} must be a number, text or boolean, got {value!r}; export it again")


def _launch_json(launch: KernelLaunch | TorchOperation) -> dict[str, Any]:
    if isinstance(launch, TorchOperation):
        return {"torch_operation": launch.function, "arguments": list(launch.arguments)}
    return {
        "kernel": launch.kernel,
        "grid": list(launch.grid),
        "block": list(launch.block),
        "cluster": list(launch.cluster),
        "programmatic": launch.programmatic,
        "smem_bytes": launch.smem_bytes,
        "arguments": [_argument_json(argument) for argument in launch.arguments],
    }


def _argument_json(argument: Argument) -> str | dict[str, Any]:
    if isinstance(argument, Scalar):
        return {"value": argument.value, "ctype": argument.ctype}
    if isinstance(argument, TensorMap):
        return {"tensor_map": argument.tensor, **{k: v for k, v in asdict(argument).items() if k != "tensor"}}
    return argument


def _timing_json(timing: Timing | None) -> dict[str, Any] | None:
    """The figures without the samples, which the ledger keeps."""
    if timing is None:
        return None
    figures = asdict(timing)
    return {**{name: v for name, v in figures.items() if name != "samples_us"}, "samples": len(timing.samples_us)}


def _named(winner: Winner, other: Measurement) -> dict[str, Any]:
    identity = configuration_id(winner.loaded.family, other.variant.configuration)
    return {"trial": other.trial, "configuration_id": identity, "cold_median_us": other.cold_us}


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return [_finite(item) for item in value] if isinstance(value, list | tuple) else value
