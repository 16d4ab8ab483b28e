"""Running a sum of exponentials: both factors, their product, and D; then what the product does not tell, directly."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from weft.cpu.gett import family as gett
from weft.cpu.gett.family import best_schedule
from weft.cpu.host import HUGE, advise, reach
from weft.library.exponentials.factors import SHIFT, FactorPass, packing_of, step_of
from weft.library.exponentials.matrices import in_order
from weft.library.exponentials.results import LogarithmResults, following_of, matrix_of
from weft.library.views import A, B
from weft.planner.exponentials import exponent_of, least_sum, spread_kept
from weft.planner.planner import Choice
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides

LINE = 64  # bytes
MASKS = 3  # of one byte for each sum, while sums are looked through


class WorkspacePlace(NamedTuple):
    """A tensor of the workspace, by what it is."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    size: int

    def layout(self, dtype: torch.dtype) -> Layout:
        return Layout(self.shape, self.strides, dtype)


def places_of(contraction: Contraction) -> tuple[WorkspacePlace, WorkspacePlace, WorkspacePlace]:
    """The factors as (batch, m, k) and (batch, k, n), and sums as (batch, m, n), each in the order it is stored in."""
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    inside = [step_of(contraction, operand).inside for operand in (A, B)]
    across = matrix_of(contraction).columns == in_order(contraction, Role.M)
    found = []
    for (rows, columns), by_rows in zip(((m, k), (k, n), (m, n)), (inside[A], not inside[B], not across), strict=True):
        steps = (columns, 1) if by_rows else (1, rows)
        found.append(WorkspacePlace((batch, rows, columns), (rows * columns, *steps), batch * rows * columns))
    a, b, d = found
    return (a, b, d) if batch > 1 else (_matrix(a), _matrix(b), _matrix(d))


def _matrix(place: WorkspacePlace) -> WorkspacePlace:
    return WorkspacePlace(place.shape[1:], place.strides[1:], place.size)


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
    sizes = [*(place.size for place in places_of(contraction)), batch * contraction.m, batch * contraction.n]
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
        self._places = [place[:2] for place in places_of(contraction)]
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
