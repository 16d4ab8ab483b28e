"""Whether the gradients of a contender are right: held against torch's in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft_bench.cases import Case, operands
from weft_bench.checking import WrongResult
from weft_bench.peers.gradients import gradients, torchs
from weft_bench.peers.registry import Tensors

#: Errors are counted in these many units of the last place of the largest element of a gradient: each element is a sum
#: of thousands, whose terms were rounded to the same type before.
UNITS = 16


class GradientCheck:
    """Gradients on integers, whose sums are exact, so that no sign of a value next to zero is a matter of rounding.

    Algebras that select are checked on the tensors given, where few are equal, by sums in their own type.
    """

    def __init__(self, case: Case, tensors: Tensors) -> None:
        device = tensors.a.device
        if case.algebra == "plus_times":
            given = operands(case, device=device, seed=1, integers=True)
            tensors = Tensors(*given, torch.randint(-2, 3, case.d_shape, device=device).to(case.dtypes[2]))
        self.tensors = tensors
        selects = case.algebra not in ("plus_times", "log")
        wide = (x if x is None or selects else x.double() for x in tensors)
        self._expected = gradients(torchs(case, 1 << 26))(*wide)

    def error(self, run: Callable[..., Any], stored: torch.dtype | None) -> float:
        """The largest error over its bound; `WrongResult` where that is over 1."""
        worst = 0.0
        for found, exact in zip(run(*self.tensors), self._expected, strict=True):
            scale = float(exact.abs().max()) * torch.finfo(found.dtype).eps * UNITS
            off = float((found - exact).abs().max()) if scale else float(found.abs().max() > 0)
            worst = max(worst, off / scale if scale else off)
        if not worst <= 1 or math.isnan(worst):
            raise WrongResult(worst, "of the gradients")
        return worst
