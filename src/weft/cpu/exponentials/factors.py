"""Exponentials of A or of B under the largest value of each row, in one pass by a kernel of its own.

    top[row] = max over k of value                factor[row, k] = exp(rate * (value - top[row])) * 2^shift

An operand is a matrix of k and of the modes that the other lacks, with whichever lies innermost in memory along its
columns, and so is its factor. One that is a function, is converted, or has columns with gaps is packed first, by the
pass that `ttgt` packs operands by; then the factor takes its place.

What a value loses when the top is subtracted is put back as a factor: near the top of one operand and far from that of
the other an error of the difference would be one of the result (Knuth, The Art of Computer Programming 2, 4.2.2,
theorem B). Values of nothing become zeros. How far the others lie below the top is found on the way.
"""

from __future__ import annotations

import ctypes
import struct
from typing import NamedTuple

import numpy as np
import torch

from weft.cpu.gett.layout import offsets
from weft.cpu.host import callback, together
from weft.cpu.jit import compiled
from weft.cpu.ttgt.passes import Pass, axes_of, packing
from weft.cpu.ttgt.steps import WorkspaceMatrix
from weft.cpu.ttgt.ways import A, Modes, size, step_along
from weft.planner.exponentials import Exponent
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import dtype_name

SHIFT = {torch.float32: 53, torch.float64: 479}  # so that products of two factors have half of the exponents below them
STRIPE = 256  # columns of a task where rows are along k: their tops stay in the first cache
ROWS = 16  # of a task else
LANES = 64  # largest values of a row that are found side by side
UNSCALED = (0, 0, 0, 0)

_Words = ctypes.c_int64 * 13
SOURCE = """\
import numpy as np
from numba import cfunc, float32, float64, int32, int64
from weft.cpu.gett.vector import fetch_add, load_word, raise_to, stack
from weft.fn.numba import math as vector
from weft.fn.numba.math import factor_{bits}, further, past
from weft.fn.numba.values import LOADS, STORES, bits_of

load, store, load_rate = LOADS["{kind}"], STORES["{kind}"], LOADS["float64"]


@cfunc("void(int64)", error_model="numpy", fastmath={{"contract"}})
def entry(frame):
    source, table, target = load_word(frame + 8), load_word(frame + 16), load_word(frame + 24)
    tops, reached = load_word(frame + 32), load_word(frame + 40)
    batch, rows, columns = load_word(frame + 48), load_word(frame + 56), load_word(frame + 64)
    inside, block, tasks = load_word(frame + 72), load_word(frame + 80), load_word(frame + 88)
    rate = {kind}(load_rate(frame, 12))
    sign, rate = {kind}(1.0) if rate > 0 else {kind}(-1.0), abs(rate)
    high = stack({stripe_bytes})
    low, reach = high + {stripe} * {size}, {kind}(0.0)
    while True:
        task = fetch_add(frame)
        if task >= tasks:
            break
        if inside:
            for row in range(task * block, min((task + 1) * block, batch * rows)):
                x, to = source + load_word(table + 8 * row), target + row * columns * {size}
                for j in range({lanes}):
                    store(high, j, {kind}(-np.inf))
                    store(low, j, {kind}(np.inf))
                whole = columns // {lanes} * {lanes}
                for p in range(0, whole, {lanes}):
                    for j in range({lanes}):
                        value = sign * load(x, p + j)
                        store(high, j, past(value, load(high, j)))
                        store(low, j, further(value, load(low, j)))
                for j in range(columns - whole):
                    value = sign * load(x, whole + j)
                    store(high, j, past(value, load(high, j)))
                    store(low, j, further(value, load(low, j)))
                half = {lanes} // 2
                while half > 0:
                    for j in range(half):
                        store(high, j, past(load(high, half + j), load(high, j)))
                        store(low, j, further(load(low, half + j), load(low, j)))
                    half //= 2
                top, least = load(high, 0), load(low, 0)
                store(tops, row, sign * top)
                off = top - least if top - least < {kind}(np.inf) else {kind}(np.inf)
                reach = off if off > reach else reach
                top = {kind}(0.0) if top == {kind}(-np.inf) else top
                if x == to:  # through one pointer: with two LLVM would have to assume that stores change later loads
                    for j in range(columns):
                        store(x, j, factor_{bits}(sign * load(x, j), top, rate, {shift}))
                else:
                    for j in range(columns):
                        store(to, j, factor_{bits}(sign * load(x, j), top, rate, {shift}))
            continue
        across = (columns + block - 1) // block
        which = task // across
        first = (task - which * across) * block
        count = min(block, columns - first)
        for j in range(count):
            store(high, j, {kind}(-np.inf))
            store(low, j, {kind}(np.inf))
        for row in range(which * rows, (which + 1) * rows):
            x = source + load_word(table + 8 * row) + first * {size}
            for j in range(count):
                value = sign * load(x, j)
                store(high, j, past(value, load(high, j)))
                store(low, j, further(value, load(low, j)))
        for j in range(count):
            top = load(high, j)
            store(tops, which * columns + first + j, sign * top)
            off = top - load(low, j) if top - load(low, j) < {kind}(np.inf) else {kind}(np.inf)
            reach = off if off > reach else reach
            store(high, j, {kind}(0.0) if top == {kind}(-np.inf) else top)
        for row in range(which * rows, (which + 1) * rows):
            x, to = source + load_word(table + 8 * row) + first * {size}, target + (row * columns + first) * {size}
            if x == to:
                for j in range(count):
                    store(x, j, factor_{bits}(sign * load(x, j), load(high, j), rate, {shift}))
            else:
                for j in range(count):
                    store(to, j, factor_{bits}(sign * load(x, j), load(high, j), rate, {shift}))
    raise_to(reached, bits_of(float64(reach * rate)))
"""


class FactorStep(NamedTuple):
    """How an operand becomes its factor."""

    matrix: WorkspaceMatrix  # batch modes are among its rows
    batch: int
    inside: bool  # whether k lies along columns


def step_of(contraction: Contraction, operand: int) -> FactorStep:
    """The modes of an operand in the order of its factor: batch and free ones as D has them, k as A has it."""
    batch = in_order(contraction, Role.BATCH)
    own, k = in_order(contraction, Role.M if operand == A else Role.N), in_order(contraction, Role.K)
    innermost = min((*own, *k), key=lambda mode: mode.strides[operand] or 1 << 62)
    inside = innermost in k
    rows, columns = (own, k) if inside else (k, own)
    return FactorStep(WorkspaceMatrix((*batch, *rows), columns), size(batch), inside)


def in_order(contraction: Contraction, role: Role) -> Modes:
    """The modes of a role, outermost first."""
    tensor = A if role is Role.K else 3

    def stride(mode: Mode) -> int:
        return -mode.strides[tensor]

    return tuple(sorted(contraction.of_role(role), key=stride))


class FactorPass:
    """Runs on new pointers."""

    def __init__(self, contraction: Contraction, operand: int, exponent: Exponent, threads: int) -> None:
        accumulate = contraction.arithmetic.accumulate
        self._address = factor_kernel(accumulate)
        step, item = step_of(contraction, operand), accumulate.itemsize
        matrix = step.matrix
        rows, columns = matrix.shape
        route = packing(contraction, operand)
        self._operand = operand
        self._pack: Pass | None = None
        if route.stage == 0 and step_along(matrix.columns, operand) == 1:
            table = offsets(axes_of(contraction, matrix.rows, columns * item), operand)
        else:
            self._pack = Pass(contraction, matrix, item, route, threads)
            table = np.arange(rows, dtype=np.int64) * (columns * item)
        self._table = np.ascontiguousarray(table, np.int64)
        block = ROWS if step.inside else STRIPE
        tasks = -(-rows // block) if step.inside else step.batch * -(-columns // block)
        (rate,) = struct.unpack("q", struct.pack("d", exponent.rate))
        self._words = (step.batch, rows // step.batch, columns, step.inside, block, tasks, rate)
        self._threads = threads

    def __call__(self, to: int, tops: int, reached: int, bases: tuple[int, ...]) -> None:
        """`to`, `tops`: addresses of the factor and of the largest values; `reached`: of how far values lie below."""
        source = bases[self._operand]
        if self._pack is not None:
            self._pack(to, bases, UNSCALED)
            source = to
        *counts, rate = self._words
        frame = _Words(0, source, self._table.ctypes.data, to, tops, reached, *counts, rate)
        if self._threads == 1:
            callback(self._address)(frame)
        else:
            together(self._address, frame, min(self._threads, torch.get_num_threads()))


def factor_kernel(accumulate: torch.dtype) -> int:
    """The address of the kernel for sums in a type."""
    size = accumulate.itemsize
    return compiled(
        SOURCE.format(
            kind=dtype_name(accumulate), bits=8 * size, size=size, shift=SHIFT[accumulate], stripe=STRIPE,
            stripe_bytes=2 * STRIPE * size, lanes=LANES,
        ),
        kernel=True,
    )  # fmt: skip
