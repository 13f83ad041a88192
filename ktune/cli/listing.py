"""`ktune list`: the families, what can vary in one, and the configurations of a study."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ktune.cli.faults import faults
from ktune.cli.options import RESULTS, DebugOption, JsonOption, ProblemOption, ResultsOption, SetOption, StudyOption

if TYPE_CHECKING:
    from ktune.api import Family
    from ktune.core.model import Problem


def list_(
    family: Annotated[str, typer.Argument(metavar="[FAMILY]", help="A shipped name or a folder.")] = "",
    problem: ProblemOption = None,
    set_: SetOption = None,
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """List the families, one family's parameters and rules, or a study's configurations.

    Example: ktune list selective_scan --set block_size=64,128
    """
    with faults(debug):
        if study:
            _list_study(study, results, json_)
        elif family:
            _list_family(family, problem, set_, json_)
        else:
            _list_families(json_)


def _list_families(as_json: bool) -> None:
    from ktune.core.loading import load_family, shipped_families

    found = {name: load_family(name).family.summary for name in shipped_families()}
    if as_json:
        typer.echo(json.dumps(found, indent=2))
        return
    width = max(map(len, found), default=0)
    for name, summary in found.items():
        typer.echo(f"{name:<{width}}  {summary}")
    typer.echo("next: ktune list FAMILY; a family of your own: ktune new NAME", err=True)


def _list_family(name: str, problem: list[str] | None, narrowing: list[str] | None, as_json: bool) -> None:
    from ktune.cli.options import parse_problem, parse_space, problem_text
    from ktune.core.identity import configuration_id, value_text
    from ktune.core.loading import load_family

    loaded = load_family(name)
    chosen = parse_problem(loaded, problem)
    space = parse_space(loaded, chosen, narrowing)
    family = loaded.family
    described: dict[str, Any] = {
        "family": family.name,
        "summary": family.summary,
        "folder": str(loaded.folder),
        "sizes": {s.name: s.help for s in family.sizes if s.default is None},
        "options": {s.name: {"default": s.default, "help": s.help} for s in family.sizes if s.default is not None},
        "dtypes": list(family.dtypes),
        "problems": {label: _spelled(p) for label, p in loaded.named_problems.items()},
        "parameters": [
            {
                "name": p.name,
                "values": list(space.values(p)),
                "default": p.default,
                "help": p.help,
                "when": {k: list(v) for k, v in (p.when or {}).items()},
            }
            for p in family.parameters
        ],
        "rules": list(dict.fromkeys(r.law for r in family.rules)),
        "problem": chosen.label,
        "valid_points": len(space),
        "default": configuration_id(family, space.default),
    }
    if as_json:
        typer.echo(json.dumps(described, indent=2))
        return
    typer.echo(f"{family.name}: {family.summary}\n")
    typer.echo("sizes")
    for size in family.sizes:
        if size.default is None:
            typer.echo(f"  {size.name:<4} {size.help}")
    _echo_options(family)
    typer.echo("problems (the first is the default)")
    for label, p in loaded.named_problems.items():
        typer.echo(f"  {label:<16} {problem_text(p)}")
    typer.echo("parameters (* default)")
    for parameter in family.parameters:
        values = " ".join(value_text(v) + ("*" if v == parameter.default else "") for v in space.values(parameter))
        when = (
            "; only with " + ", ".join(f"{k}={'|'.join(map(value_text, v))}" for k, v in parameter.when.items())
            if parameter.when
            else ""
        )
        typer.echo(f"  {parameter.name:<18} {values}\n  {'':<18}   {parameter.help}{when}")
    typer.echo("rules")
    for law in described["rules"]:
        typer.echo(f"  {law}")
    typer.echo(f"{len(space)} valid configurations for {chosen.label}; the default is {described['default']}")


def _spelled(problem: Problem) -> dict[str, int | str]:
    return dict(problem.sizes) if problem.dtype == "float32" else {**dict(problem.sizes), "dtype": problem.dtype}


def _echo_options(family: Family) -> None:
    """What else a problem may say: options with their defaults, and dtypes where there is a choice."""
    if family.defaults:
        typer.echo("options (* where a problem leaves them out)")
    for size in family.sizes:
        if size.default is not None:
            typer.echo(f"  {f'{size.name}={size.default}*':<16} {size.help}")
    if family.dtypes != ("float32",):
        first, *others = family.dtypes
        typer.echo(f"dtypes (* where a problem leaves it out)\n  {' '.join([f'{first}*', *others])}")


def _list_study(name: str, results: Path, as_json: bool) -> None:
    from ktune.cli.studies import open_study
    from ktune.output.ranking import ranked, standing
    from ktune.output.rounding import median
    from ktune.output.summary import source_mark

    opened = open_study(name, results)
    with opened.study as study:
        found = ranked(standing(study.measurements()))
        rows = [(m, study.identify(m.variant.configuration)) for m in found]
    if as_json:
        described = [
            {
                "trial": m.trial,
                "source": m.source.value,
                "status": m.status.value,
                "time_cold_median_us": m.cold_us,
                "configuration": identity,
            }
            for m, identity in rows
        ]
        typer.echo(json.dumps({"format": 1, "study": study.name, "configurations": described}, indent=2))
        return
    typer.echo(f"{'trial':>6}  {'cold us':>9}  {'hot us':>9}  {'status':<13}  configuration")
    for m, identity in rows:
        cold, hot = (median(t) if t else "-" for t in (m.cold, m.hot))
        typer.echo(f"{f'#{m.trial}':>6}  {cold:>9}  {hot:>9}  {m.status.value:<13}  {identity}{source_mark([m])}")
