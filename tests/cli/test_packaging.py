"""The wheel built from the sdist holds all that an installed ktune needs."""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dist")
    subprocess.run([sys.executable, "-m", "build", "--outdir", folder, ROOT], check=True, capture_output=True)
    return folder


def test_the_sdist_has_sources_tests_and_documents(built: Path) -> None:
    with tarfile.open(next(built.glob("*.tar.gz"))) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"ktune/api.py", "tests/fake_gpu.py", "docs/family.md", "README.md", "LICENSE", "pyproject.toml"} <= names


def test_the_wheel_keeps_everything_below_its_package(built: Path) -> None:
    with zipfile.ZipFile(next(built.glob("*.whl"))) as archive:
        names = set(archive.namelist())
    assert {name.partition("/")[0].partition("-")[0] for name in names} == {"ktune", "ktune_cuda"}
    shipped = {str(p.relative_to(ROOT)) for p in (ROOT / "kernel_variants").glob("[!.]*/*.*")}
    assert {f"ktune/{name}" for name in shipped} <= names
    assert {"ktune/py.typed", "ktune/cli/skeleton/kernel.cu.template"} <= names
    recorded = {path.name for path in (ROOT / "recorded").iterdir()}
    assert {f"ktune/recorded/tables/{name}" for name in recorded} <= names


def test_an_installed_wheel_lists_its_families_and_writes_a_new_one(built: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    wheel = next(built.glob("*.whl"))
    subprocess.run([sys.executable, "-m", "pip", "install", "--no-deps", "--target", site, wheel], check=True)
    for words in (["list"], ["new", "mine"], ["search", "./mine", "--dry-run"]):
        code = f"import sys; sys.path.insert(0, {str(site)!r}); sys.argv = ['ktune', *{words!r}]; " \
            "import ktune.cli.main as m; assert m.__file__.startswith(sys.path[0]); m.main()"  # fmt: skip
        subprocess.run([sys.executable, "-I", "-c", code], check=True, cwd=tmp_path)
