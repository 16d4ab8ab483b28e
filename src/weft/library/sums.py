"""Sums of products in each form: what is built of a part of a contraction, and run on tensors.

A form says which modes its sums have and in which order (`kept`), what it allocates besides them (`bytes`), and has two
ways to run: `made`, sums in memory of their own with a dimension for each mode, and, where `places` says so, `into` D.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

import torch
from torch import Tensor

from weft.library.algebras import reduced, table
from weft.library.arrange import arranged
from weft.library.exponentials import summed
from weft.library.factors import OperandFactor, OperandMatrix, Seen
from weft.library.products import MatrixProducts, wrapped
from weft.library.scheme import LibraryScheme
from weft.library.split import SplitProducts
from weft.library.views import A, B, C, D, Frame, Group
from weft.planner.exponentials import exponent_of
from weft.planner.schedule import AuxTensors, Scalar, Target


class Unprepared:
    """Sums of which nothing is computed in passes of a device."""

    def prepare(self, target: Target) -> None:
        """Have functions of A and of B done in one pass each."""

    @property
    def states(self) -> list[str]:
        """Sentences on what computes functions of A and of B."""
        return []


class OfMatrices(Unprepared):
    """Sums of operands that are matrices."""

    _operands: tuple[OperandMatrix | Seen, OperandMatrix | Seen]

    def prepare(self, target: Target) -> None:
        for operand in self._operands:
            operand.prepare(target)

    @property
    def states(self) -> list[str]:
        return [each.state for each in self._operands if each.state is not None]


class Nothing(Unprepared):
    """An empty sum."""

    places = False
    bytes = 0

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        algebra = scheme.contraction.algebra
        self.kept = scheme.roles.kept
        self._shape, self._dtype = frame.shape(self.kept), scheme.types.result
        self._value = algebra.identity if algebra is not None else 0

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        return torch.full(self._shape, self._value, dtype=self._dtype, device=a.device)

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        raise AssertionError("it places nothing")


class Pairs(Unprepared):
    """Products without a sum."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        modes = frame.modes
        self.kept = tuple(sorted(scheme.roles.kept, key=lambda at: -modes[at].strides[D]))
        self.places = scheme.contraction.d.dtype == scheme.types.result
        self._a, self._b = (OperandFactor(scheme, place, frame, self.kept, True) for place in (A, B))
        self._shape, self._accumulate = frame.shape(self.kept), scheme.accumulate
        met = [max(pair) for pair in zip(self._a.shape, self._b.shape, strict=True)]
        self._repeated = tuple(met) != self._shape
        self._short = scheme.types.result != scheme.accumulate  # factors are converted where they are scaled
        self._d = frame.view(self.kept, D).in_layout(scheme.contraction.d)
        self.bytes = sum(factor.made_bytes + factor.converted_bytes for factor in (self._a, self._b))

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        x, y = self._a.of(a, aux), self._b.of(b, aux)
        if self._short:
            x, y = x.to(self._accumulate), y.to(self._accumulate)
        place = x.new_empty(self._shape, dtype=self._accumulate)
        torch.mul(self._wide(x), y, out=place)
        return place if alpha == 1 else place.mul_(wrapped(alpha, place.dtype))

    def _wide(self, x: Tensor) -> Tensor:
        """A's values, along modes that neither operand has as well."""
        return x.expand(self._shape) if self._repeated else x

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        place = self._d.of(d)
        if self._short and alpha != 1:
            place.copy_(self.made(a, b, alpha, aux))
            return
        torch.mul(self._wide(self._a.of(a, aux)), self._b.of(b, aux), out=place)
        if alpha != 1:
            place.mul_(wrapped(alpha, place.dtype))


class Matrices(OfMatrices):
    """Sums of products as products of matrices."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction = scheme.contraction
        order = arranged(scheme, frame)
        batched = bool(order.batch)
        self.kept = order.kept
        self._swapped = order.swapped
        self._products: MatrixProducts | SplitProducts = (
            SplitProducts(batched, scheme.kind, frame.size(order.k))
            if scheme.types.way == "split"
            else MatrixProducts(scheme.types, batched, scheme.kind)
        )
        left, right = (B, A) if order.swapped else (A, B)
        layouts = contraction.a, contraction.b
        self._left, self._right = (
            Seen(view.in_layout(layouts[place]))
            if view is not None
            else OperandMatrix(scheme, place, frame, groups, batched)
            for place, groups, view in (
                (left, (order.batch, order.rows, order.k), order.left),
                (right, (order.batch, order.k, order.columns), order.right),
            )
        )
        self._operands = self._left, self._right
        self._shape = frame.shape(self.kept)
        placed = order.place is not None and self._products.fuses
        self._d = order.place.in_layout(contraction.d) if order.place is not None and placed else None
        self.places = placed
        seen = (
            frame.matrix((order.batch, order.rows, order.columns), C) if placed and contraction.c is not None else None
        )
        self._c = seen.in_layout(contraction.c) if seen is not None and contraction.c is not None else None
        self.adds = self._c is not None and not scheme.follows and self._products.adds  # C as well
        seen_whole = all(isinstance(each, Seen) and each.is_whole for each in (self._left, self._right))
        #: Writes the product of A and B to D, each as it lies; None where one is to be seen otherwise.
        self.plain: Callable[[Tensor, Tensor, Tensor], None] | None = None
        if seen_whole and self._d is not None and self._d.whole and isinstance(self._products, MatrixProducts):
            self.plain = self._products.plain(self._swapped)
        sizes = [frame.size(group) for group in (order.batch, order.rows, order.columns, order.k)]
        self.bytes = self._left.bytes + self._right.bytes + self._products.bytes(*sizes)

    def prepare(self, target: Target) -> None:
        super().prepare(target)
        if isinstance(self._products, SplitProducts):
            self._products.prepare(target)

    @property
    def states(self) -> list[str]:
        found = super().states
        return [*found, self._products.state] if isinstance(self._products, SplitProducts) else found

    def _factors(self, a: Tensor, b: Tensor, aux: AuxTensors) -> tuple[Tensor, Tensor]:
        if self._swapped:
            a, b = b, a
        return self._left.of(a, aux), self._right.of(b, aux)

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        return self._products.made(*self._factors(a, b, aux), alpha).reshape(self._shape)

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        assert self._d is not None, "it is one that places"
        self._products.into(self._d.of(d), *self._factors(a, b, aux), alpha)

    def added(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, c: Tensor, beta: Scalar, aux: AuxTensors) -> None:
        assert self._d is not None, "it is one that places"
        assert self._c is not None, "it is one that adds"
        assert isinstance(self._products, MatrixProducts), "terms add nothing"
        self._products.added(self._d.of(d), *self._factors(a, b, aux), alpha, self._c.of(c), beta)


class Tables(OfMatrices):
    """Another algebra's sums, by tables of pairs."""

    places = False

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        algebra, roles = scheme.contraction.algebra, scheme.roles
        assert algebra is not None, "this form is of an algebra"
        self.kept = roles.kept
        self._algebra, self._accumulate = algebra, scheme.accumulate
        self._a, self._b = (
            _in_batches(scheme, place, frame, (roles.batch, free, roles.k))
            for place, free in ((A, roles.m), (B, roles.n))
        )
        self._operands = self._a, self._b
        self._shape, self._most = frame.shape(self.kept), table(scheme.kind)
        pairs = min(max(self._most, frame.size(roles.n)), frame.size((*self.kept, *roles.k)))
        self.bytes = self._a.bytes + self._b.bytes + 2 * pairs * self._accumulate.itemsize
        self.bytes += 2 * frame.size(self.kept) * self._accumulate.itemsize

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        x, y = self._a.of(a, aux), self._b.of(b, aux)
        return reduced(self._algebra, x, y, self._accumulate, self._most).view(self._shape)

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        raise AssertionError("it places nothing")


class Exponentials(Tables):
    """Sums of exponentials, by products of matrices."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        super().__init__(scheme, frame)
        exponent = exponent_of(self._algebra, self._accumulate)
        assert exponent is not None, "this form is of exponentials"
        self._exponent = exponent
        self._products = MatrixProducts(scheme.types, True, scheme.kind)
        roles = scheme.roles
        factors = frame.size((*roles.batch, *roles.m, *roles.k)) + frame.size((*roles.batch, *roles.n, *roles.k))
        self.bytes += (factors + 2 * frame.size(self.kept)) * self._accumulate.itemsize

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        x, y = self._a.of(a, aux), self._b.of(b, aux)
        return summed(x, y, self._exponent, self._products, self._direct).view(self._shape)

    def _direct(self, x: Tensor, y: Tensor) -> Tensor:
        return reduced(self._algebra, x, y, self._accumulate, self._most)


def _in_batches(
    scheme: LibraryScheme, place: int, frame: Frame, groups: tuple[Group, Group, Group]
) -> OperandMatrix | Seen:
    """An operand as [batch, free, k], of one batch where there is none."""
    view = frame.matrix(groups, place) if scheme.plain[place] else None
    if view is None:
        return OperandMatrix(scheme, place, frame, groups, True)
    return Seen(view if groups[0] else view._replace(shape=(1, *view.shape), strides=(1, *view.strides)))


Sums: TypeAlias = Nothing | Pairs | Matrices | Tables | Exponentials


def sums_of(scheme: LibraryScheme, frame: Frame) -> Sums:
    if scheme.empty:
        return Nothing(scheme, frame)
    if scheme.form == "pairs":
        return Pairs(scheme, frame)
    if scheme.form == "exponentials":
        return Exponentials(scheme, frame)
    return Matrices(scheme, frame) if scheme.form == "product" else Tables(scheme, frame)
