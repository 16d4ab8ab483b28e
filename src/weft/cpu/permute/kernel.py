"""Permutations tile by tile: squares transposed in registers, or cells copied one by one, and stages of values.

    for tiles, shared among the threads of a team:
        a move      X's tile straight to D
        else        X's tile to a buffer in D's order, C's alongside it, through a stage; from there to D

A square of items changes rows for columns by shuffles between vectors. Where a side is no multiple of a square's, the
last square begins earlier and moves some items twice. Cells of odd sizes are two vectors that overlap.

Where D is large and its lines are written whole, stores go past the caches: the lines need not be read first, which is
a third of the traffic. X is prefetched along the side on which it is contiguous: hardware loses count of so many rows.
"""

from __future__ import annotations

from typing import Any

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from weft.cpu.gett.vector import (
    BYTE,
    KINDS,
    Kind,
    allocate,
    at,
    copy_vector,
    fetch_add,
    invoke,
    item_size,
    lane_count,
    load_word,
    prefetched,
    release,
    store_word,
    stored,
    transposing,
)
from weft.cpu.permute import params
from weft.cpu.permute.params import LINE
from weft.fn.numba.values import inner

FOLLOWING, MOST_AHEAD = 4, 1024  # which cell after this one is prefetched, and how many bytes of it at the most
AHEAD = {1: 64, 2: 64, 4: 128, 8: 128, 16: 128}  # bytes that are prefetched along X, by the size of an item
_COMPONENTS = {1: BYTE, 2: ir.IntType(16), 4: ir.FloatType(), 8: ir.DoubleType(), 16: ir.DoubleType()}


def _value(size: int, lanes: int) -> tuple[Any, ...]:
    return (numba.int8(0),) * (params.SHAPES.index((size, lanes)) + 1)


for _place, (_size, _lanes) in enumerate(params.SHAPES):
    KINDS[types.UniTuple(types.int8, _place + 1)] = Kind(_COMPONENTS[_size], _size, _lanes, 0, complex=_size == 16)
_1, _2, _4, _8, _16, _32, _64 = (_value(1, lanes) for lanes in (1, 2, 4, 8, 16, 32, 64))


@intrinsic
def prefetch(typingctx: Any, address: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        prefetched(builder, args[0])
        return context.get_dummy_value()

    return types.void(types.int64), code


transpose_square, stream_square = transposing(AHEAD), transposing(AHEAD, streamed=True)


@intrinsic
def stream_line(typingctx: Any, to: Any, source: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        line = ir.VectorType(BYTE, LINE)
        value = builder.load(at(builder, args[1], line))
        value.align = 1
        stored(builder, value, args[0], streamed=LINE)
        return context.get_dummy_value()

    return types.void(types.int64, types.int64), code


@intrinsic
def fence(typingctx: Any) -> Any:
    """A fence after which other threads see what was streamed."""

    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        builder.fence("seq_cst")
        return context.get_dummy_value()

    return types.void(), code


@inner
def squares(x, rows, to, columns, p, q, kind):
    """A tile of p x q items, p contiguous in X and q in D: offsets of q in X by `rows`, of p in D by `columns`.

    Along D, whose lines are written in pieces.
    """
    side, size = lane_count(kind), item_size(kind)
    i = 0
    while True:
        j = 0
        while True:
            transpose_square(x + i * size, rows + 8 * j, to + j * size, columns + 8 * i, kind)
            if j == q - side:
                break
            j = min(j + side, q - side)
        if i == p - side:
            break
        i = min(i + side, p - side)


@inner
def streamed_squares(x, rows, to, columns, p, q, kind):
    """A tile of `squares` in whole lines of D, and so along X, on few of its pages at a time.

    q is a multiple of a line.
    """
    side, size = lane_count(kind), item_size(kind)
    line = max(LINE // size, side)
    for j in range(0, q, line):
        i = 0
        while True:
            for part in range(j, j + line, side):
                stream_square(x + i * size, rows + 8 * part, to + part * size, columns + 8 * i, kind)
            if i == p - side:
                break
            i = min(i + side, p - side)


@inner
def copy_run(to, source, size, streams):
    """Bytes that stay together, at least a cache line of them."""
    done = 0
    if streams:
        done = -to % LINE
        if done > 0:
            copy_vector(to, source, _64)
        while done + LINE <= size:
            stream_line(to + done, source + done)
            done += LINE
    else:
        while done + LINE <= size:
            copy_vector(to + done, source + done, _64)
            done += LINE
    if done < size:
        copy_vector(to + size - LINE, source + size - LINE, _64)


@inner
def copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, kind):
    """Cells of one or two times the size of `kind`."""
    rest = size - item_size(kind) * lane_count(kind)
    for i in range(p):
        source, target = x + load_word(p_x + 8 * i), to + load_word(p_to + 8 * i)
        if rest == 0:
            for j in range(q):
                copy_vector(target + load_word(q_to + 8 * j), source + load_word(q_x + 8 * j), kind)
        else:
            for j in range(q):
                here, there = target + load_word(q_to + 8 * j), source + load_word(q_x + 8 * j)
                copy_vector(here, there, kind)
                copy_vector(here + rest, there + rest, kind)


@inner
def cells(x, p_x, q_x, to, p_to, q_to, p, q, size, streams):
    """A tile of p x q cells of `size` bytes, by tables of offsets on both sides."""
    if size >= LINE:
        for i in range(p):
            source, target = x + load_word(p_x + 8 * i), to + load_word(p_to + 8 * i)
            for j in range(q):
                following = source + load_word(q_x + 8 * min(j + FOLLOWING, q - 1))
                for line in range(0, min(size, MOST_AHEAD), LINE):
                    prefetch(following + line)
                copy_run(target + load_word(q_to + 8 * j), source + load_word(q_x + 8 * j), size, streams)
    elif size >= 32:
        copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, _32)
    elif size >= 16:
        copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, _16)
    elif size >= 8:
        copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, _8)
    elif size >= 4:
        copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, _4)
    elif size >= 2:
        copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, _2)
    else:
        copy_cells(x, p_x, q_x, to, p_to, q_to, p, q, size, _1)


@inner
def fill_table(table, count, step):
    for i in range(count):
        store_word(table + 8 * i, i * step)


@inner
def read_tile(plan, x, to, p_to, q_to, p, q, size, squares_by, streams):
    """A tile of X to where the two tables say."""
    p_x, q_x = load_word(plan + 8 * params.P_X), load_word(plan + 8 * params.Q_X)
    if squares_by != 0:
        invoke(squares_by, (x, q_x, to, p_to, p, q))
    else:
        invoke(load_word(plan + 8 * params.CELLS), (x, p_x, q_x, to, p_to, q_to, p, q, size, streams))


@inner
def computed_tile(plan, frame, x, d, c, p, q, run, streams, room):
    """A tile by way of the stage, in buffers of D's order."""
    x_size, d_size = load_word(plan + 8 * params.X_SIZE), load_word(plan + 8 * params.D_SIZE)
    p_d, q_d = load_word(plan + 8 * params.P_D), load_word(plan + 8 * params.Q_D)
    size, cells_by = load_word(plan + 8 * params.BUFFER), load_word(plan + 8 * params.CELLS)
    pointers, p_to, q_to = room, room + 64, room + 64 + 8 * p
    raw = (q_to + 8 * q + LINE - 1) // LINE * LINE
    fill_table(p_to, p, q * run * x_size)
    fill_table(q_to, q, run * x_size)
    read_tile(plan, x, raw, p_to, q_to, p, q, run * x_size, load_word(plan + 8 * params.SQUARES), 0)
    if load_word(plan + 8 * params.WHOLE_ROWS):
        q, run = 1, q * run
    fill_table(p_to, p, q * run * d_size)
    fill_table(q_to, q, run * d_size)
    store_word(pointers, raw)
    following = 1
    if load_word(frame + 8 * params.C) != 0:
        invoke(cells_by, (c, p_d, q_d, raw + size, p_to, q_to, p, q, run * d_size, 0))
        store_word(pointers + 8, raw + size)
        following = 2
    result = raw if load_word(plan + 8 * params.IN_PLACE) else raw + 2 * size
    store_word(pointers + 8 * following, result)
    invoke(load_word(plan + 8 * params.STAGE), (pointers, p * q * run, frame + 8 * params.ALPHA))
    invoke(cells_by, (result, p_to, q_to, d, p_d, q_d, p, q, run * d_size, streams))


@inner
def length(plan, side, places):
    """Cells along a side of the tile at `places`: (mode, tile, last) stand at `side`."""
    mode = load_word(plan + 8 * side)
    if mode >= 0 and load_word(places + 8 * mode) + 1 == load_word(load_word(plan + 8 * params.OUTER) + 24 * mode):
        return load_word(plan + 8 * (side + 2))
    return load_word(plan + 8 * (side + 1))


@inner
def tiles_in_line(plan, frame, places, x, d, c, count, streams, room):
    """So many tiles along the innermost mode around; only the last of them may be longer."""
    last = load_word(plan + 8 * params.OUTER_COUNT) - 1
    mode, place = load_word(plan + 8 * params.OUTER) + 24 * last, places + 8 * last
    p_d, q_d = load_word(plan + 8 * params.P_D), load_word(plan + 8 * params.Q_D)
    squares_by = load_word(plan + 8 * (params.STREAMED_SQUARES if streams else params.SQUARES))
    stage, item = load_word(plan + 8 * params.STAGE), load_word(plan + 8 * params.X_SIZE)
    p, q, run = 0, 0, 0
    for i in range(count):
        if i == 0 or i == count - 1:
            p, q = length(plan, params.P_MODE, places), length(plan, params.Q_MODE, places)
            run = length(plan, params.R_MODE, places)
        if stage != 0:
            computed_tile(plan, frame, x, d, c, p, q, run, streams, room)
        else:
            read_tile(plan, x, d, p_d, q_d, p, q, run * item, squares_by, streams)
        store_word(place, load_word(place) + 1)
        x, d, c = x + load_word(mode + 8), d + load_word(mode + 16), c + load_word(mode + 16)


@inner
def run(frame):
    """Tiles until none is left; every thread of a team runs this, with buffers of its own."""
    plan = load_word(frame + 8 * params.PLAN)
    workspace = allocate(load_word(plan + 8 * params.WORKSPACE) + LINE)
    places = (workspace + LINE - 1) // LINE * LINE
    outer, modes = load_word(plan + 8 * params.OUTER), load_word(plan + 8 * params.OUTER_COUNT)
    room = places + (8 * modes + LINE - 1) // LINE * LINE
    tiles, chunk = load_word(plan + 8 * params.TILES), load_word(plan + 8 * params.CHUNK)
    addend = load_word(frame + 8 * params.C) - load_word(frame + 8 * params.D)  # C has D's layout
    streams = load_word(plan + 8 * params.STREAMS)
    if streams == 1 and load_word(frame + 8 * params.D) % LINE != 0:
        streams = 0
    while True:
        first = fetch_add(frame + 8 * params.COUNTER) * chunk
        if first >= tiles:
            break
        x, d, rest = load_word(frame + 8 * params.X), load_word(frame + 8 * params.D), first
        for i in range(modes - 1, -1, -1):
            mode = outer + 24 * i
            above = rest // load_word(mode)
            place = rest - above * load_word(mode)
            store_word(places + 8 * i, place)
            x, d, rest = x + place * load_word(mode + 8), d + place * load_word(mode + 16), above
        end = min(first + chunk, tiles)
        while first < end:
            mode, place = outer + 24 * (modes - 1), load_word(places + 8 * (modes - 1))
            count = min(load_word(mode) - place, end - first)
            tiles_in_line(plan, frame, places, x, d, d + addend, count, streams, room)
            first += count
            x, d = x + count * load_word(mode + 8), d + count * load_word(mode + 16)
            i = modes - 1
            while i > 0 and load_word(places + 8 * i) == load_word(mode):
                x, d = x - load_word(mode) * load_word(mode + 8), d - load_word(mode) * load_word(mode + 16)
                store_word(places + 8 * i, 0)
                i, mode = i - 1, mode - 24
                store_word(places + 8 * i, load_word(places + 8 * i) + 1)
                x, d = x + load_word(mode + 8), d + load_word(mode + 16)
    if streams:
        fence()
    release(workspace)
