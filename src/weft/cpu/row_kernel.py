"""Rows of blocks inside compiled loops: products by the BLAS that torch brings, and reductions of a row of values.

BLAS counts columns first (Dongarra et al., "A set of level 3 basic linear algebra subprograms", 1990), so a product of
matrices stored by rows is that of their transposes, the other way round. All arguments are pointers.

NaN is the largest and the smallest of values that hold one, as in torch. An extreme is found on whole numbers in the
order of the values, and a place as the least of those that hold it: LLVM makes vectors of both.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types

from weft.cpu import row_call as at
from weft.cpu.gett.vector import invoke, item_size, load_word, stack, store_word
from weft.fn.numba.values import LOADS, bits_of, by_type, inline, inner, inner_with, of_bits


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


_SUMS = {"reassoc", "contract", "nsz"}
_RUN = 256  # values whose sum is made before it meets that of others: rounding grows with the longest of these sums


@by_type
def _item(base, index, kind):
    read = LOADS[str(kind)]
    return lambda base, index, kind: read(base, index)


def _bits(kind: Any) -> tuple[Any, int, int]:
    """The integers as long as a number of a type, the largest of them, and the place of the sign."""
    whole = types.int32 if kind == types.float32 else types.int64
    return whole, whole.maxval, whole.bitwidth - 1


@by_type
def _ordered(value, sign):
    """A value as a whole number that grows with it, or falls for a `sign` of -1; NaN tops all."""
    if isinstance(value, types.Integer):
        return lambda value, sign: value if sign > 0 else ~value
    kind, most, shift = _bits(value)

    def ordered(value, sign):
        bits = bits_of(value if sign > 0 else -value)
        bits = kind(bits ^ ((bits >> kind(shift)) & kind(most)))
        return kind(most) if value != value else bits

    return ordered


@by_type
def _unordered(bits, sign, kind):
    """The value of a number that `_ordered` makes."""
    if isinstance(kind, types.Integer):
        return lambda bits, sign, kind: bits if sign > 0 else ~bits
    whole, most, shift = _bits(kind)

    def unordered(bits, sign, kind):
        value = of_bits(whole(bits ^ ((bits >> whole(shift)) & whole(most))))
        return value if sign > 0 else -value

    return unordered


@inner_with(fastmath=_SUMS)
def row_sum(base, n, kind):
    total = kind
    for start in range(0, n, _RUN):
        part = kind
        for j in range(start, min(start + _RUN, n)):
            part += _item(base, j, kind)
        total += part
    return total


@inner
def row_extreme(base, n, sign, kind):
    """The largest value for a `sign` of 1, the smallest for -1; of at least one."""
    best = _ordered(_item(base, 0, kind), sign)
    for j in range(1, n):
        value = _ordered(_item(base, j, kind), sign)
        best = value if value > best else best
    return _unordered(best, sign, kind)


@inner
def row_place(base, n, best, kind):
    """The first place of a value that is there."""
    found = numba.int32(n - 1)
    for j in range(n):
        value = _item(base, j, kind)
        here = numba.int32(j) if (value == best) | ((value != value) & (best != best)) else numba.int32(n - 1)
        found = here if here < found else found
    return found


@inline
def better(value, known, sign):
    """Whether a value replaces a known one: it is larger or smaller, or the first that is NaN."""
    more = value > known if sign > 0 else value < known
    return more | ((value != value) & (known == known))
