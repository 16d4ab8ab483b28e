"""Running a sum of exponentials: both factors, their product, and D; then what the product does not tell, directly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu.exponentials.factors import SHIFT, FactorPass, in_order, step_of
from weft.cpu.exponentials.results import PlainResults, route_of, with_places
from weft.cpu.gett import family as gett
from weft.cpu.gett.launch import scalar_words
from weft.cpu.gett.model import best_schedule
from weft.cpu.host import HUGE, advise, reach
from weft.cpu.ttgt.passes import Pass
from weft.cpu.ttgt.steps import WorkspaceMatrix
from weft.cpu.ttgt.ways import A, B
from weft.planner.exponentials import RowMajor, exponent_of, least_sum, row_major, spread_kept
from weft.planner.planner import Choice
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides

LINE = 64  # bytes


class Place(NamedTuple):
    """A tensor of the workspace, by what it is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int

    def layout(self, dtype: torch.dtype) -> Layout:
        return Layout(self.shape, self.strides, dtype)


def result_of(contraction: Contraction) -> WorkspaceMatrix:
    """The matrix of sums, with D's innermost mode along its columns; batch modes are among its rows."""
    batch, m, n = (in_order(contraction, role) for role in (Role.BATCH, Role.M, Role.N))
    across = min(mode.strides.d for mode in m) < min(mode.strides.d for mode in n)
    return WorkspaceMatrix((*batch, *(n if across else m)), m if across else n)


def places_of(contraction: Contraction) -> tuple[Place, Place, Place]:
    """The factors as (batch, m, k) and (batch, k, n), and sums as (batch, m, n), each in the order it is stored in."""
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    inside = [step_of(contraction, operand).inside for operand in (A, B)]
    across = result_of(contraction).columns == in_order(contraction, Role.M)
    found = []
    for (rows, columns), by_rows in zip(((m, k), (k, n), (m, n)), (inside[A], not inside[B], not across), strict=True):
        steps = (columns, 1) if by_rows else (1, rows)
        found.append(Place((batch, rows, columns), (rows * columns, *steps), batch * rows * columns))
    a, b, d = found
    return (a, b, d) if batch > 1 else (_matrix(a), _matrix(b), _matrix(d))


def _matrix(place: Place) -> Place:
    return Place(place.shape[1:], place.strides[1:], place.size)


def product_of(contraction: Contraction) -> Contraction:
    """The product of the factors."""
    accumulate = contraction.arithmetic.accumulate
    a, b, d = places_of(contraction)
    batch = contraction.batch > 1
    modes = [Mode(("batch",), contraction.batch, Role.BATCH, Strides(a.strides[0], b.strides[0], 0, d.strides[0]))]
    modes = modes if batch else []
    modes += [
        Mode(("m",), contraction.m, Role.M, Strides(a.strides[-2], 0, 0, d.strides[-2])),
        Mode(("n",), contraction.n, Role.N, Strides(0, b.strides[-1], 0, d.strides[-1])),
        Mode(("k",), contraction.k, Role.K, Strides(a.strides[-1], b.strides[-2], 0, 0)),
    ]
    layouts = [place.layout(accumulate) for place in (a, b, d)]
    return Contraction(tuple(modes), layouts[A], layouts[B], None, layouts[-1], Arithmetic(accumulate, accumulate))


def tops_of(contraction: Contraction) -> tuple[RowMajor, RowMajor]:
    """Where the largest values of A and of B go."""
    batch = in_order(contraction, Role.BATCH)
    accumulate = contraction.arithmetic.accumulate
    p, q = (row_major((*batch, *in_order(contraction, role)), accumulate) for role in (Role.M, Role.N))
    return p, q


def workspace_bytes(contraction: Contraction) -> int:
    """Bytes that a call takes for factors, sums, tops and marks."""
    item, kept = contraction.arithmetic.accumulate.itemsize, contraction.batch * contraction.m * contraction.n
    sizes = [place.size * item for place in places_of(contraction)]
    sizes += [contraction.batch * extent * item for extent in (contraction.m, contraction.n)]
    return sum(map(_aligned, sizes)) + kept


class ExponentialsLaunch:
    """Runs on new pointers; keeps no state between calls."""

    def __init__(self, contraction: Contraction, product: Choice, threads: int, target: Target) -> None:
        accumulate = contraction.arithmetic.accumulate
        exponent = exponent_of(contraction.algebra, accumulate) if contraction.algebra is not None else None
        assert exponent is not None, "the contraction is supported"
        self._contraction, self._exponent, self._threads, self._target = contraction, exponent, threads, target
        self._dtype, self._size = accumulate, reach(contraction.d)
        self._factors = FactorPass(contraction, exponent, threads)
        self._multiply = product.built_as_a_step()[1]
        places = places_of(contraction)
        tops, scale = tops_of(contraction), 2.0 ** SHIFT[accumulate]
        self._marks = row_major(
            (*result_of(contraction).rows, *result_of(contraction).columns), torch.bool
        )
        self._described = with_places(contraction, (*tops, self._marks))
        sizes = [*(place.size for place in places), *(math.prod(each.layout.shape) for each in tops)]
        offsets, self._length = _side_by_side(sizes, accumulate.itemsize)
        self._bytes = [offset * accumulate.itemsize for offset in offsets]
        self._places = [(place.shape, place.strides, offset) for place, offset in zip(places, offsets, strict=False)]
        self._kept = spread_kept(accumulate, scale)
        self._least = scalar_words(least_sum(contraction.k, accumulate, scale), 0.0, accumulate)
        self._finish = self._pass(marks=False)
        self._marking: Pass | PlainResults | None = None
        self._direct: Launch | None = None

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        if self._size >= HUGE:
            advise(d, self._size)
        space = torch.empty(self._length, dtype=self._dtype, device="cpu")
        start, (x, y, total) = space.data_ptr(), self._places
        p, q, sums, first, second = [start + offset for offset in self._bytes]
        named = [0 if each is None else each.data_ptr() for each in aux]
        bases = a.data_ptr(), b.data_ptr(), d.data_ptr(), 0, *named
        spread = self._factors((p, q), (first, second), bases)
        self._multiply(space.as_strided(*x), space.as_strided(*y), None, space.as_strided(*total), 1.0, 0.0)
        if spread <= self._kept:  # nothing is lost
            self._finish(sums, (*bases, first, second, 0), self._least)
            return
        marks = torch.empty(self._marks.layout.shape, dtype=torch.bool, device="cpu")
        if self._marking is None:
            self._marking = self._pass(marks=True)
        self._marking(sums, (*bases, first, second, marks.data_ptr()), self._least)
        if marks.any():
            self._repair()(a, b, None, d, alpha, beta, aux)

    def _pass(self, *, marks: bool) -> Pass | PlainResults:
        matrix = result_of(self._described)
        if not marks and PlainResults.serves(self._described, matrix):
            return PlainResults(self._described, matrix, self._exponent, self._threads)
        route = route_of(self._described, self._exponent, marks=marks)
        return Pass(self._described, matrix, self._dtype.itemsize, route, self._threads)

    def _repair(self) -> Launch:
        if self._direct is None:
            schedule = best_schedule(self._contraction, self._threads)
            self._direct = gett.build(self._contraction, schedule, self._target)
        return self._direct


def _aligned(size: int) -> int:
    return -(-size // LINE) * LINE


def _side_by_side(sizes: Sequence[int], item: int) -> tuple[list[int], int]:
    """Where each of some tensors begins, in items, and how many they take."""
    offsets, end = [], 0
    for size in sizes:
        offsets.append(end)
        end += _aligned(size * item) // item
    return offsets, end
