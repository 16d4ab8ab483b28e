"""The processor as far as choices depend on it: how long its vectors are, and what was measured on one like it."""

from __future__ import annotations

import importlib.util
from functools import lru_cache

import torch

from weft.planner.coefficients import Fitted, fitted


@lru_cache
def vector_bytes() -> int:
    """64 where the host runs 512-bit vectors at full speed; else 32, which LLVM halves for narrower hosts.

    Zen 4 splits 512-bit operations in two, so that longer vectors only make for longer runs of D.
    """
    if importlib.util.find_spec("llvmlite") is None:
        return 32
    from llvmlite import binding

    features, name = binding.get_host_cpu_features(), binding.get_host_cpu_name()
    return 64 if features.get("avx512f") and not name.startswith("znver4") else 32


@lru_cache
def multiplies_bytes() -> bool:
    """Whether torch's product of int8 matrices is exact and quick here: without VNNI sums of two products saturate."""
    asked = getattr(torch.cpu, "_is_vnni_supported", None)
    return asked is not None and bool(asked()) and hasattr(torch, "_int_mm")


def costs(section: str) -> Fitted:
    """The fitted constants of a family: `data/costs/cpu-32.json` or `cpu-64.json`."""
    return fitted(section, f"cpu-{vector_bytes()}.json")
