"""What a build depends on, as compiler flags and as one digest."""

from __future__ import annotations

from ktune.api import Family
from ktune.build.toolchain import Toolchain
from ktune.core.identity import digest
from ktune.core.model import Variant
from ktune.core.prelude import variant_flags

_RECIPE = "ktune build 2"


def nvcc_flags(family: Family, variant: Variant) -> tuple[str, ...]:
    """The flags that a variant is compiled with, without the names of its files."""
    own = variant_flags(family, variant)
    number = variant.target.removeprefix("sm_")
    standard = () if any(flag.startswith(("-std", "--std")) for flag in own) else ("-std=c++17",)
    architecture = ("-gencode", f"arch=compute_{number},code=sm_{number}")
    return ("-cubin", *architecture, *standard, "-O3", "-Xptxas", "-v,-warn-spills", *own)


def build_key(source: str, flags: tuple[str, ...], toolchain: Toolchain) -> str:
    """Digest of all that decides the binary: source with its includes, flags and target, compiler release."""
    return digest([_RECIPE, source, toolchain.release, *toolchain.ambient_flags(), *flags])
