"""Reductions of a row of values in memory, in numba: its sum, its extremes and where they are.

NaN is the largest and the smallest of values that hold one, as in torch. An extreme is found on whole numbers in the
order of the values, and a place as the least of those that hold it: LLVM makes vectors of both.
"""

from __future__ import annotations

from typing import Any

import numba
from numba import types
from numba.extending import overload

from weft.fn.numba.inner import inner, inner_with
from weft.fn.numba.values import LOADS, bits_of, of_bits

_SUMS = {"reassoc", "contract", "nsz"}
_RUN = 256  # values whose sum is made before it meets that of others: rounding grows with the longest of these sums
_inline = inner_with(inline="always")


def _item(base: int, index: int, kind: Any) -> Any:
    raise NotImplementedError("compiled code alone")


@overload(_item, strict=False)
def _item_of(base: Any, index: Any, kind: Any) -> Any:
    read = LOADS[str(kind)]
    return lambda base, index, kind: read(base, index)


def _ordered(value: Any, sign: int) -> Any:
    raise NotImplementedError("compiled code alone")


@overload(_ordered, strict=False)
def _ordered_of(value: Any, sign: Any) -> Any:
    """A value as a whole number that grows with it, or falls for a `sign` of -1; NaN tops all."""
    if isinstance(value, types.Integer):
        return lambda value, sign: value if sign > 0 else ~value
    kind = types.int32 if value == types.float32 else types.int64
    most = 0x7FFFFFFF if value == types.float32 else 0x7FFFFFFFFFFFFFFF
    shift = 31 if value == types.float32 else 63

    def ordered(value: Any, sign: Any) -> Any:
        bits = bits_of(value if sign > 0 else -value)
        bits = kind(bits ^ ((bits >> kind(shift)) & kind(most)))
        return kind(most) if value != value else bits

    return ordered


def _unordered(bits: Any, sign: int, kind: Any) -> Any:
    raise NotImplementedError("compiled code alone")


@overload(_unordered, strict=False)
def _unordered_of(bits: Any, sign: Any, kind: Any) -> Any:
    """The value of a number that `_ordered` makes."""
    if isinstance(kind, types.Integer):
        return lambda bits, sign, kind: bits if sign > 0 else ~bits
    whole = types.int32 if kind == types.float32 else types.int64
    most = 0x7FFFFFFF if kind == types.float32 else 0x7FFFFFFFFFFFFFFF
    shift = 31 if kind == types.float32 else 63

    def unordered(bits: Any, sign: Any, kind: Any) -> Any:
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


@_inline
def better(value, known, sign):
    """Whether a value replaces a known one: it is larger or smaller, or the first that is NaN."""
    more = value > known if sign > 0 else value < known
    return more | ((value != value) & (known == known))
