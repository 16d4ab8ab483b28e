"""weft's own families as rungs: a contraction by the best schedule of one family, whatever the others could do."""

from __future__ import annotations

from typing import Any

import torch

from weft.api.contract import plan
from weft.base.caches import BoundedCache
from weft.errors import UnsupportedError
from weft_bench.profiling.subject import Lie

_plans = BoundedCache(64)


def forced(
    equation: str, a: torch.Tensor, b: torch.Tensor, d: torch.Tensor, *, family: str, having: str = "",
    lacking: str | None = None, **functions: Any,
) -> torch.Tensor:  # fmt: skip
    """D by the best schedule, as the cost model sees it, that `family` offers.

    Of several the first whose text has `having` in it and `lacking` not. Raises `UnsupportedError` where there is none:
    on a CPU, where weft has other families, and for tensors that the family does not serve.
    """
    key = (equation, *(Lie.of(each) for each in (a, b, d)), family, having, lacking, tuple(functions.items()))
    found: Any = _plans.get(key)
    if found is None:
        if a.device.type != "cuda":
            raise UnsupportedError(f"weft's family '{family}' is one of GPUs, and the operands are on a CPU")
        first = plan(equation, a, b, out=d, specialize="now", **functions)
        for candidate in first.report().candidates:
            right = candidate.family == family and having in candidate.text
            if right and (lacking is None or lacking not in candidate.text):
                found = plan(equation, a, b, out=d, specialize="now", schedule=candidate.schedule, **functions)
                break
        else:
            words = f"'{family}'" + (f" with {having}" if having else "") + (f" without {lacking}" if lacking else "")
            raise UnsupportedError(f"weft's family {words} has no schedule for {equation} of {a.dtype}")
        _plans.put(key, found)
    return found(a, b, out=d)
