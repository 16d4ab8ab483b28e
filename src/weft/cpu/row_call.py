"""Words by which compiled loops call the BLAS that torch brings, to multiply blocks; and its address."""

from __future__ import annotations

import ctypes
from functools import lru_cache

import torch

#: Words of a box from here on: matrices, rows and columns of each, and where A, B, C and D begin and step.
BATCH, SIDE, WIDTH, A, A_STEP, B, B_STEP, C, C_STEP, D, D_STEP, WORDS = range(12)
#: Words of a plan: how operands lie and step, terms of S, columns of C, and three numbers.
B_LIES, A_LIES, K, B_PITCH, A_PITCH, C_LIES, E, C_PITCH, D_PITCH, ALPHA, ONE, ZERO, SHAPE_WORDS = range(13)
AS_STORED, TURNED = ord("N"), ord("T")


@lru_cache
def address(dtype: torch.dtype) -> int:
    """Where torch's BLAS multiplies matrices of a type; 0 where it does not say."""
    name = {torch.float32: "sgemm_", torch.float64: "dgemm_"}.get(dtype)
    try:
        found = None if name is None else getattr(ctypes.CDLL(torch._C.__file__), name)
    except (OSError, AttributeError):
        return 0
    return ctypes.cast(found, ctypes.c_void_p).value or 0 if found is not None else 0
