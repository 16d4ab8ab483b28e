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
def blocks(frame):
    """Tiles of square matrices to the places of their mirror images, or panels of whole rows to where they were."""
    plan = load_word(frame + 8 * at.PLAN)
    workspace = allocate(load_word(plan + 8 * at.ROOM) + LINE)
    pointers = (workspace + LINE - 1) // LINE * LINE
    side, sides, last = load_word(plan + 8 * at.SIDE), load_word(plan + 8 * at.SIDES), load_word(plan + 8 * at.LAST)
    paired, across = load_word(plan + 8 * at.PAIRED), load_word(plan + 8 * at.ACROSS)
    most, item = max(side, last), load_word(plan + 8 * at.ITEM)
    row_step, column_step = load_word(plan + 8 * at.ROW_STEP), load_word(plan + 8 * at.COLUMN_STEP)
    rows, back = pointers + LINE, pointers + LINE + 8 * most
    columns = back + 8 * across
    tables = columns + 8 * max(most, across)
    upper = (tables + 8 * (most + across) + LINE - 1) // LINE * LINE
    lower = upper + most * across * item
    fill_table(rows, most, row_step)
    fill_table(back, across, row_step)
    fill_table(columns, max(most, across), column_step)
    each = sides * (sides + 1) // 2 if paired else sides
    while True:
        task = fetch_add(frame + 8 * at.COUNTER)
        if task >= load_word(plan + 8 * at.PLACE_TASKS):
            break
        matrix = task // each
        j, i = 0, task - matrix * each
        while paired and i > j:
            i -= j + 1
            j += 1
        x = load_word(frame + 8 * at.X) + matrix * load_word(plan + 8 * at.BATCH_STEP)
        height = last if i == sides - 1 else side
        width = across
        if paired and j < sides - 1:
            width = side
        above, below = x + i * side * row_step, x + j * side * row_step
        if paired:
            above, below = above + j * side * column_step, below + i * side * column_step
        else:
            below = above
            fill_table(back, width, height * column_step)
        turned(plan, above, rows, columns, upper, height, width, tables)
        scaled(plan, frame, upper, height * width, pointers)
        if above != below:
            turned(plan, below, rows, columns, lower, width, height, tables)
            scaled(plan, frame, lower, height * width, pointers)
            written(plan, lower, above, rows, columns, height, width, tables)
        if not paired and column_step == item:
            height, width = height * width, 1
        written(plan, upper, below, back, columns, width, height, tables)
    release(workspace)


@inner
def mark(bits, place):
    here = bits + 8 * (place >> 6)
    store_word(here, load_word(here) | 1 << (place & 63))


@inner
def cycles(frame):
    """Vectors of a rows x columns matrix of them to columns x rows; a task is a part of every vector."""
    plan = load_word(frame + 8 * at.PLAN)
    size, parts = load_word(plan + 8 * at.VECTOR), load_word(plan + 8 * at.PLACE_TASKS)
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
