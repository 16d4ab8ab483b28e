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

from weft.errors import UnsupportedError
from weft.fn.lowerings import COMMON, Lowering, extrema, registering, template
from weft.fn.triton.lowering_exp import LOG2_E, TAIL, TAIL_HALF
from weft.fn.writer import HALF_TYPES, Writer, computing

LOWERINGS: dict[str, Lowering] = dict(COMMON)
lowers = registering(LOWERINGS)


# -- elementary functions ----------------------------------------------------------------------------------------------


def _call(name: str, t: torch.dtype) -> str:
    """The name of a function of the mathematical library for a type."""
    return name if t == torch.float64 else f"{name}f"


def _elementary(name: str) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, *operands: Any) -> str:
        return f"{_call(name, t)}({', '.join(w.operand(each, t) for each in operands)})"

    return lowering


_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh "
    "erf erfc erfinv lgamma sqrt rsqrt hypot atan2 copysign nextafter"
)
LOWERINGS.update({name: _elementary(name) for name in _FUNCTIONS.split()})


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


@lowers("div")
def _div(w: Writer, t: torch.dtype, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    if rounding_mode == "floor":
        return _floor_divide(w, t, x, y)
    quotient = f"{w.operand(x, t)} / {w.operand(y, t)}"
    if rounding_mode is None or not t.is_floating_point:
        return quotient
    return f"{_call('trunc', t)}({quotient})"


@lowers("reciprocal")
def _reciprocal(w: Writer, t: torch.dtype, x: Any) -> str:
    return _div(w, t, 1.0, x)


@lowers("fmod")
def _fmod(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    if t.is_floating_point:
        return f"{_call('fmod', t)}({w.operand(x, t)}, {w.operand(y, t)})"
    return f"{w.operand(x, t)} % {w.operand(y, t)}"


def _signs_differ(w: Writer, t: torch.dtype, rest: str, divisor: str) -> str:
    """Whether a remainder that is not zero has the other sign than its divisor."""
    zero = w.constant(0, t)
    return w.typed(f"{rest} != {zero} && ({rest} < {zero}) != ({divisor} < {zero})", torch.bool)


@lowers("remainder")
def _remainder(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    rest, divisor = w.typed(_fmod(w, t, x, y), t), w.operand(y, t)
    return f"{_signs_differ(w, t, rest, divisor)} ? {rest} + {divisor} : {rest}"


@lowers("floor_divide")
def _floor_divide(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    dividend, divisor = w.operand(x, t), w.operand(y, t)
    rest = w.typed(_fmod(w, t, x, y), t)
    below = _signs_differ(w, t, rest, divisor)
    if not t.is_floating_point:
        return f"{dividend} / {divisor} - {below}"
    # The quotient of what divides evenly is within an ulp of a whole number; round it there (as CPython does).
    zero, one, half = (w.constant(number, t) for number in (0.0, 1.0, 0.5))
    direct = w.typed(f"{dividend} / {divisor}", t)
    even = w.typed(f"({dividend} - {rest}) / {divisor}", t)
    even = w.typed(f"{below} ? {even} - {one} : {even}", t)
    whole = w.typed(f"{_call('floor', t)}({even})", t)
    whole = w.typed(f"{even} - {whole} > {half} ? {whole} + {one} : {whole}", t)
    whole = w.typed(f"{even} == {zero} ? {_call('copysign', t)}({zero}, {direct}) : {whole}", t)
    return f"{divisor} == {zero} ? {direct} : {whole}"


@lowers("pow")
def _pow(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    if not t.is_floating_point:
        return _integer_power(w, t, w.operand(x, t), w.number(y))
    if w.number(x) == 2:
        return f"{_call('exp2', t)}({w.operand(y, t)})"
    if w.number(y) in _POWERS:
        text = _POWERS[w.number(y)]
        return text.format(w.operand(x, t), one=w.constant(1.0, t), sqrt=_call("sqrt", t), rsqrt=_call("rsqrt", t))
    return f"{_call('pow', t)}({w.operand(x, t)}, {w.operand(y, t)})"


#: Exponents that torch computes without its general power, NaN and infinities included.
_POWERS = {
    1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "{sqrt}({0})", -0.5: "{rsqrt}({0})", -1: "{one} / {0}",
    -2: "{one} / ({0} * {0})",
}  # fmt: skip


def _integer_power(w: Writer, t: torch.dtype, base: str, exponent: Any) -> str:
    """By repeated squaring, which wraps as torch's does."""
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError("an integer to the power of a tensor has no code in CUDA C++")
    product, result = LOWERINGS["mul"], w.constant(1, t)
    while exponent > 0:
        if exponent & 1:
            result = w.typed(product(w, t, result, base), t)
        exponent >>= 1
        if exponent:
            base = w.typed(product(w, t, base, base), t)
    return result


# -- order -------------------------------------------------------------------------------------------------------------


def _extremum(w: Writer, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
    a, b = w.operand(x, t), w.operand(y, t)
    if t == torch.bool:
        return f"{a} {'|' if larger else '&'} {b}"
    nan = f" || {a} != {a}" if t.is_floating_point else ""
    return f"{a} {'>' if larger else '<'} {b}{nan} ? {a} : {b}"


LOWERINGS.update(extrema(_extremum))


def _past_nan(larger: bool) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        if not t.is_floating_point:
            return _extremum(w, t, larger, x, y)
        a, b = w.operand(x, t), w.operand(y, t)
        return f"{a} {'>=' if larger else '<='} {b} || {b} != {b} ? {a} : {b}"

    return lowering


LOWERINGS.update(fmax=_past_nan(larger=True), fmin=_past_nan(larger=False))


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


@lowers("where")
def _where(w: Writer, t: torch.dtype, condition: Any, x: Any, y: Any) -> str:
    return f"{w.operand(condition, torch.bool)} ? {w.operand(x, t)} : {w.operand(y, t)}"


@lowers("masked_fill")
def _masked_fill(w: Writer, t: torch.dtype, x: Any, mask: Any, value: Any) -> str:
    return _where(w, t, mask, value, x)


# -- rounding, bits, truth ---------------------------------------------------------------------------------------------


def _rounding(name: str) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any) -> str:
        return f"{_call(name, t)}({w.operand(x, t)})" if t.is_floating_point else w.operand(x, t)

    return lowering


LOWERINGS.update({name: _rounding(name) for name in ("floor", "ceil", "trunc")})


@lowers("round")
def _round(w: Writer, t: torch.dtype, x: Any, *, decimals: int = 0) -> str:
    value = w.operand(x, t)
    if not t.is_floating_point:
        return value
    if decimals == 0:
        return f"{_call('rint', t)}({value})"
    scale = w.constant(10.0 ** abs(decimals), t)
    before, after = ("*", "/") if decimals > 0 else ("/", "*")
    return f"{_call('rint', t)}({value} {before} {scale}) {after} {scale}"


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
