"""What the final of a study said beside the finalists' times: the noise floor, and each race as it went."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ktune.study.verdict import Difference

NOISE_LIMIT_PERCENT = 1.0


@dataclass(frozen=True)
class Lap:
    """How one entrant did in one race. control: a second copy of the leader, against which the noise is told."""

    configuration_id: str
    trial: int
    status: str
    control: bool = False
    time_cold_median_us: float | None = None
    time_cold_ci_low_us: float | None = None
    time_cold_ci_high_us: float | None = None
    time_hot_median_us: float | None = None
    sm_clock_mhz: int | None = None
    throttle: tuple[str, ...] = ()


@dataclass(frozen=True)
class RaceRecord:
    """One race. fresh: in a process that had run no variant before."""

    seed: int
    fresh: bool
    laps: tuple[Lap, ...]


@dataclass(frozen=True)
class Pairs:
    """How much longer each finalist takes than the fastest, from samples of the same rounds, by configuration id.

    noise_percent: what the leader's two copies differed by in this way.
    """

    fastest: str
    longer: Mapping[str, Difference]
    noise_percent: float

    def tied(self, configuration_id: str) -> bool | None:
        """Whether it can't be told from the fastest; None if nothing is known of it."""
        found = self.longer.get(configuration_id)
        return None if found is None else found.within(self.noise_percent)


@dataclass(frozen=True)
class Finals:
    """The last final of a study.

    noise_percent: how far the times of one binary were apart, between its two copies and between processes; None
    where that could not be told. pairs: None where samples were not taken in the same rounds. warnings: sentences
    about the machine. winner, tied: configuration ids.
    """

    noise_percent: float | None
    warnings: tuple[str, ...]
    races: tuple[RaceRecord, ...]
    gpu_uuid: str = ""
    winner: str = ""
    tied: tuple[str, ...] = ()
    pairs: Pairs | None = None


def finals_to_json(finals: Finals) -> dict[str, Any]:
    return asdict(finals)


def finals_from_json(data: Mapping[str, Any]) -> Finals:
    """What `finals_to_json` wrote."""
    races = tuple(
        RaceRecord(race["seed"], race["fresh"], tuple(_lap(lap) for lap in race["laps"])) for race in data["races"]
    )
    return Finals(
        data["noise_percent"],
        tuple(data["warnings"]),
        races,
        data["gpu_uuid"],
        data["winner"],
        tuple(data["tied"]),
        # earlier versions wrote none
        _pairs(data.get("pairs")),
    )


def _pairs(data: Mapping[str, Any] | None) -> Pairs | None:
    if data is None:
        return None
    longer = {name: Difference(**difference) for name, difference in data["longer"].items()}
    return Pairs(data["fastest"], longer, data["noise_percent"])


def _lap(data: Mapping[str, Any]) -> Lap:
    return Lap(**{**data, "throttle": tuple(data["throttle"])})
