"""The steps of a way for one piece of D: matrices that operands and sums pass through, and the library's product."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu.ttgt.ways import SCATTER, A, B, D, Modes, Order, Steps, Way, multiplied, name_of, size, steps_of
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides


class WorkspaceMatrix(NamedTuple):
    """A tensor as a matrix, as a workspace holds it: its modes as rows and columns."""

    rows: Modes
    columns: Modes

    @property
    def shape(self) -> tuple[int, int]:
        return size(self.rows), size(self.columns)

    @property
    def size(self) -> int:
        return size(self.rows) * size(self.columns)

    @property
    def name(self) -> str:
        return f"{name_of(self.rows)}·{name_of(self.columns)}"


class Piece(NamedTuple):
    """The packed operands and the product of a piece of D."""

    packed: tuple[WorkspaceMatrix | None, WorkspaceMatrix | None]  # A and B; None for one that is read unpacked
    product: Contraction
    d: WorkspaceMatrix


@lru_cache(maxsize=256)
def pieces_of(contraction: Contraction, way: Way) -> tuple[Piece, ...]:
    """The pieces, one for each extent that they have; batch modes are looped over."""
    return tuple([_piece(contraction, way, way.cut.piece(way.order, extent)) for extent in way.cut.extents(way.order)])


def _piece(contraction: Contraction, way: Way, order: Order) -> Piece:
    packed = [_packed(order, operand) if way.packed[operand] else None for operand in (A, B)]
    across = _innermost(order.m, D) < _innermost(order.n, D)
    rows, columns = (order.n, order.m) if across else (order.m, order.n)
    d = WorkspaceMatrix(rows, columns)
    steps = [
        steps_of(order.side(operand), order.k, operand) if matrix is None else _steps(matrix, order.side(operand))
        for operand, matrix in enumerate(packed)
    ]
    to = _steps(d, order.m) if way.last == SCATTER else steps_of(order.m, order.n, D)
    return Piece((packed[A], packed[B]), _product(contraction, order, (*steps, to)), d)


def _packed(order: Order, operand: int) -> WorkspaceMatrix:
    """The matrix an operand is packed to: its innermost mode stays innermost, nothing is transposed."""
    own, k = order.side(operand), order.k
    if _innermost(k, operand) < _innermost(own, operand):
        return WorkspaceMatrix(own, k)
    return WorkspaceMatrix(k, own)


def _innermost(modes: Modes, tensor: int) -> int:
    return min([mode.strides[tensor] for mode in modes if mode.strides[tensor]], default=1 << 62)


def _steps(matrix: WorkspaceMatrix, first: Modes) -> Steps:
    """The strides of a workspace, along these modes and along the others."""
    return (size(matrix.columns), 1) if matrix.rows is first else (1, size(matrix.columns))


def _product(contraction: Contraction, order: Order, steps: tuple[Steps | None, ...]) -> Contraction:
    """The product of matrices that begin where the tensors that it is given do, whatever shapes these have."""
    a, b, d = steps
    assert a is not None, "an operand without a matrix layout is packed"
    assert b is not None, "an operand without a matrix layout is packed"
    assert d is not None, "D without a matrix layout is scattered"
    accumulate, dtype = contraction.arithmetic.accumulate, multiplied(contraction)
    modes = (
        Mode(("m",), size(order.m), Role.M, Strides(a[0], 0, 0, d[0])),
        Mode(("n",), size(order.n), Role.N, Strides(0, b[0], 0, d[1])),
        Mode(("k",), size(order.k), Role.K, Strides(a[1], b[1], 0, 0)),
    )
    place = Layout((), (), dtype)
    return Contraction(modes, place, place, None, Layout((), (), accumulate), Arithmetic(dtype, accumulate))
