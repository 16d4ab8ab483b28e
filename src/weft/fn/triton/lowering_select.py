"""Order, rounding, truth, bits, and casts as Triton expressions; arithmetic is in `lowering`."""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.fn.lowerings import Lowering, extrema, template
from weft.fn.triton import lowering_exp  # noqa: F401  (registers its lowerings)
from weft.fn.triton.lowering import LOWERINGS, lowers, quotient_of
from weft.fn.triton.writer import TritonWriter
from weft.fn.writer import Writer

# -- order -----------------------------------------------------------------------------------------------------------


def _extremum(w: Writer, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
    a, b = w.operand(x, t), w.operand(y, t)
    if t == torch.bool:
        return f"{a} {'|' if larger else '&'} {b}"
    if t == torch.float64:  # by comparison: no instruction takes the larger of two doubles, NaN included
        return f"tl.where(({a} {'>' if larger else '<'} {b}) | ({a} != {a}), {a}, {b})"
    # Without it Triton's extremum returns NaN in the interpreter and the number on a GPU.
    nan = ", propagate_nan=tl.PropagateNan.ALL" if t.is_floating_point else ""
    return f"tl.{'maximum' if larger else 'minimum'}({a}, {b}{nan})"


LOWERINGS.update(extrema(_extremum))


def _past_nan(larger: bool) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
        if not t.is_floating_point:
            return _extremum(w, t, larger, x, y)
        a, b = w.operand(x, t), w.operand(y, t)
        return f"tl.where(({a} {'>=' if larger else '<='} {b}) | ({b} != {b}), {a}, {b})"

    return lowering


LOWERINGS.update(fmax=_past_nan(larger=True), fmin=_past_nan(larger=False))


@lowers("sign", "sgn")
def _sign(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t == torch.bool:
        return value
    zero = w.constant(0, t)
    return f"({value} > {zero}).to({w.type(t)}) - ({value} < {zero}).to({w.type(t)})"


@lowers("abs")
def _abs(w: Writer, t: torch.dtype, x: Any) -> str:
    return f"tl.abs({w.operand(x, t)})"


@lowers("where")
def _where(w: Writer, t: torch.dtype, condition: Any, x: Any, y: Any) -> str:
    return f"tl.where({w.operand(condition, torch.bool)}, {w.operand(x, t)}, {w.operand(y, t)})"


@lowers("masked_fill")
def _masked_fill(w: Writer, t: torch.dtype, x: Any, mask: Any, value: Any) -> str:
    return _where(w, t, mask, value, x)


# -- rounding --------------------------------------------------------------------------------------------------------


def _rounding(call: str) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any) -> str:
        return f"{call}({w.operand(x, t)})" if t.is_floating_point else w.operand(x, t)

    return lowering


LOWERINGS.update(floor=_rounding("tl.floor"), ceil=_rounding("tl.ceil"), trunc=_rounding("libdevice.trunc"))


@lowers("round")
def _round(w: Writer, t: torch.dtype, x: Any, *, decimals: int = 0) -> str:
    value = w.operand(x, t)
    if not t.is_floating_point:
        return value
    if decimals == 0:
        return f"libdevice.nearbyint({value})"
    scale = w.constant(10.0 ** abs(decimals), t)
    if decimals > 0:
        return quotient_of(t, f"libdevice.nearbyint({value} * {scale})", scale)
    return f"libdevice.nearbyint({quotient_of(t, value, scale)}) * {scale}"


# -- bits and truth --------------------------------------------------------------------------------------------------

LOWERINGS.update(
    logical_xor=lambda w, t, x, y: f"{w.operand(x, torch.bool)} ^ {w.operand(y, torch.bool)}",
    logical_not=lambda w, t, x: f"~{w.operand(x, torch.bool)}",
    bitwise_xor=template("{0} ^ {1}"),
    bitwise_not=lambda w, t, x: f"{w.operand(x, t)} ^ {w.constant(-1, t)}",
)


@lowers("isinf")
def _isinf(w: Writer, t: torch.dtype, x: Any) -> str:
    kind = w.common(x)
    value = w.operand(x, kind)
    return f"tl.abs({value}) == {w.constant(math.inf, kind)}" if kind.is_floating_point else f"{value} != {value}"


def _is_infinity(sign: float) -> Lowering:
    def lowering(w: Writer, t: torch.dtype, x: Any) -> str:
        kind = w.common(x)
        value = w.operand(x, kind)
        return f"{value} == {w.constant(sign * math.inf, kind)}" if kind.is_floating_point else f"{value} != {value}"

    return lowering


LOWERINGS.update(isposinf=_is_infinity(1.0), isneginf=_is_infinity(-1.0))


@lowers("signbit")
def _signbit(w: Writer, t: torch.dtype, x: Any) -> str:
    kind = w.common(x)
    value = w.compared(x, kind)
    if kind.is_floating_point:
        bits = torch.int64 if kind == torch.float64 else torch.int32
        return f"{value}.to({w.type(bits)}, bitcast=True) < {w.constant(0, bits)}"
    return f"{value} < {w.constant(0, torch.int8 if kind == torch.bool else kind)}"


def _is_count(y: Any, t: torch.dtype) -> bool:
    """Whether a shift is by a number that is known and within the width: nothing is to be chosen then."""
    return isinstance(y, int) and 0 <= y < t.itemsize * 8


@lowers("bitwise_left_shift", "__lshift__")
def _left_shift(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    if _is_count(y, t):
        return f"{value} << {count}"
    zero, width = w.constant(0, t), w.constant(t.itemsize * 8, t)
    inside = w.let(f"({count} >= {zero}) & ({count} < {width})")
    return f"tl.where({inside}, {value} << tl.where({inside}, {count}, {zero}), {zero})"


@lowers("bitwise_right_shift", "__rshift__")
def _right_shift(w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count = w.operand(x, t), w.operand(y, t)
    if _is_count(y, t):
        return f"{value} >> {count}"
    zero, width = w.constant(0, t), w.constant(t.itemsize * 8, t)
    inside = w.let(f"({count} >= {zero}) & ({count} < {width})")
    if t == torch.uint8:
        return f"tl.where({inside}, {value} >> tl.where({inside}, {count}, {zero}), {zero})"
    last = w.constant(t.itemsize * 8 - 1, t)  # shifts in the sign
    return f"{value} >> tl.where({inside}, {count}, {last})"


@lowers("view")
def _view(w: Writer, t: torch.dtype, x: Any, dtype: torch.dtype) -> str:
    return f"{w.operand(x, w.common(x))}.to({w.type(dtype)}, bitcast=True)"


# -- casts ---------------------------------------------------------------------------------------------


@lowers("_to_copy")
def _to_copy(w: TritonWriter, t: torch.dtype, x: Any, *, dtype: torch.dtype) -> str:
    value = w.operand(x, t)
    return value if dtype == t else f"{w.rounding(value, dtype)}.to({w.type(t)})"
