"""Triton's interpreter, made to take what the compiler takes, in whichever version of Triton is here.

Comparisons: one of scalars keeps the operands' type alongside its bits. Spread over a tile it becomes a tile of that
type, which Triton 3.9 refuses as a mask. They get the type of bits.
Indices: Triton 3.6 makes one of an array of one element by `int`, which NumPy 2.4 refuses.
Conversions of short floating types: the interpreter cuts off where a GPU rounds, and makes numbers of infinity and NaN.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from weft.spec.type_names import NAMES

_MARK = "_corrected_by_weft"
_TYPES = NAMES | {"fp8e4nv": torch.float8_e4m3fn, "fp8e5": torch.float8_e5m2}


def correct(interpreter: Any) -> None:
    """Do so to Triton's module, once; what a version does not have is left out."""
    if getattr(interpreter, _MARK, False):
        return
    setattr(interpreter, _MARK, True)
    builder, language = getattr(interpreter, "InterpreterBuilder", None), getattr(interpreter, "tl", None)
    if hasattr(builder, "binary_op") and hasattr(language, "int1"):
        builder.binary_op = _comparing(builder.binary_op, language.int1)  # type: ignore[union-attr]
    if hasattr(interpreter, "_convert_float"):
        interpreter._convert_float = _converted
    if hasattr(interpreter, "_patch_lang_tensor"):
        interpreter._patch_lang_tensor = _indexing(interpreter._patch_lang_tensor)


def _comparing(compute: Any, bit: Any) -> Any:
    def binary_op(builder: Any, lhs: Any, rhs: Any, op: Any) -> Any:
        result = compute(builder, lhs, rhs, op)
        if result.data.dtype == bool:
            result.dtype = bit
        return result

    return binary_op


def _converted(values: Any, held: Any, wanted: Any, rounding: Any) -> Any:
    """Bits of floating numbers of one type as those of another."""
    bits = torch.from_numpy(np.array(values).view(f"u{held.primitive_bitwidth // 8}"))
    found = bits.view(_TYPES[held.name]).to(_TYPES[wanted.name])
    return found.view(getattr(torch, f"uint{wanted.primitive_bitwidth}")).numpy()


def _indexing(patch: Any) -> Any:
    def patch_lang_tensor(tensor: Any, *scope: Any) -> None:
        patch(tensor, *scope)
        change = scope[0].set_attr if scope and hasattr(scope[0], "set_attr") else setattr
        change(tensor, "__index__", lambda self: self.handle.data.item())

    return patch_lang_tensor
