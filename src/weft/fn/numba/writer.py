"""Lines of one function for numba while it is written: names, constants and casts, typed as torch types them.

numba widens integers (int32 + int32 is int64) and knows no half precision. So every value is cast to its type where it
is made: wrapping follows, and the casts of what has its type already cost nothing. Half types are held as float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from weft.errors import UnsupportedError
from weft.fn.writer import BodyWriter, Writer, representable

#: numba's names of the types that values are held in.
HELD = {
    torch.bool: "boolean", torch.uint8: "uint8", torch.int8: "int8", torch.int16: "int16", torch.int32: "int32",
    torch.int64: "int64", torch.float32: "float32", torch.float64: "float64", torch.complex64: "complex64",
    torch.complex128: "complex128",
}  # fmt: skip


class Parameter(NamedTuple):
    """A constant that is given to a function when it is called."""

    name: str
    number: Any
    dtype: torch.dtype

    @property
    def content(self) -> bytes:
        """Its bytes, in a place of 16."""
        number = self.number if self.dtype.is_complex else representable(self.number, self.dtype)
        return bytes(torch.tensor([number], dtype=self.dtype, device="cpu").view(torch.uint8).tolist()).ljust(16, b"\0")


class NumbaWriter(BodyWriter):
    """The writer for lowerings to numba; it keeps the lines of an inner loop.

    `parameters`: constants become names, and their values are kept, so that functions that differ in them alone are one
    text. Those that code is better with, or that name special values, stay in it.
    """

    language, where, rounds = "numba", "for the CPU", True
    of_complex = frozenset({
        "add", "sub", "rsub", "mul", "neg", "conj_physical", "real", "imag", "_to_copy", "detach", "eq", "ne",
    })  # fmt: skip

    def __init__(self, *, parameters: bool = False) -> None:
        super().__init__()
        self._open = parameters
        self.parameters: list[Parameter] = []

    def type(self, dtype: torch.dtype) -> str:
        if dtype not in HELD:
            raise UnsupportedError(f"{dtype} inside a function has no code for the CPU")
        return HELD[dtype]

    def constant(self, number: Any, dtype: torch.dtype) -> str:
        if self._open and dtype in HELD and _is_parameter(number, dtype):
            self.parameters.append(Parameter(f"k{len(self.parameters)}", number, dtype))
            return self.parameters[-1].name
        if dtype.is_complex:
            value = complex(number)
            return f"{self.type(dtype)}(complex({_literal(value.real)}, {_literal(value.imag)}))"
        value = representable(number, dtype)
        return f"{self.type(dtype)}({_literal(value) if isinstance(value, float) else int(value)})"

    def typed(self, expression: str, dtype: torch.dtype) -> str:
        """A name for the expression, of that type."""
        return self.let(f"{self.type(dtype)}({expression})" if dtype != torch.bool else expression)

    def nearest(self, name: str, short: str) -> str:
        return self.let(f"round_{short}({name})")

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        if name == "rsqrt":
            return f"{HELD[t]}(1.0) / np.sqrt({values[0]})"
        own = f"vector.{name}" if t == torch.float32 and name in _OWN else _NAMES.get(name, f"np.{name}")
        return f"{own}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"{x} if {condition} else {y}"

    def truncated(self, t: torch.dtype, x: str, y: str) -> str:
        """Python's quotient of integers goes down."""
        down = self.let(f"int64({x}) // int64({y})")
        exact = self.let(f"{down} * int64({y}) == int64({x})")
        return f"{down} if {exact} or {down} >= 0 else {down} + 1"

    def rest(self, t: torch.dtype, x: str, y: str) -> str:
        quotient = self.let(self.truncated(t, x, y))
        return f"int64({x}) - ({quotient}) * int64({y})"

    def extremum(self, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = self.operand(x, t), self.operand(y, t)
        chosen = self.let(f"({a} {'>' if larger else '<'} {b}) | ({a} != {a})")
        return self.select(chosen, a, b)


#: Functions of `weft.fn.numba.math`.
_OWN = frozenset({"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc"})
_NAMES = {name: f"math.{name}" for name in ("erf", "erfc", "lgamma", "copysign")}
_NAMES |= {f"a{name}": f"np.arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
_NAMES["pow"] = "np.power"


def _is_parameter(number: Any, dtype: torch.dtype) -> bool:
    """Whether a constant is a value of the function's rather than a part of its form."""
    finite = isinstance(number, int) or math.isfinite(abs(number))
    return dtype != torch.bool and finite and number not in _FORM


_FORM = (0, 1, -1, 2, -2, 0.5, -0.5)


def _literal(value: float) -> str:
    return repr(value) if math.isfinite(value) else "np.nan" if value != value else f"{'-' if value < 0 else ''}np.inf"


def sigmoid(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t == torch.float32:
        return f"vector.sigmoid({value})"
    small = w.typed(f"np.exp(-abs({value}))", t)
    return f"({w.constant(1.0, t)} if {value} >= 0 else {small}) / ({small} + {w.constant(1.0, t)})"


def elu(w: Writer, t: torch.dtype, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    value = w.operand(x, t)
    inner = value if input_scale == 1 else w.typed(f"{value} * {w.constant(input_scale, t)}", t)
    below = w.typed(w.call("expm1", t, inner), t)
    return f"{value} * {w.constant(scale, t)} if {value} > 0 else {below} * {w.constant(alpha * scale, t)}"


def gelu(w: Writer, t: torch.dtype, x: Any, *, approximate: str = "none") -> str:
    value = w.operand(x, t)
    if t == torch.float32:
        return f"vector.{'gelu_tanh' if approximate == 'tanh' else 'gelu'}({value})"
    if approximate == "tanh":
        return f"{value} / (1.0 + np.exp(-1.5957691216057308 * ({value} + 0.044715 * {value} * {value} * {value})))"
    return f"0.5 * {value} * math.erfc({value} * -0.7071067811865476)"


def _quick_exp(w: Writer, t: torch.dtype, x: Any) -> str:
    return f"vector.quick_exp{'64' if t == torch.float64 else ''}({w.operand(x, t)})"


def _quick_sigmoid(w: Writer, t: torch.dtype, x: Any) -> str:
    power = w.typed(_quick_exp(w, t, w.typed(f"-{w.operand(x, t)}", t)), t)
    return f"{w.constant(1.0, t)} / ({w.constant(1.0, t)} + {power})"


#: Elementary functions in the arithmetic of their own type, for loops that are made of little else.
QUICK: dict[str, Callable[..., str]] = {"exp": _quick_exp, "sigmoid": _quick_sigmoid}


def sign(w: Writer, t: torch.dtype, x: Any) -> str:
    if t == torch.bool:
        return w.operand(x, t)
    value, one, zero = w.operand(x, t), w.constant(1, t), w.constant(0, t)
    below = zero if t == torch.uint8 else f"-{one}"
    return f"{one} if {value} > {zero} else ({below} if {value} < {zero} else {zero})"


def shift(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    inside = w.typed(f"({count} >= 0) & ({count} < {t.itemsize * 8})", torch.bool)
    if symbol == "<<":
        return f"{w.type(t)}(int64({value}) << int64({count})) if {inside} else {w.constant(0, t)}"
    last = 63 if t == torch.uint8 else t.itemsize * 8 - 1  # shifts in the sign
    return f"int64({value}) >> (int64({count}) if {inside} else {last})"
