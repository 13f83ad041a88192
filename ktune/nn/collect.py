"""Make the table of winners from result folders: `python -m ktune.nn.collect results/ [--output FILE.json]`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ktune.core.errors import KtuneError, UsageError
from ktune.core.loading import load_family
from ktune.core.space import Space
from ktune.core.variant import HOPPER
from ktune.nn.winners import FORMAT, KIND, PATH
from ktune.output.files import write_file
from ktune.output.several_files import JSON_NAME
from ktune.output.several_files import KIND as SEVERAL_KIND
from ktune.output.winner import KIND as ONE_KIND
from ktune.study.codec import (
    check_format,
    configuration_from_json,
    configuration_to_json,
    problem_from_json,
)

Place = tuple[str, str, bool, str, tuple[tuple[str, int], ...]]
"""Family, GPU model, dtype (float32 first), sizes: one winner for each, in this order."""


@dataclass(frozen=True)
class Won:
    """A winner as it goes into the table, with the time by which two of one shape are compared."""

    family: str
    gpu: str
    sizes: dict[str, int]
    configuration: dict[str, Any]
    cold_us: float
    dtype: str = "float32"

    @property
    def place(self) -> Place:
        return self.family, self.gpu, self.dtype != "float32", self.dtype, tuple(self.sizes.items())


def collect(folder: Path) -> tuple[list[Won], list[str]]:
    """Winners of every best.json and winners.json below `folder`, and what was left out, with reasons."""
    best: dict[Place, Won] = {}
    left_out = []
    for path, data in _files(folder):
        try:
            won = _won(data)
        except KtuneError as error:
            left_out.append(f"{path}: {error}")
            continue
        known = best.get(won.place)
        if known is None or won.cold_us < known.cold_us:
            best[won.place] = won
    return [best[place] for place in sorted(best)], left_out


def table_text(winners: Iterable[Won]) -> str:
    """The table as JSON, a line for each winner so that changes read well."""
    families: dict[str, dict[str, list[str]]] = {}
    for won in winners:
        dtype = {} if won.dtype == "float32" else {"dtype": won.dtype}
        entry = json.dumps({"sizes": won.sizes, **dtype, "configuration": won.configuration})
        families.setdefault(won.family, {}).setdefault(won.gpu, []).append(entry)
    blocks = []
    for family, models in families.items():
        gpus = [f"   {json.dumps(gpu)}: [\n    " + ",\n    ".join(lines) + "\n   ]" for gpu, lines in models.items()]
        blocks.append(f"  {json.dumps(family)}: {{\n" + ",\n".join(gpus) + "\n  }")
    body = "{\n" + ",\n".join(blocks) + "\n }" if blocks else "{}"
    return f'{{\n "format": {FORMAT},\n "kind": {json.dumps(KIND)},\n "winners": {body}\n}}\n'


def _files(folder: Path) -> Iterator[tuple[Path, Any]]:
    """Each winner in the result files below `folder`, in the order of their paths."""
    for path in sorted([*folder.rglob("best*.json"), *folder.rglob(JSON_NAME)]):
        try:
            data = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise UsageError(f"cannot read {path}: {error}; remove it or export it again") from error
        kind = data.get("kind") if isinstance(data, dict) else None
        if kind == ONE_KIND:
            yield path, data
        elif kind == SEVERAL_KIND:
            yield from ((path, one["winner"]) for one in data["problems"] if one["winner"] is not None)


def _won(data: dict[str, Any]) -> Won:
    """UsageError for a winner that was not measured, is not for Hopper, or no longer fits its family."""
    check_format(data, "it")
    if data["family_folder"] is not None:
        raise UsageError(f"{data['family']} is a family of the user's own; the table holds shipped ones")
    if data["source"] != "measured" or data["environment"] is None:
        raise UsageError(f"its figures are {data['source']}; the table holds measured winners")
    if data["target"] != HOPPER:
        raise UsageError(f"it was built for {data['target']}; the table holds winners for {HOPPER}")
    family = load_family(data["family"]).family
    stored = problem_from_json(data["problem"])
    problem = family.problem_of(dict(stored.sizes), stored.dtype)
    configuration = Space(family, [problem]).complete(configuration_from_json(data["configuration"]))
    return Won(
        family.name,
        str(data["environment"]["gpu_name"]),
        dict(problem.sizes),
        configuration_to_json(configuration),
        float(data["cold"]["median_us"]),
        problem.dtype,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path, help="where studies are: every best.json and winners.json below it")
    parser.add_argument("--output", type=Path, default=PATH, help="the table; that of the package if not given")
    options = parser.parse_args()
    try:
        winners, left_out = collect(options.folder)
        for reason in left_out:
            print(f"left out {reason}", file=sys.stderr)
        if not winners:
            raise UsageError(f"no winner to collect below {options.folder}; `ktune search` makes them")
        write_file(options.output, table_text(winners), KIND)
    except KtuneError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
    print(f"wrote {len(winners)} winners to {options.output}")


if __name__ == "__main__":
    main()
