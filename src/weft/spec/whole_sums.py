"""Sums of integers: the type that holds them, and where a narrower one holds them as well.

A sum wraps around no earlier than its result does. One that is stored in 64 bits is made in int64. One that becomes a
floating number is made in int32, which matrix instructions add in, as long as no sum of its length leaves that, else in
int64. One that is stored in 32 bits or fewer is made in int32.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch

# The largest magnitude of a product of two values.
_LARGEST = {torch.int8: 128**2, torch.uint8: 255**2, torch.int16: 2**30}
NARROW = (torch.int8, torch.uint8, torch.int16, torch.int32)  # the integers that may be added in int32


def fits_int32(product: torch.dtype, count: int) -> bool:
    """Whether no sum of so many products leaves int32."""
    largest = _LARGEST.get(product)
    return largest is not None and count * largest < 2**31


def sum_type(product: torch.dtype, results: Iterable[torch.dtype], count: int) -> torch.dtype:
    """The type of a sum of so many products of integers of at most 32 bits, by the types that its results have."""
    types = set(results)
    if torch.int64 in types:
        return torch.int64
    becomes_real = any(dtype.is_floating_point or dtype.is_complex for dtype in types)
    return torch.int64 if becomes_real and not fits_int32(product, count) else torch.int32


def between(own: torch.dtype, asked: Any, accumulate: torch.dtype | None) -> torch.dtype:
    """The type of an intermediate result of operands of type `own`, where `out_dtype` asks for such results in the end:
    64 bits where a sum of any length has them. `accumulate` as it is asked for, else None."""
    wide = own in NARROW and sum_type(own, results_of(asked, own), 2**31) is torch.int64
    wide = wide and accumulate is not torch.int32
    return torch.int64 if wide else own


def results_of(asked: Any, storage: torch.dtype) -> Sequence[torch.dtype]:
    """The types that results have: as `out_dtype` asks, the operands' where it names none."""
    types = asked if isinstance(asked, tuple) else (asked,)
    return [storage if each is None else each for each in types]


def asked_types(out_dtype: Any, out: Any) -> Any:
    """The types of results that a call asks for: by `out_dtype`, else by its own places; None where by neither."""
    return result_types(out) if out_dtype is None else out_dtype


def result_types(out: Any) -> Any:
    """The types of results that a call brings its own places for; None where there is none."""
    if out is None:
        return None
    return tuple(one.dtype for one in out) if isinstance(out, tuple) else out.dtype
