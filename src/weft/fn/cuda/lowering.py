"""Each primitive aten operation as an expression of CUDA C++.

Elementary functions are CUDA's own; division and square root round correctly, and subnormal numbers are kept. As in
Triton code the compiler may round a product and a sum once, and activations that take many instructions are made of
the short forms of `weft.fn.triton.lowering_exp`. What torch decides otherwise than C++ (NaN in extrema, signs of
remainders, shifts past the width, overflow of integers) the expression says.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.fn.lowerings import COMMON, Expressions, Lowering, registering, template
from weft.fn.triton.lowering_exp import LOG2_E, TAIL, TAIL_HALF
from weft.fn.writer import HALF_TYPES, Writer, computing


class _Cuda(Expressions):
    name = "in CUDA C++"

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        return f"{_call(name, t)}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"{condition} ? {x} : {y}"

    def quotient(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        return f"{w.operand(x, t)} / {w.operand(y, t)}"

    truncated = quotient

    def rest(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        return f"{x} % {y}"

    def extremum(self, w: Any, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = w.operand(x, t), w.operand(y, t)
        nan = f" || {a} != {a}" if t.is_floating_point else ""
        return self.select(f"{a} {'>' if larger else '<'} {b}{nan}", a, b)

    def product(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        return LOWERINGS["mul"](w, t, x, y)


def _call(name: str, t: torch.dtype) -> str:
    """The name of a function of the mathematical library for a type."""
    return name if t == torch.float64 else f"{name}f"


LOWERINGS: dict[str, Lowering] = _Cuda().table()
lowers = registering(LOWERINGS)


# -- elementary functions ----------------------------------------------------------------------------------------------


@lowers("sigmoid")
def _sigmoid(w: Writer, t: torch.dtype, x: Any) -> str:
    """exp of a value that is not positive never overflows, so both tails keep their relative accuracy: in float32
    within 3 units in the last place."""
    value, one = w.operand(x, t), w.constant(1.0, t)
    small = w.typed(f"{_call('exp', t)}(-{_call('fabs', t)}({value}))", t)
    share = w.typed(f"{value} < {w.constant(0.0, t)} ? {small} : {one}", t)
    if t == torch.float64:
        return f"{share} / ({small} + {one})"
    return f"{share} * near_reciprocal({small} + {one})"


@lowers("elu")
def _elu(w: Writer, t: torch.dtype, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    value = w.operand(x, t)
    inner = value if input_scale == 1 else w.typed(f"{value} * {w.constant(input_scale, t)}", t)
    below = w.typed(f"{_call('expm1', t)}({inner}) * {w.constant(alpha * scale, t)}", t)
    return f"{value} > {w.constant(0.0, t)} ? {value} * {w.constant(scale, t)} : {below}"


@lowers("gelu")
def _gelu(w: Writer, t: torch.dtype, x: Any, *, approximate: str = "none") -> str:
    value, one, half = w.operand(x, t), w.constant(1.0, t), w.constant(0.5, t)
    if approximate == "tanh":
        return _gelu_by_tanh(w, t, value)
    if t == torch.float64:  # 1 + erf would cancel in the negative tail
        return f"{value} * {half} * erfc({value} * {w.constant(-math.sqrt(0.5), t)})"
    power = _horner(w, TAIL_HALF if w.rounded in HALF_TYPES else TAIL, w.typed(f"fabsf({value})", t))
    tail = w.typed(f"near_exp2({power})", t)
    return f"{value} * ({value} > {w.constant(0.0, t)} ? {one} - {tail} : {tail})"


def _gelu_by_tanh(w: Writer, t: torch.dtype, x: str) -> str:
    """x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + exp(-2 u))."""
    scale = -2 * math.sqrt(2 / math.pi)
    if t == torch.float64:
        inner = w.typed(f"{x} * {w.constant(-scale / 2, t)} * ({x} * {x} * {w.constant(0.044715, t)} + 1.0)", t)
        return f"{x} * {w.constant(0.5, t)} * (tanh({inner}) + {w.constant(1.0, t)})"
    first, third = (w.constant(scale * LOG2_E * factor, t) for factor in (1.0, 0.044715))
    power = w.typed(f"{x} * fmaf({x} * {x}, {third}, {first})", t)
    return f"{x} * near_reciprocal(near_exp2({power}) + {w.constant(1.0, t)})"


def _horner(w: Writer, coefficients: Sequence[float], x: str) -> str:
    """A polynomial of float32, its highest power first."""
    value = w.constant(coefficients[0], torch.float32)
    for coefficient in coefficients[1:]:
        value = w.typed(f"fmaf({value}, {x}, {w.constant(coefficient, torch.float32)})", torch.float32)
    return value


# -- arithmetic --------------------------------------------------------------------------------------------------------


def _wrapping(name: str) -> Lowering:
    """Sums and products of wide integers in unsigned ones: C++ leaves it open what overflow of signed ones is."""
    plain, symbol = COMMON[name], {"add": "+", "mul": "*"}.get(name, "-")

    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any, alpha: Any = 1) -> str:
        if t not in (torch.int32, torch.int64):
            return plain(w, t, x, y) if alpha == 1 else plain(w, t, x, y, alpha=alpha)
        kind = w.type(t)
        left, right = (w.operand(each, t) for each in ((y, x) if name == "rsub" else (x, y)))
        scaled = f"u{kind}({right})" + (f" * u{kind}({w.constant(alpha, t)})" if alpha != 1 else "")
        return f"{kind}(u{kind}({left}) {symbol} {scaled})"

    return lowering


LOWERINGS.update({name: _wrapping(name) for name in ("add", "sub", "rsub", "mul")})


@lowers("neg")
def _neg(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    return f"-{value}" if t.is_floating_point else _wrapping("sub")(w, t, w.constant(0, t), value)


# -- order -------------------------------------------------------------------------------------------------------------


@lowers("sign", "sgn")
def _sign(w: Writer, t: torch.dtype, x: Any) -> str:
    value, zero = w.operand(x, t), w.constant(0, t)
    return value if t == torch.bool else f"{w.type(t)}({value} > {zero}) - {w.type(t)}({value} < {zero})"


@lowers("abs")
def _abs(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t.is_floating_point:
        return f"{_call('fabs', t)}({value})"
    return value if t in (torch.uint8, torch.bool) else f"{value} < 0 ? {_neg(w, t, value)} : {value}"


# -- bits, truth -------------------------------------------------------------------------------------------------------


LOWERINGS.update(
    logical_xor=lambda w, t, x, y: f"{w.operand(x, torch.bool)} != {w.operand(y, torch.bool)}",
    logical_not=lambda w, t, x: f"!{w.operand(x, torch.bool)}",
    bitwise_xor=template("{0} ^ {1}"),
    bitwise_not=lambda w, t, x: f"{'!' if t == torch.bool else '~'}{w.operand(x, t)}",
)


def _is_infinity(*signs: float) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any) -> str:
        kind = computing(w.common(x))
        if not kind.is_floating_point:
            return "false"
        value = w.operand(x, kind)
        return " || ".join(f"{value} == {w.constant(sign * math.inf, kind)}" for sign in signs)

    return lowering


LOWERINGS.update(isinf=_is_infinity(1.0, -1.0), isposinf=_is_infinity(1.0), isneginf=_is_infinity(-1.0))


@lowers("isnan")
def _isnan(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.compared(x, w.common(x))
    return f"{value} != {value}"


@lowers("signbit")
def _signbit(w: Writer, t: torch.dtype, x: Any) -> str:
    kind = w.common(x)
    value = w.compared(x, kind)
    return f"bits_of({value}) < 0" if kind.is_floating_point else f"{value} < 0"


def _is_inside(w: Writer, t: torch.dtype, count: str) -> str:
    return w.typed(f"{count} >= 0 && {count} < {t.itemsize * 8}", torch.bool)


@lowers("bitwise_left_shift", "__lshift__")
def _left_shift(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    return f"{_is_inside(w, t, count)} ? {w.type(t)}(uint64({value}) << {count}) : {w.constant(0, t)}"


@lowers("bitwise_right_shift", "__rshift__")
def _right_shift(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    inside = _is_inside(w, t, count)
    past = w.constant(0, t) if t == torch.uint8 else f"{value} >> {t.itemsize * 8 - 1}"  # shifts in the sign
    return f"{inside} ? {w.type(t)}({value} >> {count}) : {w.type(t)}({past})"


@lowers("view")
def _view(w: Writer, t: torch.dtype, x: Any, dtype: torch.dtype) -> str:
    held = w.common(x)
    return f"{'bits_of' if held.is_floating_point else 'of_bits'}({w.operand(x, held)})"


# -- casts -------------------------------------------------------------------------------------------------------------


@lowers("_to_copy")
def _to_copy(w: Writer, t: torch.dtype, x: Any, *, dtype: torch.dtype) -> str:
    value = w.operand(x, t)
    return value if dtype == t else w.cast(value, t, dtype)
