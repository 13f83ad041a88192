"""What ktune.nn chooses at each shape beside its rivals, shape by shape, each shape in one interleaved race.

    python benchmarks/shapes.py FAMILY [--config FILE.toml ...] [--peer NAME ...] [--only TEXT] [--seconds 600]
                                [--without-default] [--output FOLDER]

One GPU, one process. The shapes are those of ktune/nn/winners.json for this GPU model, or the problems of the config
files; where a shape was not searched, the winner of the nearest one runs. It is raced with the family's default and the
peers named (all of the family's if none is). Same inputs and checks for all, cold L2; a rival that is wrong is
left out of the comparison. The floor is the longer of the memory's and the exponentials' time at this GPU model's
measured rates (H200). Writes shapes.csv; ends early, saying so, when the seconds are used up.
"""

from __future__ import annotations

import argparse
import csv
import time
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ktune.cli.evaluators import EvaluatorOptions, make_evaluator
from ktune.cli.lineup import find_peers
from ktune.cli.options import parse_problems
from ktune.core.identity import configuration_id
from ktune.core.loading import LoadedFamily, load_family
from ktune.core.model import Configuration, Problem, Status
from ktune.core.space import Space
from ktune.core.variant import make_variant
from ktune.gpu.protocol import Entrant, RaceResult
from ktune.nn.winners import candidates, shipped_winners
from ktune.search.final import Racing, racing
from ktune.study.verdict import time_ratio, usable

WINNER, DEFAULT = "winner", "default"
# Reading bandwidth, and ex2 of all multiprocessors, as `ktune profile` measures them on an H200.
BYTES_PER_US = 4.31e6
SPECIAL_PER_US = 4.18e6


def chosen(
    loaded: LoadedFamily, gpu: str, configs: Sequence[Path], only: str
) -> Iterator[tuple[Problem, Configuration]]:
    """Each shape with what ktune.nn would try first."""
    won = shipped_winners().get(loaded.name, {}).get(gpu, ())
    problems = [loaded.family.problem_of(w.sizes, w.dtype) for w in won]
    if configs:
        named = [name for path in configs for name in tomllib.loads(path.read_text(encoding="utf-8"))["problem"]]
        problems = parse_problems(loaded, list(dict.fromkeys(named)))
    for problem in problems:
        if only in problem.label:
            yield problem, next(candidates(loaded.family, gpu, problem, shipped_winners()))


def race(
    loaded: LoadedFamily,
    evaluator: Racing,
    problem: Problem,
    winner: Configuration,
    peers: Sequence[str],
    with_default: bool,
) -> dict[str, RaceResult]:
    entrants = []
    for name, configuration in ((WINNER, winner), (DEFAULT, Space(loaded.family, [problem]).default)):
        if name == WINNER or (with_default and configuration != winner):
            variant = make_variant(loaded.family, configuration, problem)
            entrants.append(Entrant(name, variant, evaluator.cubin_of(variant)))
    entrants += [Entrant(name, peer=name) for name in peers]
    return {result.name: result for result in evaluator.race(problem, entrants)}


def row_of(
    loaded: LoadedFamily, problem: Problem, winner: Configuration, found: dict[str, RaceResult]
) -> dict[str, Any]:
    own = found[WINNER]
    right = {n: r.cold for n, r in found.items() if r.status is Status.OK and r.cold is not None and usable(r.cold)}
    rivals = {name: cold for name, cold in right.items() if name != WINNER}
    rival = min(rivals, key=lambda name: rivals[name].median_us, default="")
    cost = loaded.family.cost(problem)
    floor_us = max((cost.bytes_read + cost.bytes_written) / BYTES_PER_US, cost.special / SPECIAL_PER_US)
    row: dict[str, Any] = {
        "problem": problem.label,
        "status": str(own.status),
        "winner_us": own.cold.median_us if own.cold else None,
        "floor_us": round(floor_us, 2),
        "best_rival": rival,
        "rival_us": rivals[rival].median_us if rival else None,
        "speed_up": None,
        "speed_up_low": None,
        "speed_up_high": None,
        "wrong": " ".join(sorted(n for n, r in found.items() if r.status is Status.WRONG)),
        "configuration": configuration_id(loaded.family, winner),
    }
    if rival and WINNER in right:
        ratio = time_ratio(rivals[rival], right[WINNER])
        row |= {"speed_up": ratio.value, "speed_up_low": ratio.low, "speed_up_high": ratio.high}
    return row


def show(row: dict[str, Any]) -> str:
    if row["winner_us"] is None or row["speed_up"] is None:
        return f"{row['problem']:<30} {row['status']:<8} {row['winner_us'] or '-'} us; no rival that is right"
    floor = f"floor {row['floor_us']:>8.1f} ({row['winner_us'] / row['floor_us']:.2f})"
    speed = f"{row['speed_up']:>6.2f}x [{row['speed_up_low']:.2f}, {row['speed_up_high']:.2f}]"
    rival = f"{row['best_rival']} {row['rival_us']:.1f}"
    return f"{row['problem']:<30}{row['winner_us']:>9.1f} us  {floor}  {speed}  {rival}  {row['configuration'][:70]}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("family")
    parser.add_argument("--config", type=Path, action="append", default=[])
    parser.add_argument("--peer", action="append", default=[])
    parser.add_argument("--only", default="")
    parser.add_argument("--seconds", type=float, default=600.0)
    parser.add_argument("--without-default", action="store_true")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    began = time.monotonic()
    loaded = load_family(options.family)
    first = next(iter(loaded.named_problems.values()))
    evaluator = make_evaluator(loaded, EvaluatorOptions(first, Path("results")))
    rows = []
    try:
        able = racing(evaluator)
        assert able is not None
        peers = [peer.name for peer in find_peers(loaded, options.peer, ()) if not peer.install]
        for problem, winner in chosen(loaded, able.environment.gpu_name, options.config, options.only):
            if time.monotonic() - began > options.seconds:
                print(f"{options.seconds:g} s are used up; {problem.label} and what follows were not raced")
                break
            found = race(loaded, able, problem, winner, peers, not options.without_default)
            rows.append(row_of(loaded, problem, winner, found))
            print(show(rows[-1]), flush=True)
    finally:
        evaluator.close()
    if options.output and rows:
        options.output.mkdir(parents=True, exist_ok=True)
        with (options.output / "shapes.csv").open("w", newline="") as file:
            writer = csv.DictWriter(file, rows[0])
            writer.writeheader()
            writer.writerows(rows)


if __name__ == "__main__":
    main()
