"""Sums in other algebras: by tables of pairs, and by products of matrices of exponentials and of truth values."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import torch
from torch import Tensor

from weft.algebra import of_count
from weft.cpu.host import multiplies_bytes
from weft.library.algebras import operations_of, reduced, table
from weft.library.direct import of_tables
from weft.library.exponentials.by_torch import summed
from weft.library.factors import OperandMatrix, Seen
from weft.library.products import MatrixProducts, ProductTypes
from weft.library.scheme import LibraryScheme
from weft.library.sums import Matrices, Nothing, OfMatrices, Pairs
from weft.library.views import A, B, D, Frame, Group, MergedModes, View
from weft.planner.exponentials import exponent_of
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec import Layout


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
        if scheme.form == "algebra" and frame.size((*self.kept, *roles.k)) <= self._most:
            self._find_direct(scheme, frame)

    def _find_direct(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction, roles = scheme.contraction, scheme.roles
        d, operations = contraction.d, operations_of(self._algebra)
        plain = contraction.c is None and all(scheme.plain) and d.dtype is self._accumulate
        left = _spread(frame, (roles.batch, roles.m, None, roles.k), A)
        right = _spread(frame, (roles.batch, None, roles.n, roles.k), B)
        place = _spread(frame, (roles.batch, roles.m, roles.n), D)
        if operations is None or not plain or any(frame.starts) or left is None or right is None or place is None:
            return
        self.direct = of_tables(operations, left, right, place, d.shape)
        self.returns = all(_is_contiguous(each.shape, each.strides) for each in (place, d))

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


class Counts(Tables):
    """Sums of truth values, by products of matrices that count the pairs which are true."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        super().__init__(scheme, frame)
        result, roles = of_count(self._algebra, self._accumulate), scheme.roles
        assert result is not None, "this form is of truth values"
        self._result, self._by_bytes = result, multiplies_bytes() and not roles.batch
        one = torch.int8 if self._by_bytes else torch.float32
        count = torch.int32 if self._by_bytes else torch.float32
        types = ProductTypes(one, one, count, "bytes" if self._by_bytes else "plain")
        self._one, self._products = one, MatrixProducts(types, not self._by_bytes, scheme.kind)
        factors = frame.size((*roles.batch, *roles.m, *roles.k)) + frame.size((*roles.batch, *roles.n, *roles.k))
        self.bytes += factors * (1 + one.itemsize) + frame.size(self.kept) * (count.itemsize + 1)

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        x, y = (self._ones(each) for each in (self._a.of(a, aux), self._b.of(b, aux)))
        counts = self._products.made(x[0], y[0].mT) if self._by_bytes else self._products.made(x, y.mT)
        return self._result(counts).view(self._shape)

    def _ones(self, values: Tensor) -> Tensor:
        """Ones where values are true: where their bytes are not zero."""
        return values.view(torch.uint8).clamp(max=1).to(self._one)


def _in_batches(
    scheme: LibraryScheme, place: int, frame: Frame, groups: tuple[Group, Group, Group]
) -> OperandMatrix | Seen:
    """An operand as [batch, free, k], of one batch where there is none."""
    view = frame.matrix(groups, place) if scheme.plain[place] else None
    if view is None:
        return OperandMatrix(scheme, place, frame, groups, True)
    return Seen(view if groups[0] else view._replace(shape=(1, *view.shape), strides=(1, *view.strides)))


def _spread(frame: Frame, groups: Sequence[Group | None], place: int) -> View | None:
    """A dimension for each group of modes; for None one that the tensor is repeated along."""
    runs = [MergedModes(1, 0) if group is None else frame.run(group, place) for group in groups]
    known = [run for run in runs if run is not None]
    if len(known) < len(runs):
        return None
    return View(tuple([run.extent for run in known]), tuple([run.stride for run in known]))


def _is_contiguous(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    usual = Layout.contiguous(shape, torch.float32).strides
    return all(extent == 1 or one == other for extent, one, other in zip(shape, strides, usual, strict=True))


Sums: TypeAlias = Nothing | Pairs | Matrices | Tables | Counts | Exponentials


def sums_of(scheme: LibraryScheme, frame: Frame) -> Sums:
    """The sums of a part in the form of its scheme."""
    if scheme.empty:
        return Nothing(scheme, frame)
    if scheme.form == "pairs":
        return Pairs(scheme, frame)
    if scheme.form == "counts":
        return Counts(scheme, frame)
    if scheme.form == "exponentials":
        return Exponentials(scheme, frame)
    return Matrices(scheme, frame) if scheme.form == "product" else Tables(scheme, frame)
