"""Lines of one `@triton.jit` function while it is written, and what the lowerings of its operations ask for."""

from __future__ import annotations

import math
import struct
from typing import Any

import torch
from torch import fx

from weft.errors import UnsupportedError

HALF_TYPES = (torch.float16, torch.bfloat16)
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
_NARROW_INTEGERS = frozenset({torch.int8, torch.uint8, torch.int16, torch.uint16})


def computing(dtype: torch.dtype) -> torch.dtype:
    """The dtype that values of `dtype` are held in inside an emitted function."""
    return torch.float32 if dtype.is_floating_point and dtype.itemsize < 4 else dtype


class Writer:
    """Names, constants and casts of an emitted function, each written once."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._names: dict[fx.Node, str] = {}
        self._held: dict[fx.Node, torch.dtype] = {}  # the dtype that a named value is held in
        self._known: dict[fx.Node, torch.Tensor] = {}  # values that depend on no input
        self._casts: dict[tuple[str, torch.dtype], str] = {}
        self._constants: dict[tuple[str, torch.dtype], str] = {}
        self._count = 0
        self._remark = ""
        self.rounded: torch.dtype | None = None  # the dtype that torch gives the value that is being written

    def let(self, expression: str) -> str:
        """Give the expression a name."""
        name = self._fresh()
        self._line(f"{name} = {expression}" + (f"  # {self._remark}" if self._remark else ""))
        return name

    def operand(self, value: Any, dtype: torch.dtype) -> str:
        """Name of a node's value or of a Python number, as `dtype`; a name that a lowering made stays as it is."""
        if isinstance(value, str):
            return value
        if not isinstance(value, fx.Node):
            return self.constant(value, dtype)
        if value in self._known:
            return self.constant(self.number(value), dtype)
        name, held = self._names[value], self._held[value]
        if held == dtype:
            return name
        if (name, dtype) not in self._casts:
            self._casts[name, dtype] = self._cast(name, held, dtype)
        return self._casts[name, dtype]

    def number(self, value: Any) -> Any:
        """What a value is where that is known without any input, else None."""
        if isinstance(value, fx.Node):
            return self._known[value].item() if value in self._known else None
        return None if isinstance(value, str) else value

    def compared(self, value: Any, common: torch.dtype) -> str:
        """An operand of a comparison in torch's common dtype: numbers are rounded to it, as torch rounds them."""
        if common == torch.bool:
            return self.operand(value, torch.int8)  # true is -1 to a signed comparison of single bits
        if self.number(value) is not None:
            value = representable(self.number(value), common)
        return self.operand(value, computing(common))

    def common(self, *values: Any) -> torch.dtype:
        """The dtype that torch promotes the operands to."""
        stand_ins = [
            torch.empty((() if value.meta["scalar"] else (1,)), dtype=value.meta["dtype"], device="meta")
            if isinstance(value, fx.Node)
            else value
            for value in values
        ]
        if len(stand_ins) == 1:
            return stand_ins[0].dtype
        return torch.result_type(*stand_ins)

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
        if held.is_floating_point and dtype in _NARROW_INTEGERS:
            # To 32 bits first: beyond its range the direct conversion is undefined on a GPU, while this one wraps.
            name = self.let(f"{name}.to(tl.int32)")
        return self.let(f"{name}.to({self.type(dtype)})")

    def _fresh(self) -> str:
        self._count += 1
        return f"v{self._count - 1}"

    def _line(self, text: str) -> None:
        self._lines.append(f"    {text}\n")


def representable(number: Any, dtype: torch.dtype) -> Any:
    """The number as `dtype` holds it: nearest for floats, wrapped for integers."""
    if dtype == torch.bool:
        return bool(number)
    if dtype.is_floating_point:
        return torch.tensor(number, dtype=torch.float64, device="cpu").to(dtype).item()
    bits = dtype.itemsize * 8
    wrapped = int(number) & ((1 << bits) - 1)
    return wrapped - (1 << bits) if dtype.is_signed and wrapped >> (bits - 1) else wrapped


def _is_normal_float32(value: float) -> bool:
    if not 2.0**-126 <= abs(value) < 2.0**128:
        return False
    try:
        return struct.unpack("<f", struct.pack("<f", value))[0] == value
    except OverflowError:
        return False
