"""What the tests of CPU execution share: programs that are compiled once, and a way to run their kernels."""

from __future__ import annotations

from functools import partial

import cpu_kernels
import pytest

from ktune.core.errors import EnvironmentFault
from ktune.core.settings import read_settings
from ktune.cpu.compiler import ProgramStore, find_compiler


@pytest.fixture(scope="session")
def programs(tmp_path_factory: pytest.TempPathFactory) -> ProgramStore:
    """Programs compiled once for all tests. Skips where there is no compiler."""
    try:
        compiler = find_compiler(read_settings().path)
    except EnvironmentFault as fault:
        pytest.skip(str(fault))
    return ProgramStore(compiler, tmp_path_factory.mktemp("cpu-cache"))


@pytest.fixture(scope="session")
def run_kernel(programs: ProgramStore) -> cpu_kernels.Runner:
    """Runs one kernel of a file in `kernels/`, as `cpu_kernels.launch` does."""
    return partial(cpu_kernels.launch, programs)
