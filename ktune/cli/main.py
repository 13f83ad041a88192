"""The command line's entry point. Heavy imports happen inside the commands, so that --help answers at once."""

from __future__ import annotations

import signal
from types import FrameType
from typing import Annotated

import typer

import ktune
from ktune.cli import bench, doctor, export, listing, new, profile, report, search, verify

app = typer.Typer(
    name="ktune",
    help="Tune parameterised CUDA kernels for PyTorch: build, verify, search, report, export.",
    epilog="First: ktune doctor. Then: ktune search selective_scan.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)

app.command("search")(search.search)
app.command("verify")(verify.verify)
app.command("report")(report.report)
app.command("export")(export.export)
app.command("profile")(profile.profile)
app.command("bench")(bench.bench)
app.command("list")(listing.list_)
app.command("doctor")(doctor.doctor)
app.command("new")(new.new)


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"ktune {ktune.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command of this process's arguments and exit with its code. SIGTERM ends it as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)
    app()


def _interrupt(number: int, frame: FrameType | None) -> None:
    raise KeyboardInterrupt
