"""SASS instructions by class: what a kernel is made of. Static counts: each instruction counts once.

Source of the opcodes: CUDA Binary Utilities, "Instruction Set Reference" (Ampere, Hopper, Blackwell).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ktune.profile.sass import Instruction

FP32_FMA, FP32 = "fp32 fma", "fp32 other"
SPECIAL, TENSOR = "special functions", "tensor"
SHARED_LOADS, SHARED_STORES = "shared loads", "shared stores"
GLOBAL_LOADS, GLOBAL_STORES = "global loads", "global stores"
LOCAL_LOADS, LOCAL_STORES = "local loads", "local stores"
ATOMICS, ASYNC_COPIES, TMA = "atomics", "cp.async", "tma"
BARRIERS, SHUFFLES = "barriers", "shuffles and votes"
INTEGER, MOVES, CONVERSIONS = "integer and address", "moves", "conversions"
FP16, FP64, CONSTANTS, CONTROL, OTHER = "fp16", "fp64", "constant loads", "control", "other"

# In the order that they are shown and tried: the first pattern that the opcode's base matches wins.
_CLASSES: tuple[tuple[str, str], ...] = (
    (FP32_FMA, r"FFMA\w*"),
    (FP32, r"FADD\w*|FMUL\w*|FMNMX\d*|FSETP|FSET|FSEL|FCHK|FSWZADD"),
    (SPECIAL, r"MUFU|RRO"),
    (TENSOR, r"[HIDBQOF]MMA|[HIBQ]GMMA|UTC\w*MMA|WARPGROUP\w*"),
    (SHARED_LOADS, r"LDS|LDSM|LDT\w*"),
    (SHARED_STORES, r"STS|STSM|STT\w*"),
    (GLOBAL_LOADS, r"LDG|LD|LDGMC|TEX|TLD\d?|TLD4|TXQ|SULD"),
    (GLOBAL_STORES, r"STG|ST|SUST"),
    (LOCAL_LOADS, r"LDL"),
    (LOCAL_STORES, r"STL"),
    (ATOMICS, r"ATOM\w*|RED|REDG|REDS|REDAS|SUATOM|SURED"),
    (ASYNC_COPIES, r"LDGSTS|STAS"),
    (TMA, r"UBLK\w+|UTMA\w+|UTCCP|UTCATOMSWS"),
    (BARRIERS, r"BAR|SYNCS|MEMBAR|DEPBAR|LDGDEPBAR|ERRBAR|FENCE|ARRIVES|UCGABAR\w*|B2R|R2B|UTCBAR"),
    (SHUFFLES, r"SHFL|REDUX|CREDUX|VOTEU?|MATCH|ELECT"),
    (CONVERSIONS, r"U?[FI]2[FI]P?|FRND"),
    (FP64, r"D(ADD|MUL|FMA|SETP|MNMX|SET)"),
    (FP16, r"H(FMA2|ADD2|MUL2|SETP2|SET2|MNMX2)"),
    (CONSTANTS, r"U?LDCU?"),
    (MOVES, r"U?MOV\w*|U?SEL|U?PRMT|R2UR|UR2UP|R2P|P2R|UP2UR|C?S2U?R|U?PLOP3|U?PSETP"),
    (
        CONTROL,
        r"BRA|BRXU?|JMP|JMXU?|CALL|RET|EXIT|BSSY|BSYNC|BREAK|BMOV|NOP|YIELD|WARPSYNC|NANOSLEEP|BPT|KILL|PREEXIT"
        r"|ACQBULK|CCTL\w*|PMTRIG|RTT|SETCTAID|U?SETMAXREG|LEPC|[GS]ETLMEMBASE|ENDCOLLECTIVE",
    ),
    (
        INTEGER,
        r"U?I(ADD|MAD|MNMX|MUL|SETP|SET|ABS|DP|SCADD)\w*|U?LEA|U?SH[FLR]|U?LOP\w*|U?V(IADD|IMNMX|ABSDIFF|HMNMX)\w*"
        r"|U?POPC|U?FLO|U?BREV|U?BMSK|U?SGXT",
    ),
)
_PATTERNS = tuple((name, re.compile(pattern)) for name, pattern in _CLASSES)

# What keeps a unit busy, as against what only moves, waits or branches.
WORK = frozenset(
    {
        FP32_FMA, FP32, SPECIAL, TENSOR, SHARED_LOADS, SHARED_STORES, GLOBAL_LOADS, GLOBAL_STORES, LOCAL_LOADS,
        LOCAL_STORES, ATOMICS, ASYNC_COPIES, FP16, FP64,
    }
)  # fmt: skip


@dataclass(frozen=True)
class Mix:
    """Instructions by class, most specific names first; classes without any are absent. unknown: opcodes in `other`."""

    total: int
    counts: Mapping[str, int]
    unknown: tuple[str, ...] = ()

    def share(self, name: str) -> float:
        """Per cent of all instructions."""
        return 100.0 * self.counts.get(name, 0) / self.total if self.total else 0.0


def class_of(instruction: Instruction) -> str:
    """The class of one instruction. Integer multiply-adds and half-precision ones that only move count as moves."""
    if instruction.opcode.startswith("IMAD.MOV") or (instruction.base == "HFMA2" and "-RZ, RZ" in instruction.operands):
        return MOVES
    return next((name for name, pattern in _PATTERNS if pattern.fullmatch(instruction.base)), OTHER)


def count(instructions: Iterable[Instruction]) -> Mix:
    """The mix of some instructions, in the classes' order."""
    counts: Counter[str] = Counter()
    unknown: set[str] = set()
    for instruction in instructions:
        name = class_of(instruction)
        counts[name] += 1
        if name == OTHER:
            unknown.add(instruction.base)
    order = [name for name, _ in _CLASSES] + [OTHER]
    return Mix(counts.total(), {name: counts[name] for name in order if counts[name]}, tuple(sorted(unknown)))
