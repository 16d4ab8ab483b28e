"""The number types of a contraction, as the loops know them."""

from __future__ import annotations

from typing import NamedTuple

import torch

from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

# By the accumulator's type: numba's name of it, and bytes of a sum, which is kept in a wider type.
SUMS = {
    torch.float32: ("float32", 8), torch.float64: ("float64", 8), torch.complex64: ("complex64", 16),
    torch.complex128: ("complex128", 16), torch.int32: ("int32", 8), torch.int64: ("int64", 8),
}  # fmt: skip
_HALVES = (torch.float16, torch.bfloat16)
_BYTES = (torch.int8, torch.uint8, torch.int16)
# Types that hold the values of a type without rounding, besides itself.
HELD_IN = {
    **dict.fromkeys(_HALVES, (torch.float32,)), **dict.fromkeys(_BYTES, (torch.int32, torch.int64)),
    torch.int32: (torch.int64,),
}  # fmt: skip
# Types of D besides the accumulator's.
WRITTEN = {torch.float32: _HALVES}


class StreamTypes(NamedTuple):
    """Names of the operands' type, of what products are made in, and of D's; bytes of items and sums."""

    operand: str
    held: str
    result: str
    operand_size: int
    result_size: int
    sum_size: int

    @property
    def widest(self) -> int:
        return max(self.operand_size, self.result_size)


def fault(contraction: Contraction) -> str | None:
    """None, or one sentence that says why the types have no loops."""
    arithmetic, stored = contraction.arithmetic, contraction.a.dtype
    if contraction.b.dtype != stored:
        return "operands are of different types"
    accumulate = arithmetic.accumulate
    if accumulate not in SUMS or (stored != accumulate and accumulate not in HELD_IN.get(stored, ())):
        return f"{dtype_name(stored)} summed in {dtype_name(accumulate)} has no loops"
    if arithmetic.product not in (stored, accumulate):
        return f"values are rounded to {dtype_name(arithmetic.product)} first"
    if contraction.d.dtype != accumulate and contraction.d.dtype not in WRITTEN.get(accumulate, ()):
        return f"sums in {dtype_name(accumulate)} are not written as {dtype_name(contraction.d.dtype)}"
    return None


def types_of(contraction: Contraction) -> StreamTypes:
    """The number types of a contraction without a fault."""
    stored, result = contraction.a.dtype, contraction.d.dtype
    held, size = SUMS[contraction.arithmetic.accumulate]
    return StreamTypes(dtype_name(stored), held, dtype_name(result), stored.itemsize, result.itemsize, size)
