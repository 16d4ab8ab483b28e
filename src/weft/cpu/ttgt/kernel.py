"""A pass over a matrix: chunks of its rows through a stage, from one tensor to another.

    for chunks of columns:        what is the same in all rows is gathered once
      for rows:                   values and operands are read without a copy, if their chunk is contiguous
        stage                     a function by its address; results to where they belong, by way of a buffer where
                                  those have gaps

Stages are those of `weft.cpu.gett`: of contiguous values, each with what it reads and writes alongside them.
"""

from __future__ import annotations

from weft.cpu.gett.pack import copy_any
from weft.cpu.gett.params import C_BASE
from weft.cpu.gett.vector import (
    allocate,
    copy_1,
    copy_4,
    copy_8,
    fetch_add,
    invoke,
    load_word,
    release,
    store_word,
)
from weft.cpu.ttgt import params as at
from weft.fn.numba.inner import inner

POINTERS = 256  # bytes for what a stage is given


@inner
def copy_bytes(to, source, size):
    words = size // 8 * 8
    for i in range(0, words, 8):
        copy_8(to + i, source + i)
    for i in range(words, size):
        copy_1(to + i, source + i)


@inner
def repeated(to, size, count):
    """Write the item of four or eight bytes at an address as often as is said, in whole words."""
    if size == 4:
        copy_4(to + 4, to)
    item = load_word(to)
    for i in range(1, (count * size + 7) // 8):
        store_word(to + 8 * i, item)


@inner
def gather(to, base, columns, size, run, first, count):
    """Items of a row's columns first..first + count, one after the other."""
    step = abs(size)
    if run == 0 and (size == 4 or size == 8):
        copy_any(to, base + load_word(columns), size)
        repeated(to, size, count)
    elif run == 0:
        copy_any(to, base + load_word(columns), size)
        done = 1
        while done < count:
            more = min(done, count - done)
            copy_bytes(to + done * step, to, more * step)
            done += more
    elif run == 1:
        for i in range(count):
            copy_any(to + i * step, base + load_word(columns + 8 * (first + i)), size)
    else:
        i = 0
        while i < count:
            together = min(run - (first + i) % run, count - i)
            copy_bytes(to + i * step, base + load_word(columns + 8 * (first + i)), together * step)
            i += together


@inner
def scatter(base, columns, values, size, run, first, count):
    """Scatter contiguous items to a row's columns first..first + count."""
    if run <= 1:
        for i in range(count):
            copy_any(base + load_word(columns + 8 * (first + i)), values + i * size, size)
        return
    i = 0
    while i < count:
        together = min(run - (first + i) % run, count - i)
        copy_bytes(base + load_word(columns + 8 * (first + i)), values + i * size, together * size)
        i += together


@inner
def row_of(entry, bases, row):
    """Where a row of an entry begins."""
    base = load_word(bases + 8 * load_word(entry + 8 * at.BASE))
    return base + load_word(load_word(entry + 8 * at.ROW_TABLE) + 8 * row)


@inner
def chunk(plan, frame, first_row, end_row, first, count, scratch):
    """Rows first_row..end_row of one chunk of columns."""
    stage, in_place = load_word(plan + 8 * at.STAGE), load_word(plan + 8 * at.IN_PLACE)
    reads, writes = load_word(plan + 8 * at.READS), load_word(plan + 8 * at.WRITES)
    entries, buffer = load_word(plan + 8 * at.ENTRIES), load_word(plan + 8 * at.BUFFER)
    bases, pointers, buffers = frame + 8 * at.BASES, scratch, scratch + POINTERS
    # With C read alongside, results go by a buffer: a stage whose reads and writes may be one takes values one by one.
    apart = stage != 0 and load_word(bases + 8 * C_BASE) != 0
    for row in range(first_row, end_row):
        for i in range(reads + writes):
            entry, here = entries + 8 * at.ENTRY_WORDS * i, buffers + buffer * i
            run, columns = load_word(entry + 8 * at.RUN), load_word(entry + 8 * at.COLUMN_TABLE)
            base = row_of(entry, bases, row)
            if i >= reads:
                if run == at.WHOLE and not apart:
                    here = base + load_word(columns + 8 * first)
            elif i == 0 and in_place != 0:
                to = entries + 8 * at.ENTRY_WORDS * reads
                here = row_of(to, bases, row) + load_word(load_word(to + 8 * at.COLUMN_TABLE) + 8 * first)
                gather(here, base, columns, load_word(entry + 8 * at.SIZE), run, first, count)
            elif run == at.WHOLE:
                here = base + load_word(columns + 8 * first)
            elif row == first_row or load_word(entry + 8 * at.SAME) == 0:
                gather(here, base, columns, load_word(entry + 8 * at.SIZE), run, first, count)
            store_word(pointers + 8 * i, here)
        if stage != 0:
            invoke(stage, (pointers, count, frame + 8 * at.ALPHA))
        for i in range(reads, reads + writes):
            entry = entries + 8 * at.ENTRY_WORDS * i
            run = load_word(entry + 8 * at.RUN)
            if in_place == 0 and (stage == 0 or run != at.WHOLE or apart):
                source = load_word(pointers + 8 * (0 if stage == 0 else i))
                columns, size = load_word(entry + 8 * at.COLUMN_TABLE), load_word(entry + 8 * at.SIZE)
                scatter(row_of(entry, bases, row), columns, source, size, run, first, count)


@inner
def run(frame):
    """Tasks until none is left; every thread of a team runs this, with buffers of its own."""
    plan = load_word(frame + 8 * at.PLAN)
    rows, columns = load_word(frame + 8 * at.ROWS), load_word(frame + 8 * at.COLUMNS)
    block, width = load_word(plan + 8 * at.ROW_BLOCK), load_word(plan + 8 * at.CHUNK)
    down, across = (rows + block - 1) // block, (columns + width - 1) // width
    workspace = allocate(load_word(plan + 8 * at.SCRATCH) + 64)
    scratch = (workspace + 63) // 64 * 64
    while True:
        task = fetch_add(frame + 8 * at.COUNTER)
        if task >= down * across:
            break
        j = task // down
        i = task - j * down
        end, count = min((i + 1) * block, rows), min(width, columns - j * width)
        chunk(plan, frame, i * block, end, j * width, count, scratch)
    release(workspace)
