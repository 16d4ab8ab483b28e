"""Groups on the CPU: threads take tiles of all contractions in turn, each with a workspace of its own.

    a tile of one result:
      for its rows of the table, for blocks of k:
        panels of A and B                       packed, or read in their own layout
        for register blocks:                    the micro-kernel, sums in the workspace
      the epilogue, and the sums into D

`weft.spec.group` has the tables. Register blocks are those of `weft.cpu.gett`: `ROWS` rows of two vectors.
"""

from __future__ import annotations

from weft.cpu.gett.params import VECTORS
from weft.cpu.gett.vector import (
    allocate,
    copy_item,
    copy_vector,
    fetch_add,
    invoke,
    item_size,
    lane_count,
    load_word,
    release,
    row_count,
    store_word,
)
from weft.cpu.grouped import params as word
from weft.fn.numba.values import inner
from weft.spec.group import HEAD, ONE


@inner
def side_offset(row, index, first, count, tensor, size):
    """Bytes from a tensor's start to a flattened index of a side, whose modes begin at number `first`."""
    offset, rest = 0, index
    for i in range(count - 1, 0, -1):
        at = row + 8 * (HEAD + 4 * (first + i))
        extent = load_word(at)
        left = rest // extent
        offset += (rest - left * extent) * load_word(at + 8 * (1 + tensor))
        rest = left
    return (offset + rest * load_word(row + 8 * (HEAD + 1 + 4 * first + tensor))) * size


@inner
def offsets_into(table, row, start, stop, first, count, tensor, size):
    """Bytes from a tensor's start to the flattened indices `start` to `stop` of a side, a word each."""
    if count == 1:
        step = load_word(row + 8 * (HEAD + 1 + 4 * first + tensor)) * size
        for i in range(start, stop):
            store_word(table + 8 * (i - start), i * step)
    else:
        for i in range(start, stop):
            store_word(table + 8 * (i - start), side_offset(row, i, first, count, tensor, size))


@inner
def side_extent(row, first, count):
    extent = 1
    for i in range(count):
        extent *= load_word(row + 8 * (HEAD + 4 * (first + i)))
    return extent


@inner
def packed(panel, base, lines, count, along, k, width, kind):
    """A panel, `width` items side by side for each k: of lines `count` at most, the last one again past them."""
    size = item_size(kind)
    for block in range(0, count, width):
        for j in range(k):
            here = base + load_word(along + 8 * j)
            for i in range(width):
                copy_item(panel, here + load_word(lines + 8 * min(block + i, count - 1)), kind)
                panel += size


@inner
def moved(d, rows, m, columns, n, sums, into_d, adjacent, kind):
    """Sums of register blocks into D, or D into them."""
    size, width, height = item_size(kind), VECTORS * lane_count(kind), row_count(kind)
    for j in range(0, n, width):
        for i in range(0, m, height):
            for r in range(min(height, m - i)):
                place = d + load_word(rows + 8 * (i + r))
                block = sums + r * width * size
                if adjacent and j + width <= n:
                    here = place + load_word(columns + 8 * j)
                    for v in range(VECTORS):
                        step = v * lane_count(kind) * size
                        if into_d:
                            copy_vector(here + step, block + step, kind)
                        else:
                            copy_vector(block + step, here + step, kind)
                else:
                    for c in range(min(width, n - j)):
                        here = place + load_word(columns + 8 * (j + c))
                        if into_d:
                            copy_item(here, block + c * size, kind)
                        else:
                            copy_item(block + c * size, here, kind)
            sums += height * width * size


@inner
def staged(frame, stage, values, count, pointers):
    """The function of the user for A, B or D on contiguous values, in their place, where there is one."""
    function = load_word(frame + 8 * (word.STAGES + stage))
    if function != 0:
        store_word(pointers, values)
        invoke(function, (pointers, count, frame))


@inner
def scaled(frame, values, count, pointers, factor):
    """Contiguous values times the factor at an address, in their place."""
    if load_word(factor) != ONE:
        store_word(pointers, values)
        invoke(load_word(frame + 8 * word.SCALING), (pointers, count, factor))


@inner
def products(frame, tables, starts, extents, steps, sums, begun, kind):
    """The products of one block of k, added to what the register blocks hold, if they have begun.

    tables: offsets of rows in A, of columns in B, of k in both, room for panels, room for words. steps: strides along k
    in A and B where panels are read unpacked, 0 where they are packed.
    """
    size, width, height = item_size(kind), VECTORS * lane_count(kind), row_count(kind)
    m, n, k = extents
    a, b = starts
    rows, columns, along_a, along_b, panel_a, panel_b, words = tables
    if steps[0] == 0:
        packed(panel_a, a, rows, m, along_a, k, height, kind)
        staged(frame, 0, panel_a, (m + height - 1) // height * height * k, words)
    whole = n if steps[1] == 0 else n % width  # columns that are packed: all of them, or those of the last block
    if whole:
        packed(panel_b, b, columns + 8 * (n - whole), whole, along_b, k, width, kind)
        staged(frame, 1, panel_b, (whole + width - 1) // width * width * k, words)
    micro, vector = load_word(frame + 8 * word.MICRO), lane_count(kind) * size
    to_rows = words + 8 * height
    for r in range(height):
        store_word(to_rows + 8 * r, r * width * size)
    for j in range(0, n, width):
        if steps[1] != 0 and j + width <= n:
            second, slot_step = b + load_word(columns + 8 * j), steps[1]
        else:
            second, slot_step = panel_b + (j - (n - whole)) * k * size, width * size
        for i in range(0, m, height):
            row_step = steps[0] if steps[0] != 0 else height * size
            for r in range(height):
                if steps[0] != 0:
                    store_word(words + 8 * r, a + load_word(rows + 8 * min(i + r, m - 1)))
                else:
                    store_word(words + 8 * r, panel_a + (i * k + r) * size)
            start = sums if begun else 0
            invoke(micro, (k, words, row_step, second, second + vector, slot_step, start, sums, sums + vector, to_rows))
            sums += height * width * size


@inner
def straight(frame, tables, starts, extents, steps, to, rows_d, kind):
    """All of a tile's sums at once, read and stored without packing: for rows of A and B, and columns of B and D, that
    need no packing. The last block of columns begins early enough to be whole, and rows past the last are that again.
    """
    size, width, height = item_size(kind), VECTORS * lane_count(kind), row_count(kind)
    m, n, k = extents
    rows, words = tables
    micro, vector = load_word(frame + 8 * word.MICRO), lane_count(kind) * size
    for i in range(0, m, height):
        for r in range(height):
            store_word(words + 8 * r, starts[0] + load_word(rows + 8 * min(i + r, m - 1)))
            store_word(words + 8 * (height + r), load_word(rows_d + 8 * min(i + r, m - 1)))
        for block in range(0, n, width):
            j = min(block, n - width) * size
            first, here = starts[1] + j, to + j
            invoke(
                micro,
                (k, words, steps[0], first, first + vector, steps[1], 0, here, here + vector, words + 8 * height),
            )


@inner
def finish_tile(frame, tile, workspace, kind):
    """One tile of one result, from its operands to D."""
    size, width, height = item_size(kind), VECTORS * lane_count(kind), row_count(kind)
    tile_m, tile_n = load_word(frame + 8 * word.TILE_M), load_word(frame + 8 * word.TILE_N)
    counts = frame + 8 * word.COUNTS
    in_batch, in_m = load_word(counts), load_word(counts + 8)
    in_n, in_k = load_word(counts + 16), load_word(counts + 24)
    result, batch = load_word(tile) & 0xFFFFFFFF, load_word(tile) >> 32
    low_m, low_n = (load_word(tile + 8) & 0xFFFFFFFF) * tile_m, (load_word(tile + 8) >> 32) * tile_n
    output = load_word(frame + 8 * word.OUTPUTS) + 32 * result
    first_row, end = load_word(output + 8), load_word(output + 16)
    length = 8 * load_word(frame + 8 * word.WORDS)
    own = load_word(frame + 8 * word.TABLE) + length * first_row
    m = min(tile_m, side_extent(own, in_batch, in_m) - low_m)
    n = min(tile_n, side_extent(own, in_batch + in_m, in_n) - low_n)

    # (1) Tables of this tile's rows and columns in D, and where in the workspace all else goes.
    rows_d, columns_d = workspace, workspace + 8 * tile_m
    rows, columns = columns_d + 8 * tile_n, columns_d + 8 * (tile_n + tile_m)
    along_a, along_b = columns + 8 * tile_n, columns + 8 * (tile_n + word.K_BLOCK)
    words = along_b + 8 * word.K_BLOCK
    sums = (words + 512 + 63) // 64 * 64
    panel_a = sums + (tile_m + height) * (tile_n + width) * size
    depth = load_word(frame + 8 * word.DEPTH)
    panel_b = panel_a + ((tile_m + height) * depth * size + 63) // 64 * 64
    offsets_into(rows_d, own, low_m, low_m + m, in_batch, in_m, 2, size)
    offsets_into(columns_d, own, low_n, low_n + n, in_batch + in_m, in_n, 2, size)
    first_d = load_word(output) * size + side_offset(own, batch, 0, in_batch, 2, size)
    d = load_word(frame + 8 * (word.BASES + 2)) + first_d
    side = in_batch + in_m
    adjacent = in_n == 1 and load_word(own + 8 * (HEAD + 1 + 4 * side + 2)) == 1
    begun = load_word(frame + 8 * word.ADD) != 0
    plain = adjacent and load_word(frame + 8 * (word.STAGES + 2)) == 0
    if begun:
        moved(d, rows_d, m, columns_d, n, sums, False, adjacent, kind)

    # (2) All rows of the table that are summed into it, a block of k at a time.
    items = (m + height - 1) // height * height * ((n + width - 1) // width * width)
    for at in range(first_row, end):
        row = load_word(frame + 8 * word.TABLE) + length * at
        if at > first_row and begun:
            scaled(frame, sums, items, words, row + 16)
        k = side_extent(row, side + in_n, in_k)
        a = load_word(frame + 8 * word.BASES) + load_word(row) * size + side_offset(row, batch, 0, in_batch, 0, size)
        b = load_word(frame + 8 * (word.BASES + 1)) + load_word(row + 8) * size
        b += side_offset(row, batch, 0, in_batch, 1, size)
        offsets_into(rows, row, low_m, low_m + m, in_batch, in_m, 0, size)
        offsets_into(columns, row, low_n, low_n + n, side, in_n, 1, size)
        step_a, step_b = 0, 0
        if in_k == 1 and load_word(frame + 8 * word.STAGES) == 0:
            step_a = load_word(row + 8 * (HEAD + 1 + 4 * (side + in_n))) * size
        in_line = in_k == 1 and in_n == 1 and load_word(row + 8 * (HEAD + 1 + 4 * side + 1)) == 1
        if in_line and load_word(frame + 8 * (word.STAGES + 1)) == 0:
            step_b = load_word(row + 8 * (HEAD + 1 + 4 * (side + in_n) + 1)) * size
        alone = end - first_row == 1 and load_word(output + 24) == ONE and 0 < k <= word.K_BLOCK and not begun
        if alone and plain and step_a != 0 and step_b != 0 and n >= width:
            to = d + load_word(columns_d)
            straight(frame, (rows, words), (a, b + load_word(columns)), (m, n, k), (step_a, step_b), to, rows_d, kind)
            return
        for start in range(0, k, word.K_BLOCK):
            count = min(word.K_BLOCK, k - start)
            from_a, from_b = (0 if step_a else start), (0 if step_b else start)  # where A or B are moved on instead
            offsets_into(along_a, row, from_a, from_a + count, side + in_n, in_k, 0, size)
            offsets_into(along_b, row, from_b, from_b + count, side + in_n, in_k, 1, size)
            starts = (a + start * step_a, b + start * step_b)
            tables = (rows, columns, along_a, along_b, panel_a, panel_b, words)
            products(frame, tables, starts, (m, n, count), (step_a, step_b), sums, begun, kind)
            begun = True

    # (3) The epilogue, and D.
    if begun:
        scaled(frame, sums, items, words, output + 24)
    else:
        for i in range(0, items * size, 8):
            store_word(sums + i, 0)
    staged(frame, 2, sums, items, words)
    moved(d, rows_d, m, columns_d, n, sums, True, adjacent, kind)


@inner
def run(frame, kind):
    """Tiles until none is left; every thread of a team runs this."""
    tile_m, tile_n, depth = (
        load_word(frame + 8 * word.TILE_M), load_word(frame + 8 * word.TILE_N), load_word(frame + 8 * word.DEPTH),
    )  # fmt: skip
    size, width, height = item_size(kind), VECTORS * lane_count(kind), row_count(kind)
    rounded_m, rounded_n = tile_m + height, tile_n + width
    room = rounded_m * rounded_n + (rounded_m + rounded_n) * depth
    workspace = allocate(16 * (tile_m + tile_n) + 16 * word.K_BLOCK + room * size + 4096)
    start = (workspace + 63) // 64 * 64
    while True:
        tile = fetch_add(frame + 8 * word.COUNTER)
        if tile >= load_word(frame + 8 * word.TILE_COUNT):
            break
        finish_tile(frame, load_word(frame + 8 * word.TILES) + 16 * tile, start, kind)
    release(workspace)
