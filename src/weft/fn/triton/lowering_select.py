"""Signs, truth, bits, and casts as Triton expressions; arithmetic is in `lowering`."""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.fn.lowerings import Lowering, template
from weft.fn.triton import lowering_exp  # noqa: F401  (registers its lowerings)
from weft.fn.triton.lowering import LOWERINGS, lowers
from weft.fn.triton.writer import TritonWriter
from weft.fn.writer import Writer


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
