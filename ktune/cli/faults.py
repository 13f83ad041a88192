"""How a command ends when something is wrong: one line on stderr and the fault's exit code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import typer

from ktune.core.errors import KtuneError

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
        typer.echo(f"error: a defect of ktune: {type(error).__name__}: {error}; --debug shows where", err=True)
        raise typer.Exit(KtuneError.exit_code) from None
