"""The macro-kernel: three loops over blocks, packing, and register blocks of D in turn.

    for slots in blocks of NC:          a panel of the slot operand that stays in L2 (where K is one block)
      for rows in blocks of MC:
        for k in blocks of KC:          a panel of the row operand; partial sums wait in a workspace
          for register blocks:          micro-kernel; the last block of k goes to D, by way of a stage where one is

The loops of BLIS (Van Zee 2015) around packing by offset tables (TBLIS, Matthews 2018). A *stage* is a function by its
address, of contiguous values: of a panel between packing and the products, or of a register block between the products
and D. So functions of users are compiled apart, and this never again.
"""

from __future__ import annotations

from weft.cpu.gett import params as at
from weft.cpu.gett.pack import copy_any, gather, pack_rows, pack_slots, read_entries
from weft.cpu.gett.vector import (
    allocate,
    copy_item,
    copy_vector,
    fetch_add,
    invoke,
    item_size,
    lane_count,
    load_word,
    opaque,
    release,
    row_count,
    store_word,
)
from weft.fn.numba.values import inline, inner


@inner
def packed(plan, frame, bases, pack_of_rows, first, end, start, k, panel, scratch, kind):
    """One panel in the kernel's own type, its stage applied; whether there are special values in it."""
    height = row_count(kind) if pack_of_rows else at.VECTORS * lane_count(kind)
    unit = 1 if pack_of_rows else lane_count(kind)  # what first and end count
    groups = (end - first) * unit // height
    source = load_word(bases + 8 * (at.ROW_BASE if pack_of_rows else at.SLOT_BASE))
    table = load_word(plan + 8 * (at.ROW_IN if pack_of_rows else at.SLOT_IN))
    along = load_word(plan + 8 * (at.K_ROW if pack_of_rows else at.K_SLOT))
    stage = load_word(plan + 8 * (at.ROW_STAGE if pack_of_rows else at.SLOT_STAGE))
    size = item_size(kind) if stage == 0 else load_word(stage + 8 * at.STAGE_SIZE)
    pointers = scratch + 16 * lane_count(kind)
    raw, free = panel, pointers + 256
    if size == item_size(kind):
        if pack_of_rows:
            pack_rows(source, panel, table, along, first, end, start, k, kind)
        else:
            flags, by_k = load_word(plan + 8 * at.FLAGS), load_word(plan + 8 * at.K_CONTIGUOUS)
            pack_slots(source, panel, table, flags, along, first, end, start, k, by_k, scratch, kind)
    else:
        raw = free
        free += (groups * height * k * size + 63) // 64 * 64
        gather(source, raw, size, table + 8 * first * unit, height, groups, along + 8 * start, k)
    if stage != 0:
        count = load_word(stage + 8 * at.STAGE_READS)
        store_word(pointers, raw)
        entries = stage + 8 * at.STAGE_LIST
        read_entries(entries, count, bases, free, pointers + 8, start, k, first * unit, height, groups)
        store_word(pointers + 8 * (count + 1), panel)
        invoke(load_word(stage + 8 * at.STAGE_FUNCTION), (pointers, groups * height * k, frame + 8 * at.ALPHA))
    scan = load_word(plan + 8 * at.SCAN)
    if scan != 0:
        invoke(scan, (panel, groups * height * k, pointers))
        return load_word(pointers)
    return 0


@inner
def stored_tile(plan, tile, m, s, base, kind):
    """A register block of the kernel's own type into D, where no stage is."""
    size, width = item_size(kind), lane_count(kind)
    rows, lanes, flags = load_word(plan + 8 * at.ROW_D), load_word(plan + 8 * at.SLOT_D), load_word(plan + 8 * at.FLAGS)
    for v in range(at.VECTORS):
        to = lanes + 8 * (s + v) * width
        for i in range(opaque(row_count(kind))):  # unrolled, LLVM 22 takes all of it for never reached (complex64)
            row = load_word(rows + 8 * (m + i))
            here = tile + (i * at.VECTORS + v) * width * size
            if load_word(flags + 8 * (s + v)) & at.WRITE_CONTIGUOUS:
                copy_vector(base + row + load_word(to), here, kind)
            else:
                for j in range(width):
                    copy_item(base + row + load_word(to + 8 * j), here + j * size, kind)


@inner
def finished_tile(plan, frame, bases, tile, m, s, scratch, kind):
    """A register block by way of D's stage: C and operands gathered, the function applied, results scattered."""
    height, width = row_count(kind), at.VECTORS * lane_count(kind)
    stage = load_word(plan + 8 * at.D_STAGE)
    pointers = scratch
    reads, writes = load_word(stage + 8 * at.STAGE_READS), load_word(stage + 8 * at.STAGE_WRITES)
    lane = s * lane_count(kind)
    store_word(pointers, tile)
    entries = stage + 8 * at.STAGE_LIST
    free = read_entries(entries, reads, bases, pointers + 256, pointers + 8, m, height, lane, width, 1)
    entries += 8 * at.ENTRY_WORDS * reads
    first = free
    for i in range(writes):
        store_word(pointers + 8 * (1 + reads + i), free)
        free += height * width * 16
    invoke(load_word(stage + 8 * at.STAGE_FUNCTION), (pointers, height * width, frame + 8 * at.ALPHA))
    for i in range(writes):
        entry = entries + 8 * at.ENTRY_WORDS * i
        size = load_word(entry + 8 * at.ENTRY_SIZE)
        base = load_word(bases + 8 * load_word(entry + 8 * at.ENTRY_BASE))
        rows, lanes = load_word(entry + 8 * at.ENTRY_ROWS) + 8 * m, load_word(entry + 8 * at.ENTRY_LANES) + 8 * lane
        values = first + i * height * width * 16
        if i == 0 and size == item_size(kind) and whole(plan, rows, s, kind):
            stored_tile(plan, values, m, s, base, kind)
            continue
        for r in range(height):
            row = load_word(rows + 8 * r)
            for j in range(width):
                column = load_word(lanes + 8 * j)
                if row != at.ABSENT and column != at.ABSENT:
                    copy_any(base + row + column, values + (r * width + j) * size, size)


@inner
def whole(plan, rows, s, kind):
    """Whether every row and lane of the block is stored: all are, or both slots are contiguous in D."""
    if load_word(plan + 8 * at.ONCE) == 0:
        return True
    flags = load_word(plan + 8 * at.FLAGS) + 8 * s
    both = load_word(flags) & load_word(flags + 8) & at.WRITE_CONTIGUOUS
    return both != 0 and load_word(rows + 8 * (row_count(kind) - 1)) != at.ABSENT


@inner
def register_blocks(plan, frame, bases, ic, ie, jc, je, start, k, panels, partials, scratch, exact, kind):
    """All register blocks of one block of rows, slots and k."""
    size, width, height = item_size(kind), lane_count(kind), row_count(kind)
    vector, block = size * width, row_count(kind) * at.VECTORS * lane_count(kind) * item_size(kind)
    row_panel, slot_panel = panels
    row_direct, slot_direct = load_word(plan + 8 * at.ROW_DIRECT), load_word(plan + 8 * at.SLOT_DIRECT)
    row_step = load_word(plan + 8 * at.ROW_STEP) if row_direct else height * size
    slot_step = load_word(plan + 8 * at.SLOT_STEP) if slot_direct else at.VECTORS * vector
    rows_in, lanes_in = load_word(plan + 8 * at.ROW_IN), load_word(plan + 8 * at.SLOT_IN)
    rows_d, lanes_d = load_word(plan + 8 * at.ROW_D), load_word(plan + 8 * at.SLOT_D)
    flags, stage = load_word(plan + 8 * at.FLAGS), load_word(plan + 8 * at.D_STAGE)
    between = load_word(plan + 8 * at.BETWEEN)
    kernel = load_word(plan + 8 * (at.EXACT_KERNEL if exact else at.MICRO_KERNEL))
    d = load_word(bases + 8 * at.D_BASE)
    row_origin = load_word(bases + 8 * at.ROW_BASE) + load_word(load_word(plan + 8 * at.K_ROW) + 8 * start)
    slot_origin = load_word(bases + 8 * at.SLOT_BASE) + load_word(load_word(plan + 8 * at.K_SLOT) + 8 * start)
    last, inside = start + k == load_word(plan + 8 * at.K), load_word(plan + 8 * at.ROWS_INSIDE)
    places, tile_rows = scratch, scratch + 8 * height
    for i in range(height):
        store_word(tile_rows + 8 * i, i * at.VECTORS * vector)
    tile = scratch + 256
    down, across = (ie - ic) // height, (je - jc) // at.VECTORS
    i, j, placed = 0, 0, -1  # counted on, as a division takes as long as a short sum
    for _ in range(down * across):
        s, m = jc + at.VECTORS * j, ic + height * i
        if placed != i:
            placed = i
            for r in range(height):
                if row_direct:
                    store_word(places + 8 * r, row_origin + load_word(rows_in + 8 * (m + r)))
                else:
                    store_word(places + 8 * r, row_panel + i * (height * k * size) + r * size)
        if slot_direct:
            first = slot_origin + load_word(lanes_in + 8 * s * width)
            second = slot_origin + load_word(lanes_in + 8 * (s + 1) * width)
        else:
            first = slot_panel + j * (at.VECTORS * vector * k)
            second = first + vector
        partial = partials + (i * across + j) * block
        resumed = partial if start > 0 else 0
        straight = stage == 0 and (load_word(flags + 8 * s) & load_word(flags + 8 * (s + 1)) & at.WRITE_CONTIGUOUS) != 0
        if last and straight:
            to = d + load_word(lanes_d + 8 * s * width)
            to_second = d + load_word(lanes_d + 8 * (s + 1) * width)
            to_rows = rows_d + 8 * m
            invoke(kernel, (k, places, row_step, first, second, slot_step, resumed, to, to_second, to_rows))
        else:
            to = tile if last else partial
            invoke(kernel, (k, places, row_step, first, second, slot_step, resumed, to, to + vector, tile_rows))
            if last and stage != 0:
                finished_tile(plan, frame, bases, tile, m, s, tile + block, kind)
            elif last:
                stored_tile(plan, tile, m, s, d, kind)
            elif between != 0:
                store_word(tile, partial)
                invoke(between, (tile, height * at.VECTORS * width, frame))
        if inside:
            i += 1
            if i == down:
                i, j = 0, j + 1
        else:
            j += 1
            if j == across:
                i, j = i + 1, 0


@inline
def blocks(plan, frame, bases, part, panels, partials, scratch, kind):
    """One part of the rows and slots of one index of the loop around."""
    m0, m1, s0, s1 = load_word(part), load_word(part + 8), load_word(part + 16), load_word(part + 24)
    row_block, slot_block = load_word(plan + 8 * at.ROW_BLOCK), load_word(plan + 8 * at.SLOT_BLOCK)
    k_block, k = load_word(plan + 8 * at.K_BLOCK), load_word(plan + 8 * at.K)
    row_direct, slot_direct = load_word(plan + 8 * at.ROW_DIRECT), load_word(plan + 8 * at.SLOT_DIRECT)
    row_panel, slot_panel = panels
    for jc in range(s0, s1, slot_block):
        je = min(jc + slot_block, s1)
        special = 0
        for ic in range(m0, m1, row_block):
            ie = min(ic + row_block, m1)
            for start in range(0, k, k_block):
                depth = min(k_block, k - start)
                if not slot_direct and (ic == m0 or k > k_block):
                    special = packed(plan, frame, bases, False, jc, je, start, depth, slot_panel, scratch, kind)
                exact = special
                if not row_direct:
                    exact |= packed(plan, frame, bases, True, ic, ie, start, depth, row_panel, scratch, kind)
                register_blocks(
                    plan, frame, bases, ic, ie, jc, je, start, depth, panels, partials, scratch, exact, kind
                )


@inner
def moved(plan, frame, bases, index):
    """The addresses of all operands at one index of the loop around."""
    count = load_word(plan + 8 * at.BASE_COUNT)
    for i in range(count):
        store_word(bases + 8 * i, load_word(frame + 8 * (at.BASES + i)))
    mode = load_word(plan + 8 * at.OUTER)
    for _ in range(load_word(plan + 8 * at.OUTER_COUNT)):
        extent = load_word(mode)
        rest = index // extent
        place = index - rest * extent
        index = rest
        for i in range(count):
            store_word(bases + 8 * i, load_word(bases + 8 * i) + place * load_word(mode + 8 * (1 + i)))
        mode += 8 * (1 + count)


@inline
def run(frame, kind):
    """Tasks until none is left; every thread of a team runs this, with a workspace of its own."""
    plan = load_word(frame + 8 * at.PLAN)
    sizes = (load_word(plan + 8 * at.ROW_PANEL), load_word(plan + 8 * at.SLOT_PANEL), load_word(plan + 8 * at.PARTIALS))
    workspace = allocate(sizes[0] + sizes[1] + sizes[2] + load_word(plan + 8 * at.SCRATCH) + 1024)
    start = (workspace + 63) // 64 * 64
    panels = (start, start + sizes[0])
    partials = panels[1] + sizes[1]
    bases = partials + sizes[2]
    scratch = bases + 512
    tasks, parts = load_word(plan + 8 * at.TASKS), load_word(plan + 8 * at.PART_COUNT)
    chunk, total = load_word(plan + 8 * at.OUTER_CHUNK), load_word(plan + 8 * at.OUTER_TOTAL)
    while True:
        task = fetch_add(frame + 8 * at.COUNTER)
        if task >= tasks:
            break
        group = task // parts
        part = load_word(plan + 8 * at.PARTS) + 32 * (task - group * parts)
        for index in range(group * chunk, min((group + 1) * chunk, total)):
            moved(plan, frame, bases, index)
            blocks(plan, frame, bases, part, panels, partials, scratch, kind)
    release(workspace)
