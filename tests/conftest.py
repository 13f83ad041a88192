"""What every test shares: where the families are, and which tests this machine can run."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from ktune.build.toolchain import find_toolchain
from ktune.core.errors import KtuneError
from ktune.core.settings import read_settings

ROOT = Path(__file__).resolve().parent.parent
for folder in (ROOT, ROOT / "tests"):
    if str(folder) not in sys.path:
        sys.path.insert(0, str(folder))

from failures_at_once import tell  # noqa: E402


def keep_gradients() -> Iterator[None]:
    """A backend in the process of the tests switches them off."""
    torch = sys.modules.get("torch")
    enabled = torch is None or torch.is_grad_enabled()
    yield
    if "torch" in sys.modules:
        sys.modules["torch"].set_grad_enabled(enabled)


# Of a module too, since its fixtures are made before those of its first test.
gradients_as_before = pytest.fixture(autouse=True)(keep_gradients)
gradients_as_before_the_module = pytest.fixture(autouse=True, scope="module")(keep_gradients)


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Under xdist the controller gets every report as soon as its test has ended."""
    tell(report)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip what needs a compiler where none is found, and comparisons of times among processes that disturb them."""
    if "PYTEST_XDIST_WORKER" in os.environ:
        alone = pytest.mark.skip(reason="compares times: run it without -n, as in `pytest -m 'gpu and timed'`")
        for item in items:
            if "timed" in item.keywords:
                item.add_marker(alone)
    try:
        nvcc = find_toolchain(read_settings()).nvcc
    except KtuneError as error:
        skip = pytest.mark.skip(reason=str(error))
        for item in items:
            if "build" in item.keywords:
                item.add_marker(skip)
    else:
        if shutil.which("nvcc") is None:
            # It was found by CUDA_HOME, in a pip package or where toolkits are installed; tests run plain `nvcc`.
            os.environ["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), str(nvcc.parent)])


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A build cache of this test's own, so that no test sees or leaves builds elsewhere."""
    cache = tmp_path / "ktune-cache"
    monkeypatch.setenv("KTUNE_CACHE_DIR", str(cache))
    return cache


@pytest.fixture(scope="session")
def families() -> Path:
    """The folder of the families that exist for the tests."""
    return ROOT / "tests" / "families"
