"""Products of blocks inside compiled loops, by the BLAS that torch brings.

BLAS counts columns first (Dongarra et al., "A set of level 3 basic linear algebra subprograms", 1990), so a product of
matrices stored by rows is that of their transposes, the other way round. All arguments are pointers.
"""

from __future__ import annotations

from weft.cpu import row_call as at
from weft.cpu.gett.vector import invoke, item_size, load_word, stack, store_word
from weft.fn.numba.inner import inner


@inner
def first_product(multiply, shapes, box, block, kind):
    """S of a box: alpha times the products of A's rows and B's, each along k."""
    counts = stack(64)
    rows, n = load_word(box + 8 * at.SIDE), load_word(box + 8 * at.WIDTH)
    store_word(counts, n)
    store_word(counts + 8, rows)
    for i in range(load_word(box + 8 * at.BATCH)):
        a = load_word(box + 8 * at.A) + i * load_word(box + 8 * at.A_STEP)
        b = load_word(box + 8 * at.B) + i * load_word(box + 8 * at.B_STEP)
        to = block + i * rows * n * item_size(kind)
        invoke(multiply, (
            shapes + 8 * at.B_LIES, shapes + 8 * at.A_LIES, counts, counts + 8, shapes + 8 * at.K,
            shapes + 8 * at.ALPHA, b, shapes + 8 * at.B_PITCH, a, shapes + 8 * at.A_PITCH,
            shapes + 8 * at.ZERO, to, counts,
        ))  # fmt: skip


@inner
def second_product(multiply, shapes, box, block, kind):
    """The product of what is where S was and of C, added to D."""
    counts = stack(64)
    rows, n = load_word(box + 8 * at.SIDE), load_word(box + 8 * at.WIDTH)
    store_word(counts, n)
    store_word(counts + 8, rows)
    store_word(counts + 16, at.AS_STORED)
    for i in range(load_word(box + 8 * at.BATCH)):
        c = load_word(box + 8 * at.C) + i * load_word(box + 8 * at.C_STEP)
        d = load_word(box + 8 * at.D) + i * load_word(box + 8 * at.D_STEP)
        of = block + i * rows * n * item_size(kind)
        invoke(multiply, (
            shapes + 8 * at.C_LIES, counts + 16, shapes + 8 * at.E, counts + 8, counts, shapes + 8 * at.ONE,
            c, shapes + 8 * at.C_PITCH, of, counts, shapes + 8 * at.ONE, d, shapes + 8 * at.D_PITCH,
        ))  # fmt: skip
