"""One reader of number types, for Python and the command line alike, and the nearest right word for a wrong one.

A type is a torch dtype, a NumPy dtype or scalar type, or text: torch's and NumPy's names, with or without "torch." or
"numpy." before them, and the short names of the field ("fp16", "half", "bf16", "e4m3", "c64", ...).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

import numpy as np
import torch

from weft.base.figures import dtype_name, nearest
from weft.errors import DTypeError

#: What names a number type.
DTypeLike: TypeAlias = "torch.dtype | str | np.dtype[Any] | type[Any]"

_SHORT = {
    torch.float16: ("fp16", "f16", "half"),
    torch.bfloat16: ("bf16",),
    torch.float32: ("fp32", "f32", "float", "single"),
    torch.float64: ("fp64", "f64", "double"),
    torch.complex32: ("c32", "chalf"),
    torch.complex64: ("c64", "cfloat"),
    torch.complex128: ("c128", "cdouble"),
    torch.float8_e4m3fn: ("e4m3", "e4m3fn", "fp8", "fp8_e4m3", "float8_e4m3"),
    torch.float8_e5m2: ("e5m2", "fp8_e5m2"),
    torch.int8: ("i8", "s8", "char"),
    torch.int16: ("i16", "s16", "short"),
    torch.int32: ("i32", "s32", "int"),
    torch.int64: ("i64", "s64", "long"),
    torch.uint8: ("u8", "byte"),
    torch.uint16: ("u16",),
    torch.uint32: ("u32",),
    torch.uint64: ("u64",),
    torch.bool: ("b1", "bool8"),
}
#: Every name by which text may ask for a type.
NAMES = {dtype_name(dtype): dtype for dtype in _SHORT} | {
    short: dtype for dtype, names in _SHORT.items() for short in names
}


def find_dtype(value: object) -> torch.dtype | None:
    """The torch dtype that `value` names; None where it names none."""
    if isinstance(value, torch.dtype):
        return value
    if isinstance(value, str):
        text = value.strip().lower().removeprefix("torch.").removeprefix("numpy.").removeprefix("np.")
        return NAMES.get(text)
    if isinstance(value, type) and (issubclass(value, np.generic) or value in (float, complex, int, bool)):
        value = np.dtype(value)
    if isinstance(value, np.dtype):
        return NAMES.get(value.name)
    if isinstance(value, torch.Tensor):  # whose attributes may raise, as a nested tensor's shape does
        return None
    name = getattr(value, "name", None)  # of array libraries: jax.numpy.float16.dtype, ml_dtypes
    return NAMES.get(name) if isinstance(name, str) else None


def read_dtype(what: str, value: object, others: Iterable[str] = ()) -> torch.dtype:
    """The torch dtype that `value` names; `DTypeError` with what was typed and the nearest right word.

    `what` is the name of the argument; `others` are words that it takes besides types, for the message.
    """
    found = find_dtype(value)
    if found is not None and str(found).startswith("torch.q"):
        raise DTypeError(f"{what} is quantized ({dtype_name(found)}): nothing is computed in such types")
    if found is not None:
        return found
    words, known = [*others, *NAMES], ", ".join(others)
    right = "a number type (torch.float16, 'float16', 'fp16', numpy.float16, ...)"
    right += f" or one of {known}" if known else ""
    if isinstance(value, str):
        typed = value.strip().lower().removeprefix("torch.")
        raise DTypeError(f"{what}={value!r} names no number type{nearest(typed, words) or f': it is {right}'}")
    array = isinstance(value, torch.Tensor) or (hasattr(value, "shape") and not isinstance(value, type))
    given = type(value).__name__ if array else repr(value)  # not the values of an array
    raise DTypeError(f"{what} is {right}, not {given}")


def read_mode(what: str, value: object, modes: tuple[str, ...]) -> str | torch.dtype | None:
    """A mode by its name, whatever its case, or a number type; None stays None."""
    if value is None:
        return None
    if isinstance(value, str) and value.strip().lower() in modes:
        return value.strip().lower()
    return read_dtype(what, value, modes)
