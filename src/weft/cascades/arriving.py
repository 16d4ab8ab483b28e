"""The kernel of a cascade that nobody has asked for by name: blocks serve until it is compiled.

A thread compiles it from the first call on. It takes over at a call that predicted times decide, after twice the time
that compiling takes: two runs of a program agree bit for bit, and nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch

from weft.base.log import log
from weft.planner.target import target_of
from weft.plans.arrival import Arrival

_PER_ELEMENT = 2.5e-11  # seconds of blocks for an element of S, on an H200
_SECONDS = 3.0  # that compiling the kernels of the forward pass and of gradients takes
_MARGIN = 2  # times of what compiling takes that pass until the kernel takes over


def _tile_of(built: tuple[Any, Any]) -> str:
    return str(built[0])


class Arriving:
    """Counts the calls of a plan, each with S of so many elements."""

    def __init__(self, elements: int, device: torch.device) -> None:
        self._device, self._calls = device, 0
        self.due = 1 + math.ceil(_MARGIN * _SECONDS / (elements * _PER_ELEMENT))
        self._arrival: Arrival | None = None
        self.is_over, self.is_there = False, False

    def call(self, prepare: Callable[[], tuple[Any, Any]]) -> bool:
        """Whether the kernel serves this call; `prepare` compiles it, and gives its tile and its launch."""
        if self.is_over:
            return self.is_there
        self._calls += 1
        if torch.cuda.is_current_stream_capturing():
            return False
        if self._arrival is None:
            self._arrival = Arrival(prepare, target_of("triton", self._device), _MARGIN * _SECONDS, _tile_of)
        if self._calls < self.due:
            return False
        built = self._arrival.result()
        self.is_over, self.is_there = True, not isinstance(built, str)
        if not self.is_there:
            log.info("the kernel of a cascade does not take over: %s", built)
        return self.is_there
