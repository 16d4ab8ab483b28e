"""NVTX ranges around launches, for the timeline of a profiler: `WEFT_NVTX=1` when plans are made; else none is made."""

from __future__ import annotations

import os
from typing import Any

import torch


def wanted() -> bool:
    """Whether launches that are built now are to have ranges."""
    return os.environ.get("WEFT_NVTX") == "1"


class Ranged:
    """A launch within a range of that name; steps of a launch that is made of several have ranges of their own."""

    def __init__(self, launch: Any, name: str) -> None:
        self._launch, self._name = launch, name
        self.kernels = (launch,)  # where `weft_bench.kernels.kernel` looks for what is launched

    def __call__(self, *arguments: Any) -> None:
        with torch.cuda.nvtx.range(self._name):
            self._launch(*arguments)
