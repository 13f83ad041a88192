"""Search recorded spaces again and again, without a GPU, and see how soon each sampler is near the optimum.

    python benchmarks/simulate.py [RECORDING.json.gz]... [--output FOLDER]
    python benchmarks/simulate.py --to-the-end [RECORDING.json.gz]...

The first replays every recording, the shipped ones where none is given, with random search, Optuna's TPE alone and
ktune's own sampler. As on a GPU, many proposals are on their way before the first answer comes; each search begins
with the family's default configuration and nothing else is enqueued. It writes runs.csv, summary.csv and regret.svg,
prints a table, and exits with 1 where ktune's sampler needs over half of random's evaluations to within 2 % (random's
median being 40 or more), or more than random at the 90th percentile.

The second carries out whole searches with ktune's sampler, finalists included, and exits with 1 unless every winner is
within the noise floor of the recorded optimum.

All figures are simulated from recordings. Nothing is measured.
"""

from __future__ import annotations

import argparse
import csv
import os
import sys
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import astuple, fields
from functools import cache
from itertools import groupby
from pathlib import Path

# The matrices are small: threads of the linear algebra would only get in the way of the other processes.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from regret_plot import regret_plot
from simulated_search import (
    NEAR_PERCENT,
    SAMPLERS,
    Ending,
    Run,
    Summary,
    judge,
    regret_band,
    search_to_the_end,
    simulate,
    summarise,
)

from ktune.build.cores import available_cores
from ktune.core.errors import KtuneError
from ktune.core.loading import load_family
from ktune.core.space import Space
from ktune.recorded.evaluator import recorded_space
from ktune.recorded.table import RecordedTable, read_table, shipped_tables

# One for each compiler of a GPU machine with 16 cores and a few more, as CudaEvaluator keeps them.
IN_FLIGHT = 20
NOISE_PERCENT = 0.5
SOURCE = "simulated from a recording"


def main() -> int:
    given = parse(sys.argv[1:])
    paths = given.recordings or shipped_tables()
    if not paths:
        sys.exit("no recording is shipped and none is given: `ktune search FAMILY --sampler exhaustive` writes one")
    for path in paths:
        try:
            opened(path)
        except KtuneError as error:
            sys.exit(str(error))
    with ProcessPoolExecutor(given.jobs) as pool:
        if given.to_the_end:
            jobs = [(path, seed, given.trials, given.in_flight) for path in paths for seed in range(given.seeds or 20)]
            return tell_endings(list(pool.map(one_ending, jobs, chunksize=2)))
        wanted = [
            (path, name, seed, given.trials, given.in_flight)
            for path in paths
            for name in SAMPLERS
            for seed in range(given.seeds or 50)
        ]
        runs = list(pool.map(one_run, wanted, chunksize=5))
    return tell_runs(runs, given.output)


def parse(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recordings", nargs="*", type=Path, metavar="RECORDING", help="default: the shipped ones")
    parser.add_argument("--to-the-end", action="store_true", help="whole searches with ktune's sampler")
    parser.add_argument("--seeds", type=int, help="searches of each kind; default 50, with --to-the-end 20")
    parser.add_argument("--trials", type=int, default=200, help="measurements of a search; default 200")
    parser.add_argument("--in-flight", type=int, default=IN_FLIGHT, help=f"proposals on their way; default {IN_FLIGHT}")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="searches at once; default: the cores")
    parser.add_argument("--output", type=Path, default=Path("simulated"), help="folder; default ./simulated")
    return parser.parse_args(arguments)


@cache
def opened(path: Path) -> tuple[str, RecordedTable, Space]:
    """A recording, what it is called here, and the space that it holds."""
    table = read_table(path)
    space = recorded_space(table, load_family(table.family).family, {})
    return f"{table.family} {table.problem.label}", table, space


def one_run(job: tuple[Path, str, int, int, int]) -> Run:
    path, sampler, seed, trials, in_flight = job
    label, table, space = opened(path)
    return simulate(label, space, table.measurements, sampler, seed=seed, trials=trials, in_flight=in_flight)


def one_ending(job: tuple[Path, int, int, int]) -> Ending:
    path, seed, trials, in_flight = job
    label, table, space = opened(path)
    noise = NOISE_PERCENT if table.noise_percent is None else table.noise_percent
    return search_to_the_end(label, space, table, seed=seed, trials=trials, in_flight=in_flight, noise_percent=noise)


def tell_runs(runs: Sequence[Run], folder: Path) -> int:
    """Write the files and print the table; the exit status."""
    groups = {key: list(group) for key, group in groupby(runs, key=lambda run: (run.table, run.sampler))}
    summaries = [summarise(group, percent) for group in groups.values() for percent in NEAR_PERCENT]
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(
        folder / "runs.csv",
        ["table", "sampler", "seed", *(f"evaluations_to_{p:g}_percent" for p in NEAR_PERCENT), "final_regret_percent",
         "duplicate_asks", "invalid_asks", "moved_suggestions", "seconds"],
        ([r.table, r.sampler, r.seed, *(r.evaluations_to(p) for p in NEAR_PERCENT),
          f"{100 * (r.slowdowns[-1] - 1):.4g}", r.duplicates, r.invalid, r.moved, f"{r.seconds:.3f}"] for r in runs),
    )  # fmt: skip
    write_csv(folder / "summary.csv", [field.name for field in fields(Summary)], map(astuple, summaries))
    panels: dict[str, dict[str, tuple[Sequence[float], Sequence[float], Sequence[float]]]] = {}
    for (label, sampler), group in groups.items():
        band = regret_band(group)
        panels.setdefault(f"{label}, simulated from its recording", {})[sampler] = (band.median, band.low, band.high)
    (folder / "regret.svg").write_text(regret_plot(panels))
    print_summaries(summaries, groups)
    broken = judge(summaries)
    print(f"wrote runs.csv, summary.csv and regret.svg to {folder}", *broken, sep="\n")
    return 1 if broken else 0


def print_summaries(summaries: Sequence[Summary], groups: dict[tuple[str, str], list[Run]]) -> None:
    print("simulated from recordings: evaluations to within ..., median / 90th percentile (searches that never were)")
    heads = "".join(f"{f'{percent:g} %':>18}" for percent in NEAR_PERCENT)
    print(f"{'':8}{heads}{'duplicate, invalid, moved asks':>34}{'ms an ask':>11}")
    for label, of_table in groupby(summaries, key=lambda s: s.table):
        print(label)
        for sampler, of_sampler in groupby(of_table, key=lambda s: s.sampler):
            cells = "".join(f"{f'{s.median:g} / {s.percentile_90:g} ({s.never})':>18}" for s in of_sampler)
            group = groups[label, sampler]
            counts = [sum(run.duplicates for run in group), sum(run.invalid for run in group)]
            asks = ", ".join(map(str, [*counts, sum(run.moved for run in group)]))
            pace = 1000 * sum(run.seconds for run in group) / sum(len(run.slowdowns) for run in group)
            print(f"{sampler:8}{cells}{asks:>34}{pace:>11.1f}")


def tell_endings(endings: Sequence[Ending]) -> int:
    """Print how each table's searches ended; the exit status."""
    print("replayed searches to the end: winners within the noise floor of the recorded optimum")
    for label, group in groupby(endings, key=lambda ending: ending.table):
        ended = list(group)
        tied, worst = sum(e.tied for e in ended), max(e.above_percent for e in ended)
        winners = len({e.winner for e in ended})
        print(
            f"{label}: {tied} of {len(ended)}, {winners} different winners, the slowest {worst:.2f} % above the "
            f"optimum; noise floor {ended[0].noise_percent:.2f} %"
        )
    return 0 if all(ending.tied for ending in endings) else 1


def write_csv(path: Path, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Each row says at its end that nothing in it was measured."""
    with path.open("w", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow([*columns, "source"])
        writer.writerows([*row, SOURCE] for row in rows)


if __name__ == "__main__":
    sys.exit(main())
