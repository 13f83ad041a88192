"""Finding and running the programs that a profile is made with: disassemblers, and the hardware counters' ncu."""

from __future__ import annotations

import importlib.util
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

from ktune.core.settings import Settings
from ktune.profile.model import Missing
from ktune.profile.sass import Function, parse_sass

INSTALL_DISASSEMBLERS = 'pip install "ktune-cuda[disassemblers]"'
_DISASSEMBLERS = (("cuobjdump", ("-sass",)), ("nvdisasm", ("-c",)))
_NSIGHT_FOLDERS = ("/opt/nvidia/nsight-compute", "/usr/local/cuda", "/usr/local/NVIDIA-Nsight-Compute")
_LIMIT_S = 60.0


def disassemble(cubin: Path, kernels: frozenset[str], settings: Settings) -> dict[str, Function] | Missing:
    """The functions of a cubin, by the first disassembler that tells all of `kernels`; Missing with every reason."""
    reasons = []
    for path, options in _installed_disassemblers(settings):
        found = _listing(path, options, cubin)
        if isinstance(found, Missing):
            reasons.append(f"{path} {found.reason}")
            continue
        functions = parse_sass(found)
        unseen = sorted(kernels - functions.keys())
        if not unseen:
            return functions
        reasons.append(f"{path} lists no instructions of {', '.join(unseen)} in a form that is known")
    if not reasons:
        return Missing(f"no cuobjdump and no nvdisasm is installed; {INSTALL_DISASSEMBLERS}")
    return Missing(f"{'; '.join(reasons)}; newer ones: {INSTALL_DISASSEMBLERS}")


def find_ncu(settings: Settings) -> Path | None:
    """Nsight Compute's command: CUDA_HOME, PATH, then where its installers put it, the newest first."""
    found = _in_usual_places("ncu", settings)
    if found:
        return found[0]
    for folder in map(Path, _NSIGHT_FOLDERS):
        candidates = [folder / "ncu", folder / "bin" / "ncu", *sorted(folder.glob("*/ncu"), reverse=True)]
        for candidate in candidates:
            if candidate.is_file():
                return candidate
    return None


def _installed_disassemblers(settings: Settings) -> Iterator[tuple[Path, tuple[str, ...]]]:
    for tool, options in _DISASSEMBLERS:
        for path in [*_packaged(tool), *_in_usual_places(tool, settings)]:
            yield path, options


def _in_usual_places(tool: str, settings: Settings) -> list[Path]:
    found = []
    if settings.cuda_home is not None and (settings.cuda_home / "bin" / tool).is_file():
        found.append(settings.cuda_home / "bin" / tool)
    on_path = shutil.which(tool, path=settings.path)
    return [*found, Path(on_path)] if on_path else found


def _packaged(tool: str) -> list[Path]:
    """As the packages nvidia-cuda-cuobjdump and nvidia-cuda-nvdisasm install it, the newest CUDA first."""
    spec = importlib.util.find_spec("nvidia")
    folders = [Path(folder) for folder in (spec.submodule_search_locations or ())] if spec else []
    return [path for folder in folders for path in sorted(folder.glob(f"cu*/bin/{tool}"), reverse=True)]


def _listing(tool: Path, options: tuple[str, ...], cubin: Path) -> str | Missing:
    """What the tool prints of a cubin; Missing with its complaint, in one line."""
    try:
        done = subprocess.run(
            [str(tool), *options, str(cubin)], stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S,
            text=True, errors="replace",
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        return Missing(f"does not run: {error}")
    if done.returncode != 0:
        said = " ".join((done.stderr or done.stdout).split())
        return Missing(f"ended with {done.returncode}: {said[:300] or 'no message'}")
    return done.stdout
