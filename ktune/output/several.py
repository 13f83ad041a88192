"""What a search of several problems found, as text: configurations by problems, losses, the best compromise."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ktune.core.identity import digest
from ktune.core.loading import LoadedFamily
from ktune.core.model import Problem, Source
from ktune.output.rounding import interval, median
from ktune.output.summary import source_note
from ktune.output.winner import Winner
from ktune.search.matrix import Cell, Matrix, Row, Searched
from ktune.study.naming import gpu_slug

# A table has a column for the configuration and these.
MOST_PROBLEMS = 6
WINNER, INVALID, UNMEASURED = "*", "invalid", "-"
NO_WINNER = "no variant is both right and timed"


@dataclass(frozen=True)
class Several:
    """The matrix of a family's problems. winners: of the matrix's columns. folder: where the summary lies.

    unfinished: what those are called that the search was asked for and that it did not come to, or not to the end of.
    """

    loaded: LoadedFamily
    matrix: Matrix
    winners: tuple[Winner, ...]
    folder: Path
    command: str = ""
    unfinished: tuple[str, ...] = ()

    @property
    def names(self) -> list[str]:
        """What the problems with a winner are called."""
        return [one.name for one in self.matrix.columns]

    @property
    def sources(self) -> str:
        """Where the figures come from."""
        return source_note(winner.measurement for winner in self.winners)

    @property
    def measured(self) -> bool:
        """Whether every figure was read off a GPU."""
        return all(winner.measurement.source is Source.MEASURED for winner in self.winners)

    def key(self, row: Row) -> str:
        """`c3`: what a row is called in tables."""
        return f"c{1 + self.matrix.rows.index(row)}"


def several_name(family: str, problems: Sequence[Problem], gpu_name: str, suffix: str = "") -> str:
    """`selective_scan-6problems-1a2b3c4d-H200`: the summary's folder, whatever the order of the problems."""
    labels = sorted(problem.label for problem in problems)
    parts = [family, f"{len(labels)}problems", digest(labels)[:8], gpu_slug(gpu_name)]
    return "-".join([*parts, suffix] if suffix else parts)


def problem_name(loaded: LoadedFamily, problem: Problem) -> str:
    """What the family calls a problem; its sizes where it has no name."""
    return next((name for name, known in loaded.named_problems.items() if known == problem), problem.label)


def problem_title(one: Searched) -> str:
    """`mamba-130m (B8-L2048-D1536-N16)`."""
    label = one.problem.label
    return label if one.name == label else f"{one.name} ({label})"


def several_lines(several: Several) -> list[str]:
    """The closing lines: who won where, what each costs elsewhere, the best compromise."""
    matrix = several.matrix
    lines = []
    if matrix.columns:
        what = "cold median in us, and per cent over the problem's own winner (*)"
        lines.append(what if several.measured else f"{what}; {several.sources}")
        lines += list(_blocks(several))
        lines += [f"{several.key(row):<4} {row.identity}{_roles(several, row)}" for row in shown_rows(several)]
        lines += compromise_lines(several)
    return [*lines, *(f"{problem_title(one)}: {NO_WINNER}" for one in matrix.without), *unfinished_lines(several)]


def unfinished_lines(several: Several) -> list[str]:
    """What an interrupted search has left to do."""
    if not several.unfinished:
        return []
    return [f"not searched to the end: {', '.join(several.unfinished)}; the same command goes on"]


def shown_rows(several: Several) -> list[Row]:
    """The rows of the text's table: winners, the compromise, the default."""
    matrix = several.matrix
    default = matrix.columns[0].space.default if matrix.columns else None
    return [row for row in matrix.rows if row.wins or row is matrix.compromise or row.configuration == default]


def compromise_lines(several: Several) -> list[str]:
    """What it costs to use one configuration for all problems."""
    row, lacking = several.matrix.compromise, several.matrix.lacking
    so_far = f"{lacking} cells are not measured yet, the same command goes on" if lacking else ""
    if row is None:
        return [f"best compromise: none; {so_far or 'no configuration that was tried serves every problem'}"]
    worst, where = max((cell.loss_percent or 0.0, i) for i, cell in enumerate(row.cells))
    mean = loss_text(mean_loss_percent(row))
    line = (
        f"best compromise {several.key(row)}: {mean} % on average (geometric mean), "
        f"at most {loss_text(worst)} % ({several.names[where]})"
    )
    return [f"{line}; {so_far}" if so_far else line]


def mean_loss_percent(row: Row) -> float | None:
    """The geometric mean of the slowdowns, as a loss; None where the row does not serve all problems."""
    return None if row.mean_slowdown is None else 100 * (row.mean_slowdown - 1)


def loss_text(percent: float | None) -> str:
    """`+3.2`; `+0.0` also for what rounds to it from below."""
    if percent is None:
        return UNMEASURED
    return f"{percent if abs(percent) >= 0.05 else 0.0:+.1f}"


def cell_text(cell: Cell, wins: bool) -> str:
    """`66.1 *` of the winner, `98.1 +3.2 %`, `invalid`, `wrong`, `-` where nothing is measured."""
    m = cell.measurement
    if cell.law:
        return INVALID
    if m is None:
        return UNMEASURED
    if cell.slowdown is None:
        return m.status.value
    return f"{median(m.cold)} {WINNER if wins else f'{loss_text(cell.loss_percent)} %'}"


def roles(several: Several, row: Row) -> list[str]:
    """What a row is: a winner and of what, the best compromise, the default."""
    matrix = several.matrix
    told = []
    if row.wins:
        told.append(f"winner of {', '.join(several.names[number] for number in row.wins)}")
    if row is matrix.compromise:
        told.append("best compromise")
    if row.configuration in {one.space.default for one in matrix.columns}:
        told.append("default")
    return told


def winner_text(winner: Winner) -> str:
    """`66.1 us cold [65.9, 66.4]`."""
    cold = winner.measurement.cold
    assert cold is not None
    return f"{median(cold)} us cold {interval(cold)}"


def _roles(several: Several, row: Row) -> str:
    told = "; ".join(roles(several, row))
    return f"  ({told})" if told else ""


def _blocks(several: Several) -> Iterator[str]:
    """The table, MOST_PROBLEMS problems side by side."""
    rows = shown_rows(several)
    for start in range(0, len(several.names), MOST_PROBLEMS):
        numbers = range(start, min(start + MOST_PROBLEMS, len(several.names)))
        cells = [[several.names[n] for n in numbers]]
        cells += [[_aligned(cell_text(row.cells[n], n in row.wins)) for n in numbers] for row in rows]
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        for key, texts in zip(["", *map(several.key, rows)], cells, strict=True):
            shown = "  ".join(f"{text:>{width}}" for text, width in zip(texts, widths, strict=True))
            yield f"{key:<4} {shown}"


def _aligned(text: str) -> str:
    """A time and its loss as two columns in one; other texts as they are."""
    time, _, loss = text.partition(" ")
    return f"{time} {loss:>8}" if loss else text
