"""Products of blocks inside compiled loops, by the BLAS that torch brings: it is called by its address.

BLAS counts columns first (Dongarra et al., "A set of level 3 basic linear algebra subprograms", 1990), so a product of
matrices stored by rows is that of their transposes, the other way round. All arguments are pointers.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache

import numba
import torch

from weft.cpu.gett.vector import invoke, item_size, load_word, stack, store_word

#: Words of a box from here on: matrices, rows and columns of each, and where A, B, C and D begin and step.
BATCH, SIDE, WIDTH, A, A_STEP, B, B_STEP, C, C_STEP, D, D_STEP, WORDS = range(12)
#: Words of a plan: how operands lie and step, terms of S, columns of C, and three numbers.
B_LIES, A_LIES, K, B_PITCH, A_PITCH, C_LIES, E, C_PITCH, D_PITCH, ALPHA, ONE, ZERO, SHAPE_WORDS = range(13)
AS_STORED, TURNED = ord("N"), ord("T")


@lru_cache
def address(dtype: torch.dtype) -> int:
    """Where torch's BLAS multiplies matrices of a type; 0 where it does not say."""
    name = {torch.float32: "sgemm_", torch.float64: "dgemm_"}.get(dtype)
    try:
        found = None if name is None else getattr(ctypes.CDLL(torch._C.__file__), name)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0 if found is not None else 0


@numba.njit(error_model="numpy")
def first_product(multiply, shapes, box, block, kind):
    """S of a box: alpha times the products of A's rows and B's, each along k."""
    counts = stack(64)
    rows, n = load_word(box + 8 * SIDE), load_word(box + 8 * WIDTH)
    store_word(counts, n)
    store_word(counts + 8, rows)
    for i in range(load_word(box + 8 * BATCH)):
        a = load_word(box + 8 * A) + i * load_word(box + 8 * A_STEP)
        b = load_word(box + 8 * B) + i * load_word(box + 8 * B_STEP)
        to = block + i * rows * n * item_size(kind)
        invoke(multiply, (
            shapes + 8 * B_LIES, shapes + 8 * A_LIES, counts, counts + 8, shapes + 8 * K, shapes + 8 * ALPHA,
            b, shapes + 8 * B_PITCH, a, shapes + 8 * A_PITCH, shapes + 8 * ZERO, to, counts,
        ))  # fmt: skip


@numba.njit(error_model="numpy")
def second_product(multiply, shapes, box, block, kind):
    """The product of what is where S was and of C, added to D."""
    counts = stack(64)
    rows, n = load_word(box + 8 * SIDE), load_word(box + 8 * WIDTH)
    store_word(counts, n)
    store_word(counts + 8, rows)
    store_word(counts + 16, AS_STORED)
    for i in range(load_word(box + 8 * BATCH)):
        c = load_word(box + 8 * C) + i * load_word(box + 8 * C_STEP)
        d = load_word(box + 8 * D) + i * load_word(box + 8 * D_STEP)
        of = block + i * rows * n * item_size(kind)
        invoke(multiply, (
            shapes + 8 * C_LIES, counts + 16, shapes + 8 * E, counts + 8, counts, shapes + 8 * ONE,
            c, shapes + 8 * C_PITCH, of, counts, shapes + 8 * ONE, d, shapes + 8 * D_PITCH,
        ))  # fmt: skip
