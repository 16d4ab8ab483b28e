"""The steps of a way, for one piece of D, as what other families plan: permutations that pack, a product of matrices."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu.ttgt.ways import A, B, D, SCATTER, Modes, Order, Steps, Way, multiplied, operand_of, size, steps_of
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides
from weft.spec.canonical import merged
from weft.spec.permutation import Permutation

Packings = tuple[Permutation | None, Permutation | None]  # of A and B; None for one that is read where it lies


class Piece(NamedTuple):
    """What is done for a piece of D."""

    rows: Modes  # of D, and of the workspace that the product waits in
    columns: Modes
    pitch: int  # elements from row to row
    packings: Packings
    product: Contraction


@lru_cache(maxsize=256)
def pieces_of(contraction: Contraction, way: Way) -> tuple[Piece, ...]:
    """The pieces, one for each extent that they have; batch modes are looped over."""
    return tuple(_piece(contraction, way, way.cut.piece(way.order, extent)) for extent in way.cut.extents(way.order))


def _piece(contraction: Contraction, way: Way, order: Order) -> Piece:
    across = min(mode.strides.d for mode in order.m) < min(mode.strides.d for mode in order.n)
    rows, columns = (order.n, order.m) if across else (order.m, order.n)
    to: Steps | None = (1, size(columns)) if across else (size(columns), 1)
    if way.last != SCATTER:
        to = steps_of(order.m, order.n, D)
    steps, packings = zip(*(_factor(contraction, order, operand, way.packed[operand]) for operand in (A, B)), strict=True)
    assert to is not None, "the library writes D where it lies as a matrix"
    return Piece(rows, columns, max(to), packings, _product(contraction, order, (*steps, to)))


def _factor(
    contraction: Contraction, order: Order, operand: int, packed: bool
) -> tuple[Steps | None, Permutation | None]:
    """How an operand lies when it is multiplied, and what packs it."""
    own, k = order.side(operand), order.k
    if not packed:
        return steps_of(own, k, operand), None
    along_k = _innermost(k, operand) < _innermost(own, operand)
    outer, inner = (own, k) if along_k else (k, own)
    packing = _packing(contraction, operand, outer, inner)
    return ((size(k), 1) if along_k else (1, size(own))), packing


def _innermost(modes: Modes, tensor: int) -> int:
    return min([mode.strides[tensor] for mode in modes if mode.strides[tensor]], default=1 << 62)


def _packing(contraction: Contraction, operand: int, outer: Modes, inner: Modes) -> Permutation:
    """An operand's piece to [outer, inner], in the type that is multiplied."""
    layout, function, conjugate = operand_of(contraction, operand)
    modes, step = [], 1
    for mode in reversed((*outer, *inner)):
        modes.append(Mode(mode.labels, mode.extent, Role.M, Strides(mode.strides[operand], 0, 0, step)))
        step *= mode.extent
    return Permutation(
        modes=tuple(merged(modes[::-1])), x=layout, c=None,
        d=Layout.contiguous((size(outer), size(inner)), multiplied(contraction)),
        compute=layout.dtype, fn=function, conjugate=conjugate, text=f"{name_of(outer)}·{name_of(inner)}",
    )  # fmt: skip


def name_of(modes: Modes) -> str:
    return "".join([mode.name for mode in modes])


def _product(contraction: Contraction, order: Order, steps: tuple[Steps | None, ...]) -> Contraction:
    """The product of two matrices that begin where the tensors that it is given do, whatever shapes these have."""
    a, b, d = steps
    assert a is not None and b is not None and d is not None, "what lies as no matrix is packed, or written later"  # noqa: PT018
    accumulate, dtype = contraction.arithmetic.accumulate, multiplied(contraction)
    modes = (
        Mode(("m",), size(order.m), Role.M, Strides(a[0], 0, 0, d[0])),
        Mode(("n",), size(order.n), Role.N, Strides(0, b[0], 0, d[1])),
        Mode(("k",), size(order.k), Role.K, Strides(a[1], b[1], 0, 0)),
    )
    place = Layout((), (), dtype)
    return Contraction(modes, place, place, None, Layout((), (), accumulate), Arithmetic(dtype, accumulate))
