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
from weft.fn.writer import SHORT, WRAPS_FROM, Writer, representable

#: Names of the types that values are held in.
HELD = {
    torch.bool: "bool", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.float32: "float", torch.float64: "double",
}  # fmt: skip
_LEAST = {torch.int32: "int32(-2147483647 - 1)", torch.int64: "int64(-9223372036854775807LL - 1)"}


class CudaWriter(Writer):
    """The writer for lowerings to CUDA C++."""

    def line(self, text: str) -> None:
        self._line(text)

    def type(self, dtype: torch.dtype) -> str:
        if dtype not in HELD:
            raise UnsupportedError(f"{dtype} inside a function has no code in CUDA C++")
        return HELD[dtype]

    def let(self, expression: str) -> str:
        name = self._fresh()
        self._line(f"const auto {name} = {expression};")
        return name

    def typed(self, expression: str, dtype: torch.dtype) -> str:
        name, kind = self._fresh(), self.type(dtype)
        self._line(f"const {kind} {name} = {expression};")
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

    def cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        if held == dtype:
            return name
        if dtype in SHORT:
            wide = self.cast(name, held, torch.float32)
            return self.typed(f"from_{_short(dtype)}(to_{_short(dtype)}({wide}))", torch.float32)
        if held in SHORT:
            held = torch.float32
        return name if held == dtype else self._cast(name, held, dtype)

    def stored(self, name: str, own: torch.dtype, dtype: torch.dtype) -> str:
        """An expression of a value as it stands in memory in some type; it is of type `own`, not rounded to it yet."""
        if own in SHORT and own != dtype:
            name, own = self.cast(name, torch.float32, own), torch.float32
        if dtype not in SHORT:
            return self.cast(name, own, dtype)
        return f"to_{_short(dtype)}({self.cast(name, own, torch.float32)})"

    def converted(self, name: str, own: torch.dtype, dtype: torch.dtype) -> str:
        """A value of type `own`, not rounded to it yet, as another type."""
        if own in SHORT:
            name, own = self.cast(name, torch.float32, own), torch.float32
        return self.cast(name, own, dtype)

    def _cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return self.typed(f"{name} != 0", dtype)
        if held.is_floating_point and dtype in WRAPS_FROM:
            name = self.typed(name, WRAPS_FROM[dtype])
        return self.typed(name, dtype)


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

