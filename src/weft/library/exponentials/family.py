"""Sums of exponentials by products of matrices, on the CPU: a family with the four doors of `weft.planner.schedule`.

`log` and its kin take one exponential for each element of A and B here, not for each pair. The identity, and what it
loses: `weft.planner.exponentials`. Results that the product does not tell are computed by the direct form of `gett`.
"""

from __future__ import annotations

import ctypes
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from weft.cpu import jit
from weft.cpu.gett import family as gett
from weft.cpu.gett.family import best_schedule
from weft.cpu.host import HUGE, advise, costs, reach, together
from weft.cpu.jit import compiled
from weft.cpu.level import multiplies_by_mkl
from weft.library.exponentials.factors import SHIFT, FactorPass, matrix_of, packing_of
from weft.library.part import PartFinish
from weft.library.scheme import scheme_of
from weft.library.views import A, B, D
from weft.planner.exponentials import Exponent, exponent_of, least_sum, spread_kept
from weft.planner.planner import Choice, choose
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Mode, Role, Strides
from weft.spec.dtypes import dtype_name

NAME = "exponentials"

LEAST_EXTENT = 2  # of matrices with so many rows, columns and sums
LONGEST = 1 << 18  # sums of scaled factors that cannot overflow
LINE = 64  # bytes
MASKS = 3  # of one byte for each sum, while sums are looked through


@dataclass(frozen=True, slots=True)
class ExponentialsSchedule:
    product: Choice
    threads: int
    workspace_bytes: int
    family: str = NAME

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.product,)

    def __str__(self) -> str:
        return f"exponentials of A and B, {self.product.best.schedule}; logarithms; sums out of range by gett"


def supports(contraction: Contraction, target: Target) -> str | None:
    """None, or one sentence that says why not."""
    if (fault := jit.fault_on(target)) is not None:
        return fault
    algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
    if algebra is None or exponent_of(algebra, accumulate) is None:
        return "only log and its kin are products of exponentials"
    if contraction.c is not None:
        return "C is added by the direct form only"
    if min(contraction.m, contraction.n, contraction.k) < LEAST_EXTENT:
        return "it is no product of matrices"
    if contraction.k > LONGEST:
        return f"sums of {contraction.k} scaled products could overflow"
    return gett.supports(contraction, target)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    threads = max(target.processors, 1)
    product = choose(product_of(contraction), "cpu", target, without=("gett",) if multiplies_by_mkl() else ())
    size = workspace_bytes(contraction) + product.best.schedule.workspace_bytes
    return Candidates((ExponentialsSchedule(product, threads, size),))


def predict(contraction: Contraction, schedule: ExponentialsSchedule, target: Target) -> float:
    cost, item = costs(NAME), contraction.arithmetic.accumulate.itemsize / 4
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    passes = batch * item * (cost("factor") * (m + n) * k + cost("result") * m * n)  # for four bytes of a value
    return cost("call") + passes / schedule.threads + schedule.product.best.seconds


def build(contraction: Contraction, schedule: ExponentialsSchedule, target: Target) -> Launch:
    return ExponentialsLaunch(contraction, schedule.product, schedule.threads, target)


def product_of(contraction: Contraction) -> Contraction:
    """The product of the factors."""
    accumulate = contraction.arithmetic.accumulate
    a, b, d = [matrix_of(contraction, tensor).layout(accumulate) for tensor in (A, B, D)]
    modes = (
        Mode(("batch",), contraction.batch, Role.BATCH, Strides(a.strides[0], b.strides[0], 0, d.strides[0])),
        Mode(("m",), contraction.m, Role.M, Strides(a.strides[-2], 0, 0, d.strides[-2])),
        Mode(("n",), contraction.n, Role.N, Strides(0, b.strides[-1], 0, d.strides[-1])),
        Mode(("k",), contraction.k, Role.K, Strides(a.strides[-1], b.strides[-2], 0, 0)),
    )
    return Contraction(modes[contraction.batch <= 1 :], a, b, None, d, Arithmetic(accumulate, accumulate))


def workspace_bytes(contraction: Contraction) -> int:
    """Bytes that a call takes for factors, sums, tops, masks of sums, and functions of torch's operations."""
    item, kept = contraction.arithmetic.accumulate.itemsize, contraction.batch * contraction.m * contraction.n
    packings, follow = [packing_of(contraction, operand) for operand in (A, B)], following_of(contraction)
    beside = [0 if each is None else each.converted_bytes for each in packings]
    beside.append(max(MASKS * kept, 0 if follow is None else follow.bytes))
    return sum(_sizes(contraction)) * item + max(beside)


def _sizes(contraction: Contraction) -> list[int]:
    """Items of the factors, of sums, and of the largest values of A and of B, in whole lines."""
    batch, line = contraction.batch, LINE // contraction.arithmetic.accumulate.itemsize
    sizes = [math.prod(matrix_of(contraction, tensor).shape) for tensor in (A, B, D)]
    sizes += [batch * contraction.m, batch * contraction.n]
    return [-(-size // line) * line for size in sizes]


class ExponentialsLaunch:
    """Runs on new pointers; keeps no state between calls."""

    def __init__(self, contraction: Contraction, product: Choice, threads: int, target: Target) -> None:
        accumulate = contraction.arithmetic.accumulate
        exponent = exponent_of(contraction.algebra, accumulate) if contraction.algebra is not None else None
        assert exponent is not None, "the contraction is supported"
        self._contraction, self._nothing, self._threads, self._target = contraction, exponent.nothing, threads, target
        self._dtype, self._size = accumulate, reach(contraction.d)
        self._factors = FactorPass(contraction, exponent, threads)
        self._multiply = product.built_as_a_step()[1]
        self._results = LogarithmResults(contraction, exponent, threads)
        self._places = [matrix_of(contraction, tensor).layout(accumulate)[:2] for tensor in (A, B, D)]
        self._sizes, scale = _sizes(contraction), 2.0 ** SHIFT[accumulate]
        self._kept, self._least = spread_kept(accumulate, scale), least_sum(contraction.k, accumulate, scale)
        self._direct: Launch | None = None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        if self._size >= HUGE:
            advise(d, self._size)
        space = torch.empty(sum(self._sizes), dtype=self._dtype, device="cpu")
        p, q, sums, *tops = space.split_with_sizes(self._sizes)
        spread = self._factors((a, b), (p, q), tops, aux)
        x, y, total = [each.as_strided(*place) for each, place in zip((p, q, sums), self._places, strict=True)]
        self._multiply(x, y, None, total, 1.0, 0.0)
        if spread <= self._kept or self._tells(total, tops):  # nothing is lost
            self._results(sums, tops, d, aux)
        else:
            self._repair()(a, b, None, d, alpha, beta, aux)

    def _tells(self, sums: Tensor, tops: Sequence[Tensor]) -> bool:
        """Whether every sum is in range, or one of nothing."""
        low, high = torch.aminmax(sums)
        if low >= self._least and high < math.inf:  # neither is NaN
            return True
        *batch, m, n = sums.shape
        shapes = (*batch, m, 1), (*batch, 1, n)
        first, second = (top[: math.prod(shape)].view(shape) for top, shape in zip(tops, shapes, strict=True))
        told, empty = sums >= self._least, sums == 0
        told &= sums < math.inf
        told |= empty & (first == self._nothing)
        told |= empty & (second == self._nothing)
        return bool(told.all())

    def _repair(self) -> Launch:
        if self._direct is None:
            schedule = best_schedule(self._contraction, self._threads)
            self._direct = gett.build(self._contraction, schedule, self._target)
        return self._direct


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


def following_of(contraction: Contraction) -> PartFinish | None:
    """Epilogue and moves behind the logarithms; None where these are D, whose rows are contiguous."""
    matrix, plain = matrix_of(contraction, D), contraction.epilogue is None
    if plain and contraction.d.dtype is contraction.arithmetic.accumulate and matrix.is_contiguous:
        return None
    return PartFinish(scheme_of(contraction, "cpu"), matrix.frame, matrix.modes)


class LogarithmResults:
    """Runs on new pointers."""

    def __init__(self, contraction: Contraction, exponent: Exponent, threads: int) -> None:
        accumulate, matrix = contraction.arithmetic.accumulate, matrix_of(contraction, D)
        item, (rows, columns), batch = accumulate.itemsize, matrix.shape, contraction.batch
        self._follow, self._shape = following_of(contraction), matrix.frame.shape(matrix.modes)
        self._table = matrix.starts(item, packed=self._follow is not None)
        (over,) = struct.unpack("q", struct.pack("d", 1 / exponent.rate))
        self._counts = (batch, rows // batch, columns, over)
        self._swapped, self._threads = matrix.turned, threads
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
        together(self._address, frame, self._threads)
        if self._follow is not None:
            total = sums[: math.prod(self._shape)].view(self._shape)
            self._follow(total, None, self._follow.place(d), 0, aux)
