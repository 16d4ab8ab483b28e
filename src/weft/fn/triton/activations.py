"""Activations of float32 in few instructions, for Triton; GELU, and polynomials, for C as well.

An activation costs what it issues, for every element that it is applied to. Counted in machine code for sm_90, an ELU
takes 9 instructions here, 17 by an `expm1` of any argument; a GELU 14, 49 by `libdevice`'s `erfc`; a GELU by tanh 7,
26 by `libdevice`'s `tanh`; a tanh 14, without the branch of `libdevice`'s; a sigmoid 13, 30 with a division that rounds
correctly. Of half precision, conversions included, an ELU takes 6 (two elements to a register), a GELU 12 and a sigmoid
5.5.

Where torch would round a value to half precision at once, a quarter of a unit of that precision is exact enough: it
rounds as well or better than torch's own steps.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.fn.writer import HALF_TYPES, Writer

# Polynomials, highest power first, fitted for the least greatest relative error of the whole function.
_EXPM1 = (0.001394113409332931, 0.008363191969692707, 0.04166637361049652, 0.16666576266288757, 0.5)
"""(expm1(r) - r) / r^2 on |r| <= ln(2) / 2, within 6.3e-8."""

_NEAR = 0.548
_SLOPE = (0.006693623494356871, 0.040947623550891876, 0.1665414720773697, 0.49999338388442993)
"""(expm1(r) / r - 1) / r on -`_NEAR` <= r <= 0: with rounding expm1 is within 3 units in the last place, as exp(r) - 1
is beyond, where 2^-22.7 of an exponential, the most that an H200's are off there, is 2.7 units."""

_SLOPE_OF_HALF = (0.5,)

_TANH_NEAR = 0.55
_TANH = (0.016437580658753753, -0.05267181327319313, 0.1332072505214752, -0.3333294663640621)
"""(tanh(x) / x - 1) / x^2 of x^2, on |x| <= `_TANH_NEAR`, within 4e-8."""

_TANH_HALF, _TANH_NEAR_HALF = (-1 / 3,), 2.0**-4
"""The same, for results in half precision."""

_SMALL = 2.0**-6  # below, two terms of a series are exact enough for half precision; above, exp(x) - 1 is


def expm1(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t != torch.float32:
        return f"libdevice.expm1({value})"
    return _expm1_of_half(w, value) if w.rounded in HALF_TYPES else _expm1_of_any(w, value)


def elu(w: Writer, t: torch.dtype, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    value = w.operand(x, t)
    if t in HALF_TYPES:
        return f"device_math.elu({value})"
    if t != torch.float32 or input_scale <= 0:
        return _elu_by_expm1(w, t, value, alpha, scale, input_scale)
    return _elu_in_pieces(w, value, float(alpha * scale), float(scale), float(input_scale))


def _elu_by_expm1(w: Writer, t: torch.dtype, value: str, alpha: Any, scale: Any, input_scale: Any) -> str:
    """Both halves of the line are zero on the other one: no choice is needed, and expm1 sees no positive argument."""
    zero = w.constant(0.0, t)
    below = w.let(f"tl.minimum({value}, {zero}, propagate_nan=tl.PropagateNan.ALL)")
    above = w.let(f"tl.maximum({value}, {zero}, propagate_nan=tl.PropagateNan.ALL)")
    if input_scale != 1:
        below = w.let(f"{below} * {w.constant(input_scale, t)}")
    below = w.let(expm1(w, t, below))
    if alpha * scale != 1:
        below = w.let(f"{below} * {w.constant(alpha * scale, t)}")
    return f"{above} + {below}" if scale == 1 else f"{above} * {w.constant(scale, t)} + {below}"


def _elu_in_pieces(w: Writer, x: str, low: float, high: float, inner: float) -> str:
    """low expm1(inner x) below zero, high x above.

    Far below zero it is an exponential less one, nearer x times a series, which begins with the slope at zero, and
    above x times the slope there. Where both slopes are 1 no choice is needed at zero: bounded by 1, the series is the
    slope above, since its coefficients are positive.
    """
    f32, slope = torch.float32, low * inner
    coefficients, limit = (_SLOPE_OF_HALF, _SMALL) if w.rounded in HALF_TYPES else (_SLOPE, _NEAR)
    inside = w.let(f"{x} * {w.constant(inner, f32)}") if inner != 1 else x
    series = f"{horner(w, [slope * each for each in coefficients], inside)}, {inside}, {w.constant(slope, f32)}"
    if high == 1 and abs(slope - 1) < 2**-24:
        series = w.let(f"device_math.fma_to_one({series})")
    else:
        series = w.let(f"tl.where({x} > {w.constant(0.0, f32)}, {w.constant(high, f32)}, tl.fma({series}))")
    far = w.let(f"tl.fma({_exp(w, inside)}, {w.constant(low, f32)}, {w.constant(-low, f32)})")
    return f"tl.where({inside} > {w.constant(-limit, f32)}, {x} * {series}, {far})"


def _expm1_of_half(w: Writer, x: str) -> str:
    """Within 2^-14 of the value: exp(x) - 1 loses at most 6 of 22 bits, x + x^2/2 leaves out x^3/6."""
    f32 = torch.float32
    far = w.let(f"{_exp(w, x)} - {w.constant(1.0, f32)}")
    near = w.let(f"tl.fma({x} * {w.constant(0.5, f32)}, {x}, {x})")
    return f"tl.where(tl.abs({x}) < {w.constant(_SMALL, f32)}, {near}, {far})"


def _expm1_of_any(w: Writer, x: str) -> str:
    """Within 1.7 units in the last place (torch: 1), for arguments of any size.

    With n = round(x / ln 2) and r = x - n ln 2 it is 2^n (1 + expm1(r)) - 1, halved on the way so that 2^n never
    overflows early. Rounding is by addition of 1.5 * 2^23, whose low bits then hold n: no conversion, which has an
    eighth of the throughput of a multiplication.
    """

    def number(constant: float) -> str:
        return w.constant(constant, torch.float32)

    def bounded(limit: str, bound: float, inside: str) -> str:
        return w.let(f"tl.{limit}({inside}, {number(bound)}, propagate_nan=tl.PropagateNan.ALL)")

    x = bounded("minimum", 89.0, bounded("maximum", -30.0, x))
    shifted = w.let(f"tl.fma({x}, {number(LOG2_E)}, {number(12582912.0)})")
    n = w.let(f"{shifted} - {number(12582912.0)}")
    r = w.let(f"tl.fma({n}, {number(-0.693145751953125)}, {x})")  # ln 2 in two parts, the first with room for n
    r = w.let(f"tl.fma({n}, {number(-1.42860677e-6)}, {r})")
    series = horner(w, _EXPM1, r)
    series = w.let(f"tl.fma({w.let(f'{series} * {r}')}, {r}, {r})")
    half = w.let(f"((({shifted}).to(tl.int32, bitcast=True) << 23) + 1056964608).to(tl.float32, bitcast=True)")
    result = w.let(f"tl.fma({series}, {half}, {half} - {number(0.5)})")
    return f"{result} + {result}"


def tanh(w: Writer, t: torch.dtype, x: Any) -> str:
    """1 - 2 / (1 + exp(2 x)), which has an absolute error of 2^-22, and nearer zero x times a series.

    Relative error of float32: 2^-21. NaN is not near zero and stays NaN.
    """
    value = w.operand(x, t)
    if t != torch.float32:
        return f"libdevice.tanh({value})"
    half = w.rounded in HALF_TYPES
    coefficients, limit = (_TANH_HALF, _TANH_NEAR_HALF) if half else (_TANH, _TANH_NEAR)
    one, square = w.constant(1.0, t), w.let(f"{value} * {value}")
    series = w.let(f"tl.fma({horner(w, coefficients, square)}, {square}, {one})")
    power = w.let(f"device_math.exp2({value} * {w.constant(2 * LOG2_E, t)})")
    far = w.let(f"tl.fma(device_math.reciprocal({power} + {one}), {w.constant(-2.0, t)}, {one})")
    return f"tl.where(tl.abs({value}) < {w.constant(limit, t)}, {value} * {series}, {far})"


def sigmoid(w: Writer, t: torch.dtype, x: Any) -> str:
    """exp of a value that is not positive never overflows, so both tails keep their relative accuracy: in float32
    within 3 units in the last place."""
    value, one = w.operand(x, t), w.constant(1.0, t)
    if w.rounded in HALF_TYPES:
        power = w.let(f"{value} * {w.constant(-LOG2_E, t)}")
        return f"device_math.reciprocal(device_math.exp2({power}) + {one})"
    below = w.let(f"{value} < {w.constant(0.0, t)}")
    size = w.let(f"tl.abs({value}) * {w.constant(-1.0, t)}")
    small = w.let(f"libdevice.exp({size})")
    if t != torch.float32:
        return f"tl.where({below}, {small}, {one}) / ({small} + {one})"
    return f"tl.where({below}, {small}, {one}) * device_math.reciprocal({small} + {one})"


def _exp(w: Writer, x: str) -> str:
    return w.let(f"device_math.exp2({x} * {w.constant(LOG2_E, torch.float32)})")


LOG2_E = 1 / math.log(2)

# Polynomials, highest power first, fitted for the least greatest relative error of the whole function.
TAIL = (
    -1.8624032240819152e-08, 5.959061716394773e-07, -8.140720540296192e-06, 6.000147667693423e-05,
    -0.0002233564785204294, -0.00011508628196812206, 0.00708363482951527, -0.05252904639785653, -0.45919465263356724,
    -1.1511067188847541, -1.0,
)  # fmt: skip
"""log2 of the normal distribution's tail beyond a, on 0 <= a <= 6. It falls ever faster beyond."""

TAIL_HALF = (
    -1.3894477949070007e-06, 5.316727087769606e-05, -0.0008690393837710003, 0.008290974443473789,
    -0.05357917574772384, -0.45877147500247845, -1.1511611218222366, -1.0,
)  # fmt: skip
"""The same, for results in half precision."""


def gelu(w: Writer, t: torch.dtype, x: Any, *, approximate: str = "none") -> str:
    value = w.operand(x, t)
    if approximate == "tanh":
        return _gelu_by_tanh(w, t, value)
    if t != torch.float32:  # 1 + erf would cancel in the negative tail
        tail = w.part(w.call("erfc", t, f"{value} * {w.constant(-math.sqrt(0.5), t)}"))
        return f"{value} * {w.constant(0.5, t)} * {tail}"
    return _gelu_by_tail(w, t, value)


def _gelu_by_tail(w: Writer, t: torch.dtype, x: str) -> str:
    """x Phi(x) of float32, Phi from the tail on whichever side x lies: nothing cancels.

    The logarithm of the tail is nearly a parabola, so that one polynomial and one exponential make it. Relative error
    of the result: 2^-21 for x > -1, 2^-19 for x > -3, 2^-17 for x > -6; below, where the result is under 6e-9 in size,
    its order of magnitude. (1 + erf, as torch has it, is off by 2^-15 at -3 and yields 0 below -5.6.)
    """
    one = w.constant(1.0, t)
    size = w.typed(w.call("fabs", t, x), t)
    power = horner(w, TAIL_HALF if w.rounded in HALF_TYPES else TAIL, size)
    tail = w.typed(w.call("near_exp2", t, power), t)
    share = w.select(f"{x} > {w.constant(0.0, t)}", f"{one} - {tail}", tail)
    return f"{x} * {share if w.language == 'triton' else f'({share})'}"


def _gelu_by_tanh(w: Writer, t: torch.dtype, x: str) -> str:
    """x (1 + tanh(u)) / 2 with u = sqrt(2 / pi) (x + 0.044715 x^3), which is x / (1 + exp(-2 u))."""
    scale = -2 * math.sqrt(2 / math.pi)
    if t != torch.float32:
        inner = w.typed(f"{x} * {w.constant(-scale / 2, t)} * ({x} * {x} * {w.constant(0.044715, t)} + 1.0)", t)
        return f"{x} * {w.constant(0.5, t)} * ({w.call('tanh', t, inner)} + {w.constant(1.0, t)})"
    first, third = (w.constant(scale * LOG2_E * factor, t) for factor in (1.0, 0.044715))
    power = w.typed(f"{x} * {w.call('fma', t, w.part(f'{x} * {x}'), third, first)}", t)
    sum_of_both = f"{w.call('near_exp2', t, power)} + {w.constant(1.0, t)}"
    return f"{x} * {w.call('near_reciprocal', t, sum_of_both)}"


def horner(w: Writer, coefficients: Sequence[float], x: str) -> str:
    """A polynomial of float32, its highest power first."""
    single = torch.float32
    value = w.constant(coefficients[0], single)
    for coefficient in coefficients[1:]:
        value = w.typed(w.call("fma", single, value, x, w.constant(coefficient, single)), single)
    return value
