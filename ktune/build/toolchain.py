"""Finding nvcc, its host compiler and ninja, also where none of them is on PATH."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from ktune.build.ptxas import first_error
from ktune.core.errors import EnvironmentFault, UsageError
from ktune.core.settings import Settings

INSTALL_NVCC = 'pip install "ktune-cuda[nvcc]", or set CUDA_HOME to a CUDA toolkit'
INSTALL_HOST_COMPILER = "install it (apt-get install g++), or name one in NVCC_CCBIN"
_FLAG_VARIABLES = ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")
_SEARCH_VARIABLES = ("CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH")
_QUERY_LIMIT_S = 60.0


@dataclass(frozen=True)
class Toolchain:
    """A CUDA compiler and what drives it.

    release: of nvcc, `13.0.88`. found_by: option, CUDA_HOME, PATH, pip or toolkit. path: the PATH that nvcc runs with.
    """

    nvcc: Path
    release: str
    found_by: str = "option"
    ninja: Path = Path("ninja")
    path: str = os.defpath

    @property
    def label(self) -> str:
        return f"nvcc {self.release}"

    def environment(self) -> dict[str, str]:
        """What nvcc and ninja run with: English messages, no include folders that the build key can't see."""
        inherited = {name: value for name, value in os.environ.items() if name not in _SEARCH_VARIABLES}
        return {**inherited, "PATH": self.path, "LC_ALL": "C"}

    def ambient_flags(self) -> tuple[str, ...]:
        """Flags that nvcc takes from the environment by itself; they are part of the build key."""
        environment = self.environment()
        return tuple(environment.get(name, "") for name in _FLAG_VARIABLES)


def find_toolchain(settings: Settings, option: Path | None = None) -> Toolchain:
    """nvcc from the option, CUDA_HOME, PATH, then pip or an installed toolkit; ninja from pip, then PATH.

    Raises UsageError if the option is no nvcc, and EnvironmentFault with the remedy for what is missing.
    """
    nvcc, found_by = _find_nvcc(settings, option)
    release = _release(nvcc, settings.path)
    toolchain = Toolchain(nvcc, release, found_by, find_ninja(settings), settings.path)
    _require_host_compiler(toolchain)
    return toolchain


def find_ninja(settings: Settings) -> Path:
    """The binary of the `ninja` package (no activated environment needed), else the one on PATH."""
    try:
        import ninja
    except ImportError:
        pass
    else:
        packaged = Path(ninja.BIN_DIR) / "ninja"
        if packaged.is_file():
            return packaged
    found = shutil.which("ninja", path=settings.path)
    if found is None:
        raise EnvironmentFault(
            f"builds need ninja: not in this Python and not on PATH ({settings.path}); pip install ninja"
        )
    return Path(found)


def require_target(toolchain: Toolchain, target: str) -> None:
    """EnvironmentFault unless this nvcc compiles for `target` (normalised)."""
    base = target.rstrip("af")
    known = _known_targets(toolchain.nvcc, toolchain.path)
    if base not in known:
        raise EnvironmentFault(
            f"{toolchain.label} compiles for {', '.join(known)}, not for {target}; choose one or install another nvcc"
        )


def check_toolchain(toolchain: Toolchain, target: str) -> None:
    """Compile a kernel of one line for `target`, in about 0.3 s; EnvironmentFault with the compiler's first error."""
    require_target(toolchain, target)
    with tempfile.TemporaryDirectory(prefix="ktune-check-") as folder:
        source = Path(folder) / "check.cu"
        source.write_text('extern "C" __global__ void check(float* x) { x[threadIdx.x] = 0.0f; }\n')
        command = [str(toolchain.nvcc), "-cubin", f"-arch={target}", str(source), "-o", f"{folder}/check.cubin"]
        code, log = _query(command, toolchain.environment())
    if code != 0:
        raise EnvironmentFault(
            f"{toolchain.nvcc} does not compile a kernel of one line: {first_error(log) or f'it ended with {code}'}; "
            f"from pip it needs all parts of one release, so {INSTALL_NVCC}"
        )


def _find_nvcc(settings: Settings, option: Path | None) -> tuple[Path, str]:
    if option is not None:
        nvcc = option / "bin" / "nvcc" if option.is_dir() else option
        if not _is_executable(nvcc):
            raise UsageError(f"{nvcc} is not an executable nvcc; give the compiler or the toolkit's folder")
        return nvcc, "option"
    if settings.cuda_home is not None and _is_executable(settings.cuda_home / "bin" / "nvcc"):
        return settings.cuda_home / "bin" / "nvcc", "CUDA_HOME"
    on_path = shutil.which("nvcc", path=settings.path)
    if on_path is not None:
        return Path(on_path), "PATH"
    installed = _installed_nvcc()
    if installed is not None:
        return installed, "pip" if "site-packages" in installed.parts else "toolkit"
    home = f"CUDA_HOME={settings.cuda_home} holds no bin/nvcc" if settings.cuda_home else "CUDA_HOME is not set"
    raise EnvironmentFault(
        f"builds need nvcc: {home}, none is on PATH ({settings.path}), and pip installed none; {INSTALL_NVCC}"
    )


def _installed_nvcc() -> Path | None:
    """nvcc as packages of this Python or the system's CUDA toolkit hold it."""
    try:
        from cuda.pathfinder import find_nvidia_binary_utility
    except ImportError:
        return None
    found = find_nvidia_binary_utility("nvcc")
    return None if found is None else Path(found)


def _is_executable(path: Path) -> bool:
    return path.is_file() and os.access(path, os.X_OK)


def _require_host_compiler(toolchain: Toolchain) -> None:
    environment = toolchain.environment()
    chosen = environment.get("NVCC_CCBIN") or any("-ccbin" in flags for flags in toolchain.ambient_flags())
    if not chosen and shutil.which("gcc", path=toolchain.path) is None:
        raise EnvironmentFault(
            f"{toolchain.nvcc} needs a host compiler, and no gcc is on PATH ({toolchain.path}); {INSTALL_HOST_COMPILER}"
        )


@functools.cache
def _release(nvcc: Path, path: str) -> str:
    code, output = _query([str(nvcc), "--version"], {"PATH": path, "LC_ALL": "C"})
    match = re.search(r"\bV(\d+\.\d+\.\d+)", output)
    if code != 0 or match is None:
        said = output.strip().rpartition("\n")[2]
        raise EnvironmentFault(
            f"{nvcc} --version ended with {code} and said {said!r}, not a CUDA release; {INSTALL_NVCC}"
        )
    return match[1]


@functools.cache
def _known_targets(nvcc: Path, path: str) -> tuple[str, ...]:
    _, output = _query([str(nvcc), "--list-gpu-code"], {"PATH": path, "LC_ALL": "C"})
    return tuple(word for word in output.split() if word.startswith("sm_"))


def _query(command: list[str], environment: dict[str, str]) -> tuple[int, str]:
    """Exit code, and stdout and stderr together, of a command that should answer at once."""
    try:
        done = subprocess.run(
            command, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
            timeout=_QUERY_LIMIT_S, text=True, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"{command[0]} does not run: {error}; {INSTALL_NVCC}") from error
    return done.returncode, done.stdout
