"""Several problems together: each one's best configurations on all the others, and the one that serves all best."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from ktune.core.identity import value_text
from ktune.core.model import Configuration, Effort, Measurement, Problem, Status
from ktune.core.space import Space
from ktune.study.ranking import Standing, eligible_time_us
from ktune.study.study import Study

# Beside its winner and its default, so many of a problem's tied configurations are tried on the other problems.
MOST_TIED = 2


@dataclass(frozen=True)
class Searched:
    """One problem of several: what it is called, its study, and the space that was searched."""

    name: str
    study: Study
    space: Space

    @property
    def problem(self) -> Problem:
        return self.study.problem


@dataclass(frozen=True)
class Cell:
    """A configuration on one problem: what was measured, or the `law` that forbids it; neither: not measured yet.

    slowdown: its cold median over that of the problem's winner; None without a time.
    """

    measurement: Measurement | None = None
    law: str = ""
    slowdown: float | None = None

    @property
    def loss_percent(self) -> float | None:
        """How much longer than the winner it takes."""
        return None if self.slowdown is None else 100 * (self.slowdown - 1)


@dataclass(frozen=True)
class Row:
    """A configuration on every problem. wins: the columns of which it is the winner."""

    configuration: Configuration
    identity: str
    cells: tuple[Cell, ...]
    wins: tuple[int, ...] = ()

    @property
    def mean_slowdown(self) -> float | None:
        """The geometric mean over all problems; None where the configuration does not serve every one."""
        slowdowns = [cell.slowdown for cell in self.cells if cell.slowdown is not None]
        if not slowdowns or len(slowdowns) < len(self.cells):
            return None
        return math.exp(math.fsum(map(math.log, slowdowns)) / len(slowdowns))


@dataclass(frozen=True)
class Matrix:
    """Configurations by problems. columns: the problems with a winner, `standings` theirs; `without`: the others.

    rows: the winners in the order of their problems, then the other candidates, the best on the whole first.
    compromise: the row that serves all columns at the least mean slowdown; None where none does.
    """

    columns: tuple[Searched, ...]
    standings: tuple[Standing, ...]
    without: tuple[Searched, ...]
    rows: tuple[Row, ...]
    compromise: Row | None

    @property
    def lacking(self) -> int:
        """How many cells are still to be measured."""
        return sum(cell.measurement is None and not cell.law for row in self.rows for cell in row.cells)


def read_matrix(searched: Sequence[Searched]) -> Matrix:
    """The matrix as far as the studies' measurements fill it. Nothing is measured."""
    found = [(one, one.study.standing()) for one in searched]
    columns = tuple((one, standing) for one, standing in found if standing is not None)
    rows = [_row(configuration, columns) for configuration in candidates(searched)]
    rows.sort(key=lambda row: (min(row.wins, default=len(columns)), _mean(row), row.identity))
    default = columns[0][0].space.default if columns else None
    serving = [row for row in rows if row.mean_slowdown is not None]
    compromise = min(serving, key=lambda row: (_mean(row), row.configuration != default, row.identity), default=None)
    return Matrix(
        tuple(one for one, _ in columns),
        tuple(standing for _, standing in columns),
        tuple(one for one, standing in found if standing is None),
        tuple(rows),
        compromise,
    )


def candidates(searched: Sequence[Searched]) -> list[Configuration]:
    """Each problem's winner, the first of those tied with it, and its default; none of a problem without a winner."""
    found: dict[Configuration, None] = {}
    for one in searched:
        standing = one.study.standing()
        if standing is not None:
            best = [standing.winner, *standing.tied[:MOST_TIED]]
            found.update(dict.fromkeys([*(m.variant.configuration for m in best), one.space.default]))
    return list(found)


def law_against(space: Space, configuration: Configuration) -> str:
    """Why a configuration of the family is not one of the space's; "" if it is."""
    for name, values in space.narrowing.items():
        if name in configuration and configuration[name] not in values:
            return f"the search was narrowed to other values of {name}; got {value_text(configuration[name])}"
    return space.broken_rule(configuration) or ""


def settled(study: Study, configuration: Configuration) -> Measurement | None:
    """What the study knows for good of a configuration: its last full measurement, or how it failed in the search."""
    own = [m for m in study.measurements() if m.variant.configuration == configuration]
    full = [m for m in own if m.effort is Effort.FULL]
    failed = [m for m in own if m.status not in (Status.OK, Status.CULLED)]
    return next(reversed(full or failed), None)


def _row(configuration: Configuration, columns: Sequence[tuple[Searched, Standing]]) -> Row:
    cells = tuple(_cell(configuration, one, standing.winner) for one, standing in columns)
    winners = [standing.winner.variant.configuration for _, standing in columns]
    wins = tuple(number for number, winner in enumerate(winners) if winner == configuration)
    identity = columns[0][0].study.identify(configuration)
    return Row(configuration, identity, cells, wins)


def _cell(configuration: Configuration, one: Searched, winner: Measurement) -> Cell:
    law = law_against(one.space, configuration)
    if law:
        return Cell(law=law)
    m = winner if winner.variant.configuration == configuration else settled(one.study, configuration)
    time_us, best_us = eligible_time_us(m), eligible_time_us(winner)
    return Cell(m, slowdown=time_us / best_us if time_us is not None and best_us is not None else None)


def _mean(row: Row) -> float:
    return math.inf if row.mean_slowdown is None else row.mean_slowdown
