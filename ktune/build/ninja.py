"""One run of ninja over a batch: its build file, the units as they finish, and an end without survivors."""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ktune.build.cache import CUBIN, LOG
from ktune.build.toolchain import Toolchain

SOURCE = "variant.cu"
STARTED = "started"
EXIT_CODE = "exit_code"
_FINISHED = "finished "
_KILL_AFTER_S = 5
_KILL_ROUNDS = 500


@dataclass(frozen=True)
class Compile:
    """One edge of the build: `folder`, a plain name below the batch's folder, holds `variant.cu`."""

    folder: str
    flags: tuple[str, ...]


def build_file(compiles: Sequence[Compile], toolchain: Toolchain, timeout_s: float) -> str:
    """The text of build.ninja. Each unit's folder receives cubin, log, `started` and `exit_code`.

    The compiler sees no path that depends on the machine: nvcc 13.0 makes other code of one source where the paths of
    its source or of its temporary files differ in length.
    """
    nvcc = f"{_time_limit(toolchain, timeout_s)}{shlex.quote(str(toolchain.nvcc))}"
    lines = [
        "rule nvcc",
        f"  command = cd $unit && : > {STARTED} && {{ TMPDIR=. {_escaped(nvcc)} -x cu $flags - -o {CUBIN} "
        f"< {SOURCE}; }} > {LOG} 2>&1; code=$$?; echo $$code > {EXIT_CODE}; exit $$code",
        "  description = $unit",
    ]
    for unit in compiles:
        flags = _escaped(shlex.join(unit.flags))
        lines += [
            f"build {unit.folder}/{CUBIN}: nvcc {unit.folder}/{SOURCE}",
            f"  unit = {unit.folder}",
            f"  flags = {flags}",
        ]
    return "\n".join(lines) + "\n"


def _time_limit(toolchain: Toolchain, timeout_s: float) -> str:
    """By the clock where coreutils' timeout is there, else by the processor time of each compiler process."""
    timeout = shutil.which("timeout", path=toolchain.path)
    if timeout is None:
        return f"ulimit -t {max(1, round(timeout_s))}; "
    return f"{shlex.quote(timeout)} -k {_KILL_AFTER_S} {timeout_s:g} "


def _escaped(text: str) -> str:
    return text.replace("$", "$$")


class NinjaRun:
    """ninja at work in `folder`, in a session of its own."""

    def __init__(self, folder: Path, text: str, toolchain: Toolchain, jobs: int) -> None:
        (folder / "build.ninja").write_text(text)
        # One failure must not hold back the others: -k 0.
        self._process = subprocess.Popen(
            [str(toolchain.ninja), "-k", "0", "-j", str(jobs)],
            cwd=folder,
            env={**toolchain.environment(), "NINJA_STATUS": _FINISHED, "TERM": "dumb"},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self.said: list[str] = []

    def finished(self) -> Iterator[str]:
        """The folder of each unit as its compile ends, right or wrong; returns when ninja has ended."""
        assert self._process.stdout is not None
        with self._process.stdout as output:
            for line in output:
                if line.startswith(_FINISHED):
                    yield line.removeprefix(_FINISHED).strip()
                else:
                    self.said.append(line.strip())
        self._process.wait()

    def kill(self) -> None:
        """End ninja and every compiler below it. Safe from another thread than the one in `finished`."""
        if self._process.returncode is None:
            kill_session(self._process.pid)


def kill_session(leader: int) -> None:
    """SIGKILL until no process of the session is left: each compiler has a process group of its own."""
    for _ in range(_KILL_ROUNDS):
        members = session_members(leader)
        if not members:
            return
        for process in members:
            try:
                os.kill(process, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.01)


def session_members(leader: int) -> list[int]:
    """The living processes of a session (Linux)."""
    found = []
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            # "pid (name) state parent group session ...", and the name may hold anything.
            state, _, _, session = (folder / "stat").read_text(errors="replace").rpartition(")")[2].split()[:4]
        except (OSError, ValueError):
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(folder.name))
    return found
