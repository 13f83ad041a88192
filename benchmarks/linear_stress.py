"""Linear + swish + scale under stress on one GPU: repeats, special values, huge weights, small odd sizes.

    python benchmarks/linear_stress.py [CHECK]... [--only PART OF A NAME] [--launches 1000] [--output FILE.json]

Each algorithm (`wgmma` with several kinds of operands) is run on torch tensors and compared with the float64 reference
of the family by its own rules. Checks, all of them if none is named:

    repeat    the configurations of ktune/nn/winners.json on their problems: the first result is right, and each of
              1,000 launches on a poisoned output gives the same bits
    negative  z from -1e4 to 50: right, and zero where the reference rounds to zero
    special   Inf, -Inf and NaN in x, weight and bias: the same kind of value as float64 gives, at the same places
    kinds     every kind of inputs of reference.py, by the componentwise bound: huge, tiny, cancelling, outliers, where
              no fixed tolerance says much; K=8,192
    far       a weight of 2.15e9 elements (N=65,600, K=32,768 or 32,767; 8.6 GB), M=16 and 128: right, the last rows too
    small     small odd sizes once: right. For the sanitizer, which needs each allocation by itself:

        PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \\
            python benchmarks/linear_stress.py small

A line per run; "told" marks a difference that the family's README states for those operands. Exits with 1 if a line is
wrong. tests/kernel_variants runs the quick ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import stress
import torch
from stress import Line, Run, Subject, Tensors, changed_kinds, differing, kinds, last_kept, outputs

from ktune.checks.compare import compare, explain
from ktune.core.errors import UsageError
from ktune.core.loading import load_family
from ktune.core.model import Problem, Value
from ktune.core.space import Space

if TYPE_CHECKING:
    from ktune.nn.executable import Executable

LOADED = load_family("linear_swish_scale")
FAMILY = LOADED.family
REFERENCE = LOADED.module("reference")

SUBJECTS: dict[str, dict[str, Value]] = {
    "cublas_epilogue": {"algorithm": "cublas_epilogue"},
    "simt": {"algorithm": "simt"},
    "simt split": {"algorithm": "simt", "split_k": 4, "fast_math": True},
    "small_batch": {"algorithm": "small_batch"},
    "wgmma bf16x3": {"algorithm": "wgmma", "operands": "bf16x3"},
    "wgmma bf16x3 split": {"algorithm": "wgmma", "operands": "bf16x3", "split_k": 4, "fast_math": True},
    "wgmma tf32x3": {"algorithm": "wgmma", "operands": "tf32x3", "ring": 4},
    "wgmma fp16x3": {"algorithm": "wgmma", "operands": "fp16x3"},
    "wgmma fp16_e5m2": {"algorithm": "wgmma", "operands": "fp16_e5m2"},
}
# What follows from the batch: the first value that is valid.
BY_BATCH: dict[str, tuple[str, tuple[Value, ...]]] = {
    "simt": ("bm", (128, 64, 32)),
    "small_batch": ("batch_tile", (1, 2, 4, 8, 16)),
}
# What the README says of infinities in these operands.
TOLD_OF_SPECIAL = ("fp16",)
# Whose sums the README says to be beyond the componentwise bound on a kind of inputs.
TOLD_OF_KINDS = {"outliers": ("simt", "wgmma bf16x3", "wgmma bf16x3 split", "wgmma tf32x3")}

STRESS = {"M": 24, "N": 260, "K": 516}
KINDS_SIZES = (64, 512, 8192)
SMALL = ((1, 1, 1), (1, 129, 33), (19, 101, 251), (3, 40, 36), (128, 257, 260), (130, 129, 68))
FAR = ((16, 65_600, 32_768), (128, 65_600, 32_768), (128, 65_600, 32_767))
LAST_ROWS = 64


def configured(name: str, problem: Problem) -> Subject | None:
    """A subject of SUBJECTS; None where its configuration is not valid for the problem."""
    space = Space(FAMILY, [problem])
    chosen = SUBJECTS[name]
    parameter, values = BY_BATCH.get(str(chosen["algorithm"]), ("algorithm", (chosen["algorithm"],)))
    for value in values:
        try:
            return Subject(name, space.complete({**chosen, parameter: value}), problem)
        except UsageError:
            continue
    return None


def executables(subjects: Sequence[Subject]) -> Iterator[tuple[Subject, Executable]]:
    """Each subject with its kernel, built and loaded on the current GPU."""
    return stress.executables(LOADED, subjects)


def result(run: Run, problem: Problem, given: Tensors) -> torch.Tensor:
    """y of one run."""
    found = outputs(FAMILY, problem, given["x"].device)
    run(given, found)
    return found["y"]


def judged(y: torch.Tensor, problem: Problem, given: Tensors) -> tuple[bool, str]:
    """Whether y keeps the family's rules, and its errors or why not."""
    truth, bound = REFERENCE.reference(problem, given)["y"], REFERENCE.bound(problem, given)["y"]
    accuracy = compare(y, truth, FAMILY.tolerance, bound=bound, output="y")
    reason = explain(accuracy, FAMILY.tolerance)
    ratios = f"elementwise {accuracy.worst_ratio:.3g}, componentwise {accuracy.bound_ratio:.3g}"
    return not reason, reason or f"{ratios}, normwise {accuracy.normwise:.2g}"


def repeat(run: Run, problem: Problem, given: Tensors, launches: int) -> tuple[bool, str]:
    """The first result is right, and every launch gives its bits."""
    found = outputs(FAMILY, problem, given["x"].device)
    run(given, found)
    right, detail = judged(found["y"], problem, given)
    count = differing(run, given, found, launches)
    return right and count == 0, f"{count} of {launches:,} launches differ; {detail}"


def negative(run: Run, problem: Problem, given: Tensors) -> tuple[bool, str]:
    """z from -1e4 to 50 by the bias: right, and zero of either sign where float64 rounds to zero in fp32."""
    given = {**given, "bias": torch.linspace(-1e4, 50.0, problem["N"], device=given["x"].device)}
    y = result(run, problem, given)
    right, detail = judged(y, problem, given)
    zero = REFERENCE.reference(problem, given)["y"].float() == 0
    astray = int((zero & (y != 0)).sum())
    return right and astray == 0, f"{astray} of {int(zero.sum())} zeros are none; {detail}"


def special_cases(given: Tensors) -> Iterator[tuple[str, Tensors]]:
    """(what is where, the inputs with it)."""
    values = {"Inf": torch.inf, "-Inf": -torch.inf, "NaN": torch.nan}
    places = {"x": (1, 7), "weight": (5, 9), "bias": (6,)}
    everything = dict(given)
    for name, place in places.items():
        for i, (called, value) in enumerate(values.items()):
            changed = given[name].clone()
            changed[place] = value
            yield f"{called} in {name}", {**given, name: changed}
            together = everything[name].clone()
            # other rows and columns for each, so that infinities of one operand meet those of the other
            together[tuple(at + 2 * i for at in place)] = value
            everything[name] = together
    meeting = everything["weight"].clone()
    meeting[3, places["x"][1]] = torch.inf
    meeting[4, places["x"][1]] = -torch.inf
    yield "all of them, meeting", {**everything, "weight": meeting}


def special(run: Run, problem: Problem, given: Tensors) -> Iterator[tuple[str, bool, str]]:
    """(case, whether every element is of the kind that float64 gives, which are not)."""
    for case, changed in special_cases(given):
        y = result(run, problem, changed)
        wanted = kinds(REFERENCE.reference(problem, changed)["y"])
        told = [f"{want} became {got} {n}x" for (want, got), n in changed_kinds(wanted, kinds(y)).items()]
        count = int((wanted > 0).sum())
        yield case, not told, ", ".join(told) or f"all {count} that are not finite agree"


def each_kind(run: Run, problem: Problem, device: str) -> Iterator[tuple[str, bool, str]]:
    """(kind of inputs, whether every element keeps the componentwise bound, the errors)."""
    for kind in REFERENCE.KINDS:
        given = REFERENCE.inputs(problem, 7, kind, device=device)
        y = result(run, problem, given)
        truth, bound = REFERENCE.reference(problem, given)["y"], REFERENCE.bound(problem, given)["y"]
        accuracy = compare(y, truth, FAMILY.tolerance, bound=bound)
        assert accuracy.bound_ratio is not None
        detail = f"componentwise {accuracy.bound_ratio:.3g}; elementwise {accuracy.worst_ratio:.3g}"
        yield kind, accuracy.bound_ratio <= 1.0, f"{detail}, normwise {accuracy.normwise:.2g}"


def far(run: Run, problem: Problem, given: Tensors) -> tuple[bool, str]:
    """Right everywhere, and in the last rows of the weight, which lie beyond 2^31 elements, by themselves."""
    y = result(run, problem, given)
    right, detail = judged(y, problem, given)
    last = {"x": given["x"], **{name: given[name][-LAST_ROWS:] for name in ("weight", "bias")}}
    part = FAMILY.problem(M=problem["M"], N=LAST_ROWS, K=problem["K"])
    right_last, detail_last = judged(y[:, -LAST_ROWS:], part, last)
    return right and right_last, f"{detail}; last {LAST_ROWS} rows: {detail_last}"


def small(run: Run, problem: Problem, given: Tensors) -> tuple[bool, str]:
    return judged(result(run, problem, given), problem, given)


CHECKS = ("repeat", "negative", "special", "kinds", "far", "small")


def problems_of(check: str) -> tuple[Problem, ...]:
    sizes = {"far": FAR, "small": SMALL, "kinds": (KINDS_SIZES,)}.get(check, (tuple(STRESS.values()),))
    return tuple(FAMILY.problem(M=m, N=n, K=k) for m, n, k in sizes)


def subjects_of(check: str, part: str) -> list[Subject]:
    """In order of their problems, so that inputs are drawn once for each."""
    if check == "repeat":
        found = list(stress.winners(FAMILY))
    else:
        found = stress.valid(problems_of(check), SUBJECTS, configured)
    return [subject for subject in found if part in subject.name]


def lines_of(check: str, part: str, launches: int) -> Iterator[Line]:
    for subject, run in stress.runs(LOADED, subjects_of(check, part)):
        yield from judge(check, subject, run, launches, "cuda")


def judge(check: str, subject: Subject, run: Run, launches: int, device: str) -> Iterator[Line]:
    """The lines of one subject."""
    problem, given = subject.problem, drawn(subject.problem, device)
    expected = FAMILY.expected_wrong(subject.configuration)
    if check == "special":
        for case, right, detail in special(run, problem, given):
            told = not right and any(word in str(subject.configuration.get("operands")) for word in TOLD_OF_SPECIAL)
            yield Line(check, subject.name, case, right, detail, told)
        return
    if check == "kinds":
        for kind, right, detail in each_kind(run, problem, device):
            told = bool(expected) or subject.name in TOLD_OF_KINDS.get(kind, ())
            yield Line(check, subject.name, kind, right, detail, not right and told)
        return
    judges: dict[str, Callable[[], tuple[bool, str]]] = {
        "repeat": lambda: repeat(run, problem, given, launches),
        "negative": lambda: negative(run, problem, given),
        "far": lambda: far(run, problem, given),
        "small": lambda: small(run, problem, given),
    }
    right, detail = judges[check]()
    yield Line(check, subject.name, problem.label, right, detail, not right and bool(expected))


drawn = last_kept(lambda problem, device: REFERENCE.inputs(problem, 7, device=device))


if __name__ == "__main__":
    sys.exit(stress.main(__doc__, CHECKS, lines_of))
