"""Listings of both disassemblers are read alike; classes and loops are told from the instructions."""

from __future__ import annotations

import pytest

from ktune.profile.loops import IrregularFlow, main_loop, natural_loops
from ktune.profile.mix import (
    ASYNC_COPIES,
    ATOMICS,
    BARRIERS,
    CONTROL,
    CONVERSIONS,
    FP16,
    FP32,
    FP32_FMA,
    FP64,
    GLOBAL_LOADS,
    GLOBAL_STORES,
    INTEGER,
    LOCAL_LOADS,
    LOCAL_STORES,
    MOVES,
    OTHER,
    SHARED_LOADS,
    SHARED_STORES,
    SHUFFLES,
    SPECIAL,
    TENSOR,
    TMA,
    class_of,
    count,
)
from ktune.profile.sass import Function, Instruction, parse_sass

CUOBJDUMP = """
\tcode for sm_90a
\t\tFunction : scale
\t.headerflags\t@"EF_CUDA_SM90"
        /*0000*/                   LDC R1, c[0x0][0x28] ;                 /* 0x00000a00ff017b82 */
                                                                          /* 0x000fe20000000800 */
        /*0010*/              @!P1 BRA P2, 0x40 ;                         /* 0x0000000000b89947 */
        /*0020*/                   FFMA.FTZ R0, R2.reuse, R3, R0 ;        /* 0x0000000000b89947 */
        /*0030*/               @P0 BRA 0x20 ;                             /* 0x0000000000b89947 */
        /*0040*/                   EXIT ;                                 /* 0x0000000000b89947 */
        /*0050*/                   BRA 0x50;                              /* 0xfffffffc00fc7947 */
        /*0060*/                   NOP;                                   /* 0x0000000000007918 */
        /*0070*/                   NOP;                                   /* 0x0000000000007918 */
\t\t..........
\t\tFunction : other
        /*0000*/                   EXIT ;                                 /* 0x0000000000b89947 */
"""
NVDISASM = """
\t.target\tsm_90a
//--------------------- .text.scale --------------------------
\t.section\t.text.scale,"ax",@progbits
scale:
.text.scale:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/              @!P1 BRA P2, `(.L_x_0) ;
.L_x_1:
        /*0020*/                   FFMA.FTZ R0, R2.reuse, R3, R0 ;
        /*0030*/               @P0 BRA `(.L_x_1) ;
.L_x_0:
        /*0040*/                   EXIT ;
.L_x_2:
        /*0050*/                   BRA `(.L_x_2);
        /*0060*/                   NOP;
        /*0070*/                   NOP;
.L_x_3:

.text.other:
        /*0000*/                   EXIT ;
"""


def function(*lines: str) -> Function:
    """A function of these instructions, 16 bytes each."""
    listing = "\n".join(f"        /*{16 * i:04x}*/    {text} ;" for i, text in enumerate(lines))
    return parse_sass(f"\t\tFunction : f\n{listing}")["f"]


def opcodes(instructions: tuple[Instruction, ...]) -> list[str]:
    return [i.base for i in instructions]


@pytest.mark.parametrize("listing", [CUOBJDUMP, NVDISASM], ids=["cuobjdump", "nvdisasm"])
def test_a_listing_gives_its_functions_without_padding(listing: str) -> None:
    found = parse_sass(listing)
    assert list(found) == ["scale", "other"]
    assert [(i.address, i.opcode, i.guard, i.target) for i in found["scale"].instructions] == [
        (0x00, "LDC", "", None),
        (0x10, "BRA", "!P1", 0x40),
        (0x20, "FFMA.FTZ", "", None),
        (0x30, "BRA", "P0", 0x20),
        (0x40, "EXIT", "", None),
    ]


@pytest.mark.parametrize("text", ["", "no SASS here", "\x00\x01", "/*0000*/ EXIT ;", "Function : f\n  /*zz*/ EXIT ;"])
def test_text_that_is_no_listing_gives_nothing(text: str) -> None:
    assert parse_sass(text) == {}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FFMA R0, R1, R2, R3", FP32_FMA),
        ("FFMA2 R0, R1, R2, R3", FP32_FMA),
        ("FADD.FTZ R0, R1, R2", FP32),
        ("FSETP.GEU.AND P0, PT, R0, R1, PT", FP32),
        ("MUFU.EX2 R0, -R0", SPECIAL),
        ("HMMA.16816.F32 R0, R1, R2, R0", TENSOR),
        ("HGMMA.64x256x16.F32 R24, gdesc[UR4], R24", TENSOR),
        ("QGMMA.64x64x32.F32.E4M3.E4M3 R24, gdesc[UR4], RZ", TENSOR),
        ("UTCHMMA gdesc[UR4], gdesc[UR6], tmem[UR8]", TENSOR),
        ("LDS.128 R0, [R4]", SHARED_LOADS),
        ("LDSM.16.M88.4 R0, [R4]", SHARED_LOADS),
        ("STS.64 [R4], R0", SHARED_STORES),
        ("LDG.E.128.CONSTANT R0, desc[UR4][R2.64]", GLOBAL_LOADS),
        ("STG.E desc[UR4][R2.64], R0", GLOBAL_STORES),
        ("LDL.64 R0, [R1]", LOCAL_LOADS),
        ("STL [R1+0x4], R0", LOCAL_STORES),
        ("LDGSTS.E.BYPASS.128 [R0], desc[UR4][R2.64]", ASYNC_COPIES),
        ("UBLKCP.S.G [UR8], [UR4], UR6", TMA),
        ("UTMALDG.2D [UR8], [UR4]", TMA),
        ("ATOMS.ADD R0, [R1], R2", ATOMICS),
        ("REDG.E.ADD.F32.FTZ.RN.STRONG.GPU desc[UR4][R2.64], R0", ATOMICS),
        ("BAR.SYNC.DEFER_BLOCKING 0x0", BARRIERS),
        ("SYNCS.PHASECHK.TRANS64.TRYWAIT P0, [UR4], R0", BARRIERS),
        ("LDGDEPBAR", BARRIERS),
        ("SHFL.BFLY PT, R0, R1, 0x1, 0x1f", SHUFFLES),
        ("IMAD.WIDE R2, R0, 0x4, R2", INTEGER),
        ("UIADD3 UR4, UR4, 0x1, URZ", INTEGER),
        ("LOP3.LUT R0, R1, R2, RZ, 0xc0, !PT", INTEGER),
        ("ISETP.GE.AND P0, PT, R0, UR4, PT", INTEGER),
        ("LEA.HI.X R0, R1, R2, RZ, 0x2, P0", INTEGER),
        ("VIADD R0, R0, 0x1", INTEGER),
        ("IMAD.MOV.U32 R0, RZ, RZ, R1", MOVES),
        ("HFMA2.MMA R5, -RZ, RZ, 0, 0", MOVES),
        ("HFMA2.MMA R5, R1, R2, R3", FP16),
        ("HFMA2 R5, R1, R2, R3", FP16),
        ("MOV R0, R1", MOVES),
        ("S2R R0, SR_TID.X", MOVES),
        ("S2UR UR4, SR_CTAID.X", MOVES),
        ("R2UR UR4, R0", MOVES),
        ("PLOP3.LUT P0, PT, PT, PT, PT, 0x8, 0x0", MOVES),
        ("I2F.U32.RP R0, R1", CONVERSIONS),
        ("F2FP.BF16.F32.PACK_AB R0, R1, R2", CONVERSIONS),
        ("I2FP.F32.S32 R0, R1", CONVERSIONS),
        ("DFMA R0, R2, R4, R6", FP64),
        ("BSSY B0, 0x40", CONTROL),
        ("CCTL.IVALL", CONTROL),
        ("FROBNICATE R0", OTHER),
    ],
)
def test_an_instruction_has_its_class(text: str, expected: str) -> None:
    assert class_of(function(text).instructions[0]) == expected


def test_a_mix_counts_all_and_names_what_it_does_not_know() -> None:
    mix = count(function("FFMA R0, R1, R2, R3", "FFMA R0, R1, R2, R3", "ZAP.X R0", "EXIT").instructions)
    assert (mix.total, dict(mix.counts), mix.unknown) == (4, {FP32_FMA: 2, CONTROL: 1, OTHER: 1}, ("ZAP",))
    assert mix.share(FP32_FMA) == 50.0
    assert mix.share(TENSOR) == 0.0


def test_straight_code_has_no_loop() -> None:
    straight = function("FFMA R0, R0, R0, R0", "@P0 BRA 0x30", "FADD R0, R0, R0", "EXIT")
    assert natural_loops(straight) == []
    assert main_loop(straight) == ()


def test_the_main_loop_is_the_larger_of_two_side_by_side() -> None:
    code = function(
        "MOV R0, R1",
        "LDG.E R0, [R2]", "@P0 BRA 0x10",
        "FFMA R0, R0, R0, R0", "FFMA R0, R0, R0, R0", "@P1 BRA 0x30",
        "EXIT",
    )  # fmt: skip
    assert opcodes(main_loop(code)) == ["FFMA", "FFMA", "BRA"]


def test_an_outer_loop_gives_way_to_the_loop_inside_it() -> None:
    code = function(
        "LDG.E R0, [R2]", "STS [R0], R1", "MOV R3, R4",
        "FFMA R0, R0, R0, R0", "@P0 BRA 0x30",
        "STG.E [R2], R0", "@P1 BRA 0x0",
        "EXIT",
    )  # fmt: skip
    assert opcodes(main_loop(code)) == ["FFMA", "BRA"]


def test_a_loop_that_only_polls_a_barrier_is_part_of_the_loop_around_it() -> None:
    code = function(
        "SYNCS.PHASECHK P0, [UR4], R0", "@!P0 BRA 0x0",
        "LDS R0, [R1]", "FFMA R0, R0, R0, R0", "@P1 BRA 0x0",
        "EXIT",
    )  # fmt: skip
    assert opcodes(main_loop(code)) == ["SYNCS", "BRA", "LDS", "FFMA", "BRA"]


def test_a_slow_path_behind_the_end_of_the_code_is_part_of_its_loop() -> None:
    code = function(
        "MOV R0, R1",
        "SYNCS.PHASECHK P0, [UR4], R0", "@!P0 BRA 0x70",
        "FFMA R0, R0, R0, R0", "LDS R0, [R1]", "@P1 BRA 0x10",
        "EXIT",
        "SYNCS.PHASECHK P0, [UR4], R0", "@!P0 BRA 0x70", "BRA 0x30",
    )  # fmt: skip
    assert opcodes(main_loop(code)) == ["SYNCS", "BRA", "FFMA", "LDS", "BRA", "SYNCS", "BRA", "BRA"]


def test_code_that_meets_again_at_a_barrier_goes_on_where_the_barrier_was_set() -> None:
    code = function(
        "BSSY B0, 0x40", "@P0 BRA 0x70", "FFMA R0, R0, R0, R0", "BSYNC B0",
        "FADD R0, R0, R0", "@P1 BRA 0x0",
        "EXIT",
        "MUFU.EX2 R0, R0", "BSYNC B0",
    )  # fmt: skip
    assert opcodes(main_loop(code)) == ["BSSY", "BRA", "FFMA", "BSYNC", "FADD", "BRA", "MUFU", "BSYNC"]


def test_a_subroutine_is_no_part_of_the_loop_that_calls_it() -> None:
    code = function(
        "FFMA R0, R0, R0, R0", "CALL.REL.NOINC 0x40", "@P0 BRA 0x0", "EXIT",
        "MUFU.RCP R0, R0", "RET.REL.NODEC R2 0x0",
    )  # fmt: skip
    assert opcodes(main_loop(code)) == ["FFMA", "CALL", "BRA"]


def test_computed_jumps_are_admitted() -> None:
    with pytest.raises(IrregularFlow, match="BRX at 0x10"):
        main_loop(function("MOV R2, R3", "BRX R2 -0x40", "EXIT"))
