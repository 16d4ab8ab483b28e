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
from weft.gpu.warp_specialized.roles import CONSUMERS

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
    STEPS: gl.constexpr = PARAMS.tma.steps
    STREAM_K: gl.constexpr = PARAMS.stream_k
    split, output_tile = output_tile_of(work_tile, PARAMS, CONSUMER)
    if STREAM_K is None:
        return split, output_tile, split * STEPS, STEPS
    else:
        split, first_step, steps = split_of_tile(work_tile, number, STREAM_K)
        return split, output_tile, first_step, steps


@gluon.constexpr_function
def sums_layout(warps, columns, product_bits):
    """How matrix instructions of so many columns leave sums in the registers of a consumer's warps."""
    return gl.NVMMADistributedLayout([3, 0], [warps, 1], [16, columns, 256 // product_bits])


@gluon.jit
def accumulator(ROWS: gl.constexpr, COLUMNS: gl.constexpr, ACCUMULATE: gl.constexpr, LAYOUT: gl.constexpr):
    """Zeros that products are added to."""
    return hopper.warpgroup_mma_init(gl.full([ROWS, COLUMNS], 0, ACCUMULATE, LAYOUT))


@gluon.jit
def rows_of_a(tile, FIRST: gl.constexpr, ROWS: gl.constexpr, DEPTH: gl.constexpr, ALONG_K: gl.constexpr):
    """Some rows of a tile of A, and the first indices of k of it: (rows, k), in shared memory."""
    if ALONG_K:
        if tile.shape[0] > ROWS:
            tile = tile.slice(FIRST, ROWS, 0)
        if tile.shape[1] > DEPTH:
            tile = tile.slice(0, DEPTH, 1)
        return tile
    else:
        if tile.shape[1] > ROWS:
            tile = tile.slice(FIRST, ROWS, 1)
        if tile.shape[0] > DEPTH:
            tile = tile.slice(0, DEPTH, 0)
        return tile.permute((1, 0))


@gluon.jit
def columns_of_b(tile, DEPTH: gl.constexpr, ALONG_K: gl.constexpr):
    """The first indices of k of a tile of B: (k, columns), in shared memory."""
    if ALONG_K:
        if tile.shape[1] > DEPTH:
            tile = tile.slice(0, DEPTH, 1)
        return tile.permute((1, 0))
    else:
        if tile.shape[0] > DEPTH:
            tile = tile.slice(0, DEPTH, 0)
        return tile


@gluon.jit
def multiply(
    x,  # (rows, k), in shared memory or in registers
    b_tiles,  # both parts of B along n
    stage,
    acc,
    acc_rest,
    PARAMS: gl.constexpr,
    DEPTH: gl.constexpr,  # indices of k
):
    """Begin to add the products of one step, asynchronously."""
    ALONG_K: gl.constexpr = PARAMS.tma.b_along_k
    acc = add_product(x, columns_of_b(b_tiles[0].index(stage), DEPTH, ALONG_K), acc)
    if len(PARAMS.tma.n_parts) == 2:
        acc_rest = add_product(x, columns_of_b(b_tiles[1].index(stage), DEPTH, ALONG_K), acc_rest)
    return acc, acc_rest


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
def wait_for_products(acc, acc_rest, PENDING: gl.constexpr, PARAMS: gl.constexpr):
    """Wait until the products of no more than `PENDING` steps are still being added."""
    if len(PARAMS.tma.n_parts) == 2:
        acc, acc_rest = hopper.warpgroup_mma_wait(2 * PENDING, deps=(acc, acc_rest))
        return hopper.warpgroup_mma_init(acc), hopper.warpgroup_mma_init(acc_rest)
    else:
        return hopper.warpgroup_mma_init(hopper.warpgroup_mma_wait(PENDING, deps=(acc,))), acc_rest


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
def tile_memory(
    b,
    b_rest,
    A_STAGES: gl.constexpr,
    B_STAGES: gl.constexpr,
    PARAMS: gl.constexpr,  # params.WsParams or stationary_params.StationaryParams
    PRODUCT: gl.constexpr,
):
    """Shared memory for tiles of A, (stages, M, K) or (stages, K, M), and for both parts of B, (stages, N, K) or
    (stages, K, N); and the tensor map of the second part.

    A role takes no None: where there is one part, it stands for the other, which nobody reads.
    """
    M: gl.constexpr = PARAMS.tma.m.tile
    K: gl.constexpr = PARAMS.tma.k.tile
    FIRST: gl.constexpr = PARAMS.tma.n_parts[0].tile
    SECOND: gl.constexpr = PARAMS.tma.n_parts[-1].tile
    A_SHAPE: gl.constexpr = [A_STAGES, M, K] if PARAMS.tma.a_along_k else [A_STAGES, K, M]
    B_SHAPE: gl.constexpr = [B_STAGES, FIRST, K] if PARAMS.tma.b_along_k else [B_STAGES, K, FIRST]
    REST_SHAPE: gl.constexpr = [B_STAGES, SECOND, K] if PARAMS.tma.b_along_k else [B_STAGES, K, SECOND]
    A_LAYOUT: gl.constexpr = PARAMS.tma.a_layout
    B_LAYOUT: gl.constexpr = PARAMS.tma.b_layouts[0]
    REST_LAYOUT: gl.constexpr = PARAMS.tma.b_layouts[-1]
    a_tiles = gl.allocate_shared_memory(PRODUCT, A_SHAPE, A_LAYOUT)
    b_tiles = gl.allocate_shared_memory(PRODUCT, B_SHAPE, B_LAYOUT)
    if len(PARAMS.tma.n_parts) == 2:
        rest_tiles = gl.allocate_shared_memory(PRODUCT, REST_SHAPE, REST_LAYOUT)
        return a_tiles, b_tiles, rest_tiles, b_rest
    else:
        return a_tiles, b_tiles, b_tiles, b


@gluon.jit
def parts_of_b(b_tiles, rest_tiles, stage, PARAMS: gl.constexpr):
    """The tiles of B of one stage, one for each part along n."""
    if len(PARAMS.tma.n_parts) == 2:
        return b_tiles.index(stage), rest_tiles.index(stage)
    else:
        return (b_tiles.index(stage),)


@gluon.jit
def load_tile(
    tensor_map, tiles, stage, bar, batch_tile, outer_tile, k_tile, BATCH: gl.constexpr, OUTER: gl.constexpr,
    K: gl.constexpr, DIMS: gl.constexpr,
):  # fmt: skip
    """Request one tile of an operand. TMA arrives at `bar` with the bytes that it has written."""
    start = ()
    for i in gl.static_range(len(DIMS)):
        start += (tma_coord(batch_tile, outer_tile, k_tile, BATCH, OUTER, K, DIMS, i),)
    to = reinterpret(tiles.index(stage), tensor_map.dtype, tensor_map.block_shape, tensor_map.layout)
    tma_load(tensor_map, start, bar, to)


@gluon.jit
def load_a(a, a_tiles, stage, bar, tile, k_tile, PARAMS: gl.constexpr):
    """Request A's tile of a step; `tile` numbers the output tile, (batch, m, n)."""
    BATCH: gl.constexpr = PARAMS.tma.batch
    M: gl.constexpr = PARAMS.tma.m
    K: gl.constexpr = PARAMS.tma.k
    A_DIMS: gl.constexpr = PARAMS.tma.a_dims
    load_tile(a, a_tiles, stage, bar, tile[0], tile[1], k_tile, BATCH, M, K, A_DIMS)


@gluon.jit
def load_b(maps, tiles, stage, bar, tile, k_tile, PARAMS: gl.constexpr):
    """Request B's tiles of a step, one for each part along n; `maps` and `tiles` are of both parts."""
    BATCH: gl.constexpr = PARAMS.tma.batch
    K: gl.constexpr = PARAMS.tma.k
    FIRST: gl.constexpr = PARAMS.tma.n_parts[0]
    SECOND: gl.constexpr = PARAMS.tma.n_parts[-1]
    B_DIMS: gl.constexpr = PARAMS.tma.b_dims
    load_tile(maps[0], tiles[0], stage, bar, tile[0], tile[2], k_tile, BATCH, FIRST, K, B_DIMS)
    if len(PARAMS.tma.n_parts) == 2:
        load_tile(maps[1], tiles[1], stage, bar, tile[0], tile[2], k_tile, BATCH, SECOND, K, B_DIMS)


@gluon.jit
def tma_coord(
    batch_tile, outer_tile, k_tile, BATCH: gl.constexpr, OUTER: gl.constexpr, K: gl.constexpr, DIMS: gl.constexpr,
    AT: gl.constexpr,
):  # fmt: skip
    """First index of a tile along dimension `AT` of a tensor map; `DIMS` are `tma_params.TmaDim`."""
    ROLE: gl.constexpr = DIMS[AT][0]
    AXIS: gl.constexpr = DIMS[AT][1]
    if ROLE == 0:
        return axis_start(batch_tile, BATCH, AXIS).to(gl.int32)
    elif ROLE == 1:
        return axis_start(outer_tile, OUTER, AXIS).to(gl.int32)
    else:
        return axis_start(k_tile, K, AXIS).to(gl.int32)


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
    params = PARAMS.value
    numbers, transforming = (program, other), params.roles.transformers
    pipelines = len(params.roles.warps) + 1 - CONSUMERS - transforming  # a producer for each

    def role(what: Any, at: int, pipeline: int) -> tuple[Any, Any]:
        function, arguments = what
        return function, gl.tuple([numbers[pipeline], PARAMS, gl.constexpr(at), *arguments])

    roles = [
        *(role(consumer, at, at % pipelines) for at in range(CONSUMERS)),
        *(role(transformer, at, at % pipelines) for at in range(transforming)),
        *(role(producer, at, at) for at in range(pipelines)),
    ]
    warps, registers = list(params.roles.warps), list(params.roles.registers)
    gl.warp_specialize(roles, warps, registers, _semantic=_semantic, _generator=_generator)
