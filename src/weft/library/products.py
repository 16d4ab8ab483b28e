"""Products of matrices in each kind of number: [batch, rows, k] times [batch, k, columns], both without batch or with.

plain       torch.mm or bmm in one type, C added by addmm or baddbmm
widening    halves on a GPU, whose sums stay in single precision
limbs       integers on a GPU, for which torch has no product: digits of 16 bits, exact in float64
brains      bfloat16 on a CPU with instructions for it, whose sums are of single precision
bytes       int8 on a CPU with instructions for it
parts       a real matrix times a complex one, whose parts are columns of a real one
split       float32 on a GPU as terms of a shorter type, multiplied by `weft.library.sums`

Sums that are one call of torch, where every tensor is seen as it lies and nothing follows, are `Direct`: the call
writes to D, or returns a new one, which torch allocates in less time than a tensor takes beforehand.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from operator import attrgetter, methodcaller
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from weft.base.kept import constant
from weft.library.views import A, D, Frame, View
from weft.machine.exactness import guarded
from weft.planner.schedule import Scalar
from weft.planner.split_schemes import split_bytes
from weft.spec import Arithmetic, Layout

Way = Literal["plain", "widening", "limbs", "brains", "bytes", "parts", "split"]
_HALVES = (torch.float16, torch.bfloat16)
_TILE = 256  # rows and columns
_DIGIT = 16  # bits
_EXACT = 1 << 20  # products of two digits whose sum float64 holds


class ProductTypes(NamedTuple):
    """The types that products are made in: of A's values, of B's, and of the result."""

    a: torch.dtype
    b: torch.dtype
    result: torch.dtype
    way: Way


def types_of(arithmetic: Arithmetic, values: tuple[torch.dtype, torch.dtype], kind: str, short: bool) -> ProductTypes:
    """`values` as functions leave them; `short`: a half result may be stored by the product itself, and operands meet
    as they are, none summed alone."""
    accumulate = arithmetic.accumulate
    if accumulate.is_complex:
        a, b = factors_of(values, accumulate)
        return ProductTypes(a, b, accumulate, "plain" if a is b else "parts")
    if not accumulate.is_floating_point:
        if kind == "cpu":
            return ProductTypes(accumulate, accumulate, accumulate, "plain")
        digit = torch.float64 if max(value.itemsize for value in values) <= _DIGIT // 8 else accumulate
        return ProductTypes(digit, digit, accumulate, "limbs")
    half = torch.float16 if values[0].itemsize == 1 else values[0]
    if kind == "cpu" and short and {*values} == {torch.bfloat16} and multiplies_brains():
        return ProductTypes(*values, torch.bfloat16, "brains")
    if kind == "cpu" or accumulate is not torch.float32 or half not in _HALVES or {*values} != {values[0]}:
        return ProductTypes(accumulate, accumulate, accumulate, "plain")
    if short:
        return ProductTypes(half, half, half, "plain")
    if widens():
        return ProductTypes(half, half, accumulate, "widening")
    return ProductTypes(accumulate, accumulate, accumulate, "plain")


def clamps(types: ProductTypes, kind: str) -> bool:
    """Whether torch's product of matrices that adds C makes negative sums 0 in the same call."""
    single = types.result in (torch.float32, *_HALVES)
    return kind == "cuda" and types.way == "plain" and single and hasattr(torch, "_addmm_activation")


def is_rounded_once(addend: tuple[int, ...], batch: int, rows: int, columns: int, k: int) -> bool:
    """Whether a GPU's library adds C to half products before it rounds them: a vector along whole words of columns.

    Sums to which it adds a matrix were seen on an H200 to be off by more than a rounding.
    """
    return len(addend) == 1 and batch == 1 and min(rows, columns) > 1 and columns % 8 == k % 8 == 0


def factors_of(values: tuple[torch.dtype, torch.dtype], accumulate: torch.dtype) -> tuple[torch.dtype, torch.dtype]:
    """The accumulator's type for both; a real factor of a complex one stays real."""
    if not accumulate.is_complex or values[0].is_complex == values[1].is_complex:
        return accumulate, accumulate
    real = accumulate.to_real()
    return (accumulate, real) if values[0].is_complex else (real, accumulate)


class MatrixProducts:
    """Multiplies matrices of the types that it was made for; `batched`: with a dimension of batches."""

    def __init__(self, types: ProductTypes, batched: bool, kind: str, *, clamps: bool = False) -> None:
        """`clamps`: what C was added to becomes 0 where it is negative."""
        self._types = types
        self.fuses = types.way not in ("limbs", "parts")  # alpha, and writes to a place
        self.adds = types.way in ("plain", "widening")  # C
        multiply: Callable[..., Any] = torch.bmm if batched else torch.mm
        add: Callable[..., Any] = torch._addmm_activation if clamps else torch.baddbmm if batched else torch.addmm
        if types.way == "bytes":
            multiply = _of_bytes
        elif types.way == "widening":
            multiply, add = (partial(call, out_dtype=types.result) for call in (multiply, add))
        self.multiply, self.add, self.linear, self.matmul = (
            guarded(call, types.a, types.result, kind)
            for call in (multiply, add, torch.nn.functional.linear, torch.matmul)
        )
        self.is_plain = types.way == "plain" and types.result is types.a
        self._real = torch.matmul
        if types.way == "parts":
            real = types.result.to_real()
            self._real = guarded(torch.matmul, real, real, kind)

    def bytes(self, batch: int, rows: int, columns: int, k: int) -> int:
        """Workspace bytes of a product, besides its result."""
        way, item = self._types.way, self._types.result.itemsize
        if way == "split":
            return split_bytes(batch, rows, columns, k)
        if way == "parts":
            return batch * k * max(rows, columns) * item
        if way == "brains":
            down, across = min(rows, _TILE), min(columns, _TILE)
            return 8 * batch * (down * k + k * across + down * across)
        if way == "limbs":
            digits = max(8 * item // _DIGIT, 1) + 1
            return 8 * batch * (digits * min(k, _EXACT) * (rows + columns) + 3 * rows * columns)
        return 0

    def __call__(
        self, left: Tensor, right: Tensor, alpha: Scalar = 1, place: Tensor | None = None,
        addend: Tensor | None = None, beta: Scalar = 0,
    ) -> Tensor:  # fmt: skip
        """`alpha` times the product, in a place where it `fuses`, else in memory of its own; where it `adds`, with
        `beta` times an addend, which may be the place."""
        way, result = self._types.way, self._types.result
        if not self.fuses:
            found = _by_limbs(left, right, result) if way == "limbs" else self._parts(left, right)
            return found if alpha == 1 else found.mul_(wrapped(alpha, result))
        if place is None:
            place = left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=result)
        if addend is not None:
            self.add(addend, left, right, beta=wrapped(beta, result), alpha=wrapped(alpha, result), out=place)
        elif alpha in (0, 1) or way == "bytes":
            self.multiply(left, right, out=place)
            if alpha != 1:  # libraries do not read factors that 0 is to multiply, and NaN stays NaN
                place *= wrapped(alpha, result)
        elif way == "brains":  # rounded once
            _by_tiles(place, left, right, alpha)
        else:
            self.add(place, left, right, beta=0, alpha=wrapped(alpha, result), out=place)
        return place

    def _parts(self, left: Tensor, right: Tensor) -> Tensor:
        """A real matrix and a complex one."""
        if left.is_complex():
            return self._parts(right.mT, left.mT).mT
        parts = torch.view_as_real(right.resolve_conj().contiguous()).flatten(-2)
        return torch.view_as_complex(self._real(left, parts).unflatten(-1, (-1, 2)))


def _of_bytes(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product in int32. `out` is contiguous."""
    if left.shape[0] == 1:  # of a row with steps of 1 along both torch leaves what was in memory
        left = left.flatten()[None]
    if left.shape[-1] > 1:
        return torch._int_mm(left, right, out=out)
    return torch.mm(left.int(), right.int(), out=out)  # of a single k the other leaves what was in memory


def wrapped(factor: Scalar, dtype: torch.dtype) -> Scalar:
    """A factor of values of that type: whole numbers as they wrap around there."""
    if dtype.is_floating_point or dtype.is_complex:
        return factor
    lowest = torch.iinfo(dtype).min
    return (int(factor.real) - lowest) % (1 << torch.iinfo(dtype).bits) + lowest


def _by_tiles(place: Tensor, left: Tensor, right: Tensor, alpha: Scalar) -> None:
    """`alpha` times a product of halves by single precision, a tile of the place at a time."""
    for column in range(0, place.shape[-1], _TILE):
        factor = right[..., column : column + _TILE].float()
        for row in range(0, place.shape[-2], _TILE):
            tile = torch.matmul(left[..., row : row + _TILE, :].float(), factor)
            place[..., row : row + _TILE, column : column + _TILE].copy_(tile.mul_(alpha))


def _by_limbs(left: Tensor, right: Tensor, accumulate: torch.dtype) -> Tensor:
    """The sum over digits i of A and j of B of 2^(16 (i + j)) times their product, modulo the accumulator's range."""
    bits = torch.iinfo(accumulate).bits
    total = left.new_zeros((*left.shape[:-1], right.shape[-1]), dtype=torch.int64)
    for start in range(0, left.shape[-1], _EXACT):
        x = _digits(left[..., start : start + _EXACT])
        y = _digits(right[..., start : start + _EXACT, :])
        for i, p in enumerate(x):
            for j, q in enumerate(y):
                if (shift := _DIGIT * (i + j)) < bits:
                    total += torch.matmul(p, q).to(torch.int64) << shift
    return total.to(accumulate)


def _digits(values: Tensor) -> list[Tensor]:
    """Integers as digits of 16 bits in float64, lowest first; the highest has the sign. One of float64 is a digit."""
    if values.is_floating_point():
        return [values]
    count = max(torch.iinfo(values.dtype).bits // _DIGIT, 1)
    found = []
    for at in range(count):
        digit = values >> (_DIGIT * at) if at else values
        found.append((digit & ((1 << _DIGIT) - 1) if at < count - 1 else digit).to(torch.float64))
    return found


@lru_cache
def multiplies_brains() -> bool:
    """Whether torch's products of bfloat16 on this CPU are by instructions that add in single precision."""
    has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return has_bf16 is not None and bool(has_bf16()) and torch.backends.mkldnn.is_available()


@lru_cache
def widens() -> bool:
    """Whether torch leaves products of halves in single precision on a GPU."""
    return (
        torch.version.hip is None
        and hasattr(torch.ops.aten.mm, "dtype_out")
        and hasattr(torch.ops.aten.bmm, "dtype_out")
    )


#: Of A, B, C where there is one, and D, or None for a new one, which is returned.
Direct: TypeAlias = Callable[[Tensor, Tensor, Tensor | None, Tensor | None], Tensor]
Reducing: TypeAlias = Callable[..., Tensor]
Seeing: TypeAlias = Callable[[Tensor], Tensor] | None  # None: the tensor is the matrix as it is


def direct(
    call: Callable[..., Tensor], left: Seeing, right: Seeing, place: Seeing, addend: Seeing = None, *,
    swapped: bool = False, adds: bool = False,
) -> Direct:  # fmt: skip
    """A call of two tensors that takes `out`; `swapped`: the left one is B; `adds`: it takes C before them."""

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
            return call(a, b, out=d)
        return call(c if addend is None or c is None else addend(c), a, b, out=d)

    return product


def vector(view: View) -> View:
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


def of_tables(
    operations: tuple[Reducing, Reducing], left: View, right: View, place: View, shape: tuple[int, ...]
) -> Direct:
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
