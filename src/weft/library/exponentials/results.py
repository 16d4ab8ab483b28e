"""From sums of products of factors to D: logarithms, and the tops added, by a kernel; what follows by torch.

    D[m, n] = epilogue(p[m] + q[n] + log(sum[m, n]) / rate)
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from weft.cpu.host import callback, together
from weft.cpu.jit import compiled
from weft.library.exponentials.factors import SHIFT
from weft.library.exponentials.matrices import WorkspaceMatrix, in_order, is_contiguous, offsets
from weft.library.part import PartFinish
from weft.library.scheme import scheme_of
from weft.library.views import D, Frame
from weft.planner.exponentials import Exponent
from weft.planner.schedule import AuxTensors
from weft.spec import Contraction, Role
from weft.spec.dtypes import dtype_name

_Frame = ctypes.c_int64 * 10
ROWS = 32  # of a task
SOURCE = """\
import numpy as np
from numba import cfunc, float32, float64, int32, int64
from weft.cpu.gett.vector import fetch_add, load_word, whole_vectors
from weft.fn.numba.math import scaled_log{bits}
from weft.fn.numba.values import LOADS, STORES

load, store, load_rate = LOADS["{kind}"], STORES["{kind}"], LOADS["float64"]


@cfunc("void(int64)", error_model="numpy", fastmath={{"contract"}})
def entry(frame):
    whole_vectors()
    table, sums, d = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24)
    first, second = load_word(frame + 32), load_word(frame + 40)
    batch, rows, columns = load_word(frame + 48), load_word(frame + 56), load_word(frame + 64)
    over = {kind}(load_rate(frame, 9))
    while True:
        start = fetch_add(frame) * {rows}
        if start >= batch * rows:
            break
        for row in range(start, min(start + {rows}, batch * rows)):
            total, to, top = sums + row * columns * {size}, d + load_word(table + 8 * row), load(first, row)
            tops = second + (row // rows) * columns * {size}
            if to == total:  # through one pointer: with two LLVM would have to assume that stores change later loads
                for j in range(columns):
                    store(to, j, (top + load(tops, j)) + over * scaled_log{bits}(load(to, j), {shift}))
            else:
                for j in range(columns):
                    store(to, j, (top + load(tops, j)) + over * scaled_log{bits}(load(total, j), {shift}))
"""


def matrix_of(contraction: Contraction) -> WorkspaceMatrix:
    """The matrix of sums, with D's innermost mode along its columns; batch modes are among its rows."""
    batch, m, n = (in_order(contraction, role) for role in (Role.BATCH, Role.M, Role.N))
    across = min(mode.strides.d for mode in m) < min(mode.strides.d for mode in n)
    return WorkspaceMatrix((*batch, *(n if across else m)), m if across else n)


def following_of(contraction: Contraction) -> PartFinish | None:
    """Epilogue and moves behind the logarithms; None where these are D, whose rows are contiguous."""
    matrix, plain = matrix_of(contraction), contraction.epilogue is None
    if plain and contraction.d.dtype is contraction.arithmetic.accumulate and is_contiguous(matrix.columns, D):
        return None
    return PartFinish(scheme_of(contraction, "cpu"), Frame.whole(contraction), matrix.places(contraction))


class LogarithmResults:
    """Runs on new pointers."""

    def __init__(self, contraction: Contraction, exponent: Exponent, threads: int) -> None:
        accumulate, matrix = contraction.arithmetic.accumulate, matrix_of(contraction)
        item, (rows, columns), batch = accumulate.itemsize, matrix.shape, contraction.batch
        self._follow, self._shape = following_of(contraction), [mode.extent for mode in (*matrix.rows, *matrix.columns)]
        in_place = np.arange(rows, dtype=np.int64) * (columns * item)
        self._table = in_place if self._follow is not None else offsets(matrix.rows, D, item)
        (over,) = struct.unpack("q", struct.pack("d", 1 / exponent.rate))
        self._counts = (batch, rows // batch, columns, over)
        self._swapped, self._threads = matrix.columns[0].role is Role.M, threads
        self._address = compiled(
            SOURCE.format(
                kind=dtype_name(accumulate), bits=8 * item, size=item, shift=2 * SHIFT[accumulate], rows=ROWS
            ),
            kernel=True,
        )

    def __call__(self, sums: Tensor, tops: Sequence[Tensor], d: Tensor, aux: AuxTensors) -> None:
        """`sums` may be written."""
        first, second = tops[::-1] if self._swapped else tops
        to = d if self._follow is None else sums
        addresses = [each.data_ptr() for each in (sums, to, first, second)]
        frame = _Frame(0, self._table.ctypes.data, *addresses, *self._counts)
        if self._threads == 1:
            callback(self._address)(frame)
        else:
            together(self._address, frame, min(self._threads, torch.get_num_threads()))
        if self._follow is not None:
            total = sums[: math.prod(self._shape)].view(self._shape)
            self._follow(total, None, self._follow.place(d), 0, aux)
