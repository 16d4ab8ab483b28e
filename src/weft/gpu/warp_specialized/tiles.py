"""Device functions of consumers: functions on a tile, and its store."""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import fence_async_shared, tma, warpgroup_mma_wait

from weft.gpu.common.device import dim_mask, dim_offsets, finished, scalar
from weft.gpu.common.tiles import subtile_mask, subtile_offsets
from weft.gpu.common.triton_versions import gluon_names
from weft.gpu.warp_specialized.pipeline import sums_layout, tma_coord
from weft.gpu.warp_specialized.schedule import CONSUMERS, WARPS

WIDEST_ACCESS = 8  # elements of 16 bits that a lane reads or writes at once


@gluon.constexpr_function
def power_of_two_in(count):
    """The greatest that is no more."""
    return 1 << (count.bit_length() - 1)


@gluon.constexpr_function
def line_layout(height, width, warps):
    """The layout in registers of so many lines of shared memory: a lane has neighbours of one line."""
    access = min(WIDEST_ACCESS, height * width // (32 * warps))
    lanes = width // access
    return gl.BlockedLayout([1, access], [32 // lanes, lanes], [warps, 1], [1, 0])


@gluon.jit
def transform_tiles(tiles, k_tile, PARAMS: gl.constexpr, OP: gl.constexpr):
    """Apply B's function to all tiles of a step: one or two, (k, n) or (n, k), in shared memory.

    All are read before the first is written, where there are registers for that. The compiler sees accesses to the
    whole pipeline, not to lines of it, and puts a barrier between a tile that is read and one that is written. These
    barriers are not needed: every element is read and written by the same lane.
    """
    TOTAL: gl.constexpr = tiles[0].numel + tiles[-1].numel if len(tiles) == 2 else tiles[0].numel
    if PARAMS.roles.elements * 32 * PARAMS.roles.warps[0] >= TOTAL:
        values = ()
        for i in gl.static_range(len(tiles)):
            values += (transformed_lines(tiles[i], 0, k_tile, PARAMS, OP),)
        for i in gl.static_range(len(tiles)):
            tiles[i].store(values[i])
    else:
        for i in gl.static_range(len(tiles)):
            transform_by_lines(tiles[i], k_tile, PARAMS, OP)


@gluon.jit
def transform_by_lines(tile, k_tile, PARAMS: gl.constexpr, OP: gl.constexpr):
    """Apply B's function to one tile, some lines after the other."""
    LINES: gl.constexpr = tile.shape[0]
    AT_ONCE: gl.constexpr = power_of_two_in(PARAMS.roles.elements) * 32 * PARAMS.roles.warps[0]
    HEIGHT: gl.constexpr = min(LINES, AT_ONCE // tile.shape[1])
    for i in gl.static_range(LINES // HEIGHT):
        lines = tile.slice(i * HEIGHT, HEIGHT, 0)
        lines.store(transformed_lines(lines, i * HEIGHT, k_tile, PARAMS, OP))


@gluon.jit
def transformed_lines(lines, first, k_tile, PARAMS: gl.constexpr, OP: gl.constexpr):
    """Lines of a tile of B, from the `first` one on, in registers, the function applied."""
    LAYOUT: gl.constexpr = line_layout(lines.shape[0], lines.shape[1], PARAMS.roles.warps[0])
    return transformed(lines.load(LAYOUT), first, k_tile, PARAMS.tma.b_along_k, LAYOUT, OP.b_fn, PARAMS, OP)


@gluon.jit
def transformed(
    value, first, k_tile, ALONG_K: gl.constexpr, LAYOUT: gl.constexpr, FN: gl.constexpr, PARAMS: gl.constexpr,
    OP: gl.constexpr,
):  # fmt: skip
    """The function of values in registers, in the type of products. What lies past the end of k stays zero.

    Columns run along k, or else rows do, the first of which is number `first` of the tile.
    """
    HEIGHT: gl.constexpr = value.shape[0]
    WIDTH: gl.constexpr = value.shape[1]
    value = FN(value).to(OP.product)
    if PARAMS.tma.masked:
        if ALONG_K:
            inside = dim_mask(k_tile, gl.arange(0, WIDTH, layout=gl.SliceLayout(0, LAYOUT)), PARAMS.tma.k)[None, :]
        else:
            rows = first + gl.arange(0, HEIGHT, layout=gl.SliceLayout(1, LAYOUT))
            inside = dim_mask(k_tile, rows, PARAMS.tma.k)[:, None]
        value = gl.where(inside, value, gl.to_tensor(0.0).to(OP.product))
    return value


CONSUMER_WARPS, CONSUMERS = gl.constexpr(WARPS), gl.constexpr(CONSUMERS)
sync_role, _, tma_store, reinterpret = gluon_names()


@gluon.jit
def split_n(tiles):
    """The left and the right half of each of some matrices in registers."""
    ROWS: gl.constexpr = tiles[0].shape[0]
    COLUMNS: gl.constexpr = tiles[0].shape[1] // 2
    found = ()
    for i in gl.static_range(len(tiles)):
        found += gl.split(gl.permute(gl.reshape(tiles[i], (ROWS, 2, COLUMNS)), (0, 2, 1)))
    return found


@gluon.jit
def subtiles_of(acc, LEVELS: gl.constexpr):
    """The subtiles of an accumulator that is complete: it is halved so many times."""
    subtiles = (warpgroup_mma_wait(0, deps=(acc,)),)
    for _ in gl.static_range(LEVELS):
        subtiles = split_n(subtiles)
    return subtiles


@gluon.constexpr_function
def stored_type(destination):
    """The type of what is stored, by that of a tensor map or of a pointer: truth values pass as bytes."""
    element = destination.element_ty if destination.is_ptr() else destination
    return gl.int8 if element == gl.int1 else element


@gluon.jit
def staging_memory(d, PARAMS: gl.constexpr):
    """Shared memory for both consumers' subtiles of D, (buffers, rows, columns)."""
    LAYOUT: gl.constexpr = PARAMS.d_layout
    COUNT: gl.constexpr = CONSUMERS * PARAMS.consumers.buffers
    return gl.allocate_shared_memory(stored_type(d.dtype), [COUNT, PARAMS.d_shape[0], PARAMS.d_shape[1]], LAYOUT)


@gluon.jit
def store_tile(
    acc,  # (rows, columns) of `PART`
    results,  # D, or split-K partials, see `ws_kernel`; (C,), or () without it; other pointers; alpha, beta
    staging,  # (buffers, rows, columns) of a subtile, in shared memory
    CONSUMER: gl.constexpr,
    partial,  # number of the split-K partial
    tile,  # (batch, m, n): numbers of the output tile
    PARAMS: gl.constexpr,
    PART: gl.constexpr,  # params.AccumulatorParams
    OP: gl.constexpr,
):
    """Store an accumulator, as a split-K partial or finished."""
    subtiles = subtiles_of(acc, PART.halvings)
    # Buffers are free when TMA has read all that an earlier call put there.
    tma.store_wait(0)
    sync_role()
    for i in gl.static_range(len(subtiles)):
        store_subtile(subtiles[i], results, staging, CONSUMER, partial, tile, PARAMS, PART, i, OP)


@gluon.jit
def store_subtile(
    acc, results, staging, CONSUMER: gl.constexpr, partial, tile, PARAMS: gl.constexpr, PART: gl.constexpr,
    AT: gl.constexpr, OP: gl.constexpr,
):  # fmt: skip
    """Store subtile number `AT`. TMA stores it asynchronously; nobody waits here, unless its buffer is in use.

    Where TMA cannot store D, the buffer passes the subtile from the registers of matrix instructions to those of lanes
    side by side on lines of D.
    """
    d, addend, pointers, alpha, beta = results
    SUBTILE: gl.constexpr = PART.subtiles[AT]
    LAYOUT: gl.constexpr = sums_layout(CONSUMER_WARPS, SUBTILE.n.tile, PARAMS.tma.product_bits)
    value = gl.convert_layout(acc, LAYOUT, assert_trivial=True)
    start = ()
    if PARAMS.tma.splits > 1:
        start += (partial, gl.to_tensor(SUBTILE.row), gl.to_tensor(SUBTILE.column))
    else:
        c = None
        if len(addend) == 1:
            c = addend[0]
        rows = gl.arange(0, SUBTILE.m.tile, layout=gl.SliceLayout(1, LAYOUT))
        columns = gl.arange(0, SUBTILE.n.tile, layout=gl.SliceLayout(0, LAYOUT))
        place = (tile[0], tile[1], tile[2], rows, columns)
        value = finished(value, c, pointers, (alpha, beta), place, SUBTILE, subtile_offsets, subtile_mask, OP)
        for i in gl.static_range(len(PARAMS.d_dims)):
            start += (tma_coord(tile, (SUBTILE.batch, SUBTILE.m, SUBTILE.n), PARAMS.d_dims[i]),)
    if PARAMS.consumers.buffers <= AT:  # the first ones are free: `store_tile` waited
        tma.store_wait(PARAMS.consumers.buffers - 1)
        sync_role()
    buffer = staging.index(CONSUMER * PARAMS.consumers.buffers + AT % PARAMS.consumers.buffers)
    matrix = buffer if PARAMS.d_along_n else buffer.permute((1, 0))
    matrix.store(value.to(buffer.dtype))
    STORED: gl.constexpr = PARAMS.store_layout
    if STORED is None:
        fence_async_shared()
        sync_role()
        tma_store(d, start, reinterpret(buffer, d.dtype, d.block_shape, d.layout))
    else:
        sync_role()
        rows = gl.arange(0, SUBTILE.m.tile, layout=gl.SliceLayout(1, STORED))
        columns = gl.arange(0, SUBTILE.n.tile, layout=gl.SliceLayout(0, STORED))
        place = (tile[0], tile[1], tile[2], rows, columns)
        to = d + subtile_offsets(place, SUBTILE, 3)
        gl.store(to, matrix.load(STORED), mask=subtile_mask(place, SUBTILE, 3))


@gluon.jit
def store_from_registers(
    acc,  # (M, columns) of part `PART` along n
    d,  # pointer
    alpha,
    m_tile,
    n_tile,
    PARAMS: gl.constexpr,  # stationary_params.StationaryParams
    PART: gl.constexpr,
    EPILOGUE: gl.constexpr,
):
    """Finish an accumulator and store it without shared memory: there is none left."""
    subtiles = subtiles_of(acc, PARAMS.halvings[PART])
    COUNT: gl.constexpr = len(PARAMS.subtiles[PART])  # those with columns of D in them
    for i in gl.static_range(COUNT):
        store_subtile_from_registers(subtiles[i], d, alpha, m_tile, n_tile, PARAMS, PART, i, EPILOGUE)


@gluon.jit
def store_subtile_from_registers(
    acc, d, alpha, m_tile, n_tile, PARAMS: gl.constexpr, PART: gl.constexpr, AT: gl.constexpr, EPILOGUE: gl.constexpr
):  # fmt: skip
    """Store subtile number `AT`, in a layout in which lanes next to each other write neighbours of D."""
    N: gl.constexpr = PARAMS.subtiles[PART][AT]
    M: gl.constexpr = PARAMS.tma.m
    WIDE: gl.constexpr = PARAMS.tma.wide[3]
    LAYOUT: gl.constexpr = sums_layout(PARAMS.roles.warps[0], N.tile, PARAMS.tma.product_bits)
    value = gl.convert_layout(acc, LAYOUT, assert_trivial=True) * scalar(alpha, acc.dtype)
    if EPILOGUE is not None:
        value = EPILOGUE(value)
    STORED: gl.constexpr = PARAMS.store_layouts[PART]
    row = gl.arange(0, M.tile, layout=gl.SliceLayout(1, STORED))
    column = gl.arange(0, N.tile, layout=gl.SliceLayout(0, STORED))
    to = (d + dim_offsets(m_tile, row, M, 3, WIDE)[:, None]) + dim_offsets(n_tile, column, N, 3, WIDE)[None, :]
    mask = dim_mask(m_tile, row, M)[:, None] & dim_mask(n_tile, column, N)[None, :]
    gl.store(to, gl.convert_layout(value.to(d.dtype.element_ty), STORED), mask=mask)
