"""Each primitive aten operation as a Triton expression.

Transcendental functions are `libdevice`'s (CUDA's on NVIDIA, OCML on AMD), not the faster and less exact `tl.exp` and
its kin; division and square root round correctly. On NVIDIA they flush float32 subnormals unless the kernel is
compiled with Triton's option `enable_reflect_ftz=False`. Where Triton's language leaves a case open or decides it
otherwise than torch does (NaN in maxima, signs of remainders, shifts past the width, negation of zero), the
expression says it.
"""

from __future__ import annotations

import math
from typing import Any

import torch

from weft.fn.lowerings import FUNCTIONS, Expressions, Lowering, registering
from weft.fn.writer import Writer


class _Triton(Expressions):
    name = "on the Triton backend"

    def call(self, name: str, t: torch.dtype, *values: str) -> str:
        own = "tl.sqrt_rn" if name == "sqrt" and t == torch.float32 else _OWN.get(name)
        return f"{own or f'libdevice.{name}'}({', '.join(values)})"

    def select(self, condition: str, x: str, y: str) -> str:
        return f"tl.where({condition}, {x}, {y})"

    def quotient(self, w: Any, t: torch.dtype, x: Any, y: Any) -> str:
        number = w.number(y)
        if number and math.isfinite(number):
            mantissa, exponent = math.frexp(number)
            if abs(mantissa) == 0.5 and abs(exponent) < 100:  # by a power of two: the product is as exact
                return f"{w.operand(x, t)} * {w.constant(1 / number, t)}"
        dividend, divisor = w.operand(x, t), w.operand(y, t)
        return f"tl.div_rn({dividend}, {divisor})" if t == torch.float32 else f"{dividend} / {divisor}"

    def truncated(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        return f"{x} // {y}"

    def rest(self, w: Any, t: torch.dtype, x: str, y: str) -> str:
        return f"{x} % {y}"  # Triton's % takes the sign of the dividend, as C's does

    def extremum(self, w: Any, t: torch.dtype, larger: bool, x: Any, y: Any) -> str:
        a, b = w.operand(x, t), w.operand(y, t)
        if t == torch.float64:  # by comparison: no instruction takes the larger of two doubles, NaN included
            return self.select(f"({a} {'>' if larger else '<'} {b}) | ({a} != {a})", a, b)
        # Without it Triton's extremum returns NaN in the interpreter and the number on a GPU.
        nan = ", propagate_nan=tl.PropagateNan.ALL" if t.is_floating_point else ""
        return f"tl.{'maximum' if larger else 'minimum'}({a}, {b}{nan})"


_OWN = {
    "floor": "tl.floor", "ceil": "tl.ceil", "rint": "libdevice.nearbyint", "sqrt": "tl.sqrt", "rsqrt": "tl.rsqrt",
}  # fmt: skip

LOWERINGS: dict[str, Lowering] = _Triton().table()
lowers = registering(LOWERINGS)

#: Functions of one element that cost many instructions.
ELEMENTARY = {*FUNCTIONS, "pow", "fmod"} - {"copysign", "nextafter"}


@lowers("neg")
def _neg(w: Writer, t: torch.dtype, x: Any) -> str:
    if t.is_floating_point:
        return f"{w.operand(x, t)} * {w.constant(-1.0, t)}"  # Triton's minus is 0 - x: it loses the sign of zero
    return f"{w.constant(0, t)} - {w.operand(x, t)}"
