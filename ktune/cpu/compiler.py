"""The host compiler: from translated sources to programs in the build cache, one per kind of check."""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from pathlib import Path

from ktune.build.cache import BuildCache
from ktune.core.errors import EnvironmentFault, KtuneError
from ktune.core.identity import digest
from ktune.cpu.source import FOLDER

PROGRAM = "kernel"
SOURCE = "kernel.cpp"
LOG = "compiler.log"
_RECIPE = "ktune cpu 1"
_NAMES = ("g++", "clang++", "c++")


class Check(StrEnum):
    """What a program looks for while it runs: nothing, accesses out of bounds, or races."""

    PLAIN = "plain"
    ADDRESS = "address"
    RACES = "races"


class CompileFault(KtuneError):
    """A source that the host compiler refuses. `log` holds all that it said."""

    def __init__(self, sentence: str, log: Path) -> None:
        super().__init__(sentence)
        self.log = log


# -O1: the code is run on small problems, so that compiling it takes longer than running it.
_COMMON = (
    "-std=c++20", "-O1", "-w", "-fno-strict-aliasing", "-fwrapv", "-fno-exceptions", "-fno-rtti", "-fno-pie",
    "-fcf-protection=none", "-g1", "-gdwarf-4",
)  # fmt: skip
_KERNEL_FLAGS = {
    Check.PLAIN: (),
    Check.ADDRESS: ("-fsanitize=address,alignment,bounds", "-fno-sanitize-recover=all", "-DKTUNE_ADDRESS"),
    Check.RACES: ("-fsanitize=thread", "-DKTUNE_RACES"),
}
_RUNTIME_FLAGS = {
    Check.PLAIN: (),
    Check.ADDRESS: ("-DKTUNE_ADDRESS",),
    Check.RACES: ("-DKTUNE_RACES",),
}
# The accesses that -fsanitize=thread reports go to races.cpp, which knows CUDA's barriers, not to libtsan.
_LINK_FLAGS = {
    Check.PLAIN: (),
    Check.ADDRESS: ("-fsanitize=address,undefined",),
    Check.RACES: (),
}


@dataclass(frozen=True)
class HostCompiler:
    """A C++20 compiler. Local variables start as a pattern where it can do that, so that a missing start is seen."""

    path: Path
    version: str
    flags: tuple[str, ...]

    @property
    def label(self) -> str:
        return f"{self.path.name} {self.version}"


def find_compiler(path: str) -> HostCompiler:
    """The first C++ compiler on `path`; EnvironmentFault with the remedy if there is none."""
    found = next((which for name in _NAMES if (which := shutil.which(name, path=path))), None)
    if found is None:
        raise EnvironmentFault(
            "executing kernels on the CPU needs a C++20 compiler, and none of g++, clang++, c++ is on PATH; "
            "install one (apt-get install g++)"
        )
    compiler = Path(found)
    said = _said(compiler, "--version")
    version = next(iter(re.findall(r"\d+\.\d+(?:\.\d+)?", said)), "of unknown version")
    wanted = ("-ftrivial-auto-var-init=pattern", *_vector_flags())
    return HostCompiler(compiler, version, tuple(flag for flag in wanted if _accepts(compiler, flag)))


def _vector_flags() -> tuple[str, ...]:
    """Fused multiply-add as on a GPU, where this machine has it: without, fmaf is a slow function."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("flags") and {"fma", "avx2"} <= set(line.split()):
                return ("-mfma", "-mavx2")
    return ()


def _said(compiler: Path, *arguments: str) -> str:
    try:
        done = subprocess.run([compiler, *arguments], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EnvironmentFault(f"{compiler} does not run: {error}; install a C++20 compiler") from error
    return done.stdout


def _accepts(compiler: Path, flag: str) -> bool:
    command = [str(compiler), flag, "-Werror", "-x", "c++", "-fsyntax-only", os.devnull]
    return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode == 0


class ProgramStore:
    """Programs in the build cache, compiled where they are missing. May be used from several threads."""

    def __init__(self, compiler: HostCompiler, cache_dir: Path, timeout_s: float = 120.0) -> None:
        self.compiler = compiler
        self._cache = BuildCache(cache_dir)
        self._timeout_s = timeout_s
        self._lock = threading.Lock()
        self._runtimes: dict[Check, tuple[Path, ...]] = {}

    def program(self, source: str, check: Check, label: str) -> Path:
        """The program of a translated source. Raises CompileFault, or EnvironmentFault for a broken machine."""
        flags = (*self._flags, *_KERNEL_FLAGS[check])
        key = digest([_RECIPE, self.compiler.label, self._runtime_digest, source, *flags, *_LINK_FLAGS[check]])
        ready = self._cache.entry(key) / PROGRAM
        if ready.is_file():
            _mark_used(ready)
            return ready
        runtime = self._runtime(check)
        with self._workspace("cpu") as folder:
            (folder / SOURCE).write_text(source, encoding="utf-8")
            include = ("-include", str(FOLDER / "cuda_on_cpu.h"), f"-fdebug-prefix-map={folder}=.")
            self._compile(folder, [*flags, *include, "-x", "c++", SOURCE, "-c", "-o", "kernel.o"], label)
            link = ["-no-pie", *_LINK_FLAGS[check], "kernel.o", *map(str, runtime), "-o", PROGRAM]
            self._compile(folder, link, label)
            return self._publish(folder, key, (PROGRAM, SOURCE)) / PROGRAM

    def _runtime(self, check: Check) -> tuple[Path, ...]:
        """The objects of the runtime, compiled once for each kind of check."""
        with self._lock:
            if check not in self._runtimes:
                self._runtimes[check] = self._made_runtime(check)
            return self._runtimes[check]

    def _made_runtime(self, check: Check) -> tuple[Path, ...]:
        flags = (*self._flags, "-O2", *_RUNTIME_FLAGS[check])
        sources = [path for path in _runtime_sources() if check is Check.RACES or path.stem != "races"]
        objects = tuple(f"{path.stem}.o" for path in sources)
        key = digest([_RECIPE, "runtime", self.compiler.label, self._runtime_digest, *flags])
        entry = self._cache.entry(key)
        if not all((entry / name).is_file() for name in objects):
            with self._workspace("cpu-runtime") as folder:
                self._compile(folder, [*flags, "-c", *map(str, sources)], "the runtime of CPU execution")
                self._publish(folder, key, objects)
        _mark_used(entry / objects[0])
        return tuple(entry / name for name in objects)

    @property
    def _flags(self) -> tuple[str, ...]:
        return (*_COMMON, *self.compiler.flags)

    @cached_property
    def _runtime_digest(self) -> str:
        files = sorted([*FOLDER.glob("*.h"), *_runtime_sources(), *(FOLDER / "runtime").glob("*.h")])
        return digest(path.read_bytes() for path in files)

    @contextlib.contextmanager
    def _workspace(self, name: str) -> Iterator[Path]:
        folder = self._cache.workspace(name)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _compile(self, folder: Path, arguments: list[str], label: str) -> None:
        command = [str(self.compiler.path), *arguments]
        try:
            done = subprocess.run(
                command, cwd=folder, capture_output=True, text=True, errors="replace",
                timeout=self._timeout_s, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self._fail(folder, label, f"took more than {self._timeout_s:.0f} s to compile", " ".join(command))
        else:
            if done.returncode != 0:
                self._fail(folder, label, _first_error(done.stderr), f"{' '.join(command)}\n{done.stderr}")

    def _fail(self, folder: Path, label: str, sentence: str, log: str) -> None:
        kept = self._cache.logs / f"cpu-{digest([label, log])[:16]}.log"
        kept.write_text(log, encoding="utf-8")
        if (folder / SOURCE).is_file():
            shutil.copy(folder / SOURCE, kept.with_suffix(".cpp"))
        raise CompileFault(sentence, kept)

    def _publish(self, folder: Path, key: str, names: tuple[str, ...]) -> Path:
        """Turn the folder into the entry of `key` by one rename; where another process was first, its entry stays."""
        for path in folder.iterdir():
            if path.name not in names:
                path.unlink()
        entry = self._cache.entry(key)
        entry.parent.mkdir(parents=True, exist_ok=True)
        try:
            folder.rename(entry)
        except OSError as error:
            if not all((entry / name).is_file() for name in names):
                raise EnvironmentFault(
                    f"the build cache {entry} can't be written: {error.strerror}; free space, or set KTUNE_CACHE_DIR"
                ) from error
        return entry


def _runtime_sources() -> list[Path]:
    return sorted((FOLDER / "runtime").glob("*.cpp"))


def _mark_used(path: Path) -> None:
    with contextlib.suppress(OSError):
        os.utime(path)


def _first_error(text: str) -> str:
    for line in text.splitlines():
        if "error:" in line:
            place, _, sentence = line.partition("error:")
            return f"{place.strip().rstrip(':')}: {sentence.strip()}" if place.strip() else sentence.strip()
    return next(iter(text.strip().splitlines()), "the compiler said nothing")
