"""Matrices transposed in place: tiles that change places, panels, and vectors that move along cycles.

Each function is run by every thread of a team, draws tasks, and has a workspace of its own.
"""

from __future__ import annotations

from weft.cpu.gett.vector import allocate, fetch_add, invoke, load_word, release, store_word
from weft.cpu.permute import params as at
from weft.cpu.permute.kernel import FOLLOWING, LINE, MOST_AHEAD, fill_table, prefetch
from weft.fn.numba.values import inner

ACROSS, DOWN = 64, 256  # columns and rows that are transposed at a time: see REACH in the schedule


@inner
def turned(plan, x, rows, columns, to, height, width, tables):
    """`height` x `width` items at x, by tables of offsets, to `width` rows of `height` items at `to`."""
    item, turn = load_word(plan + 8 * at.ITEM), load_word(plan + 8 * at.TURN)
    p_to, q_to = tables, tables + 8 * width
    fill_table(p_to, width, height * item)
    fill_table(q_to, height, item)
    i = 0
    while i < width:
        p = ACROSS if width - i >= 2 * ACROSS else width - i
        j = 0
        while j < height:
            q = DOWN if height - j >= 2 * DOWN else height - j
            if turn != 0:
                invoke(turn, (x + i * item, rows + 8 * j, to + j * item, p_to + 8 * i, p, q))
            else:
                copy = load_word(plan + 8 * at.COPY)
                invoke(copy, (x, columns + 8 * i, rows + 8 * j, to, p_to + 8 * i, q_to + 8 * j, p, q, item, 0))
            j += q
        i += p


@inner
def scaled(plan, frame, values, count, pointers):
    if load_word(plan + 8 * at.SCALE) != 0:
        store_word(pointers, values)
        invoke(load_word(plan + 8 * at.SCALE), (pointers, count, frame + 8 * at.ALPHA))


@inner
def written(plan, values, x, rows, columns, height, width, tables):
    """`height` x `width` items that are contiguous to x."""
    item, copy = load_word(plan + 8 * at.ITEM), load_word(plan + 8 * at.COPY)
    p_from, q_from = tables, tables + 8 * height
    fill_table(p_from, height, width * item)
    if load_word(plan + 8 * at.COLUMN_STEP) == item:
        store_word(q_from, 0)
        invoke(copy, (values, p_from, q_from, x, rows, q_from, height, 1, width * item, 0))
    else:
        fill_table(q_from, width, item)
        invoke(copy, (values, p_from, q_from, x, rows, columns, height, width, item, 0))


@inner
def pairs(frame):
    """Square matrices: a tile and its mirror image are read, transposed and written in each other's place."""
    plan = load_word(frame + 8 * at.PLAN)
    workspace = allocate(load_word(plan + 8 * at.ROOM) + LINE)
    pointers = (workspace + LINE - 1) // LINE * LINE
    n, side, sides = load_word(plan + 8 * at.WIDTH), load_word(plan + 8 * at.SIDE), load_word(plan + 8 * at.SIDES)
    most, item = n - side * (sides - 1), load_word(plan + 8 * at.ITEM)
    row_step, column_step = load_word(plan + 8 * at.ROW_STEP), load_word(plan + 8 * at.COLUMN_STEP)
    rows, columns = pointers + LINE, pointers + LINE + 8 * most
    tables, upper = columns + 8 * most, columns + 24 * most
    lower = upper + most * most * item
    fill_table(rows, most, row_step)
    fill_table(columns, most, column_step)
    each = sides * (sides + 1) // 2
    while True:
        task = fetch_add(frame + 8 * at.COUNTER)
        if task >= load_word(plan + 8 * at.PLACE_TASKS):
            break
        matrix = task // each
        j, i = 0, task - matrix * each
        while i > j:
            i -= j + 1
            j += 1
        x = load_word(frame + 8 * at.X) + matrix * load_word(plan + 8 * at.BATCH_STEP)
        height = most if i == sides - 1 else side
        width = most if j == sides - 1 else side
        above = x + i * side * row_step + j * side * column_step
        below = x + j * side * row_step + i * side * column_step
        turned(plan, above, rows, columns, upper, height, width, tables)
        scaled(plan, frame, upper, height * width, pointers)
        if i != j:
            turned(plan, below, rows, columns, lower, width, height, tables)
            scaled(plan, frame, lower, height * width, pointers)
            written(plan, lower, above, rows, columns, height, width, tables)
        written(plan, upper, below, rows, columns, width, height, tables)
    release(workspace)


@inner
def panels(frame):
    """Panels of whole rows, each transposed in a buffer and written back where it was, its rows now columns."""
    plan = load_word(frame + 8 * at.PLAN)
    workspace = allocate(load_word(plan + 8 * at.ROOM) + LINE)
    pointers = (workspace + LINE - 1) // LINE * LINE
    width, item = load_word(plan + 8 * at.WIDTH), load_word(plan + 8 * at.ITEM)
    count, step = load_word(plan + 8 * at.PANELS), load_word(plan + 8 * at.COLUMN_STEP)
    most = max(load_word(plan + 8 * at.HEIGHT), load_word(plan + 8 * at.LAST_HEIGHT))
    rows, columns = pointers + LINE, pointers + LINE + 8 * (most + width)
    tables = columns + 8 * (most + width)
    values = tables + 8 * (most + width)
    fill_table(columns, most + width, step)
    while True:
        task = fetch_add(frame + 8 * at.COUNTER)
        if task >= load_word(plan + 8 * at.PLACE_TASKS):
            break
        matrix = task // count
        panel = task - matrix * count
        x = load_word(frame + 8 * at.X) + matrix * load_word(plan + 8 * at.BATCH_STEP)
        x += panel * load_word(plan + 8 * at.PANEL_STEP)
        height = load_word(plan + 8 * (at.LAST_HEIGHT if panel == count - 1 else at.HEIGHT))
        fill_table(rows, height, width * step)
        turned(plan, x, rows, columns, values, height, width, tables)
        scaled(plan, frame, values, height * width, pointers)
        if step == item:
            store_word(rows, 0)
            copy = load_word(plan + 8 * at.COPY)
            invoke(copy, (values, rows, rows, x, rows, rows, 1, 1, height * width * item, 0))
        else:
            fill_table(rows, width, height * step)
            written(plan, values, x, rows, columns, width, height, tables)
    release(workspace)


@inner
def mark(bits, place):
    here = bits + 8 * (place >> 6)
    store_word(here, load_word(here) | 1 << (place & 63))


@inner
def cycles(frame):
    """Vectors of a rows x columns matrix of them to columns x rows; a task is a part of every vector."""
    plan = load_word(frame + 8 * at.PLAN)
    size, parts = load_word(plan + 8 * at.VECTOR), load_word(plan + 8 * at.PARTS)
    rows, columns = load_word(plan + 8 * at.VECTOR_ROWS), load_word(plan + 8 * at.VECTOR_COLUMNS)
    copy = load_word(plan + 8 * at.COPY)
    words = (rows * columns + 63) // 64
    done = allocate(8 * words)  # a bit for each vector
    workspace = allocate(size + 8)
    zero, kept = workspace, workspace + 8
    store_word(zero, 0)
    while True:
        part = fetch_add(frame + 8 * at.COUNTER)
        if part >= parts:
            break
        begin = size * part // parts
        length, x = size * (part + 1) // parts - begin, load_word(frame + 8 * at.X) + begin
        fill_table(done, words, 0)
        for start in range(rows * columns):
            if load_word(done + 8 * (start >> 6)) >> (start & 63) & 1:
                continue
            place, source = start, start % rows * columns + start // rows
            if source == start:
                continue
            invoke(copy, (x + start * size, zero, zero, kept, zero, zero, 1, 1, length, 0))
            ahead = source
            for _ in range(FOLLOWING):
                ahead = ahead % rows * columns + ahead // rows
            while source != start:
                ahead = ahead % rows * columns + ahead // rows
                for line in range(0, min(length, MOST_AHEAD), LINE):
                    prefetch(x + ahead * size + line)
                invoke(copy, (x + source * size, zero, zero, x + place * size, zero, zero, 1, 1, length, 0))
                mark(done, place)
                place, source = source, source % rows * columns + source // rows
            invoke(copy, (kept, zero, zero, x + place * size, zero, zero, 1, 1, length, 0))
            mark(done, place)
    release(done)
    release(workspace)
