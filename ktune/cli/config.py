"""`--config FILE.toml`: option names and their values, which the command line overrides."""

from __future__ import annotations

import difflib
import tomllib
from pathlib import Path
from typing import Any

import typer

from ktune.cli.faults import faults
from ktune.core.errors import UsageError
from ktune.core.identity import value_text

_NOT_FOR_FILES = {"config", "help", "debug"}


def apply_config(ctx: typer.Context, path: Path | None) -> Path | None:
    """Make a file's values the defaults of this command. Called before the other options are read."""
    if path is not None:
        with faults(debug=False):
            ctx.default_map = read_config(path, _options_of(ctx), str(ctx.info_name))
    return path


def read_config(path: Path, options: dict[str, Any], command: str) -> dict[str, Any]:
    """{parameter name: text or list of texts} of a file. `options`: {option name: the command's parameter}."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"can't read {path}: {error.strerror}; --config takes a TOML file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} is not TOML: {error}") from None
    values: dict[str, Any] = {}
    for key, value in content.items():
        if key not in options:
            near = difflib.get_close_matches(key, list(options), n=1)
            hint = f"did you mean {near[0]}?" if near else f"it has {', '.join(sorted(options))}"
            raise UsageError(f"{path}: {command} has no option {key!r}; {hint}")
        values[options[key].name] = _texts(path, key, value, options[key])
    return values


def _options_of(ctx: typer.Context) -> dict[str, Any]:
    names = {opt[2:]: p for p in ctx.command.params for opt in p.opts if opt.startswith("--")}
    return {name: p for name, p in names.items() if name not in _NOT_FOR_FILES}


def _texts(path: Path, key: str, value: Any, option: Any) -> bool | str | list[str]:
    """A value as it would stand on the command line: `{B = 16}` is `B=16`, `{items = [1, 2]}` is `items=1,2`."""
    flag = getattr(option, "is_flag", False)
    if flag != isinstance(value, bool):
        raise UsageError(
            f"{path}: {key} must be {'true or false' if flag else 'a value, not true or false'}, got {value!r}"
        )
    if flag:
        return bool(value)
    if option.multiple:
        if isinstance(value, dict):
            pairs = [f"{name}={_joined(v)}" for name, v in value.items()]
            return pairs if key == "set" else [",".join(pairs)]
        return [str(v) for v in value] if isinstance(value, list) else [str(value)]
    if isinstance(value, dict | list):
        raise UsageError(f"{path}: {key} takes one value, got {value!r}")
    return str(value)


def _joined(value: Any) -> str:
    values = value if isinstance(value, list) else [value]
    return ",".join(value_text(v) for v in values)
