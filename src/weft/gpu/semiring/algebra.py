"""An algebra as kernels take it."""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any

import torch

from weft.algebra import log
from weft.fn import Pointwise
from weft.fn.triton.device_code import jit_function
from weft.gpu.common.constants import WrittenFunction
from weft.gpu.common.cost import ELEMENTARY_SLOTS
from weft.spec import Contraction

EXPONENTIAL_SLOTS = 7  # of a maximum, a difference, an exponential (an eighth of the rate of sums) and a sum

_OVER_AXIS = """@triton.jit
def over_axis(values, AXIS: tl.constexpr):
    return tl.reduce(values, AXIS, reduced_pair)


@triton.jit
def reduced_pair(p, q):
    return REDUCE(p, q).to(p.dtype)
"""

_EXPONENTIAL = """@triton.jit
def exponential(x):
    if x.dtype == tl.float32:
        return device_math.exp2(x * 1.4426950408889634)
    else:
        return libdevice.exp(x)
"""

_LOGARITHM = """@triton.jit
def logarithm(x):
    return libdevice.log(x)
"""


def sums_exponentials(contraction: Contraction) -> bool:
    """Whether a reduction by log(exp(p) + exp(q)) can be a sum of exponentials relative to the largest value: with one
    exponential for each value, where `torch.logaddexp` takes one and a logarithm."""
    algebra, accumulate = contraction.algebra, contraction.arithmetic.accumulate
    if algebra is None or accumulate not in (torch.float32, torch.float64) or algebra.identity != -math.inf:
        return False
    return algebra.reduce == log.traced(accumulate).reduce


def exponential_constants(contraction: Contraction) -> dict[str, Any]:
    """The compile-time parameters EXP and LOG; None where the reduction is not such a sum."""
    if not sums_exponentials(contraction):
        return {"EXP": None, "LOG": None}
    return {"EXP": WrittenFunction(_EXPONENTIAL), "LOG": WrittenFunction(_LOGARITHM)}


def product_slots(contraction: Contraction) -> float:
    """Issue slots of one product and one sum."""
    algebra = contraction.algebra
    if sums_exponentials(contraction):
        slots = 2.0 * max(algebra.combine.flops, 1) + EXPONENTIAL_SLOTS  # type: ignore[union-attr]
        return slots if contraction.arithmetic.accumulate.itemsize < 8 else 10 * slots
    if algebra is None:
        return 1.0 if contraction.arithmetic.accumulate.itemsize < 8 else 6.0
    both = (algebra.combine, algebra.reduce)
    slots = float(sum(max(each.flops, 1) + ELEMENTARY_SLOTS * each.elementary for each in both))
    return slots if contraction.arithmetic.accumulate.itemsize < 8 else 2.5 * slots


@dataclass(frozen=True, slots=True)
class OverAxis:
    """A function (values, AXIS) that reduces a tensor along one axis.

    `tl.reduce` takes a function by name alone, not as a compile-time constant, and needs one that keeps the type: each
    `reduce` has a text of its own around it.
    """

    reduce: Pointwise

    @property
    def identity(self) -> str:
        return f"{_OVER_AXIS}{self.reduce.identity}"

    @property
    def jit(self) -> Any:
        reduce, name = self.reduce.jit, hashlib.sha256(self.reduce.identity.encode()).hexdigest()
        return jit_function(f"{_OVER_AXIS}# {name}\n", lambda: {"REDUCE": reduce})


def over_axis(contraction: Contraction) -> OverAxis | None:
    """The reduction of a contraction's algebra along an axis of a tensor; None where that is a sum."""
    return OverAxis(contraction.algebra.reduce) if contraction.algebra is not None else None
