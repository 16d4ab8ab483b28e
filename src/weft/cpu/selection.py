"""The pair that an algebra selects, on the CPU: the best combination along k, and its place.

Register blocks (`selection_kernel`) in torch's threads, where the combination is one of torch's own operations and no
pair is NaN; a loop over rows of D where one may be. Else, and where there is no numba, blocks of all pairs by torch's
operations.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import torch

from weft.cpu import jit
from weft.cpu.host import together
from weft.errors import WeftError
from weft.fn import Pointwise, trace
from weft.fn.algebra import TracedAlgebra
from weft.spec.dtypes import dtype_name

BLOCK = 1 << 20  # pairs at once by torch's operations
KINDS = (torch.float32, torch.float64, torch.int32, torch.int64)
_COMBINE = {  # in the order of `selection_kernel.COMBINES`
    torch.add: "{kind}(x + y)", torch.mul: "{kind}(x * y)", torch.maximum: "x if x != x or x > y else y",
    torch.minimum: "x if x != x or x < y else y",
}  # fmt: skip
ROWS = 192  # of D in one task
LEAST_COLUMNS = 8  # of D for which vectors are worth while
_Words = ctypes.c_int64 * 8

# Blocks of D: rows of a task are packed once, columns panel by panel; what panels have past the end is not stored.
_BLOCKS = """\
from numba import cfunc, float32, float64, int32, int64
from weft.cpu.gett.vector import allocate, copy_vector, fetch_add, lane_count, load_word, release
from weft.cpu.selection_kernel import rows_of_block, selected
from weft.fn.numba.values import LOADS, STORES

load, store = LOADS["{kind}"], STORES["{kind}"]
load_place, store_index = LOADS["int{bits}"], STORES["int64"]
HEIGHT, SIZE = rows_of_block(), {size}


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    batch, k, m, n = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24), load_word(frame + 32)
    pointers, width = load_word(frame + 40), 2 * lane_count({kind}(0))
    a, b = load_word(pointers), load_word(pointers + 8)
    values, indices = load_word(pointers + 16), load_word(pointers + 24)
    tiles = ({rows} + HEIGHT - 1) // HEIGHT
    workspace = allocate(SIZE * (tiles * HEIGHT * k + k * width + 2 * HEIGHT * width) + 64)
    rows = (workspace + 63) // 64 * 64
    columns = rows + SIZE * tiles * HEIGHT * k
    best = columns + SIZE * k * width
    places, across = best + SIZE * HEIGHT * width, (m + {rows} - 1) // {rows}
    while True:
        task = fetch_add(frame)
        if task >= batch * across:
            break
        which = task // across
        first = (task - which * across) * {rows}
        end = min(first + {rows}, m)
        for l in range(k):
            row = a + SIZE * ((which * k + l) * m)
            for i in range((end - first + HEIGHT - 1) // HEIGHT):
                for r in range(HEIGHT):
                    store(rows, (i * k + l) * HEIGHT + r, load(row, min(first + i * HEIGHT + r, end - 1)))
        for j in range(0, n, width):
            count = min(width, n - j)
            for l in range(k):
                row = b + SIZE * ((which * k + l) * n + j)
                if count == width:
                    copy_vector(columns + SIZE * l * width, row, {kind}(0))
                    copy_vector(columns + SIZE * l * width + SIZE * width // 2, row + SIZE * width // 2, {kind}(0))
                    continue
                for c in range(count):
                    store(columns, l * width + c, load(row, c))
                for c in range(count, width):
                    store(columns, l * width + c, {kind}(0))
            for i in range((end - first + HEIGHT - 1) // HEIGHT):
                selected(k, rows + SIZE * i * k * HEIGHT, columns, best, {number}, {opposite}, {kind}(0))
                for r in range(min(HEIGHT, end - first - i * HEIGHT)):
                    to = (which * m + first + i * HEIGHT + r) * n + j
                    for c in range(count):
                        store(values, to + c, load(best, r * width + c))
                        store_index(indices, to + c, int64(load_place(places, r * width + c)))
    release(workspace)
"""

# Rows of D in turn: for each index of k one row of B against one value of A. Places are of 32 bits within a row, so
# that both are vectors of one length; a row of NaN is recognised by a value that is not equal to itself.
_SOURCE = """\
from numba import cfunc, float32, float64, int32, int64
from weft.cpu.gett.vector import allocate, fetch_add, load_word, release
from weft.fn.numba.values import LOADS, STORES

load, store = LOADS["{kind}"], STORES["{kind}"]
load_place, store_place, store_index = LOADS["int32"], STORES["int32"], STORES["int64"]


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    batch, k, m, n = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24), load_word(frame + 32)
    pointers = load_word(frame + 40)
    a, b = load_word(pointers), load_word(pointers + 8)
    values, indices = load_word(pointers + 16), load_word(pointers + 24)
    best = allocate(({size} + 4) * n)
    place = best + {size} * n
    while True:
        task = fetch_add(frame)
        if task >= batch * m:
            break
        which = task // m
        items, row = a + {size} * (which * k * m + task - which * m), b + {size} * which * k * n
        x = load(items, 0)
        for j in range(n):
            y = load(row, j)
            store(best, j, {combine})
            store_place(place, j, int32(0))
        for l in range(1, k):
            items, row = items + {size} * m, row + {size} * n
            x = load(items, 0)
            for j in range(n):
                y, known = load(row, j), load(best, j)
                value = {combine}
                better = (value {better} known) | ((value != value) & (known == known))
                store(best, j, value if better else known)
                store_place(place, j, int32(l) if better else load_place(place, j))
        for j in range(n):
            store(values, task * n + j, load(best, j))
            store_index(indices, task * n + j, int64(load_place(place, j)))
    release(best)
"""


def select(
    a: torch.Tensor, b: torch.Tensor, algebra: TracedAlgebra, largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """Values and int64 indices (batch, m, n) of contiguous `a` (batch, k, m) and `b` (batch, k, n), none of them empty.

    The index is the smallest one with the best value; NaN is better than any number, as in torch.maximum.
    """
    combine: Any = next((one for one in _COMBINE if _identity(one, a.dtype) == algebra.combine.identity), None)
    if combine is not None and a.dtype in KINDS and jit.fault() is None and a.shape[1] < 2**31:
        return _compiled(a, b, combine, largest)
    return _in_blocks(a, b, algebra.combine, largest)


@lru_cache
def _identity(operation: Callable[..., Any], dtype: torch.dtype) -> str | None:
    """The identity by which one of torch's operations is recognised; None where it has none, or yields another type."""
    try:
        traced = trace(lambda p, q: operation(p, q), (dtype, dtype), names=("q",), hook="operation")
    except WeftError:
        return None
    return traced.identity if traced.result == dtype else None


def _compiled(
    a: torch.Tensor, b: torch.Tensor, combine: Callable[..., Any], largest: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    (batch, k, m), n = a.shape, b.shape[2]
    blocks = m > 1 and n >= LEAST_COLUMNS and not (_is_special(a, combine, largest) or _is_special(b, combine, largest))
    entry = kernel_of(_BLOCKS if blocks else _SOURCE, a.dtype, combine, largest)
    values = torch.empty((batch, m, n), dtype=a.dtype, device="cpu")
    places = torch.empty((batch, m, n), dtype=torch.int64, device="cpu")
    pointers = (ctypes.c_int64 * 4)(*(x.data_ptr() for x in (a, b, values, places)))
    frame = _Words(0, batch, k, m, n, ctypes.addressof(pointers))
    together(entry, frame, batch * (-(-m // ROWS) if blocks else m) if batch * m * n * k >= 1 << 16 else 1)
    return values, places


def _is_special(values: torch.Tensor, combine: Callable[..., Any], largest: bool) -> bool:
    """Whether values hold NaN, or an infinity that could make one."""
    if not values.dtype.is_floating_point:
        return False
    low, high = (float(each) for each in torch.aminmax(values))
    if math.isnan(low) or combine in (torch.maximum, torch.minimum):
        return math.isnan(low)
    if combine is torch.add:
        return high == math.inf if largest else low == -math.inf
    return math.isinf(low) or math.isinf(high)


@lru_cache
def kernel_of(source: str, dtype: torch.dtype, combine: Callable[..., Any], largest: bool) -> int:
    """The address of one of the two loops, for elements of that type."""
    kind, size = dtype_name(dtype), dtype.itemsize
    filled = source.format(
        kind=kind, size=size, bits=8 * size, rows=ROWS, number=list(_COMBINE).index(combine), opposite=int(not largest),
        combine=_COMBINE[combine].format(kind=kind), better=">" if largest else "<",
    )  # fmt: skip
    return jit.compiled(filled, kernel=True)


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
