"""`ktune profile`: what one configuration is made of, how near it comes to this GPU's peaks, and what bounds it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import (
    RESULTS,
    ConfigOption,
    DebugOption,
    FamilyArgument,
    GpuOption,
    JsonOption,
    NvccOption,
    ProblemOption,
    ResultsOption,
    SetOption,
    StudyOption,
)


def profile(
    family: FamilyArgument,
    configuration: Annotated[
        str,
        typer.Argument(
            metavar="[CONFIGURATION]",
            help="#trial, id, digest prefix or JSON file. The study's winner if not given, else the default.",
        ),
    ] = "",
    problem: ProblemOption = None,
    set_: SetOption = None,
    counters: Annotated[
        bool, typer.Option("--counters/--no-counters", help="Read hardware counters with ncu, if it is installed.")
    ] = True,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Measure this GPU's peaks anew, instead of those kept.")
    ] = False,
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    output: Annotated[
        Path | None, typer.Option("--output", metavar="DIR", help="Where the files go, instead of the study.")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that ktune did not write.")] = False,
    gpu: GpuOption = "",
    nvcc: NvccOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Tell what a configuration is made of and what bounds it; without a GPU, what its build tells.

    Writes profile.json and profile.txt into the study, if there is one. Times in microseconds, rates per second.

    Example: ktune profile selective_scan --set algorithm=staged
    """
    with faults(debug):
        from ktune.cli.profiling import Wish, find_subject, open_machine
        from ktune.core.loading import load_family
        from ktune.core.settings import read_settings
        from ktune.profile.collect import collect_profile
        from ktune.profile.files import check_profile_files, profile_json, profile_stem, write_profile
        from ktune.profile.text import profile_text

        loaded = load_family(family)
        found = find_subject(Wish(loaded, configuration, problem, set_, study, results), _say)
        folder = output or found.folder
        # beside the winner's in a study's folder, what was named gets a name of its own
        named = (configuration or set_) and output is None
        stem = profile_stem(found.subject.configuration if named else None)
        if folder is not None:
            check_profile_files(folder, stem, force)
        logs = (folder or read_settings().cache_dir) / "logs"
        machine = open_machine(loaded, gpu, nvcc, logs, counters, calibrate, _say)
        made = collect_profile(found.subject, machine)
        paths = [] if folder is None else write_profile(made, folder, stem, force=force)
        typer.echo(json.dumps(profile_json(made), indent=2) if json_ else profile_text(made))
        for path in paths:
            _say(f"wrote {path}")
        if folder is None:
            _say("no study to keep it in; --output DIR writes profile.json and profile.txt")


def _say(sentence: str) -> None:
    typer.echo(sentence, err=True)
