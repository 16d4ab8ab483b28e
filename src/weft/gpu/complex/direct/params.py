"""What the kernel takes of a contraction and its schedule, as compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from weft.gpu.common.complex_elements import kind_of, strides_of_parts
from weft.gpu.common.launch import wide
from weft.gpu.common.tiling import TENSORS, TiledDim
from weft.gpu.complex.direct.schedule import DirectSchedule
from weft.gpu.complex.launch import parts_of, takes_reals, yields_complex
from weft.gpu.gett.params import gett_params
from weft.planner.schedule import Target
from weft.spec import Contraction

UNROLLED = 16  # steps along k that are written out


class DirectParams(NamedTuple):
    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same: k is one axis
    stored: tuple[int, ...]  # extents of the stored tile: every axis longer than one index
    group: int
    blocks: int  # output tiles
    unrolled: bool  # the loop over k, so that all its loads may go ahead
    a_kind: str  # how elements are accessed, see `complex_elements.KINDS`
    b_kind: str
    c_kind: str
    d_kind: str
    conjugate: tuple[bool, bool]  # A, B
    of_reals: tuple[bool, bool, bool]  # whether functions see real values: that of C, and the epilogue
    c_fn_complex: bool  # whether the first yields complex values
    parts: tuple[tuple[int, int], ...]  # of each result of the epilogue, see `launch.parts_of`
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do


def direct_params(contraction: Contraction, schedule: DirectSchedule, target: Target) -> DirectParams:
    """Those of `gett` for the tiles, and how parts are accessed; offsets have room for both parts of an element."""
    tiles = gett_params(contraction, schedule.tiles, target)
    a_kind, b_kind, c_kind, d_kind = map(kind_of, (contraction.a, contraction.b, contraction.c, contraction.d))
    return DirectParams(
        batch=tiles.batch,
        m=tiles.m,
        n=tiles.n,
        k=tiles.k,
        k_of_a=tiles.k_of_a,
        stored=tiles.stored,
        group=tiles.group,
        blocks=tiles.blocks,
        unrolled=schedule.tiles.tile[2] == 1 and tiles.k.blocks <= UNROLLED,
        a_kind=a_kind,
        b_kind=b_kind,
        c_kind=c_kind,
        d_kind=d_kind,
        conjugate=(contraction.conjugate_a, contraction.conjugate_b),
        of_reals=(False, takes_reals(contraction.c_fn), takes_reals(contraction.epilogue)),
        c_fn_complex=yields_complex(contraction.c_fn),
        parts=parts_of(contraction.epilogue),
        wide=wide(strides_of_parts(contraction.modes), TENSORS + len(contraction.aux)),
        wide_index=tiles.wide_index,
    )
