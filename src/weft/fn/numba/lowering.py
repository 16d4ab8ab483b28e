"""Operations that code for numba has forms of its own for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from weft.fn.writer import Writer


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
