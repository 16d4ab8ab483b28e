"""How the tensors of a cascade lie while it runs: S by the roles of the first contraction, each operand along S."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import torch
from torch import Tensor

from weft.base.cached import cached_property
from weft.cascades.product import BlockProducts, Labels, ProductRoles, SecondAlgebra, narrowed, roles_of, turned
from weft.cascades.product import Box as Box
from weft.errors import UnsupportedError
from weft.spec import Label


@dataclass(frozen=True, eq=False)
class Frame:
    """Labels by role in both contractions, extents, the factor of the first, and how blocks are multiplied.

    `order` has the labels of S as blocks of it lie. `lone` are those that the second contraction sums over S alone.
    """

    first: ProductRoles
    second: ProductRoles | None
    extents: Mapping[Label, int]
    alpha: float
    products: BlockProducts
    device: torch.device
    swapped: bool  # the first contraction multiplies B with A
    stored: torch.dtype  # of results that have all modes of S, where they are floating
    algebra: SecondAlgebra | None = None  # of the second contraction, where it is no sum of products

    @cached_property
    def order(self) -> Labels:
        return self.first.result

    @cached_property
    def lone(self) -> tuple[int, ...]:
        """The dimensions of S that are summed before it meets C."""
        second = self.second
        return () if second is None else tuple(at for at, label in enumerate(self.order) if label not in second.x)

    @cached_property
    def columns(self) -> frozenset[Label]:
        """Labels of S that D lacks."""
        second = self.second
        return frozenset() if second is None else frozenset(self.order) - set(second.result)

    def stored_as(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which a value for each element of S is stored."""
        return self.stored if dtype == self.products.accumulate else dtype

    def dims(self, labels: Sequence[Label]) -> tuple[int, ...]:
        """The dimensions of labels of S."""
        return tuple(self.order.index(label) for label in labels)

    def shape(self, modes: frozenset[Label]) -> tuple[int, ...]:
        """The shape of a value that has those modes."""
        return tuple(self.extents[label] if label in modes else 1 for label in self.order)

    def box_shape(self, box: Box) -> tuple[int, ...]:
        """The shape of a block of S."""
        return tuple(box[label][1] for label in self.order)

    def scores(self, a: Tensor, b: Tensor, box: Box) -> Tensor:
        """A block of S."""
        left, right = narrowed(a, self.first.x, box), narrowed(b, self.first.y, box)
        found = self.products(self.first, left, right, self.alpha)
        return found.expand(self.box_shape(box))

    def place(self, value: Tensor, box: Box) -> Tensor:
        """The block of a value along S, of an operand say."""
        return narrowed(value, self.order, box)

    def along(self, value: Tensor, labels: Sequence[Label], box: Box) -> Tensor:
        """The block of a value with all indices of a box along some labels."""
        pairs = zip(self.order, value.shape, strict=True)
        return value.expand([box[label][1] if label in labels else extent for label, extent in pairs])

    def of_c(self, c: Tensor, box: Box) -> Tensor:
        """The block of C that a block of S meets."""
        assert self.second is not None
        return narrowed(c, self.second.y, box)

    def of_d(self, d: Tensor, box: Box) -> Tensor:
        """The block of D that a block of S adds to."""
        assert self.second is not None
        return narrowed(d, self.second.result, box)

    def on_d(self, value: Tensor) -> Tensor:
        """A value along S, of modes that D has, along D."""
        assert self.second is not None
        return turned(value, self.order, self.second.result) if value.dim() else value

    def along_s(self, value: Tensor) -> Tensor:
        """A value along D, of modes that S has, along S."""
        assert self.second is not None
        return turned(value, self.second.result, self.order)

    def met(self, value: Tensor, box: Box) -> Tensor:
        """A block of what meets C, by the roles of the second contraction."""
        assert self.second is not None
        value = value.expand(self.box_shape(box))
        if self.lone:
            value = value.sum(self.lone, keepdim=True)
        return turned(value, self.order, self.second.x)

    def unmet(self, grad: Tensor, box: Box) -> Tensor:
        """The gradient of a block of what meets C, along S again."""
        assert self.second is not None
        return turned(grad, self.second.x, self.order).expand(self.box_shape(box))


def size_of(frame: Frame, labels: Sequence[Label]) -> int:
    return prod(frame.extents[label] for label in labels)


def transposed(roles: ProductRoles, role: str) -> ProductRoles:
    """Roles of the product that makes the gradient of X, or of Y, from that of the result."""
    if role == "x":
        return ProductRoles(roles.batch, roles.m, roles.k, roles.n)
    return ProductRoles(roles.batch, roles.n, roles.k, roles.m)


def flipped(tensor: Tensor, batch: int, rows: int) -> Tensor:
    """A tensor (batch, rows, columns) as (batch, columns, rows), of several dimensions each."""
    order = range(tensor.dim())
    return tensor.permute([*order[:batch], *order[batch + rows :], *order[batch : batch + rows]])


def frame_of(
    a: Labels, b: Labels, s: Labels, c: Labels | None, d: Labels | None, reduced: frozenset[Label],
    extents: Mapping[Label, int], alpha: float, products: BlockProducts, device: torch.device,
    stored: torch.dtype, algebra: SecondAlgebra | None = None,
) -> Frame:  # fmt: skip
    """The frame of labels that do not broadcast: the operand with more of what is summed gives S its columns."""
    summed = reduced if d is None else reduced | (set(s) - set(d))
    first = roles_of(a, b, s)
    swapped = sum(label in summed for label in first.m) > sum(label in summed for label in first.n)
    if swapped:
        first = roles_of(b, a, s)
    first = ProductRoles(first.batch, _last(first.m, summed), _last(first.n, summed), first.k)
    second = None if c is None or d is None else _in_order(roles_of(first.result, c, d), first.result)
    found = Frame(first, second, extents, alpha, products, device, swapped, stored, algebra)
    if algebra is not None and (found.lone or set(c or ()) - {*s, *(d or ())}):
        raise UnsupportedError(
            f"the second contraction in the algebra {algebra.name} sums modes of S and C together: one that either has "
            "alone is reduced before"
        )
    return found


def _in_order(roles: ProductRoles, order: Labels) -> ProductRoles:
    """Roles with the labels of S in the order that it has them in."""
    return ProductRoles(*(tuple(sorted(each, key=lambda label: _rank(label, order))) for each in (
        roles.batch, roles.m, roles.n, roles.k
    )))  # fmt: skip


def _rank(label: Label, order: Labels) -> int:
    return order.index(label) if label in order else len(order)


def _last(labels: Labels, summed: frozenset[Label] | set[Label]) -> Labels:
    """Labels that are summed behind the others."""
    return (*(each for each in labels if each not in summed), *(each for each in labels if each in summed))
