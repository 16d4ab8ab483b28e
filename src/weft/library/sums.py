"""Sums of products in each form: what is built of a part of a contraction, and run on tensors.

A form says which modes its sums have and in which order (`kept`), what it allocates besides them (`bytes`), and has two
ways to run: `made`, sums in memory of their own with a dimension for each mode, and, where `places` says so, `into` D.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from weft.base.arrays import any_autocast
from weft.fn import Pointwise
from weft.library.arrange import arranged
from weft.library.direct import (
    Direct,
    direct,
    natural,
    natural_call,
    of_elements,
    of_one,
    of_vectors,
    seeing,
    summed_dims,
)
from weft.library.factors import OperandFactor, OperandMatrix, Seen
from weft.library.products import MatrixProducts, clamps, is_rounded_once, wrapped
from weft.library.scheme import LibraryScheme
from weft.library.split import SplitProducts
from weft.library.views import A, B, C, D, Frame, Group, View
from weft.planner.schedule import AuxTensors, Make, Scalar, Target
from weft.spec import Contraction, Layout


class Unprepared:
    """Sums of which nothing is computed in passes of a device."""

    #: The sums as one call of torch, where they are that; and whether it may return D.
    direct: Direct | None = None
    returns = False
    #: Torch's call that returns D, where it takes A, B and C as they are.
    call: Make | None = None

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

    bytes = 0

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        algebra = scheme.contraction.algebra
        self.kept = scheme.roles.kept
        self.places = scheme.contraction.d.dtype == scheme.types.result
        self._d = frame.view(self.kept, D).in_layout(scheme.contraction.d)
        self._shape, self._dtype = frame.shape(self.kept), scheme.types.result
        self._value = algebra.identity if algebra is not None else 0

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        return torch.full(self._shape, self._value, dtype=self._dtype, device=a.device)

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        self._d.of(d).fill_(self._value)


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
        self._find_direct(scheme, frame)

    def _find_direct(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction = scheme.contraction
        a, b, d, alone = contraction.a, contraction.b, contraction.d, scheme.roles.alone
        if contraction.c is not None or not self.places or any(frame.starts):
            return
        if all(scheme.plain) and not self._repeated:
            spread = all(_spreads(layout, place, d, frame) for layout, place in ((a, A), (b, B)))
            if spread and torch.broadcast_shapes(a.shape, b.shape) == d.shape:  # else D would get another shape
                self.direct, self.returns = of_elements(None, None, None), d.shape in (a.shape, b.shape)
                self.call = torch.mul
            else:
                views = self._a.view.in_layout(a), self._b.view.in_layout(b)
                self.direct = of_elements(seeing(views[A], a), seeing(views[B], b), seeing(self._d, d))
                self.returns = self._d.whole and _made_as(views, (a.dtype, b.dtype), d)
        elif alone[A] and self._is_of_one(scheme, frame):
            place = View(self._d.shape if self.kept else (), self._d.strides if self.kept else ())
            if (dims := summed_dims(a, d, frame)) is not None:
                self.direct = of_one(None, None, dims, d.shape)
            else:
                read = frame.view((*self.kept, *alone[A]), A).in_layout(a)
                dims = tuple(range(-len(alone[A]), 0))
                self.direct = of_one(seeing(read, a), seeing(place.in_layout(d), d), dims, d.shape)
            self.returns = math.prod(place.shape) == math.prod(d.shape)

    def _is_of_one(self, scheme: LibraryScheme, frame: Frame) -> bool:
        """Whether it is A alone, times a number."""
        contraction = scheme.contraction
        exact = {contraction.a.dtype, contraction.b.dtype, scheme.types.a} == {contraction.d.dtype}
        moving = [mode for mode in frame.modes if mode.strides[B]]
        return (
            exact and not moving and not contraction.a_args and contraction.a_fn is None and contraction.b_fn is None
            and not (contraction.conjugate_a or contraction.conjugate_b) and scheme.roles.repeat == 1
            and (contraction.d.dtype.is_floating_point or contraction.d.dtype.is_complex)
            and scheme.types.result == scheme.accumulate
        )  # fmt: skip

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


def _spreads(layout: Layout, place: int, d: Layout, frame: Frame) -> bool:
    """Whether torch spreads a tensor over D as its modes say: both are contiguous, and its modes are D's last ones."""
    size = math.prod(layout.shape)
    last = [mode.strides[place] == (mode.strides[D] if mode.strides[D] < size else 0) for mode in frame.modes]
    whole = all(each.strides == Layout.contiguous(each.shape, each.dtype).strides for each in (layout, d))
    return whole and all(last) and d.shape[len(d.shape) - len(layout.shape) :] == layout.shape


class Matrices(OfMatrices):
    """Sums of products as products of matrices."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction = scheme.contraction
        order = arranged(scheme, frame)
        batched = bool(order.batch)
        self.kept = order.kept
        self._swapped = order.swapped
        #: Whether negative values become 0 in the product.
        self.clamps = scheme.clamps and contraction.c is not None and not batched and clamps(scheme.types, scheme.kind)
        self._products: MatrixProducts | SplitProducts = (
            SplitProducts(frame.size(order.k), _of_sums_alone(scheme))
            if scheme.types.way == "split"
            else MatrixProducts(scheme.types, batched, scheme.kind, clamps=self.clamps)
        )
        left, right = (B, A) if order.swapped else (A, B)
        layouts = contraction.a, contraction.b
        self._layouts = (*layouts, contraction.d)
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
        if scheme.types.way == "bytes" and order.place is not None:
            placed = order.place.strides == Layout.contiguous(order.place.shape, torch.int32).strides
        self._d = order.place.in_layout(contraction.d) if order.place is not None and placed else None
        self.places = placed
        self._c = _addend(scheme, frame, (order.batch, order.rows, order.columns)) if placed else None
        sizes = [frame.size(group) for group in (order.batch, order.rows, order.columns, order.k)]
        once = self._c is not None and (not scheme.rounds_sums or is_rounded_once(self._c.shape, *sizes))
        self.adds = once and not scheme.follows and self._products.adds  # C as well
        #: Sums in memory of torch's, of operands that are matrices as they lie.
        self.unplaced = self._without_place(contraction) if self._products.fuses else None
        self.direct = self._direct(contraction)
        products = self._products
        if isinstance(products, MatrixProducts) and self.direct is not None and self._d is not None and (
            contraction.d.dtype == scheme.types.result
        ):
            given = contraction.a, contraction.b, contraction.c, contraction.d
            views = getattr(self._left, "view", None), getattr(self._right, "view", None), self._c, self._d
            self.returns = contraction.d.shape == () if self._is_of_vectors else self._d.whole
            plain = scheme.types.way == "plain" and not (self.clamps or order.swapped or batched or self._is_of_vectors)
            if plain and (name := natural_call(given, views)) is not None:
                self.call, self.returns = getattr(products, name), True
                self.direct = natural(self.call, self.direct, writes=name == "matmul")
        #: Bytes of operands that are packed.
        self.packed_bytes = self._left.bytes + self._right.bytes
        self.bytes = self.packed_bytes + self._products.bytes(*sizes)

    def _direct(self, contraction: Contraction) -> Direct | None:
        """None where an operand is no matrix as it lies, or a vendor's library has a quicker way."""
        left, right, place, addend, products = self._left, self._right, self._d, self._c, self._products
        if not (isinstance(left, Seen) and isinstance(right, Seen)) or place is None:
            return None
        if not isinstance(products, MatrixProducts):
            return None
        adds = contraction.c is not None
        if adds and not self.adds:
            return None
        views = (left.view, right.view, place, *([addend] if addend is not None else []))
        if any(view.start for view in views):
            return None
        a, b = (contraction.b, contraction.a) if self._swapped else (contraction.a, contraction.b)
        if self._is_of_vectors:
            layouts = a, b, contraction.d
            return of_vectors(left.view, right.view, layouts, swapped=self._swapped)
        of_c = seeing(addend, contraction.c) if addend is not None and contraction.c is not None else None
        of_left, of_right = seeing(left.view, a), seeing(right.view, b)
        if of_left is of_right is None and not self._swapped and not adds:
            self.call = products.multiply
        of_d = seeing(place, contraction.d)
        return direct(products, of_left, of_right, of_c, of_d, swapped=self._swapped, adds=adds)

    @property
    def _is_of_vectors(self) -> bool:
        """Whether D is a number, and torch's product of vectors makes it."""
        products = self._products
        is_plain = isinstance(products, MatrixProducts) and products.is_plain
        return is_plain and self._d is not None and self._d.shape == (1, 1) and self._c is None

    def _without_place(self, contraction: Contraction) -> Direct | None:
        left, right, products = self._left, self._right, self._products
        if not (isinstance(left, Seen) and isinstance(right, Seen)) or left.view.start or right.view.start:
            return None
        if not isinstance(products, MatrixProducts):
            return None
        a, b = (contraction.b, contraction.a) if self._swapped else (contraction.a, contraction.b)
        seen = seeing(left.view, a), seeing(right.view, b)
        return direct(products, *seen, None, None, swapped=self._swapped, adds=False)

    def prepare_terms(self, target: Target, *, in_place: bool) -> None:
        """Have kernels made that multiply terms, into D or into memory of their own."""
        assert isinstance(self._products, SplitProducts), "it is made of terms"
        a, b, d = self._layouts
        left, right = (x.layout(of) for x, of in zip(self._operands, (b, a) if self._swapped else (a, b), strict=True))
        if in_place:
            assert self._d is not None, "it is one that places"
            place = d._replace(shape=self._d.shape, strides=self._d.strides)
        else:
            place = Layout.contiguous((*left.shape[:-1], right.shape[-1]), left.dtype)
        self._products.prepare(target, left, right, place, in_place=in_place)

    @property
    def kernels(self) -> tuple[Any, ...]:
        """Launches that multiply terms."""
        return self._products.kernels if isinstance(self._products, SplitProducts) else ()

    @property
    def states(self) -> list[str]:
        found = super().states
        return [*found, self._products.state] if isinstance(self._products, SplitProducts) else found

    def _factors(self, a: Tensor, b: Tensor, aux: AuxTensors) -> tuple[Tensor, Tensor]:
        if self._swapped:
            a, b = b, a
        return self._left.of(a, aux), self._right.of(b, aux)

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        if alpha == 1 and self.unplaced is not None and not any_autocast():
            found = self.unplaced(a, b, None, None)
        else:
            found = self._products.made(*self._factors(a, b, aux), alpha)
        return found if found.shape == self._shape else found.reshape(self._shape)

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        assert self._d is not None, "it is one that places"
        if alpha == 1 and self.direct is not None and self._c is None:
            self.direct(a, b, None, d)
            return
        self._products.into(self._d.of(d), *self._factors(a, b, aux), alpha)

    def finishes(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> bool:
        """Write the epilogue of the sums to D; False where that is for `into` and who follows."""
        assert self._d is not None, "it is one that places"
        products = self._products
        if not isinstance(products, SplitProducts) or not products.has_epilogue:
            return False
        return products.finishes(self._d.of(d), *self._factors(a, b, aux), alpha)

    def added(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, c: Tensor, beta: Scalar, aux: AuxTensors) -> None:
        assert self._d is not None, "it is one that places"
        assert self._c is not None, "it is one that adds"
        assert isinstance(self._products, MatrixProducts), "terms add nothing"
        self._products.added(self._d.of(d), *self._factors(a, b, aux), alpha, self._c.of(c), beta)


def _of_sums_alone(scheme: LibraryScheme) -> Pointwise | None:
    """The epilogue, where it takes nothing beside the sum, and nothing else follows."""
    contraction = scheme.contraction
    beside = contraction.c is not None or contraction.epilogue_args or contraction.outputs or scheme.roles.repeat != 1
    return None if beside else contraction.epilogue


def _made_as(views: tuple[View, View], dtypes: tuple[torch.dtype, torch.dtype], d: Layout) -> bool:
    """Whether torch lays a new product of elements out as D, which is told by tensors without memory."""
    x, y = (
        torch.empty_strided(view.shape, view.strides, dtype=dtype, device="meta")
        for view, dtype in zip(views, dtypes, strict=True)
    )
    found = torch.mul(x, y)
    return (found.shape, found.stride(), found.dtype) == (d.shape, d.strides, d.dtype)


def _addend(scheme: LibraryScheme, frame: Frame, groups: tuple[Group, Group, Group]) -> View | None:
    """C as the product adds it: a matrix, or a vector where all rows are equal."""
    layout = scheme.contraction.c
    view = frame.matrix(groups, C, copied=True) if layout is not None else None
    if layout is None or view is None:
        return None
    if scheme.kind != "cpu" and view.shape[-2] == 1:  # cuBLASLt refuses single rows whose step is no row
        return None
    if scheme.types.way == "plain" and view.strides == (0, 1):
        view = View(view.shape[1:], (1,), view.start)
    return view.in_layout(layout)
