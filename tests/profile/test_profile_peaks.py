"""Peaks are kept per GPU and driver, and a file of another kind is no peak."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from ktune.profile.calibration import calibration_variant, load_peaks, save_peaks
from ktune.profile.model import Peaks

PEAKS = Peaks(
    "NVIDIA H200", "GPU-1234", "580.65.06", "2026-01-01T00:00:00+00:00", copy_gbps=4250.0, read_gbps=4310.0,
    fp32_gflops=60_000.0, special_gops=4100.0, launch_us=2.1, sm_clock_mhz=1980, throttle=("sw_power_cap",),
)  # fmt: skip


def test_peaks_come_back_as_they_were_kept(tmp_path: Path) -> None:
    save_peaks(tmp_path, PEAKS, "code")
    assert load_peaks(tmp_path, "GPU-1234", "580.65.06", "code") == PEAKS
    assert load_peaks(tmp_path, "GPU-1234", "580.65.06") == PEAKS


@pytest.mark.parametrize(
    ("uuid", "driver", "code"),
    [("GPU-9", "580.65.06", "code"), ("GPU-1234", "590.1", "code"), ("GPU-1234", "580.65.06", "newer code")],
    ids=["another GPU", "another driver", "another calibration"],
)
def test_peaks_of_something_else_are_none(tmp_path: Path, uuid: str, driver: str, code: str) -> None:
    save_peaks(tmp_path, PEAKS, "code")
    assert load_peaks(tmp_path, uuid, driver, code) is None


def test_new_peaks_replace_old_ones(tmp_path: Path) -> None:
    save_peaks(tmp_path, PEAKS, "code")
    save_peaks(tmp_path, replace(PEAKS, copy_gbps=4200.0), "code")
    found = load_peaks(tmp_path, "GPU-1234", "580.65.06", "code")
    assert found is not None
    assert found.copy_gbps == 4200.0


@pytest.mark.parametrize("change", [{"format": 2}, {"kind": "something"}, {"peaks": {"copy_gbps": 1.0}}, None])
def test_a_damaged_or_foreign_file_is_none(tmp_path: Path, change: dict[str, object] | None) -> None:
    path = save_peaks(tmp_path, PEAKS, "code")
    path.write_text("{" if change is None else json.dumps({**json.loads(path.read_text()), **change}))
    assert load_peaks(tmp_path, "GPU-1234", "580.65.06", "code") is None


def test_the_worker_and_the_kernels_agree_on_how_much_work_a_round_is() -> None:
    from ktune.profile import peaks

    loaded, variant = calibration_variant("sm_90a")
    source = (loaded.folder / loaded.family.source(variant.configuration)).read_text()
    assert f"constexpr int kChains = {peaks.CHAINS};" in source
    assert f"constexpr int kUnroll = {peaks.UNROLL};" in source
