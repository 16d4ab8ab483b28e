"""Packed panels of operands, and the scan of what they are packed from."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types
from numba.extending import intrinsic

from weft.cpu.gett import params
from weft.cpu.gett.params import VECTORS
from weft.cpu.gett.vector import (
    KINDS,
    at,
    copy_1,
    copy_2,
    copy_4,
    copy_8,
    copy_item,
    copy_vector,
    item_size,
    lane_count,
    load_word,
    row_count,
    store_half_word,
    store_word,
    transpose,
)
from weft.fn.numba.values import inline, inner


@intrinsic
def load_value(typingctx: Any, address: Any, kind: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(at(builder, args[0], KINDS[signature.args[1]].component))

    return kind(types.int64, kind), code


def _special(is_special):
    """Whether there are values that need the exact micro-kernel, to a word."""
    test = inline(is_special)

    @inner
    def special(values, count, to, kind):
        found = 0
        for i in range(count):
            found |= test(load_value(values + item_size(kind) * i, kind))
        store_word(to, found)

    return special


special_above = _special(lambda x: not (x < np.inf))  # NaN or infinity: sums of others are -infinity at the least
special_below = _special(lambda x: not (x > -np.inf))  # NaN or -infinity
special_infinite = _special(lambda x: not (abs(x) < np.inf))  # NaN or any infinity, which times zero is NaN
special_nan = _special(lambda x: x != x)  # NaN alone: extrema make none

AT_ONCE = 32  # neighbouring slots or row blocks that are packed together, a cache line or more at a time


@inner
def pack_slots(source, to, lanes, flags, along, first, end, start, k, by_k, scratch, kind):
    """Slots first..end (`lanes`: table of lanes' offsets, `along`: of k) for k of start..start + k."""
    size, width = item_size(kind), lane_count(kind)
    vector, pair = size * width, VECTORS * size * width
    s = first - 1
    while s + 1 < end:
        s += 1
        mine = lanes + 8 * s * width
        panel = to + ((s - first) // VECTORS) * (pair * k) + ((s - first) % VECTORS) * vector
        flag = load_word(flags + 8 * s)
        if (flag & params.TRANSPOSED_GROUP) and s + width <= end:
            # The slots of this group are stored side by side, lane by lane: squares of items change places.
            for i in range(width):
                at = s + i - first
                store_word(scratch + 8 * i, source + load_word(mine + 8 * i))
                store_word(scratch + 8 * (width + i), to + (at // VECTORS) * (pair * k) + (at % VECTORS) * vector)
            for p in range(k):
                transpose(load_word(along + 8 * (start + p)), scratch, p * pair, scratch + 8 * width, kind)
            s += width - 1
        elif flag & params.READ_CONTIGUOUS:
            at = source + load_word(mine)
            count = 1
            while (
                s + count < end
                and count < AT_ONCE
                and (load_word(flags + 8 * (s + count)) & params.READ_CONTIGUOUS)
                and load_word(mine + 8 * count * width) == load_word(mine) + count * vector
            ):
                count += 1
            if count > 1 and (s - first) % VECTORS == 0:
                count = count // VECTORS * VECTORS
                for p in range(k):
                    x, y = panel + p * pair, at + load_word(along + 8 * (start + p))
                    for _ in range(count // VECTORS):
                        copy_vector(x, y, kind)
                        copy_vector(x + vector, y + vector, kind)
                        x += pair * k
                        y += pair
                s += count - 1
            else:
                for p in range(k):
                    copy_vector(panel + p * pair, at + load_word(along + 8 * (start + p)), kind)
        elif by_k and k >= width:
            for i in range(width):
                store_word(scratch + 8 * i, source + load_word(mine + 8 * i))
                store_word(scratch + 8 * (width + i), i * pair)
            p = 0
            while True:
                transpose(load_word(along + 8 * (start + p)), scratch, panel + p * pair, scratch + 8 * width, kind)
                if p == k - width:
                    break
                p = min(p + width, k - width)  # the last square overlaps the one before
        else:
            for p in range(k):
                at = source + load_word(along + 8 * (start + p))
                for i in range(width):
                    copy_item(panel + p * pair + i * size, at + load_word(mine + 8 * i), kind)


@inner
def contiguous(table, count, first, size):
    """Whether a table's entries count up from `first` in steps of `size`."""
    for i in range(count):  # noqa: SIM110  (numba compiles no generators inside functions)
        if load_word(table + 8 * i) != first + i * size:
            return False
    return True


@inner
def pack_rows(source, to, rows, along, first, end, start, k, kind):
    """Rows first..end, whole register blocks, for k of start..start + k; may write a vector past the last panel."""
    size, width, height = item_size(kind), lane_count(kind), row_count(kind)
    m = first - height
    while m + height < end:
        m += height
        mine = rows + 8 * m
        panel = to + ((m - first) // height) * (height * k * size)
        at = source + load_word(mine)
        near = contiguous(mine, height, at - source, size)
        if near and height <= width:
            count = 0
            while count < AT_ONCE and m + count * height + width <= end:
                here = at - source + count * height * size
                if not contiguous(mine + 8 * count * height, width, here, size):
                    break
                count += 1
            if count > 0:
                # A vector for each row block. What it has too much is written over later, by the next steps along k;
                # but what the last steps write past the end of a panel, where the next one begins, is put right again.
                for p in range(k):
                    x, y = panel + p * height * size, at + load_word(along + 8 * (start + p))
                    for _ in range(count):
                        copy_vector(x, y, kind)
                        x += height * k * size
                        y += height * size
                for j in range(1, count):
                    x, y = panel + j * height * k * size, at + j * height * size
                    for i in range(min(width - height, height * k)):
                        p = i // height
                        copy_item(x + i * size, y + load_word(along + 8 * (start + p)) + (i - p * height) * size, kind)
                m += (count - 1) * height
                continue
        if near and height > width:
            for p in range(k):
                x, y = panel + p * height * size, at + load_word(along + 8 * (start + p))
                copy_vector(x, y, kind)
                copy_vector(x + (height - width) * size, y + (height - width) * size, kind)
            continue
        for i in range(height):
            at = source + load_word(mine + 8 * i)
            for p in range(k):
                copy_item(panel + (p * height + i) * size, at + load_word(along + 8 * (start + p)), kind)


@inner
def copy_any(to, source, size):
    """An item of any type; what is no memory is its own offset."""
    if size == 4:
        copy_4(to, source)
    elif size == 8:
        copy_8(to, source)
    elif size == 2:
        copy_2(to, source)
    elif size == 1:
        copy_1(to, source)
    elif size == 16:
        copy_8(to, source)
        copy_8(to + 8, source + 8)
    elif size == params.INT32_COORDINATE:
        store_half_word(to, source)
    elif size == params.INT64_COORDINATE:
        store_word(to, source)


@inner
def gather(base, to, size, lanes, width, groups, along, k):
    """Items of any size to [group][k][lane], with a table of offsets for lanes and one for k."""
    step = abs(size)
    for g in range(groups):
        first = load_word(lanes + 8 * g * width)
        if size > 0 and (width * size) % 8 == 0 and contiguous(lanes + 8 * g * width, width, first, size):
            for p in range(k):
                at = base + first + load_word(along + 8 * p)
                for i in range(0, width * size, 8):
                    copy_8(to + (g * k + p) * width * size + i, at + i)
            continue
        for p in range(k):
            at = base + load_word(along + 8 * p)
            for i in range(width):
                copy_any(to + ((g * k + p) * width + i) * step, at + load_word(lanes + 8 * (g * width + i)), size)


@inner
def read_entries(entries, count, bases, to, pointers, first_row, row_count, first_lane, width, groups):
    """Gather each read of a stage to scratch memory, its address to `pointers`; where scratch memory is free after.

    Of panels "rows" are k, and lanes the rows or columns of panels.
    """
    for i in range(count):
        entry = entries + 8 * params.ENTRY_WORDS * i
        size = load_word(entry + 8 * params.ENTRY_SIZE)
        base = load_word(bases + 8 * load_word(entry + 8 * params.ENTRY_BASE))
        along = load_word(entry + 8 * params.ENTRY_ROWS) + 8 * first_row
        lanes = load_word(entry + 8 * params.ENTRY_LANES) + 8 * first_lane
        gather(base, to, size, lanes, width, groups, along, row_count)
        store_word(pointers + 8 * i, to)
        to += (groups * row_count * width * abs(size) + 63) // 64 * 64
    return to
