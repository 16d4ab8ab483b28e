"""Lines of one `@triton.jit` function while it is written."""

from __future__ import annotations

import math
import struct
from collections.abc import Collection
from typing import Any

import torch
from torch import fx

from weft.errors import UnsupportedError
from weft.fn.writer import Held, Writer, representable

_TRITON_TYPES = {
    torch.bool: "int1", torch.float8_e4m3fn: "float8e4nv", torch.float8_e5m2: "float8e5",
    **{getattr(torch, name): name for name in (
        "uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64", "float16", "bfloat16", "float32",
        "float64",
    )},
}  # fmt: skip
_FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


class TritonWriter(Writer):
    """Names, constants and casts as Triton writes them; `in_half`: operations that compute in half precision."""

    language, where = "triton", "on the Triton backend"

    def __init__(self, in_half: Collection[fx.Node] = ()) -> None:
        super().__init__()
        self._in_half = in_half
        self._constants: dict[tuple[str, torch.dtype], str] = {}
        self.remark = ""

    def take(self, node: fx.Node, value: Held) -> None:
        """Inputs are converted where they are used."""
        self.values[node] = value

    def computes(self, node: fx.Node) -> torch.dtype:
        """The type that an operation computes in; from here on lines name the operation."""
        self.remark = f"  # {str(node.target).rpartition('.')[0]}"
        return node.meta["dtype"] if node in self._in_half else super().computes(node)

    def let(self, expression: str) -> str:
        return expression if expression.isidentifier() else super().let(f"{expression}{self.remark}")

    part = let

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
            remark, self.remark = self.remark, f"  # {value!r}" if "bitcast" in literal else ""
            self._constants[key] = self.let(f"tl.cast({literal})")
            self.remark = remark
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

    def zero(self, dtype: torch.dtype) -> str:
        return self.constant(0, dtype)

    def converted_to(self, name: str, dtype: torch.dtype) -> str:
        """The expression of a value as another type."""
        kind = self.type(dtype)
        return f"device_math.to_type({name}, {kind})" if dtype in _FP8 else f"{name}.to({kind})"

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        own = "tl.sqrt_rn" if name == "sqrt" and t == torch.float32 else _OWN.get(name)
        return f"{own or f'libdevice.{name}'}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"tl.where({condition}, {x}, {y})"

    def quotient(self, t: torch.dtype, x: Any, y: Any) -> str:
        number = self.number(y)
        if number and math.isfinite(number):
            mantissa, exponent = math.frexp(number)
            if abs(mantissa) == 0.5 and abs(exponent) < 100:  # by a power of two: the product is as exact
                return f"{self.operand(x, t)} * {self.constant(1 / number, t)}"
        dividend, divisor = self.operand(x, t), self.operand(y, t)
        return f"tl.div_rn({dividend}, {divisor})" if t == torch.float32 else f"{dividend} / {divisor}"

    def truncated(self, t: torch.dtype, x: str, y: str) -> str:
        return f"{x} // {y}"

    def extremum(self, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = self.operand(x, t), self.operand(y, t)
        if t == torch.float64:  # by comparison: no instruction takes the larger of two doubles, NaN included
            return self.select(f"({a} {'>' if larger else '<'} {b}) | ({a} != {a})", a, b)
        # Without it Triton's extremum returns NaN in the interpreter and the number on a GPU.
        nan = ", propagate_nan=tl.PropagateNan.ALL" if t.is_floating_point else ""
        return f"tl.{'maximum' if larger else 'minimum'}({a}, {b}{nan})"


_OWN = {
    **{name: f"tl.{name}" for name in ("floor", "ceil", "sqrt", "rsqrt", "fma")}, "rint": "libdevice.nearbyint",
    "fabs": "tl.abs", "near_exp2": "device_math.exp2", "near_reciprocal": "device_math.reciprocal",
}  # fmt: skip


def _is_normal_float32(value: float) -> bool:
    return abs(value) >= 2.0**-126 and representable(value, torch.float32) == value


def shift(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count, bits = w.operand(x, t), w.operand(y, t), t.itemsize * 8
    if isinstance(y, int) and 0 <= y < bits:  # nothing is to be chosen
        return f"{value} {symbol} {count}"
    zero, width = w.constant(0, t), w.constant(bits, t)
    inside = w.let(f"({count} >= {zero}) & ({count} < {width})")
    if symbol == ">>" and t != torch.uint8:  # shifts in the sign
        return f"{value} >> {w.select(inside, count, w.constant(bits - 1, t))}"
    return w.select(inside, f"{value} {symbol} {w.select(inside, count, zero)}", zero)
