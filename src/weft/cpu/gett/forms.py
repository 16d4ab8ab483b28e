"""A contraction as the kernels compute it: their operation, number type and axes, and how sums are stored as others.

Some algebras' sums are sums of products of other numbers, value for value:

    or_and             a pair is true where both are not zero: count the true pairs; sums of zeros and ones that are
                       not all zero never round to zero, so no count is missed
    gf2 of bool        the count is odd
    plus_times_mod(p)  remainders multiplied and summed in float64, exact as long as sums stay below 2**53

Of a large modulus few products would stay below that. One factor is then cut into two digits, b = high * 2**s + low:

    a * b  =  a * low + (a * 2**s mod p) * high    (mod p)

so that the sum goes over twice as many products, of numbers half as long. Remainders are around zero, which saves a
bit of each factor. Sums are brought back to remainders whenever a block of k has been added.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import torch
from torch import Tensor

from weft.algebra import Algebra, gf2, max_min, max_plus, max_times, min_max, min_plus, of_count, plus_times_mod
from weft.cpu.gett.layout import Axes, axes_of
from weft.cpu.gett.params import BLOCK_ROWS, Operation
from weft.cpu.level import vector_bytes
from weft.errors import WeftError
from weft.fn import Pointwise, trace
from weft.fn.algebra import TracedAlgebra
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

EXACT = 2**53  # up to which float64 has every integer
LEAST_CHUNK = 64  # products summed at once, under which factors are cut


class MatrixForm(NamedTuple):
    """How a reduction becomes sums of products in `dtype`, of at most `chunk` along k at a time.

    The functions take values of the accumulator's type, and where there are several `parts` which of them.
    """

    dtype: torch.dtype
    a_factor: Pointwise
    b_factor: Pointwise
    result: Pointwise  # sums of products -> values of the algebra
    between: Pointwise | None = None  # sums of a chunk -> what stands for them in further ones
    chunk: int = 1 << 62
    parts: int = 1


@lru_cache
def matrix_form(algebra: TracedAlgebra, accumulate: torch.dtype) -> MatrixForm | None:
    """The form of an algebra for values of `accumulate`; None where it has none that is exact.

    An algebra is recognised by what it computes; its name at most suggests what to try.
    """
    if (result := of_count(algebra, accumulate)) is not None:
        return _of_truth(accumulate, result)
    p = _modulus(algebra, accumulate)
    return None if p is None else _of_remainders(p, accumulate)


def _of_truth(accumulate: torch.dtype, result: Callable[[Tensor], Tensor]) -> MatrixForm:
    truth = trace(lambda x: (x != 0).to(torch.float32), (accumulate,), hook="truth")
    return MatrixForm(torch.float32, truth, truth, trace(result, (torch.float32,), hook="result"), chunk=1 << 24)


def _of_remainders(p: int, accumulate: torch.dtype) -> MatrixForm:
    half = p // 2 + 1
    chunk = (EXACT - 2 * p) // half**2
    if chunk >= LEAST_CHUNK:
        factor = trace(lambda x: _around_zero(x, p), (accumulate,), hook="factor")
        a_factor, b_factor, parts = factor, factor, 1
    else:
        bits = p.bit_length() // 2
        chunk, parts = (EXACT - 2 * p) // (half * (2 ** (bits - 1) + half // 2**bits + 1)), 2

        def moved(x: Tensor, part: Tensor) -> Tensor:
            value = _around_zero(x, p)
            return torch.where(part == 0, value, _rest(value * float(2**bits), p))

        def digit(x: Tensor, part: Tensor) -> Tensor:
            value = _around_zero(x, p)
            high = torch.floor(value * 2.0**-bits + 0.5)
            return torch.where(part == 0, value - high * float(2**bits), high)

        types = (accumulate, torch.int64)
        a_factor = trace(moved, types, names=("part",), hook="factor")
        b_factor = trace(digit, types, names=("part",), hook="factor")

    def result(total: Tensor) -> Tensor:
        rest = _rest(total, p)
        return torch.where(rest < 0, rest + p, rest).to(accumulate)

    between = trace(lambda total: _rest(total, p), (torch.float64,), hook="between")
    ending = trace(result, (torch.float64,), hook="result")
    return MatrixForm(torch.float64, a_factor, b_factor, ending, between, chunk, parts)


def _rest(value: Tensor, p: int) -> Tensor:
    """A float64 integer of at most `EXACT` modulo p, between -p / 2 and p / 2; each step is exact."""
    rest = value - torch.round(value * (1 / p)) * p
    rest = torch.where(rest > p // 2, rest - p, rest)
    return torch.where(rest < -(p // 2), rest + p, rest)


def _around_zero(x: Tensor, p: int) -> Tensor:
    """Any integer modulo p as a float64 around zero, by quotients in float64: vectors have no integer division.

    The first quotient may be off by |x| / p / 2**51, so that a second one is taken, of what is left.
    """
    x = x.to(torch.int64)
    x = x - torch.round(x.to(torch.float64) * (1 / p)).to(torch.int64) * p
    return _rest(x.to(torch.float64), p)


def _modulus(algebra: TracedAlgebra, accumulate: torch.dtype) -> int | None:
    """p where the algebra is `plus_times_mod(p)`: its name suggests p, what it computes proves it."""
    found = re.fullmatch(r"plus_times_mod\((\d+)\)", algebra.name)
    if found is None:
        return None
    p = int(found[1])
    return p if p >= 2 and plus_times_mod(p).is_traced_as(algebra, accumulate) else None


_READY: dict[tuple[str, str], Algebra] = {
    ("add", "max"): max_plus, ("add", "min"): min_plus, ("mul", "max"): max_times, ("max", "min"): min_max,
    ("min", "max"): max_min, ("and", "xor"): gf2,
}  # fmt: skip


@lru_cache
def ready_pair(algebra: TracedAlgebra, accumulate: torch.dtype) -> tuple[str, str] | None:
    """The operations of an algebra, recognised by what it computes; None where no kernel has them."""
    if accumulate.is_complex:
        return None
    for pair, ready in _READY.items():
        try:
            known = ready.traced(accumulate)
        except WeftError:  # which does not work on that type
            continue
        if (algebra.combine, algebra.reduce) == (known.combine, known.reduce):
            return pair
    return None


def operation_of(contraction: Contraction, swapped: bool, real_row: bool) -> Operation | None:
    """The operation of a supported contraction's micro-kernel; None for an algebra whose kernel is written for it."""
    if contraction.algebra is not None:
        accumulate = contraction.arithmetic.accumulate
        if matrix_form(contraction.algebra, accumulate) is not None:
            return Operation("mul", "add")
        pair = ready_pair(contraction.algebra, accumulate)
        return Operation(*pair) if pair is not None else None
    row, slot = (conjugated(contraction, name) for name in ("BA" if swapped else "AB"))
    return Operation("mul", "add", False, row != slot, slot, real_row)


def conjugated(contraction: Contraction, name: str) -> bool:
    """Whether the products conjugate an operand; where a stage has its values, that does it."""
    if contraction.algebra is not None:
        return False
    if name == "A":
        return contraction.conjugate_a and contraction.a.dtype.is_complex and contraction.a_fn is None
    return contraction.conjugate_b and contraction.b.dtype.is_complex and contraction.b_fn is None


class GettForm(NamedTuple):
    """A contraction as the kernels compute it."""

    dtype: torch.dtype  # that is computed in
    axes: Axes
    real_parts: bool  # whether complex numbers are pairs of real ones, one operand being real
    operation: Operation | None  # None: a micro-kernel is written for the algebra
    matrix: MatrixForm | None = None  # of an algebra whose sums are of other products

    @property
    def kind(self) -> str:
        """numba's name of the type that is computed in."""
        return dtype_name(self.dtype)

    @property
    def item(self) -> int:
        return self.dtype.itemsize

    @property
    def lanes(self) -> int:
        return vector_bytes() // self.item

    @property
    def height(self) -> int:
        return BLOCK_ROWS // 2 if self.dtype.is_complex else BLOCK_ROWS


@lru_cache(maxsize=256)
def form_of(contraction: Contraction) -> GettForm:
    """How a contraction that is supported is computed."""
    accumulate = contraction.arithmetic.accumulate
    mixed = contraction.algebra is None and contraction.a.dtype.is_complex != contraction.b.dtype.is_complex
    real_parts = mixed and _in_parts(contraction)
    matrix = matrix_form(contraction.algebra, accumulate) if contraction.algebra is not None else None
    if real_parts:
        dtype = accumulate.to_real()
    elif matrix is not None:
        dtype = matrix.dtype
    else:
        dtype = torch.int32 if accumulate is torch.bool else accumulate
    real_row = mixed and not real_parts
    swapped = contraction.a.dtype.is_complex if real_row else None
    axes = axes_of(contraction, real_parts, swapped, 1 if matrix is None else matrix.parts)
    return GettForm(dtype, axes, real_parts, operation_of(contraction, axes.swapped, real_row), matrix)


def _in_parts(contraction: Contraction) -> bool:
    """Whether real times complex is a product of real numbers: nothing is applied, added or converted."""
    accumulate, stored = contraction.arithmetic.accumulate, (contraction.a.dtype, contraction.b.dtype)
    if contraction.a_fn or contraction.b_fn or contraction.epilogue or contraction.c is not None:
        return False
    if contraction.conjugate_a or contraction.conjugate_b or contraction.d.dtype != accumulate:
        return False
    return accumulate in stored and accumulate.to_real() in stored


def k_step(form: GettForm, base: int) -> int | None:
    """Bytes from one k to the next, where that is always the same."""
    axes = form.axes.k
    if not axes:
        return form.item
    step = axes[-1].steps[base]
    reach = step * axes[-1].extent
    for axis in reversed(axes[:-1]):
        if axis.steps[base] != reach:
            return None
        reach *= axis.extent
    return step


@dataclass(frozen=True, slots=True)
class CpuGettSchedule:
    """Blocks in items: rows, lanes and k of one step, and the parts that threads share."""

    swap_ab: bool
    blocks: tuple[int, int, int]  # MC, NC, KC
    direct: tuple[bool, bool]  # whether the row and the slot operand are read unpacked
    parts: tuple[int, int]  # of the rows and of the slots
    threads: int
    workspace_bytes: int
    splits: int = 1  # of the sums: see `split`
    family: str = "gett"

    def __str__(self) -> str:
        rows, lanes, k = self.blocks
        vectors = "A" if self.swap_ab else "B"
        reads = [f"{name} {'in place' if direct else 'packed'}" for name, direct in zip(
            ("B", "A") if self.swap_ab else ("A", "B"), self.direct, strict=True)]  # fmt: skip
        threads = f"{self.threads} threads" if self.threads > 1 else "one thread"
        threads += f"; sums in {self.splits} parts" if self.splits > 1 else ""
        return (
            f"gett: blocks of {rows} rows x {lanes} lanes x {k}, vectors along {vectors}; {', '.join(sorted(reads))}; "
            f"{threads}; workspace {self.workspace_bytes / 1024:.0f} KiB"
        )
