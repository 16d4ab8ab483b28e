"""Each primitive aten operation as an expression of numba's values.

Operands come converted to the type that the operation computes in; the emitter casts the result to its own. What torch
decides otherwise than Python or C (NaN in extrema, signs of remainders, shifts past the width) the expression says.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.fn.lowerings import Expressions, Lowering, registering, template
from weft.fn.numba.writer import HELD, NumbaWriter


class _Numba(Expressions):
    name = "for the CPU"
    lacks = ("erfinv", "nextafter")

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        if name == "rsqrt":
            return f"{HELD[t]}(1.0) / np.sqrt({values[0]})"
        own = f"vector.{name}" if t == torch.float32 and name in _OWN else _NAMES.get(name, f"np.{name}")
        return f"{own}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"{x} if {condition} else {y}"

    def quotient(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        return f"{w.operand(x, t)} / {w.operand(y, t)}"

    def truncated(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        """Python's quotient of integers goes down."""
        down = w.let(f"int64({x}) // int64({y})")
        exact = w.let(f"{down} * int64({y}) == int64({x})")
        return f"{down} if {exact} or {down} >= 0 else {down} + 1"

    def rest(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        quotient = w.let(self.truncated(w, t, x, y))
        return f"int64({x}) - ({quotient}) * int64({y})"

    def remainder(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        if t.is_floating_point:
            return super().remainder(w, t, x, y)
        return f"int64({w.operand(x, t)}) % int64({w.operand(y, t)})"  # Python's sign is the divisor's, as torch's is

    def floor_divide(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        if t.is_floating_point:
            return super().floor_divide(w, t, x, y)
        return f"int64({w.operand(x, t)}) // int64({w.operand(y, t)})"

    def extremum(self, w: Any, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = w.operand(x, t), w.operand(y, t)
        chosen = w.let(f"({a} {'>' if larger else '<'} {b}) | ({a} != {a})")
        return self.select(chosen, a, b)


_OWN = frozenset({"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc"})  # `fn.numba.math`
_NAMES = {name: f"math.{name}" for name in ("erf", "erfc", "lgamma", "copysign")}
_NAMES |= {f"a{name}": f"np.arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh", "tan2")}
_NAMES["pow"] = "np.power"

LOWERINGS: dict[str, Lowering] = _Numba().table()
lowers = registering(LOWERINGS)


# -- elementary functions ----------------------------------------------------------------------------------------------

@lowers("sigmoid")
def _sigmoid(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t == torch.float32:
        return f"vector.sigmoid({value})"
    small = w.typed(f"np.exp(-abs({value}))", t)
    return f"({w.constant(1.0, t)} if {value} >= 0 else {small}) / ({small} + {w.constant(1.0, t)})"


@lowers("elu")
def _elu(w: NumbaWriter, t: torch.dtype, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    value = w.operand(x, t)
    inner = value if input_scale == 1 else w.typed(f"{value} * {w.constant(input_scale, t)}", t)
    below = w.typed(f"vector.expm1({inner})" if t == torch.float32 else f"np.expm1({inner})", t)
    return f"{value} * {w.constant(scale, t)} if {value} > 0 else {below} * {w.constant(alpha * scale, t)}"


@lowers("gelu")
def _gelu(w: NumbaWriter, t: torch.dtype, x: Any, *, approximate: str = "none") -> str:
    value = w.operand(x, t)
    if t == torch.float32:
        return f"vector.{'gelu_tanh' if approximate == 'tanh' else 'gelu'}({value})"
    if approximate == "tanh":
        return f"{value} / (1.0 + np.exp(-1.5957691216057308 * ({value} + 0.044715 * {value} * {value} * {value})))"
    return f"0.5 * {value} * math.erfc({value} * -0.7071067811865476)"


def _quick_exp(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    return f"vector.quick_exp{'64' if t == torch.float64 else ''}({w.operand(x, t)})"


def _quick_sigmoid(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    power = w.typed(_quick_exp(w, t, w.typed(f"-{w.operand(x, t)}", t)), t)
    return f"{w.constant(1.0, t)} / ({w.constant(1.0, t)} + {power})"


#: Elementary functions in the arithmetic of their own type, for loops that are made of little else.
QUICK: dict[str, Lowering] = {"exp": _quick_exp, "sigmoid": _quick_sigmoid}


# -- arithmetic --------------------------------------------------------------------------------------------------------


LOWERINGS["neg"] = template("-{0}")


# -- order -------------------------------------------------------------------------------------------------------------


@lowers("sign", "sgn")
def _sign(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t == torch.bool:
        return value
    one, zero = w.constant(1, t), w.constant(0, t)
    below = zero if t == torch.uint8 else f"-{one}"
    return f"{one} if {value} > {zero} else ({below} if {value} < {zero} else {zero})"


@lowers("abs")
def _abs(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    return f"abs({w.operand(x, t)})"


# -- bits, truth -------------------------------------------------------------------------------------------------------


LOWERINGS.update(
    logical_xor=lambda w, t, x, y: f"{w.operand(x, torch.bool)} != {w.operand(y, torch.bool)}",
    logical_not=lambda w, t, x: f"not {w.operand(x, torch.bool)}",
    bitwise_xor=lambda w, t, x, y: f"{w.operand(x, t)} {'!=' if t == torch.bool else '^'} {w.operand(y, t)}",
    bitwise_not=lambda w, t, x: f"not {w.operand(x, t)}" if t == torch.bool else f"~{w.operand(x, t)}",
)


def _is_infinity(*signs: float) -> Lowering:
    def lowering(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
        kind = w.common(x)
        value = w.operand(x, kind)
        if not kind.is_floating_point:
            return f"{value} != {value}"
        return " or ".join(f"{value} == {w.constant(sign * math.inf, kind)}" for sign in signs)

    return lowering


LOWERINGS.update(isinf=_is_infinity(1.0, -1.0), isposinf=_is_infinity(1.0), isneginf=_is_infinity(-1.0))


@lowers("signbit")
def _signbit(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    kind = w.common(x)
    value = w.compared(x, kind)
    if not kind.is_floating_point:
        return f"{value} < 0"
    return f"bits_of(float64({value})) < 0"


@lowers("bitwise_left_shift", "__lshift__")
def _left_shift(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    inside = w.let(f"({count} >= 0) & ({count} < {t.itemsize * 8})")
    return f"{w.type(t)}(int64({value}) << int64({count})) if {inside} else {w.constant(0, t)}"


@lowers("bitwise_right_shift", "__rshift__")
def _right_shift(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    inside = w.let(f"({count} >= 0) & ({count} < {t.itemsize * 8})")
    last = 63 if t == torch.uint8 else t.itemsize * 8 - 1  # shifts in the sign
    return f"int64({value}) >> (int64({count}) if {inside} else {last})"


@lowers("view")
def _view(w: NumbaWriter, t: torch.dtype, x: Any, dtype: torch.dtype) -> str:
    held = w.common(x)
    return f"{'bits_of' if held.is_floating_point else 'of_bits'}({w.operand(x, held)})"


# -- casts and complex parts -------------------------------------------------------------------------------------------


@lowers("_to_copy")
def _to_copy(w: NumbaWriter, t: torch.dtype, x: Any, *, dtype: torch.dtype) -> str:
    value = w.operand(x, t)
    return value if dtype == t else w.cast(value, t, dtype)


LOWERINGS.update(
    conj_physical=lambda w, t, x: f"{w.operand(x, t)}.conjugate()" if t.is_complex else w.operand(x, t),
    real=lambda w, t, x: f"{w.operand(x, w.common(x))}.real",
    imag=lambda w, t, x: f"{w.operand(x, w.common(x))}.imag",
)
