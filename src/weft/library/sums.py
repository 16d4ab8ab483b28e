"""Sums of products in each form: what is built of a part of a contraction, and run on tensors.

A form says which modes its sums have and in which order (`kept`), and what it allocates besides them (`bytes`). Its
call returns sums with a dimension for each mode: in memory of their own, or, where `places` says so, in a D that is
given. Terms of a shorter type, whose products stand for those of float32, are made by `weft.gpu.terms`, and what is
proven of them is in `weft.planner.split_schemes`.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.base.arrays import any_autocast
from weft.errors import UnsupportedError
from weft.library.factors import OperandFactor, OperandMatrix
from weft.library.products import (
    Direct,
    MatrixProducts,
    clamps,
    direct,
    is_rounded_once,
    natural,
    natural_call,
    of_one,
    seeing,
    summed_dims,
    vector,
    wrapped,
)
from weft.library.scheme import LibraryScheme, arranged
from weft.library.views import A, B, C, D, Frame, Group, View
from weft.planner.schedule import AuxTensors, Make, ResourceError, Scalar, Target
from weft.planner.split_schemes import BF16X6, FP16X3, prefers_float16
from weft.spec import Layout

if TYPE_CHECKING:
    from weft.gpu.terms.launch import TermsProduct


class Form:
    """A form of sums, as it is where it says nothing else."""

    #: The sums as one call of torch, where they are that; and whether it may return D.
    direct: Direct | None = None
    returns = False
    #: Torch's call that returns D, where it takes A, B and C as they are.
    call: Make | None = None
    #: Sums in memory of torch's, where one call makes them.
    unplaced: Direct | None = None
    #: What the call of a product does besides: C is added, negative values become 0, the epilogue is applied.
    adds = clamps = has_epilogue = False
    #: Launches that multiply terms.
    kernels: tuple[Any, ...] = ()
    #: A and B, where they are matrices.
    operands: tuple[OperandMatrix | View, ...] = ()

    @property
    def packed(self) -> list[OperandMatrix]:
        """Operands that are packed, or passed through functions."""
        return [each for each in self.operands if isinstance(each, OperandMatrix)]

    @property
    def packed_bytes(self) -> int:
        """Bytes that they take."""
        return sum(each.bytes for each in self.packed)

    @property
    def states(self) -> list[str]:
        """Sentences on what computes functions of A and of B."""
        return [each.state for each in self.packed if each.state is not None]


class Nothing(Form):
    """An empty sum."""

    bytes = 0

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        algebra = scheme.contraction.algebra
        self.kept = scheme.roles.kept
        self.places = scheme.contraction.d.dtype == scheme.types.result
        self._d = frame.view(self.kept, D).in_layout(scheme.contraction.d)
        self._shape, self._dtype = frame.shape(self.kept), scheme.types.result
        self._value = algebra.identity if algebra is not None else 0

    def __call__(self, a: Tensor, b: Tensor, d: Tensor | None, alpha: Scalar, aux: AuxTensors) -> Tensor:
        place = torch.empty(self._shape, dtype=self._dtype, device=a.device) if d is None else self._d.of(d)
        return place.fill_(self._value)


class Pairs(Form):
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
                self.direct, self.returns = direct(torch.mul, None, None, None), d.shape in (a.shape, b.shape)
                self.call = torch.mul
            else:
                views = self._a.view.in_layout(a), self._b.view.in_layout(b)
                self.direct = direct(torch.mul, seeing(views[A], a), seeing(views[B], b), seeing(self._d, d))
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

    def __call__(self, a: Tensor, b: Tensor, d: Tensor | None, alpha: Scalar, aux: AuxTensors) -> Tensor:
        x, y, place = self._a.of(a, aux), self._b.of(b, aux), None if d is None else self._d.of(d)
        found = None if self._short and alpha != 1 else place
        if found is None:
            if self._short:
                x, y = x.to(self._accumulate), y.to(self._accumulate)
            found = x.new_empty(self._shape, dtype=self._accumulate)
        torch.mul(x.expand(self._shape) if self._repeated else x, y, out=found)  # modes that neither has as well
        if alpha != 1:
            found.mul_(wrapped(alpha, found.dtype))
        return found if place is None or found is place else place.copy_(found)


def _spreads(layout: Layout, place: int, d: Layout, frame: Frame) -> bool:
    """Whether torch spreads a tensor over D as its modes say: both are contiguous, and its modes are D's last ones."""
    size = math.prod(layout.shape)
    last = [mode.strides[place] == (mode.strides[D] if mode.strides[D] < size else 0) for mode in frame.modes]
    whole = all(each.strides == Layout.contiguous(each.shape, each.dtype).strides for each in (layout, d))
    return whole and all(last) and d.shape[len(d.shape) - len(layout.shape) :] == layout.shape


class Matrices(Form):
    """Sums of products as products of matrices."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction = scheme.contraction
        order = arranged(scheme, frame)
        self._batched = batched = bool(order.batch)
        self.kept = order.kept
        self._swapped = order.swapped
        self.clamps = scheme.clamps and contraction.c is not None and not batched and clamps(scheme.types, scheme.kind)
        products = MatrixProducts(scheme.types, batched, scheme.kind, clamps=self.clamps)
        self._products: Callable[..., Tensor] = products
        left, right = (B, A) if order.swapped else (A, B)
        layouts = contraction.a, contraction.b
        self._left, self._right = self.operands = tuple(
            view.in_layout(layouts[place]) if view is not None else OperandMatrix(scheme, place, frame, groups, batched)
            for place, groups, view in (
                (left, (order.batch, order.rows, order.k), order.left),
                (right, (order.batch, order.k, order.columns), order.right),
            )
        )
        self._shape = frame.shape(self.kept)
        placed = order.place is not None and products.fuses
        if scheme.types.way == "bytes" and order.place is not None:
            placed = order.place.strides == Layout.contiguous(order.place.shape, torch.int32).strides
        self._d = order.place.in_layout(contraction.d) if order.place is not None and placed else None
        self.places = placed
        self._c = _addend(scheme, frame, (order.batch, order.rows, order.columns)) if placed else None
        sizes = [frame.size(group) for group in (order.batch, order.rows, order.columns, order.k)]
        once = self._c is not None and (not scheme.rounds_sums or is_rounded_once(self._c.shape, *sizes))
        self.adds = once and not scheme.follows and products.adds  # C as well
        self._find_calls(scheme, products)
        self.bytes = self.packed_bytes + products.bytes(*sizes)

    def _find_calls(self, scheme: LibraryScheme, products: MatrixProducts) -> None:
        """The calls of torch that are the product, where operands are matrices as they lie."""
        left, right, place = self._left, self._right, self._d
        if not (isinstance(left, View) and isinstance(right, View)) or left.start or right.start:
            return
        contraction = scheme.contraction
        a, b = (contraction.b, contraction.a) if self._swapped else (contraction.a, contraction.b)
        seen = seeing(left, a), seeing(right, b)
        if products.fuses:
            self.unplaced = direct(products.multiply, *seen, None, swapped=self._swapped)
        c, adds = self._c, contraction.c is not None
        if place is None or place.start or (c is not None and c.start) or (adds and not self.adds):
            return
        of_d = seeing(place, contraction.d)
        vectors = products.is_plain and place.shape == (1, 1) and c is None
        if vectors:
            layouts, seen_as = (a, b, contraction.d), (vector(left), vector(right), View((), ()))
            of_views = [seeing(view.in_layout(of), of) for view, of in zip(seen_as, layouts, strict=True)]
            self.direct = direct(torch.dot, *of_views, swapped=self._swapped)
        elif c is not None and contraction.c is not None:
            of_c = seeing(c, contraction.c)
            self.direct = direct(products.add, *seen, of_d, of_c, swapped=self._swapped, adds=True)
        else:
            self.direct = direct(products.multiply, *seen, of_d, swapped=self._swapped)
            if seen == (None, None) and not self._swapped:
                self.call = products.multiply
        if contraction.d.dtype != scheme.types.result:
            return
        self.returns = contraction.d.shape == () if vectors else place.whole
        given, views = (contraction.a, contraction.b, contraction.c, contraction.d), (left, right, c, place)
        plain = scheme.types.way == "plain" and not (self.clamps or self._swapped or self._batched or vectors)
        if plain and (name := natural_call(given, views)) is not None:
            self.call, self.returns = getattr(products, name), True
            self.direct = natural(self.call, self.direct, writes=name == "matmul")

    def __call__(
        self, a: Tensor, b: Tensor, d: Tensor | None, alpha: Scalar, aux: AuxTensors, c: Tensor | None = None,
        beta: Scalar = 0,
    ) -> Tensor:  # fmt: skip
        """With `beta` times C, where the product adds it."""
        call = self.unplaced if d is None else self.direct if self._c is None else None
        if alpha == 1 and call is not None and (d is not None or not any_autocast()):
            found = call(a, b, None, d)
        else:
            if self._swapped:
                a, b = b, a
            place = self._d.of(d) if d is not None and self._d is not None else None
            addend = self._c.of(c) if c is not None and self._c is not None else None
            found = self._products(self._left.of(a, aux), self._right.of(b, aux), alpha, place, addend, beta)
        return found.reshape(self._shape) if d is None and found.shape != self._shape else found


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


class SplitMatrices(Matrices):
    """Sums of products of float32 matrices by terms, once kernels are made for their layouts."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        super().__init__(scheme, frame)
        self._products, self.direct, self.unplaced, self.call = self._multiplied, None, None, None
        self._k, self._contraction = frame.size(scheme.roles.k), scheme.contraction
        self._product: TermsProduct | None = None
        self._lie: tuple[Layout, ...] = ()
        beside = scheme.contraction.c is not None or scheme.contraction.epilogue_args or scheme.contraction.outputs
        self._epilogue = None if beside or scheme.roles.repeat != 1 else scheme.contraction.epilogue

    def prepare_terms(self, target: Target, *, in_place: bool) -> None:
        """Have kernels made that multiply terms, into D through an epilogue, or into memory of their own.

        `ResourceError` where they do not take matrices that lie so.
        """
        from weft.gpu.terms.launch import TermsProduct

        given = self._contraction.a, self._contraction.b
        left, right = (x.layout(of) for x, of in zip(self.operands, given[:: -1 if self._swapped else 1], strict=True))
        place = Layout.contiguous((*left.shape[:-1], right.shape[-1]), left.dtype)
        if in_place:
            assert self._d is not None, "it is one that places"
            place = self._d.layout(self._contraction.d)
        *batch, m, n = place.shape
        schemes = (FP16X3, BF16X6) if prefers_float16(math.prod(batch), m, n, self._k) else (BF16X6,)
        epilogue = self._epilogue if in_place else None
        try:
            self._product = TermsProduct(left, right, place, schemes, target, epilogue)
        except UnsupportedError as error:
            raise ResourceError(str(error)) from None
        self._lie, self.kernels, self.has_epilogue = (left, right, place), self._product.kernels, epilogue is not None

    @property
    def states(self) -> list[str]:
        """With the terms, and their bound over that of an IEEE sum."""
        served = self._product.schemes if self._product is not None else (BF16X6,)
        shares = " or ".join([f"{each.loss(self._k, joined=True) / self._k:.2f} by {each.name}" for each in served])
        return [*super().states, f"terms in one kernel, of an IEEE sum's bound {shares}"]

    def _multiplied(self, left: Tensor, right: Tensor, alpha: Scalar, place: Tensor | None, *_: Any) -> Tensor:
        """`alpha` times the product, through the epilogue if there is one, in a place or in memory of its own."""
        assert self._product is not None, "it is prepared"
        found = left.new_empty((*left.shape[:-1], right.shape[-1])) if place is None else place
        left, right = (_lying(x, layout) for x, layout in zip((left, right), self._lie, strict=False))
        stored = found if found.stride() == self._lie[2].strides else _empty(self._lie[2], found.device)
        self._product(left, right, stored, float(alpha.real))
        return found if stored is found else found.copy_(stored)


def _lying(x: Tensor, layout: Layout) -> Tensor:
    """The values of a matrix in the layout that kernels were made for: functions may leave them in another."""
    return x if x.stride() == layout.strides else _empty(layout, x.device).copy_(x)


def _empty(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=device)
