"""How a contraction is a product of matrices: in which order modes stand together, what is packed, and the pieces of D.

The longer side of D is cut, along one of its modes, into *pieces* that stay in the caches from one step to the next:

    modes of that side, outermost first     those before `TtgtCut.at`, one by one
                                            the one that is cut, `TtgtCut.step` at a time
                                            those behind it, whole
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import NamedTuple

import torch

from weft.cpu.blas import of_bytes
from weft.fn import Pointwise
from weft.spec import Contraction, Layout, Mode, Role

A, B, C, D = range(4)  # places among a mode's strides

PIECE = 1 << 22  # bytes of a piece of D,
PACKED = 1 << 20  # and of a packed one of an operand
SHORTEST = 256  # rows or columns of a piece: the library packs the other operand anew for each

IN_PLACE, SCATTER = "epilogue on D", "scatter D"  # what is left to be done with the product

Modes = tuple[Mode, ...]
Steps = tuple[int, int]  # elements from row to row of a matrix, and from column to column


class Order(NamedTuple):
    """The modes of both sides and of the sums, outermost first."""

    m: Modes
    n: Modes
    k: Modes

    def side(self, operand: int) -> Modes:
        return self.m if operand == A else self.n


class TtgtCut(NamedTuple):
    """How the side of A or of B is cut."""

    operand: int
    at: int
    step: int

    def piece(self, order: Order, extent: int) -> Order:
        """The modes of a piece that has so much of the mode that is cut."""
        side = order.side(self.operand)
        rest = (side[self.at]._replace(extent=extent), *side[self.at + 1 :])
        return order._replace(m=rest) if self.operand == A else order._replace(n=rest)

    def extents(self, order: Order) -> tuple[int, ...]:
        """How much a piece has of that mode, and the last one where it has less."""
        extent = order.side(self.operand)[self.at].extent
        return tuple(dict.fromkeys((self.step, extent % self.step or self.step)))

    def count(self, order: Order) -> int:
        *outer, cut = order.side(self.operand)[: self.at + 1]
        return size(outer) * -(-cut.extent // self.step)


class Way(NamedTuple):
    order: Order
    packed: tuple[bool, bool]  # A, B
    last: str  # `IN_PLACE`, where the library writes D; `SCATTER`, by way of a workspace; or ""
    cut: TtgtCut


class Operand(NamedTuple):
    """A or B, and what becomes of its values before they are multiplied."""

    layout: Layout
    function: Pointwise | None
    conjugate: bool


def ways(contraction: Contraction) -> Iterator[Way]:
    """Modes in the order of either tensor that has them; but for what the library makes by itself."""
    sides = ((Role.M, A, D), (Role.N, B, D), (Role.K, A, B))
    for order in map(Order._make, product(*[_orders(contraction, *side) for side in sides])):
        packed = _is_packed(contraction, order, A), _is_packed(contraction, order, B)
        last = _last(contraction, order)
        if any(packed) or last:
            yield Way(order, packed, last, _cut(contraction, order, packed, bool(last)))


def operand_of(contraction: Contraction, operand: int) -> Operand:
    if operand == A:
        return Operand(contraction.a, contraction.a_fn, contraction.conjugate_a and contraction.a.dtype.is_complex)
    return Operand(contraction.b, contraction.b_fn, contraction.conjugate_b and contraction.b.dtype.is_complex)


def multiplied(contraction: Contraction) -> torch.dtype:
    """The type of the matrices that are multiplied: that of the sums, or bytes."""
    return torch.int8 if of_bytes(contraction) else contraction.arithmetic.accumulate


def _orders(contraction: Contraction, role: Role, *tensors: int) -> list[Modes]:
    modes = contraction.of_role(role)
    return list(dict.fromkeys([_outermost_first(modes, tensor) for tensor in tensors]))


def _outermost_first(modes: Modes, tensor: int) -> Modes:
    return tuple(sorted(modes, key=lambda mode: -mode.strides[tensor]))


def _is_packed(contraction: Contraction, order: Order, operand: int) -> bool:
    """Whether an operand has to be converted, or has the layout of no matrix of this order."""
    layout, function, conjugate = operand_of(contraction, operand)
    if function is not None or conjugate or layout.dtype is not multiplied(contraction):
        return True
    return steps_of(order.side(operand), order.k, operand) is None


def _last(contraction: Contraction, order: Order) -> str:
    """The step after the product. C may be D, which the product must not overwrite; of bytes D is a whole matrix."""
    holds = contraction.d.dtype is contraction.arithmetic.accumulate and not of_bytes(contraction)
    if not holds or contraction.c is not None or steps_of(order.m, order.n, D) is None:
        return SCATTER
    return IN_PLACE if contraction.epilogue is not None else ""


def steps_of(rows: Modes, columns: Modes, tensor: int) -> Steps | None:
    """The strides of a tensor as a matrix; None where the library takes no such one."""
    row, column = step_along(rows, tensor), step_along(columns, tensor)
    if row is None or column is None:
        return None
    whole = (column == 1 and row >= size(columns)) or (row == 1 and column >= size(rows))
    return (row, column) if whole else None


def step_along(modes: Modes, tensor: int) -> int | None:
    """Elements from one index of modes together to the next; None where that is not always the same."""
    reach = step = modes[-1].strides[tensor]
    for mode in reversed(modes):
        if mode.strides[tensor] != reach:
            return None
        reach *= mode.extent
    return step


def name_of(modes: Modes) -> str:
    return "".join([mode.name for mode in modes])


def size(modes: Sequence[Mode]) -> int:
    return math.prod([mode.extent for mode in modes])


def _cut(contraction: Contraction, order: Order, packed: tuple[bool, bool], waits: bool) -> TtgtCut:
    """The longer side in pieces of about one size, as many as what waits for the next step fills the caches."""
    operand = A if size(order.m) >= size(order.n) else B
    side, item = order.side(operand), contraction.arithmetic.accumulate.itemsize
    wanted = size(side)
    if waits:
        # Sums of more terms hide more of a pass over D, and lose as much where pieces are as short.
        wanted = min(wanted, max(PIECE // (size(order.side(1 - operand)) * item), size(order.k)))
    if packed[operand]:
        wanted = min(wanted, PACKED // (size(order.k) * item))
    wanted, at, inner = max(wanted, SHORTEST), len(side) - 1, 1
    while at and inner * side[at].extent <= wanted:
        inner *= side[at].extent
        at -= 1
    extent = side[at].extent
    pieces = -(-extent // max(wanted // inner, 1))
    return TtgtCut(operand, at, -(-extent // pieces))
