"""Each primitive aten operation as an expression of numba's values.

Operands come converted to the type that the operation computes in; the emitter casts the result to its own. What torch
decides otherwise than Python or C (NaN in extrema, signs of remainders, shifts past the width) the expression says.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.fn.lowerings import COMMON, Lowering, extrema, registering, template
from weft.fn.numba.writer import NumbaWriter

LOWERINGS: dict[str, Lowering] = dict(COMMON)
lowers = registering(LOWERINGS)


# -- elementary functions ----------------------------------------------------------------------------------------------

_OWN = frozenset({"exp", "exp2", "expm1", "log", "log2", "log10", "log1p", "tanh", "erf", "erfc"})  # `fn.numba.math`
_UFUNCS = (*(_OWN - {"erf", "erfc"}), "sin", "cos", "tan", "sinh", "cosh")
_LIBRARY = {name: f"np.{name}" for name in _UFUNCS}
_LIBRARY |= {f"a{name}": f"np.arc{name}" for name in ("sin", "cos", "tan", "sinh", "cosh", "tanh")}
_LIBRARY |= {name: f"math.{name}" for name in ("erf", "erfc", "lgamma")}


def _elementary(name: str) -> Lowering:
    def lowering(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
        own = t == torch.float32 and name in _OWN
        return f"{f'vector.{name}' if own else _LIBRARY[name]}({w.operand(x, t)})"

    return lowering


LOWERINGS.update({name: _elementary(name) for name in _LIBRARY})
LOWERINGS["hypot"] = template("np.hypot({0}, {1})")
LOWERINGS["atan2"] = template("np.arctan2({0}, {1})")
LOWERINGS["copysign"] = template("math.copysign({0}, {1})")


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


@lowers("div")
def _div(w: NumbaWriter, t: torch.dtype, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    if rounding_mode == "floor":
        return _floor_divide(w, t, x, y)
    if not t.is_floating_point:
        return _truncated(w, t, w.operand(x, t), w.operand(y, t))
    quotient = f"{w.operand(x, t)} / {w.operand(y, t)}"
    return quotient if rounding_mode is None else f"np.trunc({w.typed(quotient, t)})"


def _truncated(w: NumbaWriter, t: torch.dtype, x: str, y: str) -> str:
    """A quotient of integers towards zero: Python's goes down."""
    down = w.let(f"int64({x}) // int64({y})")
    exact = w.let(f"{down} * int64({y}) == int64({x})")
    return f"{down} if {exact} or {down} >= 0 else {down} + 1"


@lowers("reciprocal")
def _reciprocal(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    return _div(w, t, 1.0, x)


LOWERINGS["sqrt"] = template("np.sqrt({0})")


@lowers("rsqrt")
def _rsqrt(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
    return f"{w.constant(1.0, t)} / {w.typed(f'np.sqrt({w.operand(x, t)})', t)}"


@lowers("fmod")
def _fmod(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
    if t.is_floating_point:
        return f"np.fmod({w.operand(x, t)}, {w.operand(y, t)})"
    x, y = w.operand(x, t), w.operand(y, t)
    quotient = w.let(_truncated(w, t, x, y))
    return f"int64({x}) - ({quotient}) * int64({y})"


@lowers("remainder")
def _remainder(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
    divisor = w.operand(y, t)
    if not t.is_floating_point:
        return f"int64({w.operand(x, t)}) % int64({divisor})"  # Python's sign is the divisor's, as torch's is
    rest = w.typed(_fmod(w, t, x, y), t)
    return f"{rest} + {divisor} if {rest} != 0 and (({rest} < 0) != ({divisor} < 0)) else {rest}"


@lowers("floor_divide")
def _floor_divide(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
    dividend, divisor = w.operand(x, t), w.operand(y, t)
    if not t.is_floating_point:
        return f"int64({dividend}) // int64({divisor})"
    rest = w.typed(_fmod(w, t, x, y), t)
    direct = w.typed(f"{dividend} / {divisor}", t)
    even = w.typed(f"({dividend} - {rest}) / {divisor}", t)
    below = w.let(f"{rest} != 0 and (({rest} < 0) != ({divisor} < 0))")
    even = w.typed(f"{even} - 1 if {below} else {even}", t)
    whole = w.typed(f"np.floor({even})", t)
    whole = w.typed(f"{whole} + 1 if {even} - {whole} > 0.5 else {whole}", t)
    whole = w.typed(f"math.copysign({w.constant(0.0, t)}, {direct}) if {even} == 0 else {whole}", t)
    return f"{direct} if {divisor} == 0 else {whole}"


@lowers("pow")
def _pow(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
    if not t.is_floating_point:
        return _integer_power(w, t, w.operand(x, t), w.number(y))
    exponent, value = w.number(y), w.operand(x, t)
    if exponent in _POWERS:
        return _POWERS[exponent].format(value, one=w.constant(1.0, t))
    return f"np.power({value}, {w.operand(y, t)})"


#: Exponents that torch computes without its general power, NaN and infinities included.
_POWERS = {
    1: "{0}", 2: "{0} * {0}", 3: "{0} * {0} * {0}", 0.5: "np.sqrt({0})", -0.5: "{one} / np.sqrt({0})",
    -1: "{one} / {0}", -2: "{one} / ({0} * {0})",
}  # fmt: skip


def _integer_power(w: NumbaWriter, t: torch.dtype, base: str, exponent: Any) -> str:
    """By repeated squaring, which wraps as torch's does."""
    if not isinstance(exponent, int) or exponent < 0:
        raise UnsupportedError("an integer to the power of a tensor has no code for the CPU")
    result = w.constant(1, t)
    while exponent > 0:
        if exponent & 1:
            result = w.typed(f"{result} * {base}", t)
        exponent >>= 1
        if exponent:
            base = w.typed(f"{base} * {base}", t)
    return result


# -- order -------------------------------------------------------------------------------------------------------------


def _extremum(w: NumbaWriter, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
    a, b = w.operand(x, t), w.operand(y, t)
    if t == torch.bool:
        return f"{a} {'|' if larger else '&'} {b}"
    chosen = w.let(f"({a} {'>' if larger else '<'} {b}) | ({a} != {a})")
    return f"{a} if {chosen} else {b}"


LOWERINGS.update(extrema(_extremum))


def _past_nan(larger: bool) -> Lowering:
    def lowering(w: NumbaWriter, t: torch.dtype, x: Any, y: Any) -> str:
        a, b = w.operand(x, t), w.operand(y, t)
        if t == torch.bool:
            return _extremum(w, t, larger, x, y)
        return f"{a} if ({a} {'>=' if larger else '<='} {b}) | ({b} != {b}) else {b}"

    return lowering


LOWERINGS.update(fmax=_past_nan(larger=True), fmin=_past_nan(larger=False))


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


@lowers("where")
def _where(w: NumbaWriter, t: torch.dtype, condition: Any, x: Any, y: Any) -> str:
    return f"{w.operand(x, t)} if {w.operand(condition, torch.bool)} else {w.operand(y, t)}"


@lowers("masked_fill")
def _masked_fill(w: NumbaWriter, t: torch.dtype, x: Any, mask: Any, value: Any) -> str:
    return _where(w, t, mask, value, x)


# -- rounding, bits, truth ---------------------------------------------------------------------------------------------


def _rounding(call: str) -> Lowering:
    def lowering(w: NumbaWriter, t: torch.dtype, x: Any) -> str:
        return f"{call}({w.operand(x, t)})" if t.is_floating_point else w.operand(x, t)

    return lowering


LOWERINGS.update(floor=_rounding("np.floor"), ceil=_rounding("np.ceil"), trunc=_rounding("np.trunc"))


@lowers("round")
def _round(w: NumbaWriter, t: torch.dtype, x: Any, *, decimals: int = 0) -> str:
    value = w.operand(x, t)
    if not t.is_floating_point:
        return value
    if decimals == 0:
        return f"np.rint({value})"
    scale = w.constant(10.0 ** abs(decimals), t)
    return f"np.rint({value} * {scale}) / {scale}" if decimals > 0 else f"np.rint({value} / {scale}) * {scale}"


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
