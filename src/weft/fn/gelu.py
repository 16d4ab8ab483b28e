"""GELU and polynomials as C and Triton have them, in few instructions.

A GELU of float32 takes 14 instructions here, 49 by `libdevice`'s `erfc`; one by tanh 7, 26 by `libdevice`'s `tanh`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch

from weft.fn.writer import HALF_TYPES, Writer

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
