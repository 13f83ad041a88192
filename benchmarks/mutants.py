"""Execute every mutant of the shipped kernels on the CPU and print which were found, by what, and why not.

    python benchmarks/mutants.py [PART OF A NAME]... [--csv FILE] [--jobs N]

Exits with 1 if a mutant is not as its table says. Needs a C++20 compiler; no GPU and no nvcc.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "cpu" / "mutants")]

from mutant_table import MUTANTS, Mutant  # noqa: E402
from mutant_trial import CHECKS, Trial, try_mutant  # noqa: E402

from ktune.build.cores import available_cores  # noqa: E402
from ktune.core.settings import read_settings  # noqa: E402
from ktune.cpu.compiler import ProgramStore, find_compiler  # noqa: E402


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("parts", nargs="*", metavar="PART", help="only mutants whose name holds one of these")
    parser.add_argument("--csv", type=Path, help="also write the table here")
    parser.add_argument("--jobs", type=int, default=available_cores(), help="mutants at once")
    given = parser.parse_args()
    chosen = [m for m in MUTANTS if not given.parts or any(part in m.id for part in given.parts)]
    trials = []
    with ProcessPoolExecutor(given.jobs) as pool:
        for trial in pool.map(try_one, chosen):
            trials.append(trial)
            print(_line(trial), flush=True)
    print(_summary(trials))
    if given.csv:
        _write_csv(given.csv, trials)
    return int(not all(trial.as_expected for trial in trials))


def try_one(mutant: Mutant) -> Trial:
    return try_mutant(mutant, _store())


@cache
def _store() -> ProgramStore:
    settings = read_settings()
    return ProgramStore(find_compiler(settings.path), settings.cache_dir)


def _line(trial: Trial) -> str:
    mark = "ok" if trial.as_expected else "!!"
    fate = f"killed by {trial.by}" if trial.killed else "survived"
    why = trial.detail if trial.killed else trial.mutant.survives or "no reason is known"
    return f"{mark}  {trial.mutant.id:<42} {trial.mutant.kind:<26} {fate:<18} {trial.seconds:5.1f} s  {why[:140]}"


def _summary(trials: Sequence[Trial]) -> str:
    by = Counter(trial.by for trial in trials)
    found = ", ".join(f"{by[check]} by {check}" for check in CHECKS)
    survivors = [trial for trial in trials if not trial.killed]
    unexplained = sum(not trial.mutant.survives for trial in survivors)
    return (
        f"{len(trials)} mutants: {len(trials) - len(survivors)} killed ({found}), {len(survivors)} survived, "
        f"{unexplained} of them without a reason; {sum(trial.seconds for trial in trials):.0f} s"
    )


def _write_csv(path: Path, trials: Sequence[Trial]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["mutant", "kind", "file", "killed_by", "detail", "reason_survived", "seconds"])
        for trial in trials:
            m = trial.mutant
            writer.writerow([m.id, m.kind, m.file, trial.by, trial.detail, m.survives, f"{trial.seconds:.1f}"])


if __name__ == "__main__":
    sys.exit(main())
