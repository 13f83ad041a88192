"""A family is found by name or by folder, and a broken one says what is wrong before anything runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ktune.api import KernelLaunch
from ktune.core.errors import FamilyError, UsageError
from ktune.core.loading import is_family_module, load_family, shipped_families
from ktune.core.model import Configuration
from ktune.core.settings import read_settings

MINIMAL = """
from ktune.api import *

def make(**changes):
    given = dict(
        name="mini", summary="", sizes=(Size("N", "elements"),), problems={"default": {"N": 4}},
        parameters=(Parameter("block_size", (32, 64), 32, "threads"),), rules=(), source=lambda c: "mini.cu",
        inputs=lambda p: (), outputs=lambda p: (), plan=lambda c, p: Plan(()), checks=lambda c, p: (),
        cost=lambda p: Cost(0, 0, 0), tolerance=Tolerance(0, 0, 0, "exact"),
    )
    return Family(**{**given, **changes})
"""


def write(folder: Path, text: str) -> Path:
    folder.mkdir()
    (folder / "family.py").write_text(MINIMAL + text)
    return folder


def test_a_folder_is_loaded_by_its_path(families: Path) -> None:
    loaded = load_family(families / "toy")
    assert loaded.name == "toy" and loaded.folder == families / "toy"
    assert loaded.named_problems["small"]["N"] == 1000


@pytest.mark.parametrize("name", shipped_families())
def test_a_shipped_family_is_loaded_by_its_name(name: str) -> None:
    assert load_family(name).name == name


def test_a_family_loads_without_importing_torch(families: Path) -> None:
    code = (
        f"import sys; from ktune.core.loading import load_family; load_family({str(families / 'toy')!r}); "
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_an_unknown_name_is_told_with_the_nearest_or_with_all(monkeypatch: pytest.MonkeyPatch, families: Path) -> None:
    monkeypatch.setattr("ktune.core.loading.shipped_folder", lambda: families)
    with pytest.raises(UsageError, match=r"no kernel family 'gemm_epilog'; did you mean gemm_epilogue\?"):
        load_family("gemm_epilog")
    with pytest.raises(UsageError, match=r"shipped are .*toy"):
        load_family("quux")


def test_a_folder_without_a_family_names_the_command_that_writes_one(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no family.py; `ktune new nothing` writes one"):
        load_family(tmp_path / "nothing")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", r"must define `family = Family"),
        ("family = 3", r"must define `family = Family"),
        ("1 / 0", r"does not load: ZeroDivisionError"),
        ("family = make(api=2)", r"written for api 2, this ktune speaks api 1"),
        ("family = make(problems={})", r"names no problem"),
        ("family = make(problems={'default': {'M': 4}})", r"must give N, got M"),
        ("family = make(parameters=())", r"at least one, got none"),
        ("family = make(parameters=(Parameter('a', (1,), 1, ''),) * 2)", r"distinct names"),
        ("family = make(parameters=(Parameter('a', (1,), 2, ''),))", r"default 2 of a is not one of its values"),
        ("family = make(parameters=(Parameter('a', (1,), 1, '', when={'b': (1,)}),))", r"depends on 'b'"),
        ("family = make(rules=(Rule('law', lambda tile: True),))", r"asks for 'tile', neither a parameter nor a size"),
        ("family = make(sizes=(Size('F', '', 0, 0), Size('N', '')))", r"with a default must come after those without"),
        ("family = make(sizes=(Size('N', ''), Size('F', '', default=0)))", r"default 0 of F must be at least 1"),
        ("family = make(sizes=(Size('N', ''), Size('dtype', '')))", r"distinct names other than dtype"),
        ("family = make(dtypes=('bf16',))", r"dtypes of mini must be distinct ones, .*; got bf16"),
        ("family = make(dtypes=())", r"at least one, of .*; got none"),
        (
            "family = make(problems={'default': {'N': 4, 'dtype': 'float16'}})",
            r"problem 'default' of mini: dtype",
        ),
        ("family = make(problems={'default': {'N': 0}})", r"problem 'default' of mini: N must be at least 1, got 0"),
        (
            "family = make(tolerances={'int8': Tolerance(0, 0, 0, '')})",
            r"a tolerance for int8, and its dtypes are",
        ),
        ("family = make(tolerances={'float32': Tolerance(-1, 0, 0, '')})", r"absolute of mini's tolerance"),
    ],
)
def test_a_broken_family_is_refused_with_its_fault(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(FamilyError, match=message):
        load_family(write(tmp_path / "mini", text))


def test_a_missing_part_of_a_family_is_named(tmp_path: Path) -> None:
    loaded = load_family(write(tmp_path / "mini", "family = make()"))
    assert not loaded.has_module("peers")
    with pytest.raises(FamilyError, match=r"holds no reference.py"):
        loaded.module("reference")


def test_two_folders_of_one_name_do_not_share_modules(tmp_path: Path) -> None:
    one = load_family(write(tmp_path / "one", "family = make(name='one')"))
    two = load_family(write(tmp_path / "two", "family = make(name='two')"))
    assert (one.name, two.name) == ("one", "two")


def parts(folder: Path, **texts: str) -> Path:
    """A family whose family.py takes its plan from a sibling, with these modules."""
    write(folder, "from .plans import plan\nfamily = make(plan=plan)\n")
    for name, text in {"plans": PLANS, **texts}.items():
        (folder / f"{name}.py").write_text(text)
    return folder


PLANS = """
from ktune.api import KernelLaunch, Plan
from .sizes import GRID

def plan(configuration, problem):
    return Plan((KernelLaunch("mini", GRID, (32, 1, 1), ()),))
"""


def grid(folder: Path) -> tuple[int, ...]:
    family = load_family(folder).family
    (launch,) = family.plan(Configuration(()), family.problem(N=4)).launches
    assert isinstance(launch, KernelLaunch)
    return launch.grid


def test_a_family_imports_its_siblings_and_not_those_of_a_folder_of_the_same_name(tmp_path: Path) -> None:
    for number in (1, 2):
        (tmp_path / str(number)).mkdir()
        parts(tmp_path / str(number) / "mini", sizes=f"GRID = ({number}, 1, 1)\n")
    assert grid(tmp_path / "1" / "mini") == (1, 1, 1)
    assert grid(tmp_path / "2" / "mini") == (2, 1, 1)


def test_all_modules_of_a_family_share_their_siblings(tmp_path: Path) -> None:
    texts = {"sizes": "GRID = (3, 1, 1)\n", "peers": "from . import family, sizes\n"}
    loaded = load_family(parts(tmp_path / "mini", **texts))
    peers = loaded.module("peers")
    assert peers.family.family is loaded.family and peers.sizes is loaded.module("sizes")
    assert is_family_module(peers.sizes.__name__)


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        ({"sizes": "1 / 0\n"}, r"mini/sizes\.py does not load: ZeroDivisionError: division by zero"),
        ({"sizes": "raise SystemExit(2)\n"}, r"mini/sizes\.py does not load: SystemExit: 2"),
        ({"sizes": "GRID = (\n"}, r"mini/plans\.py does not load: SyntaxError: .*\(sizes\.py, line 1\)"),
        ({"sizes": ""}, r"mini/plans\.py does not load: ImportError: cannot import name 'GRID' from 'mini\.sizes'"),
        ({}, r"mini/plans\.py does not load: ModuleNotFoundError: No module named 'mini\.sizes'"),
    ],
    ids=["raises", "exits", "no python", "lacks a name", "missing"],
)
def test_a_sibling_that_does_not_load_is_named_and_leaves_nothing(
    tmp_path: Path, texts: dict[str, str], message: str
) -> None:
    before = set(sys.modules)
    folder = parts(tmp_path / "mini", **texts)
    with pytest.raises(FamilyError, match=message):
        load_family(folder)
    assert not [name for name in set(sys.modules) - before if is_family_module(name)]
    (folder / "sizes.py").write_text("GRID = (2 + 2, 1, 1)\n")
    assert grid(folder) == (4, 1, 1)


def test_a_module_that_does_not_load_leaves_those_that_did(tmp_path: Path) -> None:
    peers = "from . import names\nfrom .sizes import GRID\n1 / 0\n"
    loaded = load_family(parts(tmp_path / "mini", sizes="GRID = (1, 1, 1)\n", names="", peers=peers))
    sizes, before = loaded.module("sizes"), set(sys.modules)
    with pytest.raises(FamilyError, match=r"mini/peers\.py does not load: ZeroDivisionError"):
        loaded.module("peers")
    assert not [name for name in set(sys.modules) ^ before if is_family_module(name)]
    assert loaded.module("sizes") is sizes
    (loaded.folder / "names.py").write_text("OURS = 'ours'\n")
    (loaded.folder / "peers.py").write_text("from . import names\nfrom .names import OURS\n")
    peers_now = loaded.module("peers")
    assert peers_now.OURS == "ours" and peers_now.names is loaded.module("names")


def test_a_changed_sibling_is_used_by_the_next_process(tmp_path: Path) -> None:
    folder = parts(tmp_path / "mini", sizes="GRID = (1, 1, 1)\n")
    code = (
        "from ktune.core.model import Configuration; from ktune.core.loading import load_family; "
        f"family = load_family({str(folder)!r}).family; "
        "print(family.plan(Configuration(()), family.problem(N=4)).launches[0].grid)"
    )

    def told() -> str:
        return subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.strip()

    assert told() == "(1, 1, 1)"
    (folder / "sizes.py").write_text("GRID = (12, 1, 1)\n")
    assert told() == "(12, 1, 1)"


def test_a_family_that_ends_the_process_does_not_load(tmp_path: Path) -> None:
    with pytest.raises(FamilyError, match=r"family\.py does not load: SystemExit"):
        load_family(write(tmp_path / "exits", "family = make()\nraise SystemExit(0)\n"))


@pytest.mark.parametrize("bound", ["float('nan')", "float('inf')", "-1e-6"])
def test_a_tolerance_that_judges_nothing_is_refused(tmp_path: Path, bound: str) -> None:
    text = f"family = make(tolerance=Tolerance(1e-6, {bound}, 1e-6, 'none'))"
    with pytest.raises(FamilyError, match="relative of mini's tolerance must be"):
        load_family(write(tmp_path / "mini", text))


def test_a_relative_cache_folder_is_the_same_wherever_a_compiler_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KTUNE_CACHE_DIR", "builds")
    assert read_settings().cache_dir == tmp_path / "builds"
