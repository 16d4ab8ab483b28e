"""Loops over memory: blocks of D in turn, and for each what is summed for it, tile by tile.

    for blocks of D, shared among the threads of a team:
        for reduced modes that are in no tile:
            for tiles of x and y:       an operand that is not contiguous along x is packed
                rows along x:           products; sums of a row, or of rows; straight to D where nothing is summed
        sums to D, times alpha

Sums are kept in a wider type, and what is added to them is the sum of a few rows or of a block of a row: so they are as
exact as sums by halves, and conversions cost little.

The loops are written once: a type of elements is told by its place in `NAMES`, as the type of a tuple of so many
numbers and one more (see `weft.cpu.jit.compiled_kernel`), and loads and stores go by it.
"""

from __future__ import annotations

from typing import Any

from numba import types

from weft.cpu.gett.vector import allocate, fetch_add, invoke, load_word, release
from weft.cpu.stream import params as at
from weft.cpu.stream.params import NAMES, SIZES
from weft.fn.numba.values import LOADS, STORES, by_type, inner, inner_with

_WIDE = {types.float32: types.float64, types.complex64: types.complex128, types.int32: types.int64}


def _name(kind: Any) -> str:
    return NAMES[kind.count - 1]


@by_type
def load(base, index, kind, held):
    """An element of a type, as a value of the type of `held`."""
    read, cast = LOADS[_name(kind)], held
    return lambda base, index, kind, held: cast(read(base, index))


@by_type
def store(base, index, value, kind, held):
    """A value to memory, by way of the type of `held`."""
    write, cast = STORES[_name(kind)], held
    return lambda base, index, value, kind, held: write(base, index, cast(value))


def wide(held):
    """The type of sums of values of a type."""
    return _WIDE.get(held, held)


@by_type
def load_sum(base, index, held):
    """A sum of values of the type of `held`."""
    read = LOADS[str(wide(held))]
    return lambda base, index, held: read(base, index)


@by_type
def store_sum(base, index, value, held):
    """A sum to the workspace."""
    write, cast = STORES[str(wide(held))], wide(held)
    return lambda base, index, value, held: write(base, index, cast(value))


@by_type
def scaled(value, factor):
    """A value times a number. A real one scales both parts of a complex value, so that an infinity stays one."""
    if not isinstance(factor, types.Complex):
        return lambda value, factor: value * factor

    def times(value, factor):
        if factor.imag == 0:
            return complex(value.real * factor.real, value.imag * factor.real)
        return value * factor

    return times


@by_type
def sum_size(held):
    """Bytes of a sum of such values."""
    size = wide(held).bitwidth // 8
    return lambda held: size


@by_type
def item_size(kind):
    """Bytes of an element."""
    size = SIZES[_name(kind)]
    return lambda kind: size


LINE = 64
FAST = {"reassoc", "contract", "nsz"}


RUN = 256  # items whose sum is made before it meets that of others: rounding grows with the longest of these sums


@inner_with(fastmath=FAST)
def dot(a, b, n, kind, held):
    total = held
    for start in range(0, n, RUN):
        part = held
        for i in range(start, min(start + RUN, n)):
            part += load(a, i, kind, held) * load(b, i, kind, held)
        total += part
    return total


@inner_with(fastmath=FAST)
def total_of(a, n, kind, held):
    total = held
    for start in range(0, n, RUN):
        part = held
        for i in range(start, min(start + RUN, n)):
            part += load(a, i, kind, held)
        total += part
    return total


@inner
def add_scaled(sums, a, factor, n, kind, held):
    for i in range(n):
        store_sum(sums, i, load_sum(sums, i, held) + scaled(load(a, i, kind, held), factor), held)


@inner
def add_products(sums, a, b, n, kind, held):
    for i in range(n):
        product = load(a, i, kind, held) * load(b, i, kind, held)
        store_sum(sums, i, load_sum(sums, i, held) + product, held)


@inner
def add_four_scaled(sums, a, step, f0, f1, f2, f3, n, kind, held):
    for i in range(n):
        total = scaled(load(a, i, kind, held), f0) + scaled(load(a + step, i, kind, held), f1)
        total += scaled(load(a + 2 * step, i, kind, held), f2) + scaled(load(a + 3 * step, i, kind, held), f3)
        store_sum(sums, i, load_sum(sums, i, held) + total, held)


@inner
def write_scaled(d, a, factor, n, kind, held, to):
    for i in range(n):
        store(d, i, scaled(load(a, i, kind, held), factor), to, held)


@inner
def write_products(d, a, b, n, kind, held, to):
    for i in range(n):
        store(d, i, load(a, i, kind, held) * load(b, i, kind, held), to, held)


@inner
def packed(plan, source, tile, way, x_step, y_step, table, p, q, size, kind, held):
    """`q` rows of `p` items along x, side by side in a tile."""
    pitch = load_word(plan + 8 * at.X_BLOCK) * size
    if way == at.SQUARES:
        turn, columns = load_word(plan + 8 * at.TURN), load_word(plan + 8 * at.PITCH_TABLE)
        invoke(turn, (source, load_word(plan + 8 * table), tile, columns, q, p))
        return
    for j in range(q):
        here, to = source + j * y_step, tile + j * pitch
        for i in range(p):
            store(to, i, load(here + i * x_step, 0, kind, held), kind, held)


@inner
def add_rows(plan, sums, a, a_step, b, b_step, spread, p, q, kind, held):
    """Rows of a tile to the sums of their items; `spread`: whether B has an item for each of A's, or one for a row."""
    j = 0
    if load_word(plan + 8 * at.Y_KEPT) == 0:
        while not spread and j + 4 <= q:
            f0, f1 = load(b + j * b_step, 0, kind, held), load(b + (j + 1) * b_step, 0, kind, held)
            f2, f3 = load(b + (j + 2) * b_step, 0, kind, held), load(b + (j + 3) * b_step, 0, kind, held)
            add_four_scaled(sums, a + j * a_step, a_step, f0, f1, f2, f3, p, kind, held)
            j += 4
        step = 0
    else:
        step = load_word(plan + 8 * at.X_BLOCK)
    size = sum_size(held)
    while j < q:
        if spread:
            add_products(sums + j * step * size, a + j * a_step, b + j * b_step, p, kind, held)
        else:
            factor = load(b + j * b_step, 0, kind, held)
            add_scaled(sums + j * step * size, a + j * a_step, factor, p, kind, held)
        j += 1


@inner
def sum_rows(plan, sums, a, a_step, b, b_step, spread, p, q, kind, held):
    """The sum of each row of a tile to a sum of its own, or to one of all."""
    step = load_word(plan + 8 * at.Y_KEPT)
    for j in range(q):
        if spread:
            found = dot(a + j * a_step, b + j * b_step, p, kind, held)
        else:
            found = scaled(total_of(a + j * a_step, p, kind, held), load(b + j * b_step, 0, kind, held))
        store_sum(sums, j * step, load_sum(sums, j * step, held) + found, held)


@inner
def tile(plan, sums, a, b, d, tile_a, tile_b, p, q, kind, held, to):
    """`q` rows of `p` items along x: to their sums, or straight to D."""
    size = item_size(kind)
    pitch = load_word(plan + 8 * at.X_BLOCK) * size
    a_step, b_step = load_word(plan + 8 * at.Y_A), load_word(plan + 8 * at.Y_B)
    x_a, x_b = load_word(plan + 8 * at.X_A), load_word(plan + 8 * at.X_B)
    way = load_word(plan + 8 * at.PACK_A)
    if way != at.IN_PLACE:
        packed(plan, a, tile_a, way, x_a, a_step, at.X_TABLE_A, p, q if a_step != 0 else 1, size, kind, held)
        a, a_step = tile_a, pitch if a_step != 0 else 0
    way = load_word(plan + 8 * at.PACK_B)
    if way != at.IN_PLACE:
        packed(plan, b, tile_b, way, x_b, b_step, at.X_TABLE_B, p, q if b_step != 0 else 1, size, kind, held)
        b, b_step = tile_b, pitch if b_step != 0 else 0
    if load_word(plan + 8 * at.WRITES) == 0:
        if load_word(plan + 8 * at.X_KEPT) != 0:
            add_rows(plan, sums, a, a_step, b, b_step, x_b != 0, p, q, kind, held)
        else:
            sum_rows(plan, sums, a, a_step, b, b_step, x_b != 0, p, q, kind, held)
        return
    d_step = load_word(plan + 8 * at.Y_D)
    for j in range(q):
        if x_b != 0:
            write_products(d + j * d_step, a + j * a_step, b + j * b_step, p, kind, held, to)
        else:
            factor = load(b + j * b_step, 0, kind, held)
            write_scaled(d + j * d_step, a + j * a_step, factor, p, kind, held, to)


@inner
def write_sums(plan, frame, sums, d, turned, p, q, held, to):
    """Finished sums, `q` rows of `p` along x, to D; where x is summed they are one row, along y."""
    alpha = load_sum(frame + 8 * at.ALPHA, 0, held)
    pitch, x_step, y_step = load_word(plan + 8 * at.X_BLOCK), load_word(plan + 8 * at.X_D), load_word(plan + 8 * at.Y_D)
    way, size = load_word(plan + 8 * at.PACK_D), item_size(to)
    if load_word(plan + 8 * at.X_KEPT) == 0:
        p, q, x_step = q, 1, y_step
    for j in range(q):
        row = sums + j * pitch * sum_size(held)
        if alpha != 1:
            for i in range(p):
                store_sum(row, i, scaled(load_sum(row, i, held), alpha), held)
        if way == at.ONE_BY_ONE:
            for i in range(p):
                store(d + i * x_step + j * y_step, 0, load_sum(row, i, held), to, held)
        else:
            into = d + j * y_step if way == at.IN_PLACE else turned + j * pitch * size
            for i in range(p):
                store(into, i, load_sum(row, i, held), to, held)
    if way == at.SQUARES:
        turn, rows = load_word(plan + 8 * at.TURN_D), load_word(plan + 8 * at.PITCH_TABLE_D)
        invoke(turn, (turned, rows, d, load_word(plan + 8 * at.X_TABLE_D), p, q))


@inner
def offset(table, count, index, base):
    """How far a base moves in the loops around, at some turn of them."""
    found = 0
    for i in range(count - 1, -1, -1):
        mode = table + 32 * i
        extent = load_word(mode)
        found += index % extent * load_word(mode + 8 * (1 + base))
        index //= extent
    return found


@inner
def block(plan, frame, sums, tile_a, tile_b, index, kind, held, to):
    """One block of D: its sums over everything, then their way to D."""
    x_extent, x_block = load_word(plan + 8 * at.X_EXTENT), load_word(plan + 8 * at.X_BLOCK)
    y_extent, y_block = load_word(plan + 8 * at.Y_EXTENT), load_word(plan + 8 * at.Y_BLOCK)
    x_first, x_end, y_first, y_end = 0, x_extent, 0, y_extent
    rows, columns = 1, 1  # of sums
    if load_word(plan + 8 * at.X_KEPT) != 0:
        pieces = (x_extent + x_block - 1) // x_block
        x_first = index % pieces * x_block
        x_end = min(x_first + x_block, x_extent)
        columns = x_end - x_first
        index //= pieces
    if load_word(plan + 8 * at.Y_KEPT) != 0:
        pieces = (y_extent + y_block - 1) // y_block
        y_first = index % pieces * y_block
        y_end = min(y_first + y_block, y_extent)
        rows = y_end - y_first
        index //= pieces
    outer, count = load_word(plan + 8 * at.OUTER), load_word(plan + 8 * at.OUTER_COUNT)
    bases = frame + 8 * at.BASES
    a = load_word(bases) + offset(outer, count, index, at.A_BASE)
    b = load_word(bases + 8) + offset(outer, count, index, at.B_BASE)
    d = load_word(bases + 16) + offset(outer, count, index, at.D_BASE)
    d += x_first * load_word(plan + 8 * at.X_D) + y_first * load_word(plan + 8 * at.Y_D)
    x_a, x_b = load_word(plan + 8 * at.X_A), load_word(plan + 8 * at.X_B)
    y_a, y_b = load_word(plan + 8 * at.Y_A), load_word(plan + 8 * at.Y_B)
    writes = load_word(plan + 8 * at.WRITES)
    if writes == 0:
        for i in range((rows - 1) * x_block + columns if load_word(plan + 8 * at.X_KEPT) != 0 else rows):
            store_sum(sums, i, held, held)
    reduced, count = load_word(plan + 8 * at.SUMS), load_word(plan + 8 * at.SUM_COUNT)
    for k in range(load_word(plan + 8 * at.SUM_TOTAL)):
        from_a, from_b = a, b
        if count > 0:
            from_a += offset(reduced, count, k, at.A_BASE)
            from_b += offset(reduced, count, k, at.B_BASE)
        for y in range(y_first, y_end, y_block):
            q = min(y_block, y_end - y)
            for x in range(x_first, x_end, x_block):
                tile(
                    plan, sums, from_a + x * x_a + y * y_a, from_b + x * x_b + y * y_b, d, tile_a, tile_b,
                    min(x_block, x_end - x), q, kind, held, to,
                )  # fmt: skip
    if writes == 0:
        write_sums(plan, frame, sums, d, tile_a, columns, rows, held, to)


@inner
def run(frame, kind, held, to):
    """Draw tasks until there are no more."""
    plan = load_word(frame + 8 * at.PLAN)
    room, sums_room = load_word(plan + 8 * at.TILE_ROOM), load_word(plan + 8 * at.SUMS_ROOM)
    workspace = allocate(sums_room + 2 * room + LINE)
    sums = (workspace + LINE - 1) // LINE * LINE
    tile_a = sums + sums_room
    chunk, total = load_word(plan + 8 * at.CHUNK), load_word(plan + 8 * at.TOTAL)
    while True:
        task = fetch_add(frame + 8 * at.COUNTER)
        if task >= load_word(plan + 8 * at.TASKS):
            break
        for index in range(task * chunk, min((task + 1) * chunk, total)):
            block(plan, frame, sums, tile_a, tile_a + room, index, kind, held, to)
    release(workspace)
