"""Exponentials of A or of B under the largest value of each row, in one pass by a kernel of its own.

    top[row] = max over k of value, or 0           factor[row, k] = exp(rate * (value - top[row])) * 2^shift

An operand is a matrix of k and of the modes that the other lacks, with whichever lies innermost in memory along its
columns, and so is its factor. One that is a function, is converted, or has columns with gaps is packed first, by
torch's operations; then the factor takes its place.

Where the largest values are near 0, as those of logarithms of probabilities are, 0 serves as well. One pass is enough
then: it takes exponentials of values as they are and looks for the largest on the way.

What a value loses when the top is subtracted is put back as a factor: near the top of one operand and far from that of
the other an error of the difference would be one of the result (Knuth, The Art of Computer Programming 2, 4.2.2,
theorem B). Values of nothing become zeros. How far the others lie below the top is found on the way.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from weft.cpu.host import together
from weft.cpu.jit import compiled
from weft.library.factors import OperandFactor
from weft.library.scheme import scheme_of
from weft.library.views import A, B, D, Frame, Group
from weft.planner.exponentials import Exponent
from weft.planner.schedule import AuxTensors
from weft.spec import Contraction, Layout, Role
from weft.spec.dtypes import dtype_name

SHIFT = {torch.float32: 42, torch.float64: 479}  # powers of two: `LONGEST` products of the largest factors are in range
NEAR = 8  # what the largest value of a row may be where 0 serves
STRIPE = 1024  # columns whose tops are found side by side where rows are along k: they stay in the first cache
LANES = 128  # largest values of one row that are found side by side
ROWS = 16  # of a task where k is along columns

_Frame = ctypes.c_int64 * 12
SOURCE = """\
import numpy as np
from numba import cfunc, float32, float64, int32, int64
from weft.cpu.gett.vector import fetch_add, largest, load_word, raise_to, smallest, stack, whole_vectors
from weft.fn.numba.values import inner, inner_with
from weft.fn.numba.math import factor_{bits}, scaled_exp{bits}
from weft.fn.numba.values import LOADS, STORES, bits_of

load, store, load_rate = LOADS["{kind}"], STORES["{kind}"], LOADS["float64"]
NEAR, NOTHING, LEAST = {kind}({near}), {kind}(-np.inf), {kind}({least})
inlined = inner_with(inline="always", fastmath={{"contract"}})


@inlined
def begin(high, low, count):
    for j in range(count):
        store(high, j, NOTHING)
        store(low, j, -NOTHING)


@inlined
def look(x, high, low, rate, count):
    for j in range(count):
        value, top, least = rate * load(x, j), load(high, j), load(low, j)
        store(high, j, value if value > top else top)
        store(low, j, value if (value < least) & (value > NOTHING) else least)


@inlined
def guess(x, to, high, low, rate, count):
    for j in range(count):
        value, top, least = rate * load(x, j), load(high, j), load(low, j)
        store(high, j, value if value > top else top)
        value = LEAST if value < LEAST else value
        store(low, j, value if value < least else least)
        store(to, j, scaled_exp{bits}(value, {shift}))


@inlined
def finish(x, to, top, rate, count):
    if x == to:  # through one pointer: with two LLVM would have to assume that stores change later loads
        for j in range(count):
            store(x, j, factor_{bits}(rate * load(x, j), top, {shift}))
    else:
        for j in range(count):
            store(to, j, factor_{bits}(rate * load(x, j), top, {shift}))


@inlined
def finish_each(x, to, tops, rate, count):
    if x == to:
        for j in range(count):
            store(x, j, factor_{bits}(rate * load(x, j), load(tops, j), {shift}))
    else:
        for j in range(count):
            store(to, j, factor_{bits}(rate * load(x, j), load(tops, j), {shift}))


@inlined
def is_near(top, least):
    return (top <= NEAR) & ((top >= -NEAR) | (top == NOTHING)) & (least > LEAST)


@inlined
def span(top, least):
    return top - least if top - least < -NOTHING else -NOTHING


@inner_with(fastmath={{"contract"}})
def one_row(x, to, columns, high, low, rate, kind):
    # the largest value of a row along k, and how far the others reach below it
    whole_vectors()
    lanes = min({lanes}, columns)
    if x != to and abs(rate * load(x, 0)) <= NEAR:
        begin(high, low, {lanes})
        for p in range(0, columns, lanes):
            guess(x + p * {size}, to + p * {size}, high, low, rate, min(lanes, columns - p))
        top, least = largest(high, {lanes}, kind), smallest(low, {lanes}, kind)
        if is_near(top, least):
            return {kind}(0.0), -least
    begin(high, low, {lanes})
    for p in range(0, columns, lanes):
        look(x + p * {size}, high, low, rate, min(lanes, columns - p))
    top, least = largest(high, {lanes}, kind), smallest(low, {lanes}, kind)
    finish(x, to, {kind}(0.0) if top == NOTHING else top, rate, columns)
    return top, span(top, least)


@inner_with(fastmath={{"contract"}})
def one_stripe(source, table, first, rows, x_step, target, to_step, tops, count, high, low, rate):
    # the same of columns side by side, whose rows are along k
    whole_vectors()
    start = source + load_word(table + 8 * first) + x_step
    near, reach = True, {kind}(0.0)
    if source != target and abs(rate * load(start, 0)) <= NEAR:
        begin(high, low, count)
        for row in range(first, first + rows):
            x, to = source + load_word(table + 8 * row) + x_step, target + row * to_step + x_step
            guess(x, to, high, low, rate, count)
        for j in range(count):
            near = near and is_near(load(high, j), load(low, j))
        if near:
            for j in range(count):
                store(tops, j, {kind}(0.0))
                reach = max(reach, -load(low, j))
            return reach
    begin(high, low, count)
    for row in range(first, first + rows):
        look(source + load_word(table + 8 * row) + x_step, high, low, rate, count)
    for j in range(count):
        top = load(high, j)
        store(tops, j, top / rate)
        reach = max(reach, span(top, load(low, j)))
        store(high, j, {kind}(0.0) if top == NOTHING else top)
    for row in range(first, first + rows):
        x, to = source + load_word(table + 8 * row) + x_step, target + row * to_step + x_step
        finish_each(x, to, high, rate, count)
    return reach


@inner
def factor(words, counter, source, target, tops, high, low, kind):
    # tasks of one operand until none is left; how far values reach below the largest
    table, batch, rows = load_word(words), load_word(words + 8), load_word(words + 16)
    columns, inside, tasks = load_word(words + 24), load_word(words + 32), load_word(words + 40)
    block, rate = load_word(words + 48), {kind}(load_rate(words, 7))
    reach, across = {kind}(0.0), (columns + block - 1) // block
    while True:
        task = fetch_add(counter)
        if task >= tasks:
            return reach
        if inside:
            for row in range(task * block, min((task + 1) * block, batch * rows)):
                x, to = source + load_word(table + 8 * row), target + row * columns * {size}
                top, depth = one_row(x, to, columns, high, low, rate, kind)
                store(tops, row, top / rate)
                reach = max(reach, depth)
        else:
            which = task // across
            j = (task - which * across) * block
            found = one_stripe(
                source, table, which * rows, rows, j * {size}, target, columns * {size},
                tops + (which * columns + j) * {size}, min(block, columns - j), high, low, rate,
            )
            reach = max(reach, found)


@cfunc("void(int64)", error_model="numpy")
def entry(frame):
    whole_vectors()
    high = stack({stripe_bytes})
    low = high + {stripe} * {size}
    for operand in range(2):
        words = frame + 48 * operand
        source, target, tops = load_word(words + 16), load_word(words + 24), load_word(words + 32)
        reach = factor(load_word(words), words + 8, source, target, tops, high, low, {kind}(0))
        raise_to(words + 40, bits_of(float64(reach)))
"""


class WorkspaceMatrix(NamedTuple):
    """A, B or D as a matrix, and what lies in the workspace for it: batch modes, then those along rows and columns,
    outermost first."""

    frame: Frame
    tensor: int
    batch: Group
    rows: Group
    columns: Group
    turned: bool  # rows are the second of (m, k), (k, n), (m, n), and not the first

    @property
    def modes(self) -> Group:
        return (*self.batch, *self.rows, *self.columns)

    @property
    def shape(self) -> tuple[int, int]:
        return self.frame.size((*self.batch, *self.rows)), self.frame.size(self.columns)

    @property
    def is_contiguous(self) -> bool:
        """Whether the tensor's elements along columns lie one behind the other."""
        run = self.frame.run(self.columns, self.tensor)
        return run is not None and run.stride == 1

    def starts(self, item: int, *, packed: bool) -> np.ndarray:
        """Bytes from the first element of the tensor, or of what is packed of it, to where each row begins."""
        rows, columns = self.shape
        if packed:
            return np.arange(rows, dtype=np.int64) * (columns * item)
        found = np.zeros(1, np.int64)
        for mode in [self.frame.modes[at] for at in (*self.batch, *self.rows)]:
            found = np.add.outer(found, np.arange(mode.extent) * (mode.strides[self.tensor] * item)).ravel()
        return found

    def layout(self, dtype: torch.dtype) -> Layout:
        """The matrix in the workspace, as (batch, m, k), (batch, k, n) or (batch, m, n); without a batch of one."""
        batch, rows, columns = (self.frame.size(each) for each in (self.batch, self.rows, self.columns))
        shape, strides = (rows, columns), (columns, 1)
        if self.turned:
            shape, strides = shape[::-1], strides[::-1]
        if batch <= 1:
            return Layout(shape, strides, dtype)
        return Layout((batch, *shape), (rows * columns, *strides), dtype)


def matrix_of(contraction: Contraction, tensor: int) -> WorkspaceMatrix:
    """A, B or D with its innermost mode along columns; batch and free modes in the order of D, k in that of A."""
    frame = Frame.whole(contraction)
    batch, m, n, k = (_in_order(frame, role) for role in (Role.BATCH, Role.M, Role.N, Role.K))
    first, second = {A: (m, k), B: (k, n), D: (m, n)}[tensor]
    free_first = (second, first) if tensor == B else (first, second)  # of equal strides those of a free mode count
    nearest = min(chain(*free_first), key=lambda at: frame.modes[at].strides[tensor] or 1 << 62)
    turned = nearest in first
    return WorkspaceMatrix(frame, tensor, batch, *((second, first) if turned else (first, second)), turned)


def _in_order(frame: Frame, role: Role) -> Group:
    """The modes of a role, outermost first."""
    tensor = A if role is Role.K else D
    own = [at for at, mode in enumerate(frame.modes) if mode.role is role]
    return tuple(sorted(own, key=lambda at: -frame.modes[at].strides[tensor]))


def packing_of(contraction: Contraction, operand: int) -> OperandFactor | None:
    """How an operand is packed to where its factor goes; None for one that is read where it lies."""
    scheme, matrix = scheme_of(contraction, "cpu"), matrix_of(contraction, operand)
    if scheme.plain[operand] and matrix.is_contiguous:
        return None
    return OperandFactor(scheme, operand, matrix.frame, matrix.modes, False)


class FactorOperand:
    """One operand: how it is packed where it has to be, and the words of its kernel."""

    def __init__(self, contraction: Contraction, operand: int, exponent: Exponent, threads: int) -> None:
        matrix, item = matrix_of(contraction, operand), contraction.arithmetic.accumulate.itemsize
        (rows, columns), batch = matrix.shape, contraction.batch
        inside = matrix.turned == (operand == B)  # k lies along columns
        self._packing = packing_of(contraction, operand)
        self._table = matrix.starts(item, packed=self._packing is not None)
        block = ROWS if inside else min(STRIPE, -(-columns // (64 * threads)) * 64)
        tasks = -(-rows // block) if inside else batch * -(-columns // block)
        (rate,) = struct.unpack("q", struct.pack("d", exponent.rate))
        counts = (batch, rows // batch, columns, inside, tasks, block)
        self._words = np.array((self._table.ctypes.data, *counts, rate), np.int64)
        self.address = self._words.ctypes.data

    def source(self, to: Tensor, tensor: Tensor, aux: AuxTensors) -> int:
        """The address of the values, which are packed to where the factor goes if they have to be."""
        if self._packing is None:
            return tensor.data_ptr()
        self._packing.into(to[: math.prod(self._packing.shape)].view(self._packing.shape), tensor, aux)
        return to.data_ptr()


class FactorPass:
    """Both factors; runs on new pointers."""

    def __init__(self, contraction: Contraction, exponent: Exponent, threads: int) -> None:
        self._a, self._b = (FactorOperand(contraction, operand, exponent, threads) for operand in (A, B))
        self._kernel, self._threads = factor_kernel(contraction.arithmetic.accumulate), threads

    def __call__(
        self, given: tuple[Tensor, Tensor], to: Sequence[Tensor], tops: Sequence[Tensor], aux: AuxTensors
    ) -> float:
        """Write factors and largest values to these tensors; how far the rest of both lies below, added up."""
        (a, b), (p, q) = given, to
        frame = _Frame(
            self._a.address, 0, self._a.source(p, a, aux), p.data_ptr(), tops[A].data_ptr(), 0,
            self._b.address, 0, self._b.source(q, b, aux), q.data_ptr(), tops[B].data_ptr(), 0,
        )  # fmt: skip
        together(self._kernel, frame, self._threads)
        first, second = _REACHED.unpack(_WORDS.pack(frame[5], frame[11]))
        return float(first + second)


_WORDS, _REACHED = struct.Struct("2q"), struct.Struct("2d")


def factor_kernel(accumulate: torch.dtype) -> int:
    """The address of the kernel for sums in a type."""
    size, shift = accumulate.itemsize, SHIFT[accumulate]
    least = math.log(torch.finfo(accumulate).tiny / 2) - shift * math.log(2)
    return compiled(
        SOURCE.format(
            kind=dtype_name(accumulate), bits=8 * size, size=size, shift=shift, stripe=STRIPE, lanes=LANES,
            near=NEAR, least=least, stripe_bytes=2 * STRIPE * size,
        ),
        kernel=True,
    )  # fmt: skip

