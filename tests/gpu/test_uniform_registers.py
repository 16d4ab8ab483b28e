"""The search for uniform registers that are read unwritten finds them, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("triton")

from gpu.uniform_registers import Effect, effect, unwritten_in

BROKEN = """
.text.kernel:
        /*0000*/                   UMOV UR10, URZ ;
        /*0010*/                   UIADD3 UR46, UP0, UR4, 0x20, URZ ;
        /*0020*/                   USGXT.U32 UR4, UR10, 0xe ;
        /*0030*/                   EXIT ;
"""
LOOP = """
.text.kernel:
        /*0000*/                   ULDC.64 UR4, c[0x0][0x198] ;
        /*0010*/                   BRA `(.L_x_1) ;
.L_x_0:
        /*0020*/                   UIADD3 UR6, UR5, 0x1, URZ ;
        /*0030*/               @P0 EXIT ;
.L_x_1:
        /*0040*/              @!P1 UMOV UR7, UR4 ;
        /*0050*/                   UIADD3 UR8, UR7, UR5, URZ ;
        /*0060*/                   BRA `(.L_x_0) ;
"""


def test_a_read_before_the_only_write_is_found() -> None:
    assert unwritten_in(BROKEN) == ["UIADD3 UR46, UP0, UR4, 0x20, URZ"]


def test_ways_around_loops_and_predicated_writes_count() -> None:
    assert unwritten_in(LOOP) == []
    assert unwritten_in(LOOP.replace("UMOV UR7, UR4", "UMOV UR9, UR4")) == ["UIADD3 UR8, UR7, UR5, URZ"]


@pytest.mark.parametrize(
    ("text", "reads", "writes"),
    [
        ("HGMMA.64x16x16.F32 R96, gdesc[UR44].tnspA.tnspB, R96", {44, 45, 46, 47}, set()),
        ("HGMMA.64x16x16.F32 R96, R20, gdesc[UR44].tnspB, R96", {46, 47}, set()),
        ("UIMAD.WIDE.U32 UR26, UR48, 0x11, URZ", {48}, {26, 27}),
        ("@UP1 UTMALDG.2D [UR28], [UR8]", {28, 8}, set()),
        ("ELECT P0, UR62, PT", set(), {62}),
        ("UISETP.GT.AND UP0, UPT, UR61, 0x2, UPT", {61}, set()),
        ("IMAD.U32 R8, RZ, RZ, UR7", {7}, set()),
    ],
)  # fmt: skip
def test_what_an_instruction_reads_and_writes(text: str, reads: set[int], writes: set[int]) -> None:
    assert effect(text) == Effect(frozenset(reads), frozenset(writes))
