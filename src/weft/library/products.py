"""Products of matrices in each kind of number: [batch, rows, k] times [batch, k, columns], both without batch or with.

plain       torch.mm or bmm in one type, C added by addmm or baddbmm
widening    halves on a GPU, whose sums stay in single precision
limbs       integers on a GPU, for which torch has no product: digits of 16 bits, exact in float64
brains      bfloat16 on a CPU with instructions for it, whose sums are of single precision
bytes       int8 on a CPU with instructions for it
parts       a real matrix times a complex one, whose parts are columns of a real one
split       float32 on a GPU as terms of a shorter type: `weft.library.split`
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from weft.library.exact import multiplies_brains, widens
from weft.machine.exactness import guarded
from weft.planner.schedule import Scalar
from weft.spec import Arithmetic

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
        self.fuses = types.way in ("plain", "widening", "brains", "bytes")  # alpha, and writes to a place
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
        if way == "parts":
            return batch * k * max(rows, columns) * item
        if way == "brains":
            down, across = min(rows, _TILE), min(columns, _TILE)
            return 8 * batch * (down * k + k * across + down * across)
        if way == "limbs":
            digits = max(8 * item // _DIGIT, 1) + 1
            return 8 * batch * (digits * min(k, _EXACT) * (rows + columns) + 3 * rows * columns)
        return 0

    def into(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar = 1) -> None:
        """`alpha` times the product, written to a place; where it `fuses`."""
        if alpha in (0, 1) or self._types.way == "bytes":
            self.multiply(left, right, out=place)
            if alpha != 1:  # libraries do not read factors that 0 is to multiply, and NaN stays NaN
                place *= wrapped(alpha, place.dtype)
        elif self._types.way == "brains":  # rounded once
            _by_tiles(place, left, right, alpha)
        else:
            self.add(place, left, right, beta=0, alpha=wrapped(alpha, self._types.result), out=place)

    def added(self, place: Tensor, left: Tensor, right: Tensor, alpha: Scalar, addend: Tensor, beta: Scalar) -> None:
        """Write `alpha` times the product and `beta` times an addend, which may be the place."""
        result = self._types.result
        self.add(addend, left, right, beta=wrapped(beta, result), alpha=wrapped(alpha, result), out=place)

    def made(self, left: Tensor, right: Tensor, alpha: Scalar = 1) -> Tensor:
        """`alpha` times the product in memory of its own."""
        if self.fuses:
            place = left.new_empty((*left.shape[:-1], right.shape[-1]), dtype=self._types.result)
            self.into(place, left, right, alpha)
            return place
        found = self._unfused(left, right)
        return found if alpha == 1 else found.mul_(wrapped(alpha, found.dtype))

    def _unfused(self, left: Tensor, right: Tensor) -> Tensor:
        if self._types.way == "limbs":
            return _by_limbs(left, right, self._types.result)
        return self._parts(right.mT, left.mT).mT if left.is_complex() else self._parts(left, right)

    def _parts(self, left: Tensor, right: Tensor) -> Tensor:
        """Real times complex."""
        parts = torch.view_as_real(right.resolve_conj().contiguous()).flatten(-2)
        return torch.view_as_complex(self._real(left, parts).unflatten(-1, (-1, 2)))


def _of_bytes(left: Tensor, right: Tensor, *, out: Tensor | None = None) -> Tensor:
    """The product in int32. `out` is contiguous."""
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
