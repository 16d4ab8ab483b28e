"""Device functions of pipelines: barriers, work ranges, wgmma, stages between producer and consumers."""

from __future__ import annotations

from typing import Any

import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia import hopper
from triton.experimental.gluon.language.nvidia.hopper import mbarrier

from weft.gpu.common.device import axis_start
from weft.gpu.common.tiles import range_start, split_of_tile
from weft.gpu.common.triton_versions import ARRIVALS_MEET, gluon_names
from weft.gpu.warp_specialized.schedule import CONSUMERS

sync_role, tma_load, _, reinterpret = gluon_names()


@gluon.jit
def meet_and_arrive(bar):
    """Arrive when all threads of the role have come here.

    Used wherever the compiler sees no reason for a barrier of the role by itself. To it a wait for products is no
    access to memory; but each warp waits for its own products alone.
    """
    if not ARRIVALS_MEET:
        sync_role()
    mbarrier.arrive(bar)


@gluon.jit
def output_tile_of(work_tile, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """The place of a work tile without stream-K: the number of the partial, and that of a consumer's output tile."""
    N_TILES: gl.constexpr = PARAMS.consumers.n_tiles
    return work_tile // PARAMS.tiles, work_tile % PARAMS.tiles * N_TILES + CONSUMER % N_TILES


@gluon.jit
def work_range(number, PARAMS: gl.constexpr):
    """The work tiles of CTA (or pipeline) `number`: first, end, and how far from one to the next."""
    STREAM_K: gl.constexpr = PARAMS.stream_k
    if STREAM_K is None:
        return number, PARAMS.tiles * PARAMS.tma.splits, PARAMS.consumers.pipelines * PARAMS.tma.programs
    else:
        end = range_start(number + 1, STREAM_K)
        return range_start(number, STREAM_K) // STREAM_K.steps, (end - 1) // STREAM_K.steps + 1, 1


@gluon.jit
def split_of(work_tile, number, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """The place of a work tile: the number of the partial, that of a consumer's output tile, first step along k, and
    steps."""
    split, output_tile = output_tile_of(work_tile, PARAMS, CONSUMER)
    if PARAMS.stream_k is None:
        return split, output_tile, split * PARAMS.tma.steps, PARAMS.tma.steps
    else:
        split, first_step, steps = split_of_tile(work_tile, number, PARAMS.stream_k)
        return split, output_tile, first_step, steps


@gluon.constexpr_function
def sums_layout(warps, columns, product_bits):
    """How matrix instructions of so many columns leave sums in the registers of a consumer's warps."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, columns, 256 // product_bits])


@gluon.jit
def accumulator(ROWS: gl.constexpr, COLUMNS: gl.constexpr, PARAMS: gl.constexpr, ACCUMULATE: gl.constexpr):
    """Zeros that the products of one part along n are added to."""
    WIDTH: gl.constexpr = min(COLUMNS, PARAMS.roles.mma_columns)
    LAYOUT: gl.constexpr = sums_layout(PARAMS.roles.warps[0], WIDTH, PARAMS.tma.product_bits)
    return hopper.warpgroup_mma_init(gl.full([ROWS, COLUMNS], 0, ACCUMULATE, LAYOUT))


@gluon.jit
def accumulators(ROWS: gl.constexpr, PARAMS: gl.constexpr, ACCUMULATE: gl.constexpr):
    """Zeros for each part along n."""
    found = ()
    for i in gl.static_range(len(PARAMS.tma.n_parts)):
        found += (accumulator(ROWS, PARAMS.tma.n_parts[i].tile, PARAMS, ACCUMULATE),)
    return found


@gluon.jit
def rows_of_a(tile, FIRST: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, ALONG_K: gl.constexpr):
    """Some rows of a tile of A, and the first indices of k of it: (rows, k), in shared memory."""
    if not ALONG_K:
        tile = tile.permute((1, 0))
    if tile.shape[0] > ROWS:
        tile = tile.slice(FIRST, ROWS, 0)
    if tile.shape[1] > DEPTH:
        tile = tile.slice(0, DEPTH, 1)
    return tile


@gluon.jit
def columns_of_b(tile, DEPTH: gl.constexpr, ALONG_K: gl.constexpr):
    """The first indices of k of a tile of B: (k, columns), in shared memory."""
    if ALONG_K:
        tile = tile.permute((1, 0))
    if tile.shape[0] > DEPTH:
        tile = tile.slice(0, DEPTH, 0)
    return tile


@gluon.jit
def multiply(
    x,  # (rows, k), in shared memory or in registers
    b_tiles,  # of each part along n
    stage,
    accs,
    PARAMS: gl.constexpr,
    DEPTH: gl.constexpr,  # indices of k
):
    """Begin to add the products of one step, asynchronously."""
    found = ()
    for i in gl.static_range(len(accs)):
        y = columns_of_b(b_tiles[i].index(stage), DEPTH, PARAMS.tma.b_along_k)
        found += (add_product(x, y, accs[i]),)
    return found


@gluon.jit
def add_product(x, y, acc):
    """Begin to add one product. Of fp8 it is waited for: products of one step may be added with fewer digits, those of
    different steps may not, and are added in registers."""
    if y.dtype.is_fp8():
        total = hopper.warpgroup_mma_wait(0, deps=(acc,))
        zeros = gl.full(total.shape, 0, total.dtype, total.type.layout)
        step = hopper.warpgroup_mma(x, y, hopper.warpgroup_mma_init(zeros), use_acc=False, is_async=True)
        return hopper.warpgroup_mma_init(total + hopper.warpgroup_mma_wait(0, deps=(step,)))
    else:
        return hopper.warpgroup_mma(x, y, acc, is_async=True)


@gluon.jit
def wait_for_products(accs, PENDING: gl.constexpr):
    """Wait until the products of no more than `PENDING` steps are still being added."""
    if len(accs) == 1:
        return (hopper.warpgroup_mma_init(hopper.warpgroup_mma_wait(PENDING, deps=accs)),)
    else:
        acc, rest = hopper.warpgroup_mma_wait(2 * PENDING, deps=accs)
        return hopper.warpgroup_mma_init(acc), hopper.warpgroup_mma_init(rest)


@gluon.jit
def in_other_registers(x, LAYOUT: gl.constexpr):
    """A tile's values in other registers.

    Registers that a matrix instruction reads must not be written before it is done, or the assembler runs such
    instructions one at a time. It sees through a mere copy, so the copy is an `xor` with a zero that it does not know:
    the grid is flat, and its third index is 0.
    """
    zero = gl.full(x.shape, gl.program_id(2).to(gl.int16), gl.int16, LAYOUT)
    return gl.inline_asm_elementwise("xor.b32 $0, $1, $2;", "=r,r,r", [x, zero], dtype=x.dtype, is_pure=False, pack=2)


@gluon.jit
def next_stage(stage, phase, STAGES: gl.constexpr):
    """The next stage of a pipeline, and the phase of its barriers, which flips with every round."""
    over = stage + 1 == STAGES
    return gl.where(over, 0, stage + 1), gl.where(over, phase ^ 1, phase)


@gluon.jit
def barriers(COUNT: gl.constexpr, ARRIVALS: gl.constexpr):
    """Barriers in shared memory, each of which completes a phase after so many arrivals."""
    found = gl.allocate_shared_memory(gl.int64, [COUNT, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(COUNT):
        mbarrier.init(found.index(i), count=ARRIVALS)
    return found


@gluon.jit
def memory_of(
    STAGES: gl.constexpr, OUTER: gl.constexpr, K: gl.constexpr, ALONG_K: gl.constexpr, LAYOUT: gl.constexpr,
    PRODUCT: gl.constexpr,
):  # fmt: skip
    """Shared memory for tiles of an operand, (stages, its own side, K) or (stages, K, its own side)."""
    SHAPE: gl.constexpr = [STAGES, OUTER, K] if ALONG_K else [STAGES, K, OUTER]
    return gl.allocate_shared_memory(PRODUCT, SHAPE, LAYOUT)


@gluon.jit
def tile_memory(
    A_STAGES: gl.constexpr,
    B_STAGES: gl.constexpr,
    PARAMS: gl.constexpr,  # params.WsParams or stationary_params.StationaryParams
    PRODUCT: gl.constexpr,
):
    """Shared memory for tiles of A, and for those of each part of B along n."""
    TMA: gl.constexpr = PARAMS.tma
    a_tiles = memory_of(A_STAGES, TMA.m.tile, TMA.k.tile, TMA.a_along_k, TMA.a_layout, PRODUCT)
    b_tiles = ()
    for i in gl.static_range(len(TMA.n_parts)):
        b_tiles += (
            memory_of(B_STAGES, TMA.n_parts[i].tile, TMA.k.tile, TMA.b_along_k, TMA.b_layouts[i], PRODUCT),
        )
    return a_tiles, b_tiles


@gluon.jit
def parts_of_b(b_tiles, stage):
    """The tiles of B of one stage, one for each part along n."""
    found = ()
    for i in gl.static_range(len(b_tiles)):
        found += (b_tiles[i].index(stage),)
    return found


@gluon.jit
def load_tile(tensor_map, tiles, stage, bar, place, SIDES: gl.constexpr, DIMS: gl.constexpr):
    """Request the tile of an operand at a place (batch, its own side, k). TMA arrives at `bar` with the bytes that it
    has written."""
    start = ()
    for i in gl.static_range(len(DIMS)):
        start += (tma_coord(place, SIDES, DIMS[i]),)
    to = reinterpret(tiles.index(stage), tensor_map.dtype, tensor_map.block_shape, tensor_map.layout)
    tma_load(tensor_map, start, bar, to)


@gluon.jit
def load_a(a, a_tiles, stage, bar, tile, k_tile, PARAMS: gl.constexpr):
    """Request A's tile of a step; `tile` numbers the output tile, (batch, m, n)."""
    TMA: gl.constexpr = PARAMS.tma
    load_tile(a, a_tiles, stage, bar, (tile[0], tile[1], k_tile), (TMA.batch, TMA.m, TMA.k), TMA.a_dims)


@gluon.jit
def load_b(maps, tiles, stage, bar, tile, k_tile, PARAMS: gl.constexpr):
    """Request B's tiles of a step, one for each part along n."""
    TMA: gl.constexpr = PARAMS.tma
    place = (tile[0], tile[2], k_tile)
    for i in gl.static_range(len(maps)):
        load_tile(maps[i], tiles[i], stage, bar, place, (TMA.batch, TMA.n_parts[i], TMA.k), TMA.b_dims)


@gluon.jit
def tma_coord(place, SIDES: gl.constexpr, DIM: gl.constexpr):
    """First index of the tile at a place along one dimension of a tensor map; `DIM` is a `TmaDim`, `SIDES` are the dims
    of the place."""
    return axis_start(place[DIM.role], SIDES[DIM.role], DIM.axis).to(gl.int32)


@tl.core.builtin
def start_roles(
    PARAMS: Any, program: Any, other: Any, consumer: Any, transformer: Any, producer: Any, _semantic: Any = None,
    _generator: Any = None,
) -> None:  # fmt: skip
    """Give warps their roles, as many of each as `PARAMS` says.

    Each of `consumer`, `transformer` and `producer` is a function, and what it takes after the number of its CTA (or
    pipeline), `PARAMS` and its own number. The first pipeline has number `program`, the second `other`.

    The compiler takes a list of roles only as it is written in the source, hence this is no kernel's code. Triton's
    cache does not look into it: who changes the order of roles must clear that cache.
    """
    given = PARAMS.value.roles.value
    warps, registers = list(given.warps.value), list(given.registers.value)
    numbers, transforming = (program, other), given.transformers.value
    pipelines = len(warps) + 1 - CONSUMERS - transforming  # a producer for each

    def role(what: Any, at: int, pipeline: int) -> tuple[Any, Any]:
        function, arguments = what
        return function, gl.tuple([numbers[pipeline], PARAMS, gl.constexpr(at), *arguments])

    roles = [
        *(role(consumer, at, at % pipelines) for at in range(CONSUMERS)),
        *(role(transformer, at, at % pipelines) for at in range(transforming)),
        *(role(producer, at, at) for at in range(pipelines)),
    ]
    gl.warp_specialize(roles, warps, registers, _semantic=_semantic, _generator=_generator)
