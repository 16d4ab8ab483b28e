"""The direct family on matrix instructions: which tiles are legal for a contraction, and what they should cost.

Operands are gathered where they lie, nothing is copied first and nothing is padded. The choice is of tiles: which
modes the block of D runs along, so that A, B and D are all touched in runs as long as the tile allows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import NamedTuple

import torch

from weft.fn.triton.padding import masked_operands
from weft.gpu.common.constraints import LEAST_DOT, LEAST_SPLIT_STEPS, is_product_of_vectors, power_of_two, widened
from weft.gpu.common.contraction_launch import SplitLaunch, WholeLaunch
from weft.gpu.common.cost import Work, cast_seconds, direct_seconds, function_seconds, reduce_seconds, tile_access
from weft.gpu.common.launch import (
    MOST_PROGRAMS,
    KernelLaunch,
    common_reasons,
    contraction_constants,
    pointer_layouts,
    precision_reason,
    wide,
    wide_index,
)
from weft.gpu.common.reduce_splits import reduce_launch
from weft.gpu.common.tiling import (
    TENSORS,
    A,
    B,
    C,
    D,
    TiledAxis,
    TiledDim,
    axes_text,
    by_stride,
    nearest,
    rest,
    run_orders,
    tiled_dim,
)
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.dtypes import dtype_name

NAME = "gett"

GROUP_ROWS = 64  # of the tiles that instructions of a warp group make, which take B from shared memory
_TILE = attrgetter("tile")
LEAST_DEPTH = 32  # bytes of k
LONGEST_INT8 = 2**31 // 128**2 - 1  # products: sums of more may leave int32, where `mma.sync` stops at its ends


class GettParams(NamedTuple):
    """All that the kernel takes of a schedule, as compile-time constants."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same axes of k in A's order
    swap_k: bool
    stored: tuple[int, ...]  # extents of the stored tile: every axis longer than one index
    group: int
    blocks: int  # of D
    splits: int  # programs that share the sum of each block
    steps: int  # along k, in each of them
    widen: bool  # products are made in the accumulator's type
    masked: tuple[bool, bool]  # what the functions of A and B make of the zeros past the end of k is masked
    apart: bool  # the product of each step is added by a rounded sum
    turned: tuple[bool, bool]  # A and B are turned in registers, see `_turned`
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do


@dataclass(frozen=True, slots=True)
class GettSchedule:
    """Tiles along the modes of m, n and k; the cuts of a side are ordered, the last one fastest within the tile."""

    m: tuple[TiledAxis, ...]
    n: tuple[TiledAxis, ...]
    k: tuple[TiledAxis, ...]
    warps: int
    stages: int
    group: int
    splits: int = 1
    apart: bool = False  # the product of each step is added by a rounded sum, not within the matrix unit
    workspace_bytes: int = 0
    family: str = NAME

    @property
    def tile(self) -> tuple[int, int, int]:  # (M, N, K)
        return math.prod(map(_TILE, self.m)), math.prod(map(_TILE, self.n)), math.prod(map(_TILE, self.k))

    def __str__(self) -> str:
        m, n, k = self.tile
        dims = f"m[{axes_text(self.m)}] n[{axes_text(self.n)}] k[{axes_text(self.k)}]"
        split = f" split_k={self.splits}" if self.splits > 1 else ""
        split += " apart" if self.apart else ""
        return f"gett {m}x{n}x{k} {dims} warps={self.warps} stages={self.stages} group={self.group}{split}"


class TileShape(NamedTuple):
    m: int
    n: int
    k: int
    warps: int
    stages: int


# Tiles by bytes of a product element. Wide tiles reuse more, narrow ones waste fewer lanes on a short side.
_HALF = (
    TileShape(128, 256, 64, 8, 3), TileShape(256, 128, 64, 8, 3), TileShape(128, 128, 64, 8, 3),
    TileShape(128, 128, 64, 4, 3), TileShape(128, 128, 32, 4, 4), TileShape(256, 64, 64, 8, 3),
    TileShape(64, 256, 64, 8, 3), TileShape(128, 64, 64, 4, 4), TileShape(64, 128, 64, 4, 4),
    TileShape(64, 64, 64, 4, 4), TileShape(256, 32, 64, 8, 3), TileShape(32, 256, 64, 8, 3),
    TileShape(128, 32, 64, 4, 4), TileShape(32, 128, 64, 4, 4), TileShape(64, 32, 64, 4, 4),
    TileShape(32, 64, 64, 4, 4), TileShape(32, 32, 64, 4, 4), TileShape(128, 16, 64, 4, 4),
    TileShape(16, 128, 64, 4, 4), TileShape(16, 16, 128, 4, 4), TileShape(64, 16, 64, 4, 4),
    TileShape(16, 64, 64, 4, 4), TileShape(512, 32, 32, 8, 4), TileShape(32, 512, 32, 8, 4),
    TileShape(256, 32, 32, 8, 4), TileShape(32, 256, 32, 8, 4), TileShape(256, 32, 16, 8, 5),
    TileShape(32, 256, 16, 8, 5), TileShape(256, 64, 32, 8, 4), TileShape(64, 256, 32, 8, 4),
    TileShape(128, 128, 16, 4, 4), TileShape(128, 64, 32, 4, 4), TileShape(64, 128, 32, 4, 4),
    TileShape(64, 64, 32, 4, 4),
)  # fmt: skip
_SINGLE = (
    TileShape(128, 128, 32, 8, 3), TileShape(128, 64, 32, 4, 3), TileShape(64, 128, 32, 4, 3),
    TileShape(64, 64, 32, 4, 3), TileShape(128, 32, 32, 4, 3), TileShape(32, 128, 32, 4, 3),
    TileShape(64, 32, 32, 4, 3), TileShape(32, 64, 32, 4, 3), TileShape(32, 32, 32, 4, 3),
    TileShape(128, 16, 32, 4, 3), TileShape(16, 128, 32, 4, 3), TileShape(16, 16, 64, 4, 3),
    TileShape(256, 32, 32, 8, 3), TileShape(32, 256, 32, 8, 3), TileShape(256, 32, 16, 8, 4),
    TileShape(32, 256, 16, 8, 4), TileShape(256, 32, 16, 4, 4), TileShape(128, 128, 16, 4, 4),
    TileShape(128, 32, 16, 4, 4), TileShape(256, 64, 32, 8, 3), TileShape(64, 256, 32, 8, 3),
)  # fmt: skip
_DOUBLE = (
    TileShape(64, 128, 16, 8, 3), TileShape(128, 64, 16, 8, 3), TileShape(64, 64, 16, 4, 3),
    TileShape(128, 32, 16, 4, 3), TileShape(32, 128, 16, 4, 3), TileShape(64, 32, 16, 4, 3),
    TileShape(32, 64, 16, 4, 3), TileShape(32, 32, 16, 4, 3), TileShape(16, 128, 16, 4, 3),
    TileShape(128, 16, 16, 4, 3), TileShape(16, 16, 32, 4, 3), TileShape(256, 32, 16, 8, 3),
    TileShape(32, 256, 16, 8, 3),
)  # fmt: skip
# As many bytes of k as with two; an instruction takes 32 of them.
_BYTE = tuple(dict.fromkeys(shape._replace(k=min(2 * shape.k, 128)) for shape in _HALF))
_SHAPES = {1: _BYTE, 2: _HALF, 4: _SINGLE, 8: _DOUBLE}
_SPLITS = (16, 8, 32, 4)  # lengths of A's (or B's) own run where a side needs two


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target) or precision_reason(contraction.arithmetic, target)
    if reason is not None:
        return reason
    if contraction.algebra is not None:
        return f"no matrix instruction computes in the algebra {contraction.algebra.name}"
    product = contraction.arithmetic.product
    if not product.is_floating_point and (product, contraction.arithmetic.accumulate) != (torch.int8, torch.int32):
        return f"{dtype_name(product)} products have no matrix instruction here"
    if product is torch.int8 and contraction.k > LONGEST_INT8:
        return (
            f"sums of more than {LONGEST_INT8} products could leave int32, where some matrix instructions do not wrap"
        )
    narrowest = min((contraction.a.dtype, contraction.b.dtype, product), key=lambda dtype: dtype.itemsize)
    if narrowest.itemsize < 4 and contraction.arithmetic.accumulate is torch.float64:
        return f"no matrix instruction adds products of {dtype_name(narrowest)} in float64"
    if is_product_of_vectors(contraction):
        return "m or n is 1 in a batch: nothing for a matrix instruction to share"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[GettSchedule] = []
    excluded: dict[str, None] = {}
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    size = _product_bytes(contraction)
    shared = target.shared_memory or 64 * 1024
    for shape in _SHAPES[size]:
        reason = _misfit(contraction, shape, size, shared)
        if reason is not None:
            excluded[reason] = None
            continue
        depth = min(shape.k, max(LEAST_DOT, LEAST_DEPTH // size, power_of_two(contraction.k)))
        stages = min(shape.stages, max(2, -(-contraction.k // depth)))  # no more than there are steps
        for m in _side_axes(m_modes, A, shape.m):
            for n in _side_axes(n_modes, B, shape.n):
                for k in _depth_axes(k_modes, depth):
                    schedule = GettSchedule(m, n, k, shape.warps, stages, group=8)
                    blocks = _blocks(contraction, schedule)
                    if blocks > MOST_PROGRAMS:
                        excluded["a grid holds at most 2^31 - 1 blocks"] = None
                    else:
                        found.append(schedule)
                        found.extend(_split(contraction, schedule, blocks, target))
    return Candidates(tuple(dict.fromkeys(found)), tuple(excluded))


def predict(contraction: Contraction, schedule: GettSchedule, target: Target) -> float:
    """Seconds that the roof and the access pattern allow this schedule; see `cost.direct_seconds`."""
    params = gett_params(contraction, schedule, target)
    blocks, steps = params.blocks * params.splits, params.steps
    tile_m, tile_n, tile_k = schedule.tile
    work = Work(
        accesses=(
            tile_access(contraction.a, A, blocks * steps, (*params.m.axes, *params.k_of_a.axes), repeated=True),
            tile_access(contraction.b, B, blocks * steps, (*params.n.axes, *params.k.axes), repeated=True),
            tile_access(contraction.c, C, params.blocks, (*params.m.axes, *params.n.axes)),
            tile_access(contraction.d, D, params.blocks, (*params.m.axes, *params.n.axes)),
        ),
        blocks=blocks,
        steps=steps,
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=_product_bytes(contraction) * schedule.stages * (tile_m + tile_n) * tile_k,
        rearranged=params.swap_k,
        turned=blocks * steps * tile_n * tile_k if params.turned[B] and tile_m >= GROUP_ROWS else 0,
        function_seconds=function_seconds(
            contraction,
            blocks * steps * tile_m * tile_k,
            blocks * steps * tile_n * tile_k,
            params.blocks * tile_m * tile_n,
        )
        + cast_seconds(contraction, blocks * steps * tile_n * tile_k),
    )
    return direct_seconds(contraction, target, work) + reduce_seconds(schedule.workspace_bytes, params.splits)


def build(contraction: Contraction, schedule: GettSchedule, target: Target) -> Launch:
    from weft.gpu.gett.kernel import gett_kernel

    params = gett_params(contraction, schedule, target)
    constants = contraction_constants(contraction, params)
    a, b, c, d = contraction.a, contraction.b, contraction.c, contraction.d
    real = contraction.arithmetic.accumulate.is_floating_point
    programs, warps, stages = params.blocks * params.splits, schedule.warps, schedule.stages
    pointers = pointer_layouts(contraction)
    if params.splits == 1:
        whole = KernelLaunch(
            gett_kernel, (a, b, c, d, None), constants, real, target, programs, warps, stages, pointers
        )
        return WholeLaunch(whole)
    parts = Layout.contiguous((programs, params.m.tile, params.n.tile), contraction.arithmetic.accumulate)
    return SplitLaunch(
        KernelLaunch(
            gett_kernel, (a, b, None, None, parts), constants, real, target, programs, warps, stages, pointers
        ),
        reduce_launch(contraction, params, parts, target),
        parts,
    )


def gett_params(contraction: Contraction, schedule: GettSchedule, target: Target) -> GettParams:
    def whole(role: Role, cuts: Sequence[TiledAxis]) -> list[TiledAxis]:
        return [*rest(contraction.of_role(role), cuts), *cuts]

    tensors = TENSORS + len(contraction.aux)
    m = tiled_dim(whole(Role.M, schedule.m), tensors=tensors)
    places = sum([axis.place >= 0 for axis in m.axes])
    n = tiled_dim(whole(Role.N, schedule.n), first_place=places, tensors=tensors)
    k, k_of_a = tiled_dim(schedule.k, tensors=tensors), tiled_dim(schedule.k[::-1], tensors=tensors)
    return GettParams(
        batch=tiled_dim(rest(contraction.of_role(Role.BATCH), ()), tensors=tensors),
        m=m,
        n=n,
        k=k,
        k_of_a=k_of_a,
        swap_k=len(schedule.k) > 1,
        stored=tuple([axis.tile for axis in (*m.axes, *n.axes) if axis.place >= 0]),
        group=schedule.group,
        blocks=contraction.batch * m.blocks * n.blocks,
        splits=schedule.splits,
        steps=-(-k.blocks // schedule.splits),
        widen=widened(contraction, target),
        masked=(False, False) if k.exact else masked_operands(contraction.a_fn, contraction.b_fn),
        apart=schedule.apart,
        turned=_turned(contraction),
        wide=wide(contraction.modes, tensors),
        wide_index=wide_index((*schedule.m, *schedule.n, *schedule.k)),
    )


def _side_axes(modes: Sequence[Mode], operand: int, tile: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over the modes of m or n: in D's order, in the operand's, or along both runs."""
    by_d = by_stride(modes, D)
    for order in dict.fromkeys((by_d, by_stride(modes, operand))):
        yield (TiledAxis(order, tile),)
    near_operand = nearest(modes, operand)
    if near_operand is not None and near_operand is not by_d[0]:
        others = tuple(mode for mode in by_d if mode is not near_operand)
        for run in _SPLITS:
            if tile // run >= 2 and run < 2 * near_operand.extent:
                yield (TiledAxis(others, tile // run), TiledAxis((near_operand,), run))


def _depth_axes(modes: Sequence[Mode], tile: int) -> Iterator[tuple[TiledAxis, ...]]:
    """Ways to lay a tile over the modes of k: flattened in an operand's order, or along both operands' runs."""
    near_a, near_b = nearest(modes, A), nearest(modes, B)
    for order in run_orders(modes, A, B):
        yield (TiledAxis(order, tile),)
    if near_a is not None and near_b is not None and near_a is not near_b and tile >= 64:
        yield (TiledAxis(tuple(mode for mode in by_stride(modes, A) if mode is not near_b), tile // 8), TiledAxis((near_b,), 8))


def _misfit(contraction: Contraction, shape: TileShape, size: int, shared: int) -> str | None:
    """Why a tile shape cannot or should not be used here, in one sentence."""
    if size * shape.stages * (shape.m + shape.n) * shape.k > shared:
        return f"the stages of a {shape.m}x{shape.n}x{shape.k} tile exceed {shared} bytes of shared memory"
    for name, tile, extent in (("m", shape.m, contraction.m), ("n", shape.n, contraction.n)):
        if tile > LEAST_DOT and tile >= 2 * power_of_two(extent):
            return f"a tile of {tile} along {name} is at least twice its extent {extent}"
    return None


def _split(contraction: Contraction, schedule: GettSchedule, blocks: int, target: Target) -> Iterator[GettSchedule]:
    """The same tiles with the sum of each block split over programs, where D alone cannot fill the device."""
    processors = max(target.processors, 8)
    if blocks >= processors:
        return
    steps = math.prod(cut.blocks for cut in schedule.k)
    tile_m, tile_n, _ = schedule.tile
    for wanted in dict.fromkeys(-(-fill * processors // max(blocks, 1)) for fill in (1, 2, 4)):
        share = -(-steps // wanted)
        splits = -(-steps // share) if share >= LEAST_SPLIT_STEPS else 1  # none of them empty
        if splits > 1:
            size = splits * blocks * tile_m * tile_n * contraction.arithmetic.accumulate.itemsize
            yield replace(schedule, splits=splits, workspace_bytes=size)


def _blocks(contraction: Contraction, schedule: GettSchedule) -> int:
    blocks = contraction.batch
    for role, cuts in ((Role.M, schedule.m), (Role.N, schedule.n)):
        blocks *= math.prod([cut.blocks for cut in cuts])
        blocks *= math.prod([cut.extent for cut in rest(contraction.of_role(role), cuts)])
    return blocks


def _turned(contraction: Contraction) -> tuple[bool, bool]:
    """Which operands lie against the sum: along m or n, where a TF32 instruction reads shared memory along k.

    Left alone, the compiler turns such an operand while it copies, four bytes at a time. Turned in registers it is
    copied in runs, and A need not even return to shared memory.
    """
    if contraction.arithmetic.precision != "tf32":
        return False, False
    m_modes, n_modes = contraction.of_role(Role.M), contraction.of_role(Role.N)
    return nearest(m_modes, A) is not None, nearest(n_modes, B) is not None


def _product_bytes(contraction: Contraction) -> int:
    arithmetic = contraction.arithmetic
    return 8 if arithmetic.accumulate is torch.float64 else arithmetic.product.itemsize
