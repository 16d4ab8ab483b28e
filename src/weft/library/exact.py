"""Abilities of torch's products of halves on a device."""

from __future__ import annotations

from functools import lru_cache

import torch


@lru_cache
def multiplies_brains() -> bool:
    """Whether torch's products of bfloat16 on this CPU are by instructions that add in single precision."""
    has_bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", None)
    return has_bf16 is not None and bool(has_bf16()) and torch.backends.mkldnn.is_available()


@lru_cache
def widens() -> bool:
    """Whether torch leaves products of halves in single precision on a GPU."""
    return (
        torch.version.hip is None
        and hasattr(torch.ops.aten.mm, "dtype_out")
        and hasattr(torch.ops.aten.bmm, "dtype_out")
    )
