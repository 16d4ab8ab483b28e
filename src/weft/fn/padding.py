"""What functions make of the zeros past the end of a sum."""

from __future__ import annotations

import math

from weft.fn.pointwise import Pointwise


def padding_adds_nothing(a_fn: Pointwise | None, b_fn: Pointwise | None) -> bool:
    """Whether products of what the functions make of zeros are zero, so that nothing has to be masked.

    Operands that are read past the end of a sum are zeros there. If one of them still is behind its function, and the
    other is finite, their product is zero.
    """
    a, b = (0.0 if fn is None else fn.at_zero for fn in (a_fn, b_fn))
    return a is not None and b is not None and math.isfinite(a) and math.isfinite(b) and a * b == 0
