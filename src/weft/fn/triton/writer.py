"""Lines of one `@triton.jit` function while it is written."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.fn.writer import WRAPS_FROM, Writer, representable

_TRITON_TYPES = {
    torch.bool: "int1",
    torch.uint8: "uint8",
    torch.int8: "int8",
    torch.int16: "int16",
    torch.int32: "int32",
    torch.int64: "int64",
    torch.uint16: "uint16",
    torch.uint32: "uint32",
    torch.uint64: "uint64",
    torch.float8_e4m3fn: "float8e4nv",
    torch.float8_e5m2: "float8e5",
    torch.float16: "float16",
    torch.bfloat16: "bfloat16",
    torch.float32: "float32",
    torch.float64: "float64",
}
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class TritonWriter(Writer):
    """Names, constants and casts as Triton writes them."""

    def type(self, dtype: torch.dtype) -> str:
        """Triton's name of a dtype."""
        if dtype not in _TRITON_TYPES:
            raise UnsupportedError(f"{dtype} inside a function does not run on the Triton backend")
        return f"tl.{_TRITON_TYPES[dtype]}"

    def constant(self, number: Any, dtype: torch.dtype) -> str:
        """Name of a 0-d constant of exactly that dtype and of the nearest value that it has.

        A literal alone would be float32 to Triton, and +0.0 for -0.0: what that changes is written by its bits.
        """
        value = representable(number, dtype)
        key = (repr(value), dtype)
        if key not in self._constants:
            literal = self._literal(value, dtype)
            remark, self._remark = self._remark, repr(value) if "bitcast" in literal else ""
            self._constants[key] = self.let(f"tl.cast({literal})")
            self._remark = remark
        return self._constants[key]

    def _literal(self, value: Any, dtype: torch.dtype) -> str:
        kind = self.type(dtype)
        if not isinstance(value, float):
            return f"{value!r}, {kind}"
        if not math.isfinite(value):
            return f'float("{value!r}"), {kind}'
        if (value == 0 and math.copysign(1, value) > 0) or _is_normal_float32(value):
            return f"{value!r}, {kind}"
        packed = struct.pack({torch.float64: "<d", torch.float16: "<e"}.get(dtype, "<f"), value)
        pattern = int.from_bytes(packed[-dtype.itemsize :], "little", signed=True)  # bfloat16: the high half of float32
        bits = {2: torch.int16, 4: torch.int32, 8: torch.int64}[dtype.itemsize]
        return f"tl.cast({pattern}, {self.type(bits)}), {kind}, bitcast=True"

    def _cast(self, name: str, held: torch.dtype, dtype: torch.dtype) -> str:
        if dtype == torch.bool:
            return self.let(f"{name} != {self.constant(0, held)}")
        if held.is_floating_point and dtype in WRAPS_FROM:
            name = self.let(f"{name}.to({self.type(WRAPS_FROM[dtype])})")
        return self.let(self.rounding(name, dtype))

    def rounding(self, name: str, dtype: torch.dtype) -> str:
        """The expression of a floating value rounded to a floating type."""
        kind = self.type(dtype)
        return f"device_math.to_type({name}, {kind})" if dtype in _FP8 else f"{name}.to({kind})"


def _is_normal_float32(value: float) -> bool:
    if not 2.0**-126 <= abs(value) < 2.0**128:
        return False
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] == value
    except OverflowError:
        return False
