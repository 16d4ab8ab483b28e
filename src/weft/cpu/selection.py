"""Which pair an algebra selected, on the CPU: the best combination along k, and where it stands.

A loop over rows of D in numba, in torch's threads, where the combination is one of torch's own operations; else, and
where there is no numba, blocks of all pairs by torch's operations.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from weft.cpu import jit
from weft.cpu.host import callback, together
from weft.errors import WeftError
from weft.fn import Pointwise, trace
from weft.fn.algebra import TracedAlgebra

BLOCK = 1 << 20  # pairs at once by torch's operations
_KINDS = {torch.float32: "float32", torch.float64: "float64", torch.int32: "int32", torch.int64: "int64"}
_COMBINE = {
    torch.add: "x + row[j]", torch.mul: "x * row[j]", torch.maximum: "x if x != x or x > row[j] else row[j]",
    torch.minimum: "x if x != x or x < row[j] else row[j]",
}  # fmt: skip
_Words = ctypes.c_int64 * 8

# Rows of D in turn: for each index of k one row of B against one value of A. Places are of 32 bits within a row, so
# that both are vectors of one length; a row of NaN is told by a value that is not equal to itself.
_SOURCE = """\
import numpy as np
from numba import carray, cfunc, njit, types
from weft.cpu.gett.vector import fetch_add, load_word


@njit(error_model="numpy")
def run(a, b, values, places, batch, k, m, n, frame):
    best = np.empty(n, np.{kind})
    place = np.empty(n, np.int32)
    while True:
        task = fetch_add(frame)
        if task >= batch * m:
            break
        which, i = task // m, task % m
        x = a[which, 0, i]
        row = b[which, 0]
        for j in range(n):
            best[j] = {combine}
            place[j] = 0
        for l in range(1, k):
            x = a[which, l, i]
            row = b[which, l]
            for j in range(n):
                value = {combine}
                better = (value {better} best[j]) | ((value != value) & (best[j] == best[j]))
                best[j] = value if better else best[j]
                place[j] = np.int32(l) if better else place[j]
        for j in range(n):
            values[which, i, j] = best[j]
            places[which, i, j] = place[j]


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    batch, k, m, n = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24), load_word(frame + 32)
    pointers = load_word(frame + 40)
    a = carray(address(load_word(pointers)), (batch, k, m), np.{kind})
    b = carray(address(load_word(pointers + 8)), (batch, k, n), np.{kind})
    values = carray(address(load_word(pointers + 16)), (batch, m, n), np.{kind})
    places = carray(address(load_word(pointers + 24)), (batch, m, n), np.int64)
    run(a, b, values, places, batch, k, m, n, frame)
"""
_ADDRESS = """\
from numba.extending import intrinsic


@intrinsic
def address(typingctx, value):
    def code(context, builder, signature, args):
        return builder.inttoptr(args[0], context.get_value_type(types.voidptr))

    return types.voidptr(types.int64), code


"""


def select(
    a: torch.Tensor, b: torch.Tensor, algebra: TracedAlgebra, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices (batch, m, n) of contiguous `a` (batch, k, m) and `b` (batch, k, n), none of them empty.

    The index is the smallest one with the best value; NaN is better than any number, as in torch.maximum.
    """
    text = next((code for one, code in _COMBINE.items() if _identity(one, a.dtype) == algebra.combine.identity), None)
    if text is not None and a.dtype in _KINDS and jit.fault() is None and a.shape[1] < 2**31:
        return _compiled(a, b, text, largest)
    return _in_blocks(a, b, algebra.combine, largest)


@lru_cache
def _identity(operation: Callable[..., Any], dtype: torch.dtype) -> str | None:
    """By what one of torch's operations is recognised; None where it has none of this type, or yields another."""
    try:
        traced = trace(lambda p, q: operation(p, q), (dtype, dtype), names=("q",), hook="operation")
    except WeftError:
        return None
    return traced.identity if traced.result == dtype else None


def _compiled(a: torch.Tensor, b: torch.Tensor, combine: str, largest: bool) -> tuple[torch.Tensor, torch.Tensor]:
    (batch, k, m), n = a.shape, b.shape[2]
    head, body = _SOURCE.split("\n\n\n", 1)
    source = f"{head}\n{_ADDRESS}{body}".format(
        kind=_KINDS[a.dtype], combine=combine, better=">" if largest else "<"
    )
    entry = jit.compiled(source, kernel=True)
    values = torch.empty((batch, m, n), dtype=a.dtype, device="cpu")
    places = torch.empty((batch, m, n), dtype=torch.int64, device="cpu")
    pointers = (ctypes.c_int64 * 4)(*(x.data_ptr() for x in (a, b, values, places)))
    frame = _Words(0, batch, k, m, n, ctypes.addressof(pointers))
    threads = min(torch.get_num_threads(), batch * m)
    if threads == 1 or batch * m * n * k < 1 << 16:
        callback(entry)(frame)
    else:
        together(entry, frame, threads)
    return values, places


def _in_blocks(
    a: torch.Tensor, b: torch.Tensor, combine: Pointwise, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """All pairs of some rows of D at once; torch's own reductions yield the first index of several."""
    (batch, k, m), n = a.shape, b.shape[2]
    values = torch.empty((batch, m, n), dtype=a.dtype, device="cpu")
    places = torch.empty((batch, m, n), dtype=torch.int64, device="cpu")
    rows = max(1, BLOCK // (k * n))
    for which in range(batch):
        for start in range(0, m, rows):
            left, right = torch.broadcast_tensors(a[which, :, start : start + rows, None], b[which, :, None, :])
            pairs = combine(left, right)
            assert isinstance(pairs, torch.Tensor), "a combination is one value"
            pairs = pairs.to(a.dtype).expand(left.shape)
            found = pairs.max(0) if largest else pairs.min(0)
            values[which, start : start + rows], places[which, start : start + rows] = found
    return values, places
