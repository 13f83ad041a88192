"""Finding and loading families: a shipped name or a folder of the user's own."""

from __future__ import annotations

import difflib
import hashlib
import importlib
import importlib.util
import math
import os
import sys
import traceback
from dataclasses import asdict, dataclass
from functools import cached_property
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import cast

from ktune.api import API, DTYPE, Family
from ktune.core.errors import FamilyError, UsageError
from ktune.core.model import Problem
from ktune.core.tensor_map import TYPES

_PACKAGE_PREFIX = "_ktune_family_"


@dataclass(frozen=True)
class LoadedFamily:
    """A family together with the folder that it was read from."""

    family: Family
    folder: Path

    @property
    def name(self) -> str:
        return self.family.name

    def module(self, name: str) -> ModuleType:
        """`reference`, `operations` or `peers` of the family's folder. Imports torch."""
        return _load_module(self.folder, name)

    def has_module(self, name: str) -> bool:
        return (self.folder / f"{name}.py").is_file()

    @cached_property
    def named_problems(self) -> dict[str, Problem]:
        return {label: named_problem(self.family, label) for label in self.family.problems}


def shipped_folder() -> Path:
    """Where the shipped families are: inside the installed package, or beside it in a checkout."""
    return data_folder("kernel_variants")


def data_folder(name: str) -> Path:
    """`kernel_variants`, `configs` or `results`, as shipped."""
    package = Path(__file__).resolve().parent.parent
    inside = package / name
    return inside if inside.is_dir() else package.parent / name


def shipped_families() -> list[str]:
    return sorted(p.parent.name for p in shipped_folder().glob("*/family.py"))


def load_family(name_or_path: str | Path) -> LoadedFamily:
    """The family of a shipped name, or of a folder (anything with a separator or that exists)."""
    text = str(name_or_path)
    folder = Path(text).expanduser()
    if "/" not in text and not folder.joinpath("family.py").is_file():
        folder = shipped_folder() / text
        if not folder.joinpath("family.py").is_file():
            names = shipped_families()
            near = difflib.get_close_matches(text, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"shipped are {', '.join(names)}."
            raise UsageError(f"no kernel family {text!r}; {hint} A family of your own is a folder: ./{text}")
    folder = folder.resolve()
    if not folder.joinpath("family.py").is_file():
        raise UsageError(f"{folder} holds no family.py; `ktune new {folder.name}` writes one")
    module = _load_module(folder, "family")
    family = getattr(module, "family", None)
    if not isinstance(family, Family):
        raise FamilyError(f"{folder}/family.py must define `family = Family(...)` from ktune.api")
    _check(family, folder)
    return LoadedFamily(family, folder)


def named_problem(family: Family, label: str) -> Problem:
    """The problem that the family gives this name; FamilyError where it is none of its problems."""
    given = dict(family.problems[label])
    dtype = str(given.pop("dtype", ""))
    try:
        return family.problem_of({name: cast(int, size) for name, size in given.items()}, dtype)
    except UsageError as error:
        raise FamilyError(f"problem {label!r} of {family.name}: {error}") from error


def is_family_module(name: str) -> bool:
    """Whether a module of that name was loaded from a family's folder."""
    return name.startswith(_PACKAGE_PREFIX)


def _load_module(folder: Path, name: str) -> ModuleType:
    """A module of the folder, as part of a package, so that it may import its siblings: `from .plans import plan`.

    The package is named after the folder's path: folders of the same name share nothing.
    """
    path = folder / f"{name}.py"
    if not path.is_file():
        raise FamilyError(f"{folder} holds no {name}.py, which this needs; see docs/family.md")
    package = f"{_PACKAGE_PREFIX}{hashlib.sha256(os.fsencode(folder)).hexdigest()[:12]}"
    if f"{package}.{name}" in sys.modules:
        return sys.modules[f"{package}.{name}"]
    before = set(sys.modules)
    if package not in before:
        spec = ModuleSpec(package, None, is_package=True)
        spec.submodule_search_locations = [str(folder)]
        sys.modules[package] = importlib.util.module_from_spec(spec)
    importlib.invalidate_caches()
    try:
        return importlib.import_module(f"{package}.{name}")
    except (Exception, SystemExit) as error:
        _forget([key for key in list(sys.modules) if key.startswith(package) and key not in before])
        failed = _innermost_module(error, package) or path
        said = str(error).replace(package, folder.name)
        raise FamilyError(f"{failed} does not load: {type(error).__name__}: {said}") from error


def _innermost_module(error: BaseException, package: str) -> Path | None:
    """The file of the package's module that was being executed, the innermost of those that import each other."""
    found = None
    for frame, _ in traceback.walk_tb(error.__traceback__):
        if frame.f_code.co_name == "<module>" and frame.f_globals.get("__name__", "").startswith(package):
            found = Path(frame.f_code.co_filename)
    return found


def _forget(names: list[str]) -> None:
    """Remove modules, also where their packages name them: `from . import plans` looks there first."""
    for name in names:
        del sys.modules[name]
        parent, _, child = name.rpartition(".")
        if parent in sys.modules:
            vars(sys.modules[parent]).pop(child, None)


def _check(family: Family, folder: Path) -> None:
    """Faults of a family that would otherwise surface minutes later."""
    if family.api != API:
        raise FamilyError(f"{folder} is written for api {family.api}, this ktune speaks api {API}")
    if not family.problems:
        raise FamilyError(f"{family.name} names no problem; `problems` needs at least one, the first is the default")
    for tolerance in (family.tolerance, *family.tolerances.values()):
        for name, bound in asdict(tolerance).items():
            if name != "reason" and not (math.isfinite(bound) and bound >= 0):
                raise FamilyError(f"{name} of {family.name}'s tolerance must be a number of at least 0, got {bound!r}")
    names = [p.name for p in family.parameters]
    if len(set(names)) != len(names) or not names:
        got = ", ".join(names) or "none"
        raise FamilyError(f"{family.name} needs parameters of distinct names, at least one, got {got}")
    sizes = {s.name for s in family.sizes}
    _check_sizes(family)
    _check_dtypes(family)
    for position, parameter in enumerate(family.parameters):
        if parameter.default not in parameter.values:
            raise FamilyError(
                f"default {parameter.default!r} of {parameter.name} is not one of its values {parameter.values}"
            )
        for earlier in parameter.when or {}:
            if earlier not in names[:position]:
                raise FamilyError(f"{parameter.name} depends on {earlier!r}, which is not a parameter before it")
    for rule in family.rules:
        for argument in rule.arguments:
            if argument not in sizes and argument not in names and argument != DTYPE:
                raise FamilyError(
                    f"the rule {rule.law!r} asks for {argument!r}, neither a parameter nor a size of {family.name}"
                )
    for label in family.problems:
        named_problem(family, label)


def _check_sizes(family: Family) -> None:
    names = [size.name for size in family.sizes]
    if len(set(names)) != len(names) or DTYPE in names:
        raise FamilyError(f"sizes of {family.name} need distinct names other than dtype, got {', '.join(names)}")
    options = [size.default is not None for size in family.sizes]
    if options != sorted(options):
        raise FamilyError(
            f"sizes of {family.name} with a default must come after those without, got {', '.join(names)}; "
            "labels and headers name them in this order"
        )
    for size in family.sizes:
        if size.default is not None and size.default < size.minimum:
            raise FamilyError(f"default {size.default} of {size.name} must be at least {size.minimum}; give `minimum`")


def _check_dtypes(family: Family) -> None:
    known, given = ", ".join(TYPES), ", ".join(family.dtypes) or "none"
    if not family.dtypes or len(set(family.dtypes)) != len(family.dtypes) or not set(family.dtypes) <= set(TYPES):
        raise FamilyError(f"dtypes of {family.name} must be distinct ones, at least one, of {known}; got {given}")
    for dtype in family.tolerances:
        if dtype not in family.dtypes:
            raise FamilyError(f"{family.name} has a tolerance for {dtype}, and its dtypes are {given}")
