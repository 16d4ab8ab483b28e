"""Sums of products in each form: what is built of a part of a contraction, and run on tensors.

A form says which modes its sums have and in which order (`kept`), what it allocates besides them (`bytes`), and has two
ways to run: `made`, sums in memory of their own with a dimension for each mode, and, where `places` says so, `into` D.
Terms of a shorter type, whose products stand for those of float32, are made by `weft.gpu.terms`, and what is proven of
them is in `weft.planner.split_schemes`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from weft.base.arrays import any_autocast
from weft.errors import UnsupportedError
from weft.fn import Pointwise
from weft.library.factors import OperandFactor, OperandMatrix, Seen
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
from weft.planner.split_schemes import BF16X6, FP16X3, prefers_float16, split_bytes
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
    #: Bytes of operands that are packed.
    packed_bytes = 0
    #: Launches that multiply terms.
    kernels: tuple[Any, ...] = ()
    _operands: tuple[OperandMatrix | Seen, ...] = ()

    def prepare(self, target: Target) -> None:
        """Have functions of A and of B done in one pass each."""
        for operand in self._operands:
            operand.prepare(target)

    @property
    def states(self) -> list[str]:
        """Sentences on what computes functions of A and of B."""
        return [each.state for each in self._operands if each.state is not None]


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

    def made(self, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> Tensor:
        return torch.full(self._shape, self._value, dtype=self._dtype, device=a.device)

    def into(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, aux: AuxTensors) -> None:
        self._d.of(d).fill_(self._value)


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


class Matrices(Form):
    """Sums of products as products of matrices."""

    def __init__(self, scheme: LibraryScheme, frame: Frame) -> None:
        contraction = scheme.contraction
        order = arranged(scheme, frame)
        self._batched = batched = bool(order.batch)
        self.kept = order.kept
        self._swapped = order.swapped
        self.clamps = scheme.clamps and contraction.c is not None and not batched and clamps(scheme.types, scheme.kind)
        self._products = self._multiplying(scheme, frame.size(order.k))
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
        self._find_calls(scheme)
        self.packed_bytes = self._left.bytes + self._right.bytes
        self.bytes = self.packed_bytes + self._products.bytes(*sizes)

    def _multiplying(self, scheme: LibraryScheme, k: int) -> MatrixProducts:
        """The multiplication of matrices, for sums of `k` products."""
        return MatrixProducts(scheme.types, self._batched, scheme.kind, clamps=self.clamps)

    def _find_calls(self, scheme: LibraryScheme) -> None:
        """The calls of torch that are the product, where operands are matrices as they lie."""
        left, right, products, place = self._left, self._right, self._products, self._d
        if not (isinstance(left, Seen) and isinstance(right, Seen)) or left.view.start or right.view.start:
            return
        contraction = scheme.contraction
        a, b = (contraction.b, contraction.a) if self._swapped else (contraction.a, contraction.b)
        seen = seeing(left.view, a), seeing(right.view, b)
        if products.fuses:
            self.unplaced = direct(products.multiply, *seen, None, swapped=self._swapped)
        c, adds = self._c, contraction.c is not None
        if place is None or place.start or (c is not None and c.start) or (adds and not self.adds):
            return
        of_d = seeing(place, contraction.d)
        vectors = products.is_plain and place.shape == (1, 1) and c is None
        if vectors:
            layouts, seen_as = (a, b, contraction.d), (vector(left.view), vector(right.view), View((), ()))
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
        given, views = (contraction.a, contraction.b, contraction.c, contraction.d), (left.view, right.view, c, place)
        plain = scheme.types.way == "plain" and not (self.clamps or self._swapped or self._batched or vectors)
        if plain and (name := natural_call(given, views)) is not None:
            self.call, self.returns = getattr(products, name), True
            self.direct = natural(self.call, self.direct, writes=name == "matmul")

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

    def added(self, d: Tensor, a: Tensor, b: Tensor, alpha: Scalar, c: Tensor, beta: Scalar, aux: AuxTensors) -> None:
        assert self._d is not None, "it is one that places"
        assert self._c is not None, "it is one that adds"
        self._products.added(self._d.of(d), *self._factors(a, b, aux), alpha, self._c.of(c), beta)


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

    _products: SplitProducts

    def _multiplying(self, scheme: LibraryScheme, k: int) -> MatrixProducts:
        contraction = scheme.contraction
        beside = contraction.c is not None or contraction.epilogue_args or contraction.outputs
        return SplitProducts(k, None if beside or scheme.roles.repeat != 1 else contraction.epilogue)

    def _find_calls(self, scheme: LibraryScheme) -> None:
        """No call of torch multiplies terms."""

    def prepare_terms(self, target: Target, *, in_place: bool) -> None:
        """Have kernels made that multiply terms, into D or into memory of their own."""
        a, b, d = self._layouts
        left, right = (x.layout(of) for x, of in zip(self._operands, (b, a) if self._swapped else (a, b), strict=True))
        if in_place:
            assert self._d is not None, "it is one that places"
            place = d._replace(shape=self._d.shape, strides=self._d.strides)
        else:
            place = Layout.contiguous((*left.shape[:-1], right.shape[-1]), left.dtype)
        self._products.prepare(target, left, right, place, in_place=in_place)
        self.has_epilogue, self.kernels = self._products.epilogue is not None, self._products.kernels

    @property
    def states(self) -> list[str]:
        return [*super().states, self._products.state]


class SplitProducts(MatrixProducts):
    """Multiplies float32 matrices by terms, once it is prepared for their layouts."""

    fuses, adds = True, False

    def __init__(self, k: int, epilogue: Pointwise | None = None) -> None:
        """`epilogue`: a function of sums alone, which the kernel applies where it writes to D."""
        self._k, self.epilogue = k, epilogue
        self._product: TermsProduct | None = None
        self._lie: tuple[Layout, Layout, Layout] | None = None

    def prepare(self, target: Target, left: Layout, right: Layout, place: Layout, *, in_place: bool) -> None:
        """Have the kernels made, which apply the epilogue `in_place`: where the place is D.

        `ResourceError` where they do not take matrices that lie so.
        """
        from weft.gpu.terms.launch import TermsProduct

        if not in_place:
            self.epilogue = None
        *batch, m, n = place.shape
        schemes = (FP16X3, BF16X6) if prefers_float16(math.prod(batch), m, n, self._k) else (BF16X6,)
        try:
            self._product = TermsProduct(left, right, place, schemes, target, self.epilogue)
        except UnsupportedError as error:
            raise ResourceError(str(error)) from None
        self._lie = left, right, place

    @property
    def kernels(self) -> tuple[Any, ...]:
        """The launches of a product."""
        return self._product.kernels if self._product is not None else ()

    @property
    def state(self) -> str:
        """One sentence for `explain`: the terms, and their bound over that of an IEEE sum."""
        served = self._product.schemes if self._product is not None else (BF16X6,)
        shares = " or ".join([f"{each.loss(self._k, joined=True) / self._k:.2f} by {each.name}" for each in served])
        return f"terms in one kernel, of an IEEE sum's bound {shares}"

    def bytes(self, batch: int, rows: int, columns: int, k: int) -> int:
        return split_bytes(batch, rows, columns, k)

    def made(self, left: Tensor, right: Tensor, alpha: Scalar = 1) -> Tensor:
        place = left.new_empty((*left.shape[:-1], right.shape[-1]))
        self.into(place, left, right, alpha)
        return place

    def into(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar = 1) -> None:
        """`alpha` times the product, through the epilogue if there is one, written to a place."""
        assert self._product is not None, "it is prepared"
        assert self._lie is not None, "it is prepared"
        left, right = (_lying(x, layout) for x, layout in zip((left, right), self._lie, strict=False))
        stored = place if place.stride() == self._lie[2].strides else _empty(self._lie[2], place.device)
        self._product(left, right, stored, float(alpha.real))
        if stored is not place:
            place.copy_(stored)


def _lying(x: Tensor, layout: Layout) -> Tensor:
    """The values of a matrix in the layout that kernels were made for: functions may leave them in another."""
    return x if x.stride() == layout.strides else _empty(layout, x.device).copy_(x)


def _empty(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty_strided(layout.shape, layout.strides, dtype=layout.dtype, device=device)
