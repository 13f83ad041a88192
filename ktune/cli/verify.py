"""`ktune verify`: build and verify variants, and say what was expected of each."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated

import typer

from ktune.cli.faults import faults
from ktune.cli.options import (
    RESULTS,
    ConfigOption,
    DebugOption,
    FamilyArgument,
    GpuOption,
    JobsOption,
    JsonOption,
    NvccOption,
    ProblemOption,
    ResultsOption,
    SetOption,
    StudyOption,
)
from ktune.core.errors import NothingPassed

if TYPE_CHECKING:
    from ktune.core.loading import LoadedFamily
    from ktune.core.model import Configuration, Measurement, Problem, Value
    from ktune.core.space import Space
    from ktune.search.evaluator import Evaluator


class Device(StrEnum):
    """What variants run on."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True)
class Check:
    """One variant: why it is known to be wrong ("" if it should be right), and what was found."""

    known_wrong: str
    found: Measurement

    @property
    def judged(self) -> bool:
        """False for what the CPU can't tell: variants that can't run there, or whose fault is the GPU's arithmetic."""
        from ktune.core.model import Source, Status

        return self.found.source is not Source.CPU or (self.found.status is not Status.INVALID and not self.known_wrong)

    @property
    def right(self) -> bool:
        from ktune.core.model import Status

        return self.found.status in (Status.OK, Status.CULLED)

    @property
    def as_expected(self) -> bool:
        from ktune.core.model import Status

        if not self.judged:
            return True
        return self.found.status in (Status.WRONG, Status.UNSTABLE) if self.known_wrong else self.right

    @property
    def outcome(self) -> str:
        from ktune.core.model import Status

        if not self.judged and self.found.status is Status.INVALID:
            return "can't run"
        return "right" if self.right else self.found.status.value


def verify(
    family: FamilyArgument,
    configuration: Annotated[
        list[str] | None,
        typer.Argument(metavar="[CONFIGURATION]...", help="#trial, id, digest prefix or JSON file."),
    ] = None,
    problem: ProblemOption = None,
    set_: SetOption = None,
    sample: Annotated[
        int, typer.Option(min=0, metavar="N", help="Random configurations besides the default and the limits.")
    ] = 20,
    seed: Annotated[int, typer.Option(metavar="N", help="Seed of the random choice.")] = 0,
    device: Annotated[
        Device, typer.Option("--device", help="cpu: execute the kernels without a GPU, on small problems, untimed.")
    ] = Device.GPU,
    sanitize: Annotated[
        bool,
        typer.Option("--sanitize", help="With --device cpu: look for accesses out of bounds, races, 32-bit offsets."),
    ] = False,
    study: StudyOption = "",
    results: ResultsOption = RESULTS,
    gpu: GpuOption = "",
    jobs: JobsOption = None,
    nvcc: NvccOption = None,
    config: ConfigOption = None,
    json_: JsonOption = False,
    debug: DebugOption = False,
) -> None:
    """Build and verify variants against the float64 reference. Exits with 4 if one is not as expected.

    Example: ktune verify selective_scan --problem L=1023 --sample 50
    """
    with faults(debug):
        from ktune.cli.configurations import find_configuration
        from ktune.cli.evaluators import EvaluatorOptions, make_cpu_evaluator, make_evaluator
        from ktune.cli.options import parse_problem, parse_space
        from ktune.core.errors import UsageError
        from ktune.core.loading import load_family

        if sanitize and device is not Device.CPU:
            raise UsageError("--sanitize needs --device cpu; on a GPU, run compute-sanitizer")
        loaded = load_family(family)
        chosen = parse_problem(loaded, problem)
        space = parse_space(loaded, chosen, set_)
        wanted = [find_configuration(text, space, study, results) for text in configuration or ()]
        options = EvaluatorOptions(
            chosen, results, study, gpu, jobs, nvcc, lambda sentence: typer.echo(sentence, err=True)
        )
        on_cpu = device is Device.CPU
        evaluator = make_cpu_evaluator(loaded, jobs, sanitize) if on_cpu else make_evaluator(loaded, options)
        try:
            # The worker starts while a large space is looked through.
            wanted = wanted or choose_configurations(space, sample, seed)
            checks = run_checks(loaded, wanted, chosen, evaluator)
        finally:
            evaluator.close()
        typer.echo(_json_text(loaded, checks) if json_ else "\n".join(_lines(loaded, chosen, checks)))
        if not all(check.as_expected for check in checks) or not any(check.judged for check in checks):
            raise typer.Exit(NothingPassed.exit_code)


def choose_configurations(space: Space, sample: int, seed: int) -> list[Configuration]:
    """The default, each parameter's first and last valid value with the default's others, then `sample` random ones."""
    default = space.default
    # {parameter: {value: (parameters as in the default, the point with the most of them)}}
    nearest: dict[str, dict[Value, tuple[int, Configuration]]] = {p.name: {} for p in space.family.parameters}
    for point in space.points:
        alike = sum(default.get(name) == value for name, value in point.items())
        for name, value in point.items():
            if value not in nearest[name] or alike > nearest[name][value][0]:
                nearest[name][value] = alike, point
    chosen = [default]
    for parameter in space.family.parameters:
        found = nearest[parameter.name]
        valid = [value for value in parameter.values if value in found]
        chosen += [found[value][1] for value in valid[:1] + valid[-1:]]
    chosen = list(dict.fromkeys(chosen))
    drawn = random.Random(seed).sample(space.points, min(sample + len(chosen), len(space)))
    rest = [point for point in drawn if point not in set(chosen)]
    return chosen + rest[:sample]


def run_checks(
    loaded: LoadedFamily, configurations: Sequence[Configuration], problem: Problem, evaluator: Evaluator
) -> list[Check]:
    """Verify each on `problem` and on the family's small ones, in the given order."""
    from ktune.cli.evaluators import target_of_evaluator
    from ktune.core.model import Request
    from ktune.core.variant import make_variant

    target = target_of_evaluator(evaluator)
    requests = [
        Request(trial, make_variant(loaded.family, c, problem, target), problem, thorough=True)
        for trial, c in enumerate(configurations)
    ]
    found: dict[int, Measurement] = {}
    for measurement in evaluator.evaluate(iter(requests)):
        found[measurement.trial] = measurement
        typer.echo(f"{len(found)}/{len(requests)} {measurement.status}", err=True)
    return [Check(loaded.family.expected_wrong(c), found[trial]) for trial, c in enumerate(configurations)]


def _lines(loaded: LoadedFamily, problem: Problem, checks: Sequence[Check]) -> list[str]:
    from ktune.core.identity import configuration_id
    from ktune.core.model import Source

    on_cpu = any(check.found.source is Source.CPU for check in checks)
    title = "executed on the CPU on small problems: not a verification on a GPU" if on_cpu else f"at {problem.label}"
    lines = [
        f"{loaded.name} {title}",
        f"    {'expected':<8}  {'found':<13}  {'error/tol':>9}  configuration",
    ]
    for check in checks:
        m = check.found
        error = f"{m.accuracy.worst_ratio:9.2g}" if m.accuracy else f"{'-':>9}"
        mark = "--" if not check.judged else "ok" if check.as_expected else "!!"
        expected = "wrong" if check.known_wrong else "right"
        name = configuration_id(loaded.family, m.variant.configuration)
        lines.append(f"{mark}  {expected:<8}  {check.outcome:<13}  {error}  {name}")
        if check.known_wrong:
            lines.append(f"    known wrong: {check.known_wrong}")
        if m.detail and (not check.as_expected or check.outcome == "can't run"):
            lines.append(f"    {m.detail.splitlines()[0]}")
    wrong = sum(bool(check.known_wrong) for check in checks)
    unexpected = sum(not check.as_expected for check in checks)
    known = f", {wrong} of them known to be wrong" if wrong else ""
    unjudged = sum(not check.judged for check in checks)
    left = f", {unjudged} not judged on the CPU" if unjudged else ""
    verdict = f"{unexpected} not as expected" if unexpected else "all as expected"
    if unjudged == len(checks):
        verdict = "nothing verified"
    return [*lines, f"{len(checks)} variants{known}: {verdict}{left}"]


def _json_text(loaded: LoadedFamily, checks: Sequence[Check]) -> str:
    from ktune.core.identity import configuration_id

    rows = [
        {
            "configuration": configuration_id(loaded.family, check.found.variant.configuration),
            "problem": check.found.problem.label,
            "expected": "wrong" if check.known_wrong else "right",
            "reason": check.known_wrong,
            "found": check.outcome,
            "judged": check.judged,
            "as_expected": check.as_expected,
            "error_of_tolerance": check.found.accuracy.worst_ratio if check.found.accuracy else None,
            "detail": check.found.detail,
            "source": check.found.source.value,
        }
        for check in checks
    ]
    return json.dumps({"format": 1, "checks": rows}, indent=2)
