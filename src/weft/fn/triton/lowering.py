"""Each primitive aten operation as a Triton expression.

Transcendental functions are `libdevice`'s (CUDA's on NVIDIA, OCML on AMD), not the faster and less exact `tl.exp` and
its kin; division and square root round correctly. On NVIDIA they flush float32 subnormals unless the kernel is
compiled with Triton's option `enable_reflect_ftz=False`. Where Triton's language leaves a case open or decides it
otherwise than torch does (NaN in maxima, signs of remainders, shifts past the width, negation of zero), the
expression says it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft.errors import UnsupportedError
from weft.fn.lowerings import COMMON, Lowering, registering, template
from weft.fn.writer import Writer

LOWERINGS: dict[str, Lowering] = dict(COMMON)
lowers = registering(LOWERINGS)

_FUNCTIONS = (
    "exp exp2 expm1 log log2 log10 log1p sin cos tan sinh cosh tanh asin acos atan asinh acosh atanh "
    "erf erfc erfinv lgamma"
)
LOWERINGS.update({name: template(f"libdevice.{name}({{0}})") for name in _FUNCTIONS.split()})
#: Functions of one element that cost many instructions.
ELEMENTARY = {*_FUNCTIONS.split(), "pow", "atan2", "hypot", "fmod", "rsqrt", "sqrt"}
LOWERINGS.update(
    {name: template(f"libdevice.{name}({{0}}, {{1}})") for name in ("atan2", "hypot", "copysign", "nextafter")}
)
LOWERINGS["rsqrt"] = template("tl.rsqrt({0})")


@lowers("neg")
def _neg(w: Writer, t: torch.dtype, x: Any) -> str:
    if t.is_floating_point:
        return f"{w.operand(x, t)} * {w.constant(-1.0, t)}"  # Triton's minus is 0 - x: it loses the sign of zero
    return f"{w.constant(0, t)} - {w.operand(x, t)}"


@lowers("div")
def _div(w: Writer, t: torch.dtype, x: Any, y: Any, *, rounding_mode: str | None = None) -> str:
    if rounding_mode == "floor":
        return _floor_divide(w, t, x, y)
    if not t.is_floating_point:
        return f"{w.operand(x, t)} // {w.operand(y, t)}"
    quotient = _quotient(w, t, x, y)
    return quotient if rounding_mode is None else f"libdevice.trunc({w.let(quotient)})"


def _quotient(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    number = w.number(y)
    if number and math.isfinite(number):
        mantissa, exponent = math.frexp(number)
        if abs(mantissa) == 0.5 and abs(exponent) < 100:  # by a power of two: the product is as exact
            return f"{w.operand(x, t)} * {w.constant(1 / number, t)}"
    return quotient_of(t, w.operand(x, t), w.operand(y, t))


@lowers("reciprocal")
def _reciprocal(w: Writer, t: torch.dtype, x: Any) -> str:
    return _quotient(w, t, 1.0, x)


@lowers("sqrt")
def _sqrt(w: Writer, t: torch.dtype, x: Any) -> str:
    return f"{'tl.sqrt_rn' if t == torch.float32 else 'tl.sqrt'}({w.operand(x, t)})"


@lowers("fmod")
def _fmod(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    if t.is_floating_point:
        return f"libdevice.fmod({w.operand(x, t)}, {w.operand(y, t)})"
    return f"{w.operand(x, t)} % {w.operand(y, t)}"  # Triton's % takes the sign of the dividend, as C's does


def _signs_differ(w: Writer, t: torch.dtype, rest: str, y: Any) -> str:
    """Whether a remainder that is not zero has the other sign than its divisor."""
    zero, number, divisor = w.constant(0, t), w.number(y), w.operand(y, t)
    if number is not None:
        return f"{rest} {'<' if number > 0 else '>'} {zero}"
    return f"({rest} != {zero}) & (({rest} < {zero}) ^ ({divisor} < {zero}))"


@lowers("remainder")
def _remainder(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    rest, divisor = w.let(_fmod(w, t, x, y)), w.operand(y, t)
    return f"tl.where({_signs_differ(w, t, rest, y)}, {rest} + {divisor}, {rest})"


@lowers("floor_divide")
def _floor_divide(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    dividend, divisor = w.operand(x, t), w.operand(y, t)
    rest = w.let(_fmod(w, t, x, y))
    below = w.let(_signs_differ(w, t, rest, y))
    if not t.is_floating_point:
        return f"{dividend} // {divisor} - {below}.to({w.type(t)})"
    # The quotient of what divides evenly is within an ulp of a whole number; round it there (as CPython does).
    one, zero = w.constant(1.0, t), w.constant(0.0, t)
    direct = w.let(_quotient(w, t, x, y))
    even = w.let(quotient_of(t, f"({dividend} - {rest})", divisor))
    even = w.let(f"tl.where({below}, {even} - {one}, {even})")
    whole = w.let(f"tl.floor({even})")
    whole = w.let(f"tl.where({even} - {whole} > {w.constant(0.5, t)}, {whole} + {one}, {whole})")
    whole = w.let(f"tl.where({even} == {zero}, libdevice.copysign({even} * {zero}, {direct}), {whole})")
    return f"tl.where({divisor} == {zero}, {direct}, {whole})"


def quotient_of(t: torch.dtype, dividend: str, divisor: str) -> str:
    return f"tl.div_rn({dividend}, {divisor})" if t == torch.float32 else f"{dividend} / {divisor}"


@lowers("pow")
def _pow(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    if not t.is_floating_point:
        return _integer_power(w, t, w.operand(x, t), w.number(y))
    if w.number(x) == 2:
        return f"libdevice.exp2({w.operand(y, t)})"
    if w.number(y) in _POWERS:
        return _POWERS[w.number(y)](w, t, w.operand(x, t))
    return f"libdevice.pow({w.operand(x, t)}, {w.operand(y, t)})"


#: Exponents that torch computes without its general power, NaN and infinities included.
_POWERS: dict[float, Callable[[Writer, torch.dtype, str], str]] = {
    1: lambda w, t, x: x,
    2: lambda w, t, x: f"{x} * {x}",
    3: lambda w, t, x: f"{x} * {x} * {x}",
    0.5: lambda w, t, x: _sqrt(w, t, x),
    -0.5: lambda w, t, x: f"tl.rsqrt({x})",
    -1: lambda w, t, x: quotient_of(t, w.constant(1.0, t), x),
    -2: lambda w, t, x: quotient_of(t, w.constant(1.0, t), f"({x} * {x})"),
}


def _integer_power(w: Writer, t: torch.dtype, base: str, exponent: Any) -> str:
    """By repeated squaring, which wraps as torch's does."""
    if not isinstance(exponent, int):
        raise UnsupportedError("an integer to the power of a tensor does not run on the Triton backend; cast to float")
    result = w.constant(1, t)
    while exponent > 0:
        if exponent & 1:
            result = w.let(f"{result} * {base}")
        exponent >>= 1
        if exponent:
            base = w.let(f"{base} * {base}")
    return result
