"""What the kernels take of an algebra."""

from __future__ import annotations

import linecache
from functools import lru_cache
from typing import Any

import triton
import triton.language as tl

from weft.fn import Pointwise
from weft.kernels.cost import ELEMENTARY_SLOTS
from weft.spec import Contraction

_OVER_AXIS = """@triton.jit
def reduced_pair(p, q):
    return REDUCE(p, q).to(p.dtype)


@triton.jit
def over_axis(values, AXIS: tl.constexpr):
    return tl.reduce(values, AXIS, reduced_pair)
"""


def algebra_constants(contraction: Contraction) -> dict[str, Any]:
    """The compile-time parameters COMBINE, REDUCE and IDENTITY; of plus-times None, None and 0."""
    algebra = contraction.algebra
    if algebra is None:
        return {"COMBINE": None, "REDUCE": None, "IDENTITY": 0}
    return {"COMBINE": algebra.combine.jit, "REDUCE": algebra.reduce.jit, "IDENTITY": algebra.identity}


def product_slots(contraction: Contraction) -> float:
    """Issue slots of one product and one sum."""
    algebra = contraction.algebra
    if algebra is None:
        return 1.0 if contraction.arithmetic.accumulate.itemsize < 8 else 6.0
    both = (algebra.combine, algebra.reduce)
    slots = float(sum(max(each.flops, 1) + ELEMENTARY_SLOTS * each.elementary for each in both))
    return slots if contraction.arithmetic.accumulate.itemsize < 8 else 2.5 * slots


@lru_cache(maxsize=256)
def over_axis(reduce: Pointwise) -> Any:
    """A `@triton.jit` function (values, AXIS) that reduces a tensor along one axis.

    `tl.reduce` takes a function by name alone, not as a compile-time constant, and needs one that keeps the type: each
    `reduce` has its own two lines of text around it.
    """
    file = f"<weft over axis {reduce.jit.__name__}>"
    linecache.cache[file] = (len(_OVER_AXIS), None, _OVER_AXIS.splitlines(keepends=True), file)
    namespace: dict[str, Any] = {"__name__": __name__, "triton": triton, "tl": tl, "REDUCE": reduce.jit}
    exec(compile(_OVER_AXIS, file, "exec"), namespace)
    return namespace["over_axis"]
