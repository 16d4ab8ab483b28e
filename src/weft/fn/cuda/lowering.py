"""Operations that CUDA C++ has forms of its own for.

Elementary functions are CUDA's own; division and square root round correctly, and subnormal numbers are kept. As in
Triton code the compiler may round a product and a sum once, and activations that take many instructions are made of
short forms.
"""

from __future__ import annotations

from typing import Any

import torch

from weft.fn.writer import Writer

WIDE = (torch.int32, torch.int64)  # integers whose sums overflow


def sigmoid(w: Writer, t: torch.dtype, x: Any) -> str:
    """exp of a value that is not positive never overflows, so both tails keep their relative accuracy: in float32
    within 3 units in the last place."""
    value, one = w.operand(x, t), w.constant(1.0, t)
    small = w.typed(w.call("exp", t, f"-{w.call('fabs', t, value)}"), t)
    share = w.typed(w.select(f"{value} < {w.constant(0.0, t)}", small, one), t)
    if t == torch.float64:
        return f"{share} / ({small} + {one})"
    return f"{share} * near_reciprocal({small} + {one})"


def elu(w: Writer, t: torch.dtype, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> str:
    value = w.operand(x, t)
    inner = value if input_scale == 1 else w.typed(f"{value} * {w.constant(input_scale, t)}", t)
    below = w.typed(f"{w.call('expm1', t, inner)} * {w.constant(alpha * scale, t)}", t)
    return w.select(f"{value} > {w.constant(0.0, t)}", f"{value} * {w.constant(scale, t)}", below)


def wrapping(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any, alpha: Any = 1) -> str:
    """Sums and products of wide integers in unsigned ones: C++ leaves it open what overflow of signed ones is."""
    kind = w.type(t)
    left, right = w.operand(x, t), w.operand(y, t)
    scaled = f"u{kind}({right})" + (f" * u{kind}({w.constant(alpha, t)})" if alpha != 1 else "")
    return f"{kind}(u{kind}({left}) {symbol} {scaled})"


def absolute(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t.is_floating_point:
        return w.call("fabs", t, value)
    return value if t in (torch.uint8, torch.bool) else w.select(f"{value} < 0", negative(w, t, value), value)


def negative(w: Writer, t: torch.dtype, x: Any) -> str:
    value = w.operand(x, t)
    if t.is_floating_point:
        return f"-{value}"
    return wrapping("-", w, t, w.constant(0, t), value) if t in WIDE else f"{w.constant(0, t)} - {value}"


def shift(symbol: str, w: Writer, t: torch.dtype, x: Any, y: Any) -> str:
    value, count, kind, bits = w.operand(x, t), w.operand(y, t), w.type(t), t.itemsize * 8
    inside = w.typed(f"{count} >= 0 && {count} < {bits}", torch.bool)
    if symbol == "<<":
        return w.select(inside, f"{kind}(uint64({value}) << {count})", w.constant(0, t))
    past = w.constant(0, t) if t == torch.uint8 else f"{value} >> {bits - 1}"  # shifts in the sign
    return w.select(inside, f"{kind}({value} >> {count})", f"{kind}({past})")
