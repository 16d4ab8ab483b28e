"""Lines of a body in CUDA C++ while it is written: names, constants and casts, typed as torch types them.

C++ widens integers to int; so every value is cast to its type where it is made, and wraps there. Short floating types
are held as float and are bits in memory; what converts them is in `prelude`.
"""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.fn.writer import SHORT, BodyWriter, representable

#: Names of the types that values are held in.
HELD = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.float32: "float", torch.float64: "double",
}  # fmt: skip
_LEAST = {torch.int32: "int32(-2147483647 - 1)", torch.int64: "int64(-9223372036854775807LL - 1)"}


class CudaWriter(BodyWriter):
    """The writer for lowerings to CUDA C++."""

    language, where, rounds = "cuda", "in CUDA C++", False

    def type(self, dtype: torch.dtype) -> str:
        if dtype not in HELD:
            raise UnsupportedError(f"{dtype} inside a function has no code in CUDA C++")
        return HELD[dtype]

    def typed(self, expression: str, dtype: torch.dtype) -> str:
        name, kind = self.fresh(), self.type(dtype)
        self.line(f"const {kind} {name} = {expression};")
        return name

    def constant(self, number: Any, dtype: torch.dtype) -> str:
        value = representable(number, dtype)
        if dtype == torch.bool:
            return "true" if value else "false"
        if not isinstance(value, float):
            least = dtype in _LEAST and value == torch.iinfo(dtype).min
            return _LEAST[dtype] if least else f"{self.type(dtype)}({value}{'LL' * (dtype.itemsize == 8)})"
        single = dtype != torch.float64
        if math.isfinite(value):
            return f"{value!r}{'f' * single}"
        bits = struct.unpack("<i" if single else "<q", struct.pack("<f" if single else "<d", value))[0]
        return f"of_bits({self.constant(bits, torch.int32 if single else torch.int64)})"

    def nearest(self, name: str, short: str) -> str:
        return self.typed(f"from_{short}(to_{short}({name}))", torch.float32)

    def stored(self, name: str, own: torch.dtype, dtype: torch.dtype) -> str:
        """An expression of a value as it stands in memory in some type; it is of type `own`, not rounded to it yet."""
        if own != dtype:
            name = self.converted(name, own, torch.float32 if dtype in SHORT else dtype)
        return f"to_{_short(dtype)}({name})" if dtype in SHORT else name

    def converted(self, name: str, own: torch.dtype, dtype: torch.dtype) -> str:
        """A value of type `own`, not rounded to it yet, as another type."""
        if own in SHORT:
            name, own = self.cast(name, torch.float32, own), torch.float32
        return self.cast(name, own, dtype)

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        plain = t == torch.float64 or name.startswith("near_")
        return f"{name}{'' if plain else 'f'}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"{condition} ? {x} : {y}"

    def extremum(self, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = self.operand(x, t), self.operand(y, t)
        nan = f" || {a} != {a}" if t.is_floating_point else ""
        return self.select(f"{a} {'>' if larger else '<'} {b}{nan}", a, b)


def stored_type(dtype: torch.dtype) -> str:
    """The C++ type of elements in memory. `UnsupportedError` where there is none."""
    if dtype in SHORT:
        return f"uint{8 * dtype.itemsize}"
    if dtype not in HELD:
        raise UnsupportedError(f"{dtype} has no code in CUDA C++")
    return HELD[dtype]


def loading(dtype: torch.dtype) -> str:
    """Name of the function that makes a held value of an element in memory; empty where none is needed."""
    return f"from_{_short(dtype)}" if dtype in SHORT else ""


def _short(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
