"""Which panels hold values that an order needs care with.

A maximum by one instruction forgets NaN. It need not look for NaN where none can arise: where no panel holds one, nor
the infinity that would meet its opposite. Looking at panels once costs less than a comparison more for each product.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import types
from numba.extending import intrinsic

from weft.cpu.gett.vector import KINDS, at, item_size


@intrinsic
def load_value(typingctx: Any, address: Any, kind: Any) -> Any:
    def code(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.load(at(builder, args[0], KINDS[signature.args[1]].component))

    return kind(types.int64, kind), code


@numba.njit(error_model="numpy")
def special_above(values, count, kind):
    """NaN or infinity: sums of others are -infinity at the least."""
    found = 0
    for i in range(count):
        found |= not (load_value(values + item_size(kind) * i, kind) < np.inf)
    return found


@numba.njit(error_model="numpy")
def special_below(values, count, kind):
    """NaN or -infinity."""
    found = 0
    for i in range(count):
        found |= not (load_value(values + item_size(kind) * i, kind) > -np.inf)
    return found


@numba.njit(error_model="numpy")
def special_infinite(values, count, kind):
    """NaN or any infinity, which times zero is NaN."""
    found = 0
    for i in range(count):
        found |= not (abs(load_value(values + item_size(kind) * i, kind)) < np.inf)
    return found


@numba.njit(error_model="numpy")
def special_nan(values, count, kind):
    """NaN alone: extrema make none."""
    found = 0
    for i in range(count):
        x = load_value(values + item_size(kind) * i, kind)
        found |= x != x
    return found
