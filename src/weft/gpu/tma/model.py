"""Parameters of the TMA kernel from a schedule, and its cost."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from weft.fn.triton.padding import padding_adds_nothing
from weft.gpu.common.constraints import GROUP_ROWS, REGISTERS, SHARED_MEMORY, sm_count, widened
from weft.gpu.common.cost import (
    TALL,
    compulsory_bytes,
    function_seconds,
    launched,
    reduce_seconds,
    scattered_bytes,
    tile_access,
)
from weft.gpu.common.swap_ab import in_kernel_order
from weft.gpu.common.tiling import TENSORS, D, TiledAxis, TiledDim, rest, tiled_dim, wide, wide_index
from weft.gpu.tma.schedule import TmaSchedule, TmaView, dim_axes, n_parts, shared_bytes, stores_rows, subtiles_of
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction, Role

OTHER_REGISTERS = 64  # of a thread, besides those of its accumulators
RESERVED = 1024  # bytes of shared memory that the device keeps for itself in each CTA


class TmaDim(NamedTuple):
    """Which axis of which side gives a tile's first index along one dimension of a tensor map."""

    role: int  # of an operand: 0 batch, 1 its own side, 2 k. Of D: 0 batch, 1 m, 2 n
    axis: int  # of that side


class TmaSubtileParams(NamedTuple):
    """Columns of an output tile that are stored at once."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    stored: tuple[int, int]
    wide: tuple[bool, ...]
    first: int  # column of the output tile


class NPartParams(NamedTuple):
    """A part of an output tile along n: the columns of one accumulator, and of one tile of B."""

    batch: TiledDim
    n: TiledDim
    k: TiledDim
    wide: tuple[bool, ...]
    subtiles: tuple[TmaSubtileParams, ...]  # one, two or four


class TmaParams(NamedTuple):
    """All that the kernels take of a schedule that loads by TMA."""

    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same as `k`: tiles of A and B span the same run of it
    a_dims: tuple[TmaDim, ...]
    b_dims: tuple[TmaDim, ...]
    a_along_k: bool
    b_along_k: bool
    n_parts: tuple[NPartParams, ...]  # one or two
    blocks: int  # output tiles
    splits: int  # split-K partials of each output tile, or the most that one has
    steps: int  # along k in each partial; with stream-K, in a whole sum
    programs: int  # CTAs, which stay and take one work tile after the other
    group: int  # GROUP_M, see `common.tiles.tile_coords`
    flatten: bool  # loads run ahead into the next work tile, see `tma_params`
    widen: bool  # products are made in the accumulator's type
    masked: bool  # a function is not zero at zero: values past the end of k must be masked
    wide: tuple[bool, ...]
    wide_index: bool


class WorkDivision(NamedTuple):
    """How the work of a schedule is divided, which is all that its predicted time depends on."""

    m: TiledDim
    n: TiledDim
    k: TiledDim
    blocks: int  # output tiles
    steps: int  # along k in each partial
    programs: int  # CTAs


def work_division(contraction: Contraction, schedule: TmaSchedule, target: Target) -> WorkDivision:
    tile_m, tile_n, _ = schedule.tile
    tensors = TENSORS + len(contraction.aux)
    m, n = tiled_dim(dim_axes(schedule.a, tile_m), 0, tensors), tiled_dim(dim_axes(schedule.b, tile_n), 1, tensors)
    k = tiled_dim(_k_axes(contraction, schedule), 0, tensors)
    blocks = contraction.batch * m.blocks * n.blocks
    resident = _resident(schedule, contraction.arithmetic.product.itemsize)
    programs = min(blocks * schedule.splits, resident * sm_count(target))
    return WorkDivision(m, n, k, blocks, -(-k.blocks // schedule.splits), programs)


def _k_axes(contraction: Contraction, schedule: TmaSchedule) -> list[TiledAxis]:
    """Every other mode of k one index at a time, and the run that TMA tiles take."""
    run = TiledAxis((schedule.k,), schedule.tile[2])
    return [*rest(contraction.of_role(Role.K), [run]), run]


def tma_params(contraction: Contraction, schedule: TmaSchedule, target: Target) -> TmaParams:
    """The constants of a schedule.

    With two parts along n, `flatten` makes the assembler run one product at a time: it is set only where CTAs take
    several work tiles, as it then also hides loads.
    """
    tile_m, tile_n, _ = schedule.tile
    batch = [TiledAxis((mode,), 1) for mode in contraction.of_role(Role.BATCH)]
    m, n, k = dim_axes(schedule.a, tile_m), dim_axes(schedule.b, tile_n), _k_axes(contraction, schedule)
    tensors = TENSORS + len(contraction.aux)
    m_dim, n_dim, k_dim, blocks, steps, programs = work_division(contraction, schedule, target)
    offsets, batch_dim = wide(contraction.modes, tensors), tiled_dim(batch, 0, tensors)
    k_dim = _padded(k_dim, steps * schedule.splits)
    work_tiles = blocks * schedule.splits
    return TmaParams(
        batch=batch_dim,
        m=m_dim,
        n=n_dim,
        k=k_dim,
        k_of_a=k_dim,
        a_dims=_tma_dims(schedule.a, batch, m, k),
        b_dims=_tma_dims(schedule.b, batch, n, k),
        a_along_k=schedule.a.along_k,
        b_along_k=schedule.b.along_k,
        n_parts=_n_parts(batch_dim, m_dim, n, k_dim, offsets, stores_rows(schedule)),
        blocks=blocks,
        splits=schedule.splits,
        steps=steps,
        programs=programs,
        group=schedule.group,
        flatten=target.kind != "interpreter" and (len(n_parts(tile_n)) == 1 or programs < work_tiles),
        widen=widened(contraction, target),
        masked=not k_dim.exact and not padding_adds_nothing(contraction.a_fn, contraction.b_fn),
        wide=offsets,
        wide_index=wide_index((*m, *n, *k)),
    )


def _n_parts(
    batch: TiledDim, m: TiledDim, n: Sequence[TiledAxis], k: TiledDim, offsets: tuple[bool, ...], rows: bool
) -> tuple[NPartParams, ...]:
    """The parts of an output tile, side by side along the run of n, each with the subtiles that it is stored in."""
    *others, run = n

    def columns(first: int, width: int) -> TiledDim:
        return tiled_dim([*others, TiledAxis(run.modes, width, True, run.tile, first)], 1, len(offsets))

    found, first = [], 0
    for width in n_parts(run.tile):
        count = subtiles_of(width, rows)
        starts = range(first, first + width, width // count)
        subtiles = tuple(
            TmaSubtileParams(batch, m, columns(start, width // count), (m.tile, width // count), offsets, start)
            for start in starts
        )
        found.append(NPartParams(batch, columns(first, width), k, offsets, subtiles))
        first += width
    return tuple(found)


def _padded(k: TiledDim, tiles: int) -> TiledDim:
    """The side of k with room for so many tiles: those past its end read zeros, rather than its start again."""
    slowest = max(k.axes, key=lambda axis: (axis.pitch, axis.blocks))
    wanted = -(-tiles // slowest.pitch)
    if wanted == slowest.blocks:
        return k
    padded = slowest._replace(blocks=wanted, exact=False)
    return k._replace(axes=tuple(padded if axis is slowest else axis for axis in k.axes), exact=False)


def _tma_dims(view: TmaView, *sides: Sequence[TiledAxis]) -> tuple[TmaDim, ...]:
    """Where a tile starts along each dimension of a view; `sides` are batch, the operand's own one, and k."""
    dims = {cut.modes: TmaDim(role, axis) for role, cuts in enumerate(sides) for axis, cut in enumerate(cuts)}
    return tuple(dims[group] for group in view.dimensions)


def _resident(schedule: TmaSchedule, size: int) -> int:
    """CTAs that fit on one SM at a time."""
    tile_m, tile_n, _ = schedule.tile
    registers = (tile_m * tile_n // (32 * schedule.warps) + OTHER_REGISTERS) * 32 * schedule.warps
    shared = shared_bytes(schedule, size) + RESERVED
    return max(1, min((SHARED_MEMORY + RESERVED) // shared, REGISTERS // registers))


_FITTED = fitted("tma")

LAUNCH = _FITTED("launch")  # seconds
MEMORY_RATE = _FITTED("memory_rate")  # bytes per second
L2_RATE = _FITTED("l2_rate")
LATENCY = _FITTED("latency")  # seconds from the request of a tile to its arrival; stages but one are requested ahead
STEP_SECONDS = _FITTED("step_seconds")  # of an SM, for each step along k of all its CTAs
WORK_TILE_SECONDS = _FITTED("work_tile_seconds")  # before the first step of a work tile and after its last
# At each step with functions, where one tile is loaded ahead and the SM has no other CTA.
ALONE_SECONDS = _FITTED("alone_seconds")
FINISH_SECONDS = _FITTED("finish_seconds")  # to store a full tile from registers to D with eight warps
FULL_TILE, FULL_WARPS = 128 * 256, 8
# The norm that joins arithmetic, L2, memory, steps and waiting: chosen later than the other numbers, with `TALL`, by
# 231 trials of TCCG, for which predictions are off by 7 % (root mean square).
OVERLAP = _FITTED("overlap")
STORE_CLOCK = _FITTED("store_clock")  # lines of D that an SM stores in a second

# Flops per second with 16-bit elements and with 32-bit ones shortened to TF32: those of the data sheet, at the 1980 MHz
# that an H200 runs at where power allows rather than the sheet's 1830. The numbers above were fitted, with the sheet's,
# to 235 timed schedules, most of them with 312, 296 or 72 indices along a side: predictions were off by 12 % on
# average. With one-byte elements the rate is twice that of two.
_RATE = _FITTED.table("rate")  # by bytes of an element


def predict(contraction: Contraction, schedule: TmaSchedule, target: Target) -> float:
    """Seconds: the norm of five times that overlap, and the launch.

    The tensor cores, in whole waves; L2, for all tiles; memory, for all bytes; what an SM issues, step by step and tile
    by tile; and the latency of tiles that are not requested early enough.
    """
    contraction = in_kernel_order(contraction, schedule)
    params = work_division(contraction, schedule, target)
    sms = sm_count(target)
    tile_m, tile_n, tile_k = schedule.tile
    work_tiles = params.blocks * schedule.splits
    uneven = -(-work_tiles // sms) * sms / work_tiles  # the busiest SM over the average
    tiles = work_tiles * params.steps * tile_k
    flops = 2.0 * uneven * tiles * tile_m * tile_n
    size = contraction.arithmetic.product.itemsize
    smaller = min(1.0, tile_m * tile_n / FULL_TILE) ** 0.1  # less reuse of what comes from L2
    shallow = 1.0 if tile_k * size >= 128 else 0.95  # more steps for the same work
    busy = flops / (_RATE[str(size)] * smaller * shallow) * (TALL if tile_m > GROUP_ROWS * schedule.warps // 4 else 1.0)
    read = uneven * tiles * (tile_m + tile_n) * size / L2_RATE
    # Lines that several subtiles write are merged in L2.
    result = tile_access(contraction.d, D, params.blocks, (*params.m.axes, *params.n.axes))
    stored = (compulsory_bytes(contraction) + scattered_bytes(result)) / MEMORY_RATE
    stored = max(stored, uneven * result.cycles / (sms * STORE_CLOCK))
    busy *= (1.2 if contraction.a_fn is not None else 1.0) * (1.5 if contraction.b_fn is not None else 1.0)
    busy += uneven * function_seconds(contraction, tiles * tile_m, tiles * tile_n, params.blocks * tile_m * tile_n)
    finish = FINISH_SECONDS * tile_m * tile_n / (FULL_TILE * schedule.warps / FULL_WARPS)
    fused = contraction.a_fn is not None or contraction.b_fn is not None
    step = STEP_SECONDS + (ALONE_SECONDS if fused and schedule.stages < 3 and params.programs <= sms else 0.0)
    turns = -(-work_tiles // params.programs)  # work tiles of a CTA
    resident = max(1.0, params.programs / sms)
    issued = turns * resident * (params.steps * step + WORK_TILE_SECONDS + finish)
    waiting = turns * params.steps * LATENCY / max(1, schedule.stages - 1)
    joined = sum([pipe**OVERLAP for pipe in (busy, read, stored, issued, waiting)]) ** (1 / OVERLAP)
    return launched(joined, LAUNCH) + reduce_seconds(schedule.workspace_bytes, schedule.splits)
