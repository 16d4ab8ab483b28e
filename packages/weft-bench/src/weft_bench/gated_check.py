"""Whether the gradients of a gated layer are right: held against torch's in double precision."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft_bench.checking import WrongResult
from weft_bench.gradient_check import UNITS
from weft_bench.peers.gated import GatedTensors, gated_gradients, torchs_gate


class GatedCheck:
    """Gradients against torch's in double precision, in units of the last place of the largest of each."""

    def __init__(self, tensors: GatedTensors) -> None:
        self.tensors = tensors
        self._expected = gated_gradients(torchs_gate)(*(tensor.double() for tensor in tensors))

    def error(self, run: Callable[..., Any], stored: torch.dtype | None) -> float:
        """The largest error over its bound; `WrongResult` where that is over 1."""
        worst = 0.0
        for found, exact in zip(run(*self.tensors), self._expected, strict=True):
            bound = float(exact.abs().max()) * torch.finfo(found.dtype).eps * UNITS
            worst = max(worst, float((found - exact).abs().max()) / bound)
        if not worst <= 1 or math.isnan(worst):
            raise WrongResult(worst, "of the gradients")
        return worst
