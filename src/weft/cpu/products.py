"""The product of two blocks, added to an accumulator: the few calls into torch, each for the shapes it is fast at.

In another algebra: combined and reduced, by tables of pairs or by a matrix product that comes to the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch

from weft.cpu.algebra import Combine, Operation, operations
from weft.cpu.algebra_forms import MatrixForm, matrix_form
from weft.cpu.index_groups import Anatomy
from weft.cpu.logarithms import LogProduct
from weft.cpu.pairs import PairProduct
from weft.cpu.schedule import CpuSchedule
from weft.spec import Role

# (accumulator [rows, columns], left [rows, k], right [k, columns], whether to overwrite): all behind a batch or none.
Multiply: TypeAlias = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, bool], None]


# The way to multiply, given memory of one worker: a table of pairs, and what a part of it is reduced to.
Multiplier: TypeAlias = Callable[[torch.Tensor, torch.Tensor], Multiply]


def multiplier(anatomy: Anatomy, schedule: CpuSchedule) -> Multiplier:
    """The way to multiply this schedule's blocks."""
    algebra, accumulate = anatomy.contraction.algebra, anatomy.accumulate
    batched = schedule.block_size(anatomy.batch) > 1
    if algebra is not None:
        known, a_left = operations(algebra, accumulate), schedule.rows is Role.M
        if anatomy.elementwise:
            return lambda table, partial: _combined(known.combining(a_left))
        form = matrix_form(algebra, accumulate)
        if form is None:
            sums_inner = schedule.pairs == "k"
            part = schedule.part(accumulate.itemsize)

            def by_pairs(table: torch.Tensor, partial: torch.Tensor) -> Multiply:
                directly = PairProduct(known, a_left, part, sums_inner, table, partial)
                return LogProduct(directly) if known.logarithms else directly

            return by_pairs
        product = _as_matrices(form, known.reduce, _batched if batched else _matrices)
    else:
        product = _sums_of_products(anatomy, schedule)
    return lambda table, partial: product


def _sums_of_products(anatomy: Anatomy, schedule: CpuSchedule) -> Multiply:
    if anatomy.elementwise:
        return _elements
    batched = schedule.block_size(anatomy.batch) > 1
    if anatomy.mixed:
        return _real_times_complex(_batched if batched else _matrices)
    if batched:
        return _batched
    rows, columns = (anatomy.m, anatomy.n) if schedule.rows is Role.M else (anatomy.n, anatomy.m)
    if anatomy.size(rows) == 1:
        return _dot if anatomy.size(columns) == 1 else _row
    return _column if anatomy.size(columns) == 1 else _matrices


def _elements(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    """Nothing is summed: one product for each element, whatever the strides."""
    torch.mul(left, right, out=accumulator)


def _combined(combine: Combine) -> Multiply:
    """The same in another algebra."""

    def product(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
        combine(left, right, out=accumulator)

    return product


def _as_matrices(form: MatrixForm, reduce: Operation, multiply: Multiply) -> Multiply:
    """A product in another algebra by way of a matrix product."""
    factor, result, chunk = form.factor, form.result, form.chunk

    def product(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
        for start in range(0, left.shape[-1], chunk):
            terms = min(left.shape[-1] - start, chunk)
            x, y = left.narrow(-1, start, terms), right.narrow(-2, start, terms)
            sums = torch.empty(accumulator.shape, dtype=form.dtype, device="cpu")
            multiply(sums, factor(x), factor(y), True)
            values = result(sums).to(accumulator.dtype)
            if first and start == 0:
                accumulator.copy_(values)
            else:
                reduce(accumulator, values, accumulator)

    return product


def _matrices(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    if first:
        torch.mm(left, right, out=accumulator)
    else:
        accumulator.addmm_(left, right)


def _batched(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    if first:
        torch.bmm(left, right, out=accumulator)
    else:
        accumulator.baddbmm_(left, right)


def _column(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    if first:
        torch.mv(left, right.select(1, 0), out=accumulator.select(1, 0))
    else:
        accumulator.select(1, 0).addmv_(left, right.select(1, 0))


def _row(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    _column(accumulator.t(), right.t(), left.t(), first)


def _dot(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
    total = accumulator.view(())
    if first:
        torch.dot(left[0], right.select(1, 0), out=total)
    else:
        total.add_(torch.dot(left[0], right.select(1, 0)))


def _real_times_complex(multiply: Multiply) -> Multiply:
    """A real matrix on the left times a complex one: the latter's parts are columns of a real matrix."""

    def product(accumulator: torch.Tensor, left: torch.Tensor, right: torch.Tensor, first: bool) -> None:
        multiply(_parts(accumulator), left, _parts(right), first)

    return product


def _parts(matrix: torch.Tensor) -> torch.Tensor:
    """[..., columns] complex -> [..., 2 columns] real, in the same memory: its columns are contiguous."""
    return torch.view_as_real(matrix).flatten(-2)
