"""How a command ends when something is wrong: one line on stderr and the fault's exit code."""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import typer

from ktune.core.errors import FamilyError, KtuneError

INTERRUPTED = 130


@contextmanager
def faults(debug: bool) -> Iterator[None]:
    """Run a command's body; with `debug`, faults keep their traceback."""
    try:
        yield
    except KeyboardInterrupt:
        if debug:
            raise
        typer.echo("interrupted", err=True)
        raise typer.Exit(INTERRUPTED) from None
    except KtuneError as error:
        if debug:
            raise
        typer.echo(f"error: {error}", err=True)
        raise typer.Exit(error.exit_code) from None
    except BrokenPipeError:
        raise typer.Exit(0) from None
    except (typer.Exit, typer.Abort):
        raise
    except Exception as error:
        if debug:
            raise
        line = _line_of_a_users_family(error)
        if line:
            typer.echo(
                f"error: {line} raised {type(error).__name__}: {error}; --debug shows how it got there", err=True
            )
            raise typer.Exit(FamilyError.exit_code) from None
        typer.echo(f"error: a defect of ktune: {type(error).__name__}: {error}; --debug shows where", err=True)
        raise typer.Exit(KtuneError.exit_code) from None


def _line_of_a_users_family(error: Exception) -> str:
    """`folder/family.py:12`, the innermost line of a family of the user's own that led to the error, else nothing."""
    from ktune.core.loading import is_family_module, shipped_folder

    found = ""
    for frame, number in traceback.walk_tb(error.__traceback__):
        path = Path(frame.f_code.co_filename)
        if is_family_module(frame.f_globals.get("__name__", "")) and shipped_folder() not in path.parents:
            found = f"{path}:{number}"
    return found
