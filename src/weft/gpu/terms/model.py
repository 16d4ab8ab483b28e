"""Tiles of products of terms, and what their kernel takes of them."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from weft.fn import Pointwise
from weft.gpu.common.constraints import SHARED_MEMORY, sm_count
from weft.gpu.common.tiling import A, B
from weft.gpu.warp_specialized.family import supports
from weft.gpu.warp_specialized.roles import COOPERATIVE, WARPS
from weft.gpu.warp_specialized.schedule import (
    BARRIERS,
    LEAST_STAGES,
    MOST_STAGES,
    WsSchedule,
    output_dimensions,
    output_tiles,
    staging_bytes,
)
from weft.gpu.warp_specialized.views import extent, tma_views
from weft.planner.schedule import Target
from weft.planner.split_schemes import BF16X6, FP16X3, RUN, SplitScheme
from weft.spec import Contraction, Layout, Role, canonical, parse
from weft.spec.contraction import class_modes
from weft.spec.dtypes import resolve

ROWS, COLUMNS = 128, (64, 128)  # of a tile: three sums of 64 x 128 are 192 registers of each thread
#: Indices of k in a tile, by scheme. Tiles of three terms are half as deep as lines of 128 bytes would have it: of
#: deeper ones there is room for two stages.
DEPTHS = {BF16X6.name: 32, FP16X3.name: 64}


class TermsParams(NamedTuple):
    """Constants of the kernel that a scheme gives."""

    number: int  # as verdicts name it
    terms: int  # of each operand
    small: tuple[tuple[int, int], ...]  # terms of A and of B whose products are small, the smallest first
    factor: float  # of the sum of these
    run: int  # steps along k that matrix units add up before their sum is added in float32
    scaled: bool  # terms are those of scaled values


def terms_params(scheme: SplitScheme, depth: int) -> TermsParams:
    """The constants of a scheme for tiles of so many indices of k."""
    places = range(scheme.terms)
    small = [(i, order - i) for order in range(scheme.orders - 1, 0, -1) for i in places if order - i in places]
    return TermsParams(
        number(scheme), scheme.terms, tuple(small), 2.0 ** -joined_shift(scheme), RUN // depth, scheme is FP16X3
    )


def number(scheme: SplitScheme) -> int:
    """The number of a scheme in a verdict."""
    return 1 if scheme is FP16X3 else 0


def joined_shift(scheme: SplitScheme) -> int:
    """Bits by which what is left of a value is scaled up: none where several orders are one sum."""
    return scheme.shift if scheme.orders == 2 else 0


def described(a: Layout, b: Layout, d: Layout, epilogue: Pointwise | None) -> Contraction:
    """The product of terms that lie like `a` (batch, m, k) and `b` (batch, k, n), or without batch, to D."""
    equation = "zmk,zkn->zmn" if len(a.shape) == 3 else "mk,kn->mn"
    notation = parse(equation)
    layouts = a, b, d
    extents = {
        label: size for term, x in zip((*notation.inputs, notation.output), layouts, strict=True)
        for label, size in zip(term, x.shape, strict=True)
    }  # fmt: skip
    modes = class_modes(notation, layouts[0], layouts[1], None, layouts[2], extents)
    arithmetic = resolve(a.dtype, b.dtype, None)
    return canonical(Contraction(modes, layouts[0], layouts[1], None, layouts[2], arithmetic, epilogue=epilogue))


def schedule_of(contraction: Contraction, scheme: SplitScheme, target: Target) -> WsSchedule | str:
    """The tiles of a product of terms, by the operands' views and with split-K where D alone cannot fill the device;
    or why there are none, in a sentence."""
    if (reason := supports(contraction, target)) is not None:
        return reason
    if not scheme.admitted(contraction.k, joined=True):
        return f"sums of {contraction.k} products are too short"
    sums = contraction.of_role(Role.K)
    views = [next(tma_views(contraction, operand, sums[0]), None) for operand in (A, B)] if len(sums) == 1 else [None]
    a, b = (views[0], views[-1])
    if a is None or b is None:
        return "terms do not lie as TMA reads them"
    if output_dimensions(contraction, a, b) is None:
        return "TMA cannot store D"
    depth = DEPTHS[scheme.name]
    width = next((each for each in COLUMNS if each >= extent(b.outer)), COLUMNS[-1])
    stage = scheme.terms * (ROWS + width) * depth * scheme.term.itemsize
    rows = ROWS // COOPERATIVE.m_parts
    room = (target.shared_memory or SHARED_MEMORY) - BARRIERS - staging_bytes(rows, COOPERATIVE.buffers)
    stages = min(MOST_STAGES, room // stage)
    if stages < LEAST_STAGES:
        return "the device has too little shared memory"
    whole = WsSchedule(a, b, sums[0], (ROWS, width, depth), WARPS, stages, consumers=COOPERATIVE)
    runs, wanted = -(-contraction.k // RUN), sm_count(target) // output_tiles(contraction, whole)
    splits = -(-runs // -(-runs // max(wanted, 1)))  # no more than runs, and as many by each scheme
    return replace(whole, splits=splits) if splits > 1 else whole
