"""Sums of products that are one call of torch: every tensor is seen as it lies, and nothing follows.

The call writes to D, or returns a new one, which torch allocates in less time than a tensor takes beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import attrgetter, methodcaller
from typing import TypeAlias

import torch
from torch import Tensor

from weft.base.kept import constant
from weft.library.algebras import TableOperations
from weft.library.products import MatrixProducts
from weft.library.views import A, D, Frame, View
from weft.spec import Layout

#: Of A, B, C where there is one, and D, or None for a new one, which is returned.
Direct: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
Seeing: TypeAlias = Callable[[Tensor], Tensor] | None  # None: the tensor is the matrix as it is


def direct(
    products: MatrixProducts, left: Seeing, right: Seeing, addend: Seeing, place: Seeing, *, swapped: bool, adds: bool
) -> Direct:
    """`swapped`: the left factor is B; `adds`: C is given."""
    multiply, add = products.multiply, products.add

    def product(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None) -> Tensor:
        if swapped:
            a, b = b, a
        if left is not None:
            a = left(a)
        if right is not None:
            b = right(b)
        if place is not None and d is not None:
            d = place(d)
        if not adds:
            return multiply(a, b, out=d)
        return add(c if addend is None else addend(c), a, b, out=d)  # type: ignore[arg-type]

    return product


def of_vectors(left: View, right: View, layouts: tuple[Layout, Layout, Layout], *, swapped: bool) -> Direct:
    """The product of a row and a column, of tensors of these layouts, left, right and D."""
    views = [_vector(view).in_layout(layout) for view, layout in zip((left, right), layouts, strict=False)]
    of_left, of_right = (seeing(view, layout) for view, layout in zip(views, layouts, strict=False))
    of_place = seeing(View((), ()).in_layout(layouts[2]), layouts[2])

    def product(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None) -> Tensor:
        if swapped:
            a, b = b, a
        if of_left is not None:
            a = of_left(a)
        if of_right is not None:
            b = of_right(b)
        return torch.dot(a, b, out=d if of_place is None or d is None else of_place(d))

    return product


def _vector(view: View) -> View:
    """A row or a column without its other dimension."""
    at = 1 if view.shape[0] == 1 else 0
    return View(view.shape[at : at + 1], view.strides[at : at + 1])


def natural(call: Callable[..., Tensor], otherwise: Direct, *, writes: bool) -> Direct:
    """The product of operands of which torch makes matrices itself; `writes`: to a given D, too."""

    def product(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None) -> Tensor:
        if d is None:
            return call(a, b) if c is None else call(a, b, c)
        return call(a, b, out=d) if writes else otherwise(a, b, c, d)

    return product


def of_elements(left: Seeing, right: Seeing, place: Seeing) -> Direct:
    """Products of elements."""

    def product(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None) -> Tensor:
        if left is not None:
            a = left(a)
        if right is not None:
            b = right(b)
        return torch.mul(a, b, out=d if place is None or d is None else place(d))

    return product


#: A new tensor in another shape, as `view` has it, but no view: torch refuses to write to those made without autograd.
as_result = torch.ops.aten._unsafe_view.default


def of_one(operand: Seeing, place: Seeing, dims: tuple[int, ...], shape: tuple[int, ...]) -> Direct:
    """Sums of A alone over some of its dimensions, times B, which is a number and mostly the one that is kept.

    `shape` is that of D.
    """
    one = None

    def product(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None) -> Tensor:
        nonlocal one
        values = a if operand is None else operand(a)
        if d is None:
            found = torch.sum(values, dims)
            found = found if found.shape == shape else as_result(found, shape)
        else:
            found = torch.sum(values, dims, out=d if place is None else place(d))
        if b is not one and b is not (one := constant(1, b.dtype, b.device)):
            found.mul_(b.as_strided((), ()))  # of which all elements may be one
        return found

    return product


def of_tables(operations: TableOperations, left: View, right: View, place: View, shape: tuple[int, ...]) -> Direct:
    """Sums of another algebra, of all pairs at once: [batch, m, 1, k] and [batch, 1, n, k] to [batch, m, n].

    `shape` is that of D.
    """
    of_left, of_right, of_place = (methodcaller("as_strided", *each[:2]) for each in (left, right, place))
    combine, reduce = operations

    def product(a: Tensor, b: Tensor, c: Tensor | None, d: Tensor | None) -> Tensor:
        pairs = combine(of_left(a), of_right(b))
        return as_result(reduce(pairs, -1), shape) if d is None else reduce(pairs, -1, out=of_place(d))

    return product


def seeing(view: View, layout: Layout) -> Seeing:
    """The way to see a tensor of a layout by a view, from its first element on."""
    if view.whole:
        return None
    if len(view.shape) == 2 and (view.shape, view.strides) == (layout.shape[::-1], layout.strides[::-1]):
        return attrgetter("mT")
    return methodcaller("as_strided", view.shape, view.strides)


def natural_call(layouts: Sequence[Layout | None], views: Sequence[View | None]) -> str | None:
    """The call of torch that takes A, B, C and D as they are, and rounds once; `views` are those of the product.

    linear    A with any modes of rows, B's rows are D's columns, and C is D's last mode, or none
    matmul    A with any modes of rows, B a matrix or a vector of the summed mode, no C

    Where extents are equal, shapes alone do not tell rows from columns.
    """
    a, b, c, d = layouts
    left, right, addend, place = views
    if a is None or b is None or d is None or left is None or right is None or place is None:
        return None
    *rows, inner = a.shape or (0,)
    whole = all(each.strides == Layout.contiguous(each.shape, each.dtype).strides for each in (a, b, d))
    columns = d.shape[-1] if len(d.shape) > len(rows) else 1
    if not rows or not whole or len(b.shape) > 2 or (left.strides, place.strides) != ((inner, 1), (columns, 1)):
        return None
    if b.shape == (columns, inner) and d.shape == (*rows, columns) and right.strides == (1, inner):
        added = c is None or (c.shape == (columns,) and addend is not None and addend.strides == (1,))
        return "linear" if added else None
    straight = b.shape[:1] == (inner,) and d.shape == (*rows, *b.shape[1:]) and right.strides == (columns, 1)
    return "matmul" if straight and c is None else None


def summed_dims(a: Layout, d: Layout, frame: Frame) -> tuple[int, ...] | None:
    """The dimensions of A that are summed, where the others are D's in their order; None where some are not."""
    if any(extent < 2 for extent in a.shape):
        return None
    found, kept = [], []
    for at, (extent, stride) in enumerate(zip(a.shape, a.strides, strict=True)):
        of = [
            mode.strides[D] * (stride // step)
            for mode in frame.modes
            if (step := mode.strides[A]) and stride and not (stride % step or mode.extent % (stride // step * extent))
        ]
        if len(of) != 1:
            return None
        if of[0]:
            kept.append((extent, of[0]))
        else:
            found.append(at)
    return tuple(found) if kept == [*zip(d.shape, d.strides, strict=True)] else None
