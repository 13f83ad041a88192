"""Search the same space with several seeds, each search knowing nothing of the others, and race their winners.

    python benchmarks/repeat_search.py FAMILY [--problem NAME] [--seeds 0 1 2] [--trials 200] [--finalists 10]
                                       [--keep FOLDER] [--output FILE.json]

It prints each search's winner and tied set, whether the other winners are in that set, and how the winners compare in
one race in two processes, with the noise floor of that race. It exits with 1 unless all winners are tied in the race.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktune.cli.evaluators import EvaluatorOptions, make_evaluator
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Measurement
from ktune.search.final import race_finalists, racing
from ktune.search.finalists import MOST
from ktune.study.finals import Finals
from ktune.study.finding import study_folders
from ktune.study.ranking import stand
from ktune.study.study import Study


@dataclass(frozen=True)
class Search:
    """What one search came to. tied: configuration ids, the winner's among them."""

    seed: int
    winner: Measurement
    tied: tuple[str, ...]
    noise_percent: float | None


def search(family: str, problem: str, seed: int, trials: int, finalists: int, results: Path) -> Search:
    """One search in a folder of its own, so that it is seeded with no other's winner. A finished study says so."""
    command = [sys.executable, "-m", "ktune", "search", family, "--seed", str(seed), "--trials", str(trials)]
    command += ["--finalists", str(finalists), "--results", str(results), *(["--problem", problem] if problem else [])]
    done = subprocess.run(command, check=False)
    if done.returncode != 0:
        sys.exit(f"the search with seed {seed} ended with {done.returncode}")
    with Study.open_existing(study_folders(results)[0]) as study:
        standing, finals = study.standing(), study.finals
        assert standing is not None
        names = tuple(study.identify(m.variant.configuration) for m in (standing.winner, *standing.tied))
        return Search(seed, standing.winner, names, finals.noise_percent if finals else None)


def race_winners(loaded: LoadedFamily, searches: list[Search]) -> tuple[list[Measurement], Finals | None]:
    """Full measurements of the distinct winners in one race in two processes, and what it says of them."""
    distinct = list({s.winner.variant: s.winner for s in searches}.values())
    with tempfile.TemporaryDirectory(prefix="ktune-repeat-") as folder:
        evaluator = make_evaluator(loaded, EvaluatorOptions(distinct[0].problem, Path(folder)))
        try:
            able = racing(evaluator)
            assert able is not None
            final = race_finalists(able, distinct, lambda c: configuration_id(loaded.family, c))
        finally:
            evaluator.close()
    return list(final.measurements), final.finals


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("--problem", default="")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--finalists", type=int, default=MOST, help="of the fastest, at most, in each search's final")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    loaded = load_family(options.family)
    searches = []
    for seed in options.seeds:
        with tempfile.TemporaryDirectory(prefix="ktune-repeat-") as folder:
            results = options.keep / f"seed{seed}" if options.keep else Path(folder)
            searches.append(search(options.family, options.problem, seed, options.trials, options.finalists, results))
    report = summary(loaded, searches, *race_winners(loaded, searches))
    print("\n".join(lines(report)))
    if options.output:
        options.output.write_text(json.dumps(report, indent=1) + "\n")
    sys.exit(0 if report["all_tied_in_the_race"] else 1)


def summary(
    loaded: LoadedFamily, searches: list[Search], raced: list[Measurement], finals: Finals | None
) -> dict[str, Any]:
    def name(configuration: Configuration) -> str:
        return configuration_id(loaded.family, configuration)

    rows = [
        {
            "seed": s.seed,
            "winner": name(s.winner.variant.configuration),
            "cold_us": s.winner.cold_us,
            "noise_percent": s.noise_percent,
            "tied": list(s.tied),
            "holds_winners_of_seeds": [o.seed for o in searches if name(o.winner.variant.configuration) in s.tied],
        }
        for s in searches
    ]
    race = [
        {"winner": name(m.variant.configuration), "status": str(m.status), "cold_us": m.cold_us,
         "ci_us": None if m.cold is None else [m.cold.ci_low_us, m.cold.ci_high_us]}
        for m in raced
    ]  # fmt: skip
    standing = stand(raced, None, name, finals)
    all_tied = standing is not None and len(standing.tied) + 1 == len(raced)
    noise = finals.noise_percent if finals else None
    return {"searches": rows, "race": race, "noise_percent": noise, "all_tied_in_the_race": all_tied}


def lines(report: dict[str, Any]) -> list[str]:
    found = []
    for row in report["searches"]:
        held = ", ".join(map(str, row["holds_winners_of_seeds"]))
        found.append(
            f"seed {row['seed']}: {row['cold_us']:.2f} us, {len(row['tied'])} in the tied set, which holds the"
        )
        found.append(f"  winners of seeds {held}: {row['winner']}")
    for row in report["race"]:
        found.append(f"raced together: {row['cold_us']} us {row['ci_us']} {row['status']}: {row['winner']}")
    verdict = "all winners are tied" if report["all_tied_in_the_race"] else "the winners are NOT all tied"
    return [*found, f"{verdict}; noise floor of the race {report['noise_percent']} %"]


if __name__ == "__main__":
    main()
