"""The selective scan under stress on one GPU: repeats, options, continued states, odd lengths, special values.

    python benchmarks/scan_stress.py [CHECK]... [--only PART OF A NAME] [--launches 1000] [--output FILE.json]

Each algorithm (`piped` and `chunked` with several shapes, copies and sums) is run on torch tensors and compared with
the float64 reference of the family by its tolerance: y by that of the problem's dtype, final_state, which is fp32, by
that of fp32. Outputs are poisoned before each run. Checks, all of them if none is named:

    repeat    the configurations of ktune/nn/winners.json on their problems: the first result is right, and each of
              1,000 launches, fewer beyond 2^36 elements in all, gives the same bits
    options   bias, softplus, gate, groups, no skip, initial and final state together, and a layer's own options with
              channels that no block divides; both in fp32 and bfloat16: y and final_state are right
    continued two calls, of which the second starts from the states that the first ends in: y and the states at the end
              are right, as they are of one call; how far the two differ is told
    lengths   one step, one step around one and two tiles (and of chunks, one and two turns of a tile for each), and
              channels that no block divides, by one binary: right
    special   Inf, -Inf and NaN at one place of x, delta, B_t and C_t. Where float64 gives the same as without it (the
              steps before, other batches, channels and groups): the bits are those without it. Where it changes and
              stays finite: right. Elsewhere: the same kind of value, NaN, Inf or -Inf
    far       x of more than 2^31 elements, the problem `beyond`, or L=262,144 and D=1,056 for chunks, whose rules want
              few pairs: right, the last batch and the last steps by themselves too
    small     every kind of option once at a tiny size: right. For memcheck, which needs each allocation by itself, and
              for racecheck:

        PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck --report-api-errors no --error-exitcode 9 \\
            python benchmarks/scan_stress.py small
        PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool racecheck --error-exitcode 9 \\
            python benchmarks/scan_stress.py small

A line per run; "told" marks a difference that the family's README states. Exits with 1 if a line is wrong.
tests/kernel_variants runs the quick ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice

import stress
import torch
from stress import Line, Run, Subject, Tensors, changed_kinds, differing, kinds, last_kept, outputs

from ktune.checks.compare import bits, compare, explain
from ktune.core.errors import UsageError
from ktune.core.loading import load_family
from ktune.core.model import Configuration, Problem, Value
from ktune.core.space import Space

LOADED = load_family("selective_scan")
FAMILY = LOADED.family
REFERENCE = LOADED.module("reference")
RESOURCES = LOADED.module("resources")

PAIRS_OF_32: dict[str, Value] = {"block_size": 128, "threads_per_pair": 4}
PAIRS_OF_16_BY_4: dict[str, Value] = {"block_size": 64, "threads_per_pair": 4}
PAIRS_OF_16_BY_8: dict[str, Value] = {"block_size": 128, "threads_per_pair": 8}
PIPED: dict[str, Value] = {"algorithm": "piped", "tile_l": 32, "stages": 3, "exp": "ex2"}
CHUNKED: dict[str, Value] = {"algorithm": "chunked", "tile_l": 16, "chunks": 4, "exp": "ex2", **PAIRS_OF_32}
STAGED: dict[str, Value] = {"algorithm": "staged", "stages": 3, "register_prefetch": True, "vector_width": 4}
SUBJECTS: dict[str, dict[str, Value]] = {
    "direct": {"algorithm": "direct", "threads_per_pair": 8, "reduction": "transposed", "prefetch": 8, "unroll": 1},
    "staged": {**STAGED, "exp": "ex2", "reduction": "transposed", **PAIRS_OF_32},
    "piped lanes": {**PIPED, **PAIRS_OF_32, "reduction": "shared", "copies": "lanes"},
    "piped bulk": {**PIPED, **PAIRS_OF_32, "reduction": "shared", "copies": "bulk"},
    "piped lanes 16x4": {**PIPED, **PAIRS_OF_16_BY_4, "reduction": "transposed", "copies": "lanes"},
    "piped bulk 16x4": {**PIPED, **PAIRS_OF_16_BY_4, "reduction": "shared", "copies": "bulk"},
    "piped lanes 16x8": {**PIPED, **PAIRS_OF_16_BY_8, "reduction": "shared", "copies": "lanes"},
    "piped bulk 16x8": {**PIPED, **PAIRS_OF_16_BY_8, "reduction": "transposed", "copies": "bulk"},
    "chunked lanes": {**CHUNKED, "reduction": "transposed", "copies": "lanes"},
    "chunked bulk": {**CHUNKED, "reduction": "shared", "copies": "bulk"},
    "blockscan": {"algorithm": "blockscan", "vector_width": 4, "exp": "ex2"},
}
FAR_SUBJECTS = ("direct", "staged", "piped lanes", "piped bulk", "chunked lanes", "chunked bulk", "blockscan")
# Of which algorithms the README says that an infinity in which tensors may become NaN.
TOLD_OF_SPECIAL: dict[str, tuple[str, ...]] = {
    "direct": ("x",),
    "staged": ("x",),
    "piped": ("x",),
    "chunked": ("x", "delta", "B_t"),
    "blockscan": ("x", "delta", "B_t"),
}

ALL = {"G": 2, "bias": 1, "softplus": 1, "gate": 1, "skip": 0, "initial": 1, "final": 1}
LAYER = {"bias": 1, "softplus": 1, "gate": 1, "final": 1}
STATES = {"G": 2, "initial": 1, "final": 1}
N = 16
# 64 channels are two groups of whole blocks; 72 leave a part of a block over.
WHOLE, TAIL = 64, 72
LENGTH = 203
CONTINUED = (130, 203)
STRESS = {"B": 2, "L": LENGTH, "D": WHOLE, "N": N, **STATES}
# At a chunk's start, at its end and within, in both batches and groups; chunks have 64 steps, groups 32 channels.
PLACES = {"x": (1, 70, 37), "delta": (0, 128, 3), "B_t": (1, 63, 1, 5), "C_t": (0, 191, 0, 9)}
VALUES = {"Inf": torch.inf, "-Inf": -torch.inf, "NaN": torch.nan}
FAR_CHUNKED = {"B": 8, "L": 262_144, "D": 1_056, "N": N}
LAST_STEPS = 64
SMALL = {"L": 131, "N": N}
MOST_ELEMENTS = 1 << 36
FEWEST_LAUNCHES = 100


def configured(name: str, problem: Problem) -> Subject | None:
    """A subject of SUBJECTS; None where its configuration is not valid for the problem."""
    try:
        return Subject(name, Space(FAMILY, [problem]).complete(SUBJECTS[name]), problem)
    except UsageError:
        return None


def judged(found: Tensors, truth: Tensors, problem: Problem) -> tuple[bool, str]:
    """Whether all outputs keep the family's rules, and their errors or why not."""
    details, right = [], True
    for name, output in found.items():
        # what bfloat16 allows is y's rounding alone
        tolerance = FAMILY.tolerance if output.dtype == torch.float32 else FAMILY.tolerance_of(problem)
        accuracy = compare(output, truth[name], tolerance, output=name)
        reason = explain(accuracy, tolerance)
        right = right and not reason
        details.append(reason or f"{name} elementwise {accuracy.worst_ratio:.3g}, normwise {accuracy.normwise:.2g}")
    return right, "; ".join(details)


def result(run: Run, problem: Problem, given: Tensors) -> Tensors:
    """The outputs of one run."""
    found = outputs(FAMILY, problem, given["x"].device)
    run(given, found)
    return found


def launches_within(problem: Problem, launches: int) -> int:
    """At most MOST_ELEMENTS of x in all, but no fewer launches than FEWEST_LAUNCHES for that."""
    elements = problem["B"] * problem["L"] * problem["D"]
    return min(launches, max(FEWEST_LAUNCHES, MOST_ELEMENTS // elements))


def repeat(run: Run, problem: Problem, given: Tensors, truth: Tensors, launches: int) -> tuple[bool, str]:
    """The first result is right, and every launch gives its bits."""
    found = result(run, problem, given)
    right, detail = judged(found, truth, problem)
    launches = launches_within(problem, launches)
    count = differing(run, given, found, launches)
    return right and count == 0, f"{count} of {launches:,} launches differ; {detail}"


def parts_of(problem: Problem) -> tuple[Problem, ...]:
    """The sequence as it is given to two calls."""
    return tuple(FAMILY.problem_of({**problem.by_name, "L": length}, problem.dtype) for length in CONTINUED)


def continued(run: Run, problem: Problem, given: Tensors, truth: Tensors) -> tuple[bool, str]:
    """One call and two are right, whose second starts from the final state of the first; and how far they differ."""
    along = {tensor.name for tensor in FAMILY.inputs(problem) if tensor.shape[:2] == (problem["B"], problem["L"])}
    parts, state, start = [], given["initial_state"], 0
    for part in parts_of(problem):
        steps = slice(start, start + part["L"])
        taken = {name: t[:, steps].contiguous() if name in along else t for name, t in given.items()}
        parts.append(result(run, part, {**taken, "initial_state": state}))
        state, start = parts[-1]["final_state"], steps.stop
    two = {"y": torch.cat([part["y"] for part in parts], 1), "final_state": state}
    one = result(run, problem, given)
    right_one, detail_one = judged(one, truth, problem)
    right_two, detail_two = judged(two, truth, problem)
    apart = [f"{name} {(one[name].double() - two[name].double()).abs().max():.2g}" for name in one]
    return right_one and right_two, f"apart: {', '.join(apart)}; two calls: {detail_two}; one: {detail_one}"


def tile_of(configuration: Configuration) -> int:
    """Steps that an algorithm takes together."""
    if configuration["algorithm"] == "blockscan":
        shape = (configuration.integer(name) for name in ("lane_channels", "time_warps", "items"))
        return int(RESOURCES.blockscan_tile(*shape))
    if configuration["algorithm"] == "direct":
        names = ("prefetch", "reduction", "threads_per_pair")
        return int(RESOURCES.batch_steps(*(configuration[name] for name in names)))
    return configuration.integer("tile_l")


def channels_of(configuration: Configuration) -> int:
    """Of a block."""
    if "channels" in configuration:
        return configuration.integer("channels")
    return configuration.integer("block_size") // configuration.integer("threads_per_pair")


def lengths_of(configuration: Configuration) -> list[Problem]:
    """Around the ends of one and two tiles and, of chunks, turns of tiles; then parts of blocks of channels."""
    tile, channels = tile_of(configuration), channels_of(configuration)
    width = int(configuration.get("vector_width", RESOURCES.PIPED_STEPS))
    turns = dict.fromkeys((tile, tile * int(configuration.get("chunks", 1))))
    lengths = [1, *(n * turn + by for turn in turns for n in (1, 2) for by in (-1, 0, 1))]
    sizes = [(length, channels + width) for length in dict.fromkeys(lengths) if length > 0]
    sizes += [(2 * tile + 1, d) for d in (width, channels - width, channels, 2 * channels + width)]
    return [FAMILY.problem(B=2, L=length, D=d, N=N) for length, d in dict.fromkeys(sizes)]


def special_inputs(given: Tensors) -> Tensors:
    """With signs of which infinite states make an infinite y at even steps, and mostly NaN at odd ones."""
    rows = given["C_t"].clone()
    rows[:, ::2] = rows[:, ::2].abs()
    return {**given, "B_t": given["B_t"].abs(), "C_t": rows, "skip": given["skip"].abs()}


def special_cases(given: Tensors) -> Iterator[tuple[str, Tensors]]:
    """(what is where, the inputs with it)."""
    for name, place in PLACES.items():
        for called, value in VALUES.items():
            changed = given[name].clone()
            changed[place] = value
            yield f"{called} in {name}", {**given, name: changed}


def special(run: Run, problem: Problem, given: Tensors) -> Iterator[tuple[str, bool, str, bool]]:
    """(case, whether it is right, what is not, whether that is nothing but infinities that became NaN)."""
    given = special_inputs(given)
    plain, plain_truth = result(run, problem, given), REFERENCE.reference(problem, given)
    yield "nothing", *judged(plain, plain_truth, problem), False
    for case, changed in special_cases(given):
        found, truth = result(run, problem, changed), REFERENCE.reference(problem, changed)
        details, others = [], False
        for name in found:
            detail, other = judged_special(found[name], truth[name], plain[name], plain_truth[name])
            details += [f"{name}: {what}" for what in detail]
            others = others or other
        beyond = sum(int((~output.isfinite()).sum()) for output in truth.values())
        yield case, not details, "; ".join(details) or f"all {beyond:,} that are not finite agree", not others


def judged_special(
    found: torch.Tensor, truth: torch.Tensor, plain: torch.Tensor, plain_truth: torch.Tensor
) -> tuple[list[str], bool]:
    """What is wrong of an output, and whether any of it is other than NaN in place of an infinity.

    plain: without the special value.
    """
    same = bits(truth) == bits(plain_truth)
    leaked = int((same & (bits(found) != bits(plain))).sum())
    wrong = [f"{leaked} changed out of its reach"] if leaked else []
    changed = ~same.view(truth.shape)
    both = changed & truth.isfinite() & found.isfinite()
    reason = explain(compare(found[both], truth[both], FAMILY.tolerance), FAMILY.tolerance)
    wrong += [reason] if reason else []
    became = changed_kinds(kinds(truth[changed]), kinds(found[changed]))
    other = any("Inf" not in want or got != "NaN" for want, got in became)
    return [*wrong, *(f"{want} became {got} {n}x" for (want, got), n in became.items())], bool(wrong) or other


def far(run: Run, problem: Problem, given: Tensors, truth: Tensors) -> tuple[bool, str]:
    """Right everywhere, and in the last batch and the last steps of each batch by themselves."""
    found = result(run, problem, given)
    parts: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
        "all": lambda y: y,
        "last batch": lambda y: y[-1:],
        f"last {LAST_STEPS} steps": lambda y: y[:, -LAST_STEPS:],
    }
    verdicts = {name: judged({"y": part(found["y"])}, {"y": part(truth["y"])}, problem) for name, part in parts.items()}
    right = all(right for right, _ in verdicts.values())
    return right, "; ".join(f"{name}: {detail}" for name, (_, detail) in verdicts.items())


def once(run: Run, problem: Problem, given: Tensors, truth: Tensors) -> tuple[bool, str]:
    return judged(result(run, problem, given), truth, problem)


def small(run: Run, problem: Problem, given: Tensors) -> tuple[bool, str]:
    """As `once`, judged on the host: a sanitizer is slow."""
    found = {name: output.cpu() for name, output in result(run, problem, given).items()}
    return judged(found, truth_of(problem, "cpu"), problem)


CHECKS = ("repeat", "options", "continued", "lengths", "special", "far", "small")


def with_options(sizes: Mapping[str, int], *options: Mapping[str, int], batch: int = 2) -> tuple[Problem, ...]:
    """In fp32 and bfloat16, with each of the options on channels that suit them."""
    return tuple(
        FAMILY.problem_of({"B": batch, "D": WHOLE if "G" in some else TAIL, **sizes, **some}, dtype)
        for some in options
        for dtype in FAMILY.dtypes
    )


def problems_of(check: str) -> tuple[Problem, ...]:
    if check == "options":
        return with_options({"L": LENGTH, "N": N}, ALL, LAYER)
    if check == "continued":
        return with_options({"L": sum(CONTINUED), "N": N}, ALL)
    if check == "special":
        return (FAMILY.problem_of(STRESS),)
    if check == "far":
        return (LOADED.named_problems["beyond"], FAMILY.problem_of(FAR_CHUNKED))
    if check == "small":
        return (FAMILY.problem_of({"B": 1, "D": TAIL, **SMALL}), *with_options(SMALL, ALL, batch=1))
    # of the lengths: one for which every configuration is valid
    return (FAMILY.problem(B=2, L=LENGTH, D=WHOLE, N=N),)


def subjects_of(check: str, part: str) -> list[Subject]:
    """In order of their problems, so that inputs are drawn once for each; of lengths, in that of the names."""
    if check == "repeat":
        found = list(stress.winners(FAMILY))
    else:
        found = stress.valid(problems_of(check), SUBJECTS, configured)
    if check == "lengths":
        found = [Subject(s.name, s.configuration, p) for s in found for p in lengths_of(s.configuration)]
    if check == "far":
        # each in the first of the problems for which it is valid
        first = {subject.name: subject for subject in reversed(found) if subject.name in FAR_SUBJECTS}
        found = [subject for subject in found if first.get(subject.name) == subject]
    return [subject for subject in found if part in subject.name]


def lines_of(check: str, part: str, launches: int) -> Iterator[Line]:
    for subject, run in runs_of(check, subjects_of(check, part)):
        yield from judge(check, subject, run, launches, "cuda")


def runs_of(check: str, subjects: list[Subject]) -> Iterator[tuple[Subject, Run]]:
    """Each subject with what runs its kernel, of any of the lengths that the check asks for."""

    def problems(subject: Subject) -> tuple[Problem, ...]:
        return (subject.problem, *(parts_of(subject.problem) if check == "continued" else ()))

    made = stress.runs(LOADED, [Subject(s.name, s.configuration, p) for s in subjects for p in problems(s)])
    for subject in subjects:
        by_length = {part.problem["L"]: run for part, run in islice(made, len(problems(subject)))}

        def run(given: Tensors, found: Tensors, by_length: dict[int, Run] = by_length) -> None:
            by_length[given["x"].shape[1]](given, found)

        yield subject, run


def judge(check: str, subject: Subject, run: Run, launches: int, device: str) -> Iterator[Line]:
    """The lines of one subject."""
    problem, given = subject.problem, drawn(subject.problem, device)
    if check == "special":
        tensors = TOLD_OF_SPECIAL.get(str(subject.configuration["algorithm"]), ())
        for case, right, detail, infinities in special(run, problem, given):
            told = not right and infinities and case.split()[-1] in tensors
            yield Line(check, subject.name, case, right, detail, told)
        return
    judges: dict[str, Callable[[], tuple[bool, str]]] = {
        "repeat": lambda: repeat(run, problem, given, truth_of(problem, device), launches),
        "continued": lambda: continued(run, problem, given, truth_of(problem, device)),
        "far": lambda: far(run, problem, given, truth_of(problem, device)),
        "small": lambda: small(run, problem, given),
    }
    right, detail = judges.get(check, lambda: once(run, problem, given, truth_of(problem, device)))()
    yield Line(check, subject.name, problem.label, right, detail)


@last_kept
def drawn(problem: Problem, device: str) -> Tensors:
    """On the host, then moved: the same on every device."""
    found: Tensors = REFERENCE.inputs(problem, 7, device=device)
    return found


@last_kept
def truth_of(problem: Problem, device: str) -> Tensors:
    found: Tensors = REFERENCE.reference(problem, drawn(problem, device))
    return found


if __name__ == "__main__":
    sys.exit(stress.main(__doc__, CHECKS, lines_of))
