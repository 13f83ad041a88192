"""`ktune export`: the winner as a C header and JSON; with its kernel, all that a C++ program needs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import RESULTS, ConfigOption, DebugOption, JsonOption, ProblemOption, ResultsOption, StudyOption
from ktune.core.errors import NothingPassed

if TYPE_CHECKING:
    from ktune.cli.studies import OpenStudy
    from ktune.output.winner import Winner


def export(
    name: Annotated[
        str, typer.Argument(metavar="[STUDY]", help="A name, a folder or a family: its latest study.")
    ] = "",
    configuration: Annotated[
        str,
        typer.Option(
            "--configuration",
            metavar="CONFIGURATION",
            help="#trial, id, digest prefix or JSON file. The winner if not given.",
        ),
    ] = "",
    with_kernel: Annotated[
        bool, typer.Option("--with-kernel", help="Add the kernel's source with this configuration set, and a launcher.")
    ] = False,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where the files go, instead of the study.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that ktune did not write.")] = False,
    problem: ProblemOption = None,
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    config: ConfigOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Write the winning configuration as best.h and best.json.

    Example: ktune export selective_scan --with-kernel --output src/generated
    """
    with faults(debug):
        from ktune.cli.several_results import export_several, find_several, refuse_choices
        from ktune.cli.studies import open_study
        from ktune.output.summary import unmeasured_note
        from ktune.output.winner import winner_json

        together = find_several(name or study, results)
        if together is not None:
            refuse_choices(together, problem=problem, configuration=configuration)
            export_several(together, output, with_kernel, force, json_)
            return
        opened = open_study(name or study, results, problem)
        with opened.study:
            winner = _winner(opened, configuration)
            stem = f"trial_{winner.measurement.trial}" if configuration else "best"
            paths = write_exports(winner, output or opened.study.folder, stem, with_kernel, force)
            told = unmeasured_note([winner.measurement])
        if json_:
            described = {"format": 1, "files": [str(p) for p in paths], "winner": winner_json(winner)}
            typer.echo(json.dumps(described, indent=2))
        else:
            typer.echo("\n".join(f"wrote {path}" for path in paths))
        if told:
            typer.echo(f"the figures in them are {told}", err=True)


def write_exports(winner: Winner, folder: Path, stem: str, with_kernel: bool, force: bool) -> list[Path]:
    """Header and JSON, and with the kernel its source; the paths."""
    from ktune.output.header import write_header
    from ktune.output.winner import write_winner

    paths = [
        write_header([winner], folder / f"{stem}.h", force=force),
        write_winner(winner, folder / f"{stem}.json", force=force),
    ]
    if with_kernel:
        from ktune.output.kernel import write_kernel

        paths += write_kernel(winner, folder, stem, force=force)
    return paths


def _winner(opened: OpenStudy, configuration: str) -> Winner:
    from ktune.cli.configurations import find_measurement
    from ktune.cli.results import winner_of
    from ktune.output.summary import Finding
    from ktune.output.winner import Winner

    study = opened.study
    if configuration:
        command = str(study.meta.get("command") or "")
        return Winner(opened.loaded, Finding(find_measurement(configuration, opened)), command)
    winner = winner_of(study, opened.loaded)
    if winner is None:
        raise NothingPassed(
            f"study {study.name} has no winner to export: no variant is both right and timed; `ktune report` says why"
        )
    return winner
