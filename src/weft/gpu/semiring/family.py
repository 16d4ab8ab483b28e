"""The family for products that no matrix instruction makes: other algebras, and integers.

Each thread keeps a small tile of D in registers, so that an element that is loaded serves many products. Operands are
gathered where they lie, as in the matrix family.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from weft.gpu.common.contraction_launch import SplitLaunch, WholeLaunch
from weft.gpu.common.cost import Work, direct_seconds, function_seconds, reduce_seconds, tile_access
from weft.gpu.common.hardware import LINE, REGISTERS, SHARED_MEMORY, VECTOR, sm_count
from weft.gpu.common.launch import (
    MOST_PROGRAMS,
    KernelLaunch,
    common_reasons,
    contraction_constants,
    pointer_layouts,
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
    nearest,
    rest,
    run_orders,
    tiled_dim,
)
from weft.gpu.semiring.params import exponential_constants, product_slots, semiring_constants, sums_exponentials
from weft.gpu.semiring.schedule import USUAL_DEPTH, Shape, Share, power_of_two, shapes, share, tile_axes
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Layout, Role
from weft.spec.dtypes import dtype_name

NAME = "semiring"

LEAST_SIDE = 8  # of m and n: less has nothing to share
MOST_SUMS = 16  # in each thread, of exponentials
LEAST_STEPS = 8  # of a split reduction: fewer are not worth a second kernel

# Fitted to 58 timed schedules of max-plus in float32 on an H200, which they predict within 6 % on average.
STEP_SLOTS = 115  # issue slots of a thread in each step along k besides products and reads
BLOCK_SLOTS = 80  # before the first step and after the last one
STORE_SLOTS = 4  # for each element of D
SLOT_RATE = 3.1e13  # issue slots per second, of all lanes
WAITING = 0.3  # of a scheduler's slots that one warp alone leaves empty, over those that it takes
BLOCK_WAITING = 8.0  # of what a block takes besides its steps, as often again where it is alone on a processor
SCHEDULERS = 4  # of a processor
OTHER_REGISTERS = 36  # of a thread, besides accumulators and four steps of the tiles
SHARED_RATE = 7.2e12  # lanes of reads of 128 bytes from shared memory per second


class SubtileParams(NamedTuple):
    """What storing the pieces of blocks, or combining their parts, takes of a schedule."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, ...]
    group: int
    blocks: int  # pieces of D
    splits: int
    wide: tuple[bool, ...]
    wide_index: bool


class SemiringParams(NamedTuple):
    """All that the kernel takes of a schedule, as compile-time constants."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same
    stored: tuple[int, ...]  # extents of the tile as D lies: every axis longer than one index
    share_m: Share
    share_n: Share
    pieces: SubtileParams
    log_depth: int  # of the tile along k
    group: int
    blocks: int  # of D
    splits: int  # programs that share the reduction of each block
    steps: int  # along k, in each of them
    whole_steps: int  # that end within k
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do
    guard: tuple[int, int] = (0, 0)  # tensor and pointer of marks: only blocks with one are computed; 0 for none


@dataclass(frozen=True, slots=True)
class SemiringSchedule:
    """Tiles along the modes of m, n and k, and what a thread holds of the block."""

    m: tuple[TiledAxis, ...]
    n: tuple[TiledAxis, ...]
    k: tuple[TiledAxis, ...]
    registers: tuple[int, int]  # of each piece
    warps: int
    stages: int
    pieces: tuple[int, int] = (1, 1)  # of the tile along m and n that are computed
    splits: int = 1
    workspace_bytes: int = 0
    group: int = 8
    family: str = NAME

    @property
    def tile(self) -> tuple[int, int, int]:  # (M, N, K)
        return tuple(math.prod(cut.tile for cut in cuts) for cuts in (self.m, self.n, self.k))  # type: ignore[return-value]

    @property
    def computed(self) -> tuple[int, int]:
        """What is computed of the tile, along m and n."""
        m, n = (at // power_of_two(count) * count for at, count in zip(self.tile, self.pieces, strict=False))
        return m, n

    def __str__(self) -> str:
        m, n = self.computed
        cuts = [_pieces(cuts, count) for cuts, count in ((self.m, self.pieces[0]), (self.n, self.pieces[1]))]
        dims = f"m[{axes_text(cuts[0])}] n[{axes_text(cuts[1])}] k[{axes_text(self.k)}]"
        split = f" split_k={self.splits}" if self.splits > 1 else ""
        held = "x".join(str(held * count) for held, count in zip(self.registers, self.pieces, strict=True))
        pieces = f" pieces={self.pieces[0]}x{self.pieces[1]}" if max(self.pieces) > 1 else ""
        threads = f"threads of {held}{pieces} warps={self.warps} stages={self.stages}"
        return f"semiring {m}x{n}x{self.tile[2]} {dims} {threads}{split}"


def supports(contraction: Contraction, target: Target) -> str | None:
    reason = common_reasons(contraction, target)
    if reason is not None:
        return reason
    product = contraction.arithmetic.product
    if contraction.algebra is None and product.is_floating_point:
        return f"matrix instructions and the family simt make {dtype_name(product)} products"
    if min(contraction.m, contraction.n) < LEAST_SIDE:
        return f"m={contraction.m} or n={contraction.n} is under {LEAST_SIDE}: nothing to share"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    found: list[SemiringSchedule] = []
    excluded: dict[str, None] = {}
    m_modes, n_modes, k_modes = (contraction.of_role(role) for role in (Role.M, Role.N, Role.K))
    for shape in shapes(contraction):
        reason = _misfit(contraction, shape)
        if reason is not None:
            excluded[reason] = None
            continue
        depth = min(shape.k, power_of_two(contraction.k))
        tile_m, tile_n = shape.m * power_of_two(shape.pieces[0]), shape.n * power_of_two(shape.pieces[1])
        held = (shape.rows, shape.columns)
        for m in tile_axes(m_modes, A, tile_m, shape.pieces[0]):
            for n in tile_axes(n_modes, B, tile_n, shape.pieces[1]):
                for k in run_orders(k_modes, A, B):
                    schedule = SemiringSchedule(m, n, (TiledAxis(k, depth),), held, shape.warps, shape.stages, shape.pieces)
                    if _blocks(contraction, schedule) > MOST_PROGRAMS:
                        excluded["a grid holds at most 2^31 - 1 blocks"] = None
                    else:
                        found.append(schedule)
                        found.extend(_split(contraction, schedule, target))
    return Candidates(tuple(dict.fromkeys(found)), tuple(excluded))


def predict(contraction: Contraction, schedule: SemiringSchedule, target: Target) -> float:
    """Seconds by the issue slots of all products, and by the pipes of `cost.direct_seconds`."""
    params = semiring_params(contraction, schedule)
    tile_m, tile_n, tile_k = schedule.tile
    programs, steps = params.blocks * params.splits, params.steps
    d_axes = (*params.m.axes, *params.n.axes)
    work = Work(
        accesses=(
            tile_access(contraction.a, A, programs * steps, (*params.m.axes, *params.k.axes)),
            tile_access(contraction.b, B, programs * steps, (*params.n.axes, *params.k.axes)),
            tile_access(contraction.c, C, params.blocks, d_axes),
            tile_access(contraction.d, D, params.blocks, d_axes),
        ),
        blocks=programs,
        steps=0,  # the next step is loaded while one computes
        tile=schedule.tile,
        warps=schedule.warps,
        stage_bytes=max(
            schedule.stages * (tile_m + tile_n) * tile_k * contraction.arithmetic.product.itemsize, tile_m * tile_n * 4
        ),
        matrix=False,
        function_seconds=_arithmetic_seconds(contraction, schedule, params, target)
        + function_seconds(
            contraction,
            programs * steps * tile_m * tile_k,
            programs * steps * tile_n * tile_k,
            params.blocks * tile_m * tile_n,
        ),
    )
    return direct_seconds(contraction, target, work) + reduce_seconds(schedule.workspace_bytes, params.splits)


def _arithmetic_seconds(contraction: Contraction, schedule: SemiringSchedule, params: SemiringParams, target: Target) -> float:
    """Of all products, were all processors equally busy: issue slots, or reads of shared memory if they take longer.

    With few warps on a scheduler some slots stay empty, as each waits for its own results.
    """
    held = math.prod(schedule.registers) * math.prod(schedule.pieces)
    depth, programs = params.k.tile, params.blocks * params.splits
    sizes = (contraction.a.dtype.itemsize, contraction.b.dtype.itemsize)
    across = min(params.share_n.threads, 32)
    reads = [
        _shared_reads(share, depth, size, distinct)
        for share, size, distinct in zip((params.share_m, params.share_n), sizes, (32 // across, across), strict=True)
    ]
    slots = held * depth * product_slots(contraction) + sum(count for count, _ in reads) + STEP_SLOTS
    cycles = params.steps * sum(cycles for _, cycles in reads)
    processors = sm_count(target)
    resident = max(1, min(_resident(contraction, schedule), -(-programs // processors)))
    waiting = 1 + WAITING * SCHEDULERS / (resident * schedule.warps)
    outside = (BLOCK_SLOTS + STORE_SLOTS * held) * (1 + BLOCK_WAITING / resident)
    seconds = max((params.steps * slots * waiting + outside) / SLOT_RATE, cycles / SHARED_RATE)
    return programs * 32 * schedule.warps * seconds


def _resident(contraction: Contraction, schedule: SemiringSchedule) -> int:
    """Blocks that fit on a processor by registers and by shared memory."""
    rows, columns = (held * count for held, count in zip(schedule.registers, schedule.pieces, strict=True))
    words = max(contraction.arithmetic.accumulate.itemsize, 4) // 4
    sums = 2 if sums_exponentials(contraction) else 1
    registers = min(words * (sums * rows * columns + 4 * (rows + columns)) + OTHER_REGISTERS, 255)
    shared = schedule.stages * sum(schedule.tile[:2]) * schedule.tile[2] * contraction.arithmetic.product.itemsize
    allocated = -(-registers // 8) * 8 * 32 * schedule.warps
    return max(1, min(REGISTERS // allocated, SHARED_MEMORY // shared))


def _shared_reads(share: Share, depth: int, size: int, distinct: int) -> tuple[float, float]:
    """Instructions with which a thread reads its rows of a step, and the cycles of shared memory they take of a warp in
    which so many threads read different ones."""
    held = share.pieces * share.held
    if share.run > 1:  # neighbours lie together, and so do the threads' shares of them
        count, apart = held * depth / share.run, share.run * size
    else:
        wide = max(min(depth, VECTOR // size), 1)
        count, apart = held * depth / wide, max(depth * size, 4)
    return count, count * max(1.0, min(distinct, share.threads) * min(apart, LINE) / LINE)


def build(
    contraction: Contraction, schedule: SemiringSchedule, target: Target, guard: int | None = None
) -> Launch:
    """`guard`: an auxiliary operand, bool along D's modes. Only blocks of D where any of it is true are written, whole;
    the rest is left as it is."""
    from weft.gpu.semiring.kernel import semiring_kernel

    params = semiring_params(contraction, schedule)
    if guard is not None:
        before = sum(each.layout is not None for each in contraction.aux[:guard])
        params = params._replace(guard=(TENSORS + guard, before))
    algebra = semiring_constants(contraction) | exponential_constants(contraction)
    constants = contraction_constants(contraction, params) | algebra | {"STAGES": schedule.stages}
    a, b, c, d = contraction.a, contraction.b, contraction.c, contraction.d
    accumulate = contraction.arithmetic.accumulate
    real, pointers = accumulate.is_floating_point, pointer_layouts(contraction)
    programs, warps = params.blocks * params.splits, schedule.warps

    def multiply(c: Layout | None, d: Layout | None, parts: Layout | None) -> KernelLaunch:
        return KernelLaunch(
            semiring_kernel, (a, b, c, d, parts), constants, real, target, programs, warps, schedule.stages, pointers
        )

    if params.splits == 1:
        return WholeLaunch(multiply(c, d, None))
    pieces = params.pieces
    parts = Layout.contiguous((pieces.blocks * pieces.splits, pieces.m.tile, pieces.n.tile), accumulate)
    return SplitLaunch(multiply(None, None, parts), reduce_launch(contraction, pieces, parts, target), parts)


def semiring_params(contraction: Contraction, schedule: SemiringSchedule) -> SemiringParams:
    tensors = TENSORS + len(contraction.aux)

    def whole(role: Role, cuts: Sequence[TiledAxis]) -> list[TiledAxis]:
        return [*rest(contraction.of_role(role), cuts), *cuts]

    def dims(m_cuts: Sequence[TiledAxis], n_cuts: Sequence[TiledAxis]) -> tuple[TiledDim, TiledDim, tuple[int, ...]]:
        m = tiled_dim(whole(Role.M, m_cuts), tensors=tensors)
        n = tiled_dim(whole(Role.N, n_cuts), sum(axis.place >= 0 for axis in m.axes), tensors)
        return m, n, tuple(axis.tile for axis in (*m.axes, *n.axes) if axis.place >= 0)

    def shared(cuts: tuple[TiledAxis, ...], operand: int) -> Share:
        size = (contraction.a, contraction.b)[operand].dtype.itemsize
        return share(cuts, schedule.registers[operand], schedule.pieces[operand], size, schedule.k[0], operand)

    m, n, stored = dims(schedule.m, schedule.n)
    m_piece, n_piece, stored_piece = dims(
        _pieces(schedule.m, schedule.pieces[0]), _pieces(schedule.n, schedule.pieces[1])
    )
    batch = tiled_dim(rest(contraction.of_role(Role.BATCH), ()), tensors=tensors)
    k = tiled_dim(schedule.k, tensors=tensors)
    offsets_wide = wide(contraction.modes, tensors)
    index_wide = wide_index((*schedule.m, *schedule.n, *schedule.k))
    pieces = contraction.batch * m_piece.blocks * n_piece.blocks
    return SemiringParams(
        batch=batch,
        m=m,
        n=n,
        k=k,
        k_of_a=k,
        stored=stored,
        share_m=shared(schedule.m, A),
        share_n=shared(schedule.n, B),
        pieces=SubtileParams(batch, m_piece, n_piece, stored_piece, 1, pieces, schedule.splits, offsets_wide, index_wide),
        log_depth=k.tile.bit_length() - 1,
        group=schedule.group,
        blocks=_blocks(contraction, schedule),
        splits=schedule.splits,
        steps=-(-k.blocks // schedule.splits),
        whole_steps=contraction.k // k.tile,
        wide=offsets_wide,
        wide_index=index_wide,
    )


def _pieces(cuts: tuple[TiledAxis, ...], pieces: int) -> tuple[TiledAxis, ...]:
    """The cuts of one piece."""
    return cuts if pieces == 1 else (cuts[0]._replace(tile=cuts[0].tile // power_of_two(pieces)),)


def _misfit(contraction: Contraction, shape: Shape) -> str | None:
    """Why a block should not be used here, in one sentence."""
    for name, tile, extent in (("m", shape.m, contraction.m), ("n", shape.n, contraction.n)):
        if tile > 16 and tile >= 2 * power_of_two(extent):
            return f"a tile of {tile} along {name} is at least twice its extent {extent}"
    if sums_exponentials(contraction) and math.prod(shape.pieces) * shape.rows * shape.columns > MOST_SUMS:
        return f"a thread that holds sums beside the largest values has room for {MOST_SUMS} of each"
    tiles = (shape.m * power_of_two(shape.pieces[0]), shape.n * power_of_two(shape.pieces[1]))
    depth = contraction.of_role(Role.K)
    if shape.k > USUAL_DEPTH and max(shape.pieces) == 1:
        along = [layout for at, layout in ((A, contraction.a), (B, contraction.b)) if nearest(depth, at) is not None]
        if not any(layout.dtype.itemsize == 4 for layout in along):
            return f"steps of {shape.k} are for operands of 4 bytes that lie along k: they are read in longer rows"
    for operand, layout, rows in zip((A, B), (contraction.a, contraction.b), tiles, strict=True):
        # The compiler would spread that layout over the products: each thread would hold a row of D, not a square.
        wide = min(16 // layout.dtype.itemsize, rows * shape.k // (32 * shape.warps))
        if wide >= shape.k and nearest(depth, operand) is not None:
            return f"each thread would load a whole row of a {rows}x{shape.k} tile of {dtype_name(layout.dtype)}"
    return None


def _split(contraction: Contraction, schedule: SemiringSchedule, target: Target) -> Iterator[SemiringSchedule]:
    """The same tiles with each reduction split over programs, where D alone cannot fill the device."""
    processors = max(target.processors, 8)
    blocks, steps = _blocks(contraction, schedule), math.prod(cut.blocks for cut in schedule.k)
    if blocks >= 2 * processors:
        return
    m, n = schedule.computed
    for wanted in dict.fromkeys(-(-fill * processors // max(blocks, 1)) for fill in (1, 2, 4, 8, 16)):
        share = -(-steps // wanted)
        splits = -(-steps // share) if share >= LEAST_STEPS else 1  # none of them empty
        if splits > 1:
            size = splits * blocks * m * n * contraction.arithmetic.accumulate.itemsize
            yield replace(schedule, splits=splits, workspace_bytes=size)


def _blocks(contraction: Contraction, schedule: SemiringSchedule) -> int:
    blocks = contraction.batch
    for role, cuts in ((Role.M, schedule.m), (Role.N, schedule.n)):
        blocks *= math.prod(cut.blocks for cut in cuts)
        blocks *= math.prod(cut.extent for cut in rest(contraction.of_role(role), cuts))
    return blocks
