import json
import os
import time
from pathlib import Path

import pytest
from fake_compiler import make_cubin

from ktune.build.cache import CUBIN, FACTS, LOG, BuildCache, clean_cache
from ktune.build.cubin import parse_cubin
from ktune.core.errors import EnvironmentFault
from ktune.core.model import BuildFacts


def publish(cache: BuildCache, key: str, code: bytes = b"code", *, used_ago_s: float = 0.0) -> Path:
    folder = cache.workspace("test")
    cubin = make_cubin({"k": code})
    (folder / CUBIN).write_bytes(cubin)
    (folder / LOG).write_text("log\n")
    (folder / "variant.cu").write_text("left out\n")
    digest = parse_cubin(cubin, "x").code_digest
    published = cache.publish(
        folder, BuildFacts(key, digest, 40, 1, 2, 3, 4, 0.5, False, "nvcc 13.0.88"), {"target": "sm_90a"}
    )
    for path in published.parent.iterdir():
        os.utime(path, (time.time() - used_ago_s,) * 2)
    return published


def test_what_was_published_is_found_again_with_all_its_facts(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    cubin = publish(cache, "abcd")
    assert cubin == tmp_path / "builds" / "ab" / "abcd" / CUBIN
    found = cache.lookup("abcd")
    assert found is not None
    facts, path = found
    assert path == cubin
    assert facts.cached
    assert (facts.registers, facts.spill_store_bytes, facts.spill_load_bytes, facts.compile_s) == (40, 1, 2, 0.5)
    assert sorted(p.name for p in cubin.parent.iterdir()) == [FACTS, CUBIN, LOG]
    assert json.loads((cubin.parent / FACTS).read_text())["format"] == 1


@pytest.mark.parametrize("damage", ["cut", "other code", "no facts", "facts cut", "another format"])
def test_a_damaged_entry_counts_as_absent_and_is_replaced(tmp_path: Path, damage: str) -> None:
    cache = BuildCache(tmp_path)
    cubin = publish(cache, "abcd")
    facts = cubin.parent / FACTS
    if damage == "cut":
        cubin.write_bytes(cubin.read_bytes()[:-1])
    elif damage == "other code":
        cubin.write_bytes(make_cubin({"k": b"else"}))
    elif damage == "no facts":
        facts.unlink()
    elif damage == "facts cut":
        facts.write_text(facts.read_text()[:30])
    else:
        facts.write_text(facts.read_text().replace('"format": 1', '"format": 99'))
    assert cache.lookup("abcd") is None
    publish(cache, "abcd")
    assert cache.lookup("abcd") is not None
    assert list(cache.work.iterdir()) == []


def test_the_entry_that_came_first_stays(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    first = publish(cache, "abcd")
    written = first.stat().st_ino
    assert publish(cache, "abcd").stat().st_ino == written


def test_cleaning_removes_the_least_recently_used_first(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for age, key in enumerate(["aa1", "bb2", "cc3", "dd4"], start=2):
        publish(cache, key, used_ago_s=age * 7200.0)
    size = sum(p.stat().st_size for p in cache.entry("aa1").iterdir())
    assert cache.lookup("dd4") is not None
    freed = clean_cache(tmp_path, int(2.5 * size))
    assert [key for key in ("aa1", "bb2", "cc3", "dd4") if cache.entry(key).exists()] == ["aa1", "dd4"]
    assert freed == 2 * size


def test_the_daily_cleaning_happens_once_a_day(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    for name in ("first", "second", "third"):
        leftover = cache.workspace(name)
        os.utime(leftover, (time.time() - 90_000,) * 2)
        if name == "third":
            os.utime(tmp_path / "last_clean", (time.time() - 90_000,) * 2)
        cache.clean_daily()
        assert leftover.exists() == (name == "second")


def test_cleaning_spares_what_a_running_search_may_be_about_to_load(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    publish(cache, "abcd", used_ago_s=60.0)
    assert cache.clean(0) == 0
    assert cache.clean(0, spare_s=0.0) > 0
    assert cache.lookup("abcd") is None


def test_cleaning_takes_away_what_killed_builds_left_a_day_ago_and_nothing_newer(tmp_path: Path) -> None:
    cache = BuildCache(tmp_path)
    old, new = cache.workspace("old"), cache.workspace("new")
    (old / "part").write_text("x")
    os.utime(old, (time.time() - 90_000,) * 2)
    cache.clean()
    assert (old.exists(), new.exists()) == (False, True)


def test_a_cache_folder_that_cannot_be_written_is_an_environment_fault_with_the_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EnvironmentFault, match=r"file can't be written: .*KTUNE_CACHE_DIR"):
        BuildCache(tmp_path / "file")
