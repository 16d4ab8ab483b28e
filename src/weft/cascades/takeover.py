"""When compiled code takes over a cascade from torch's operations: by counted calls, as kernels of contractions do.

The first call waits for no compiler. Loops that are on disk already serve from the second on. Other code is compiled in
a thread beside the calls, and serves from a call on that predicted times decide: two runs of a program agree bit for
bit, and nobody waits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import count
from typing import Any

import torch

from weft.base.cached import cached_property
from weft.base.log import log
from weft.cascades.program import Stage
from weft.cascades.rows import StageRows
from weft.cpu import jit
from weft.planner.promotion import LIBRARY, SPECIALISED, Tier, begins_with_library, taken_over
from weft.planner.schedule import Target
from weft.plans.arrival import Arrival

PER_ELEMENT = 2.5e-11  # seconds of blocks for an element of S, on an H200
_SECONDS = 3.0  # that compiling the kernels of the forward pass and of gradients takes
_MARGIN = 2  # times of what compiling takes that pass until a kernel takes over
_BY_TORCH, _BY_ROWS = 3e-9, 1e-9  # seconds for an element of S on a CPU, products not counted
_COMPILING = 1.5  # seconds for a stage

Rows = Mapping[Stage, "StageRows | str"]


class Takeover:
    """Called with each call of a plan and with what compiles the code, it says whether that serves.

    It is compiled from the call `early` on, which takes so many `seconds`, and serves from the call `due` on.
    """

    def __init__(self, target: Target, seconds: float, early: float, due: float) -> None:
        self._target, self._seconds, self._early, self.due = target, seconds, early, due
        self._count = count(1)
        self._arrival: Arrival | None = None
        self.serves = False

    @classmethod
    def of_kernel(cls, target: Target, elements: int) -> Takeover:
        """A kernel that takes the place of blocks of S, which has so many elements."""
        seconds = _MARGIN * _SECONDS
        return cls(target, seconds, 1, 1 + math.ceil(seconds / (elements * PER_ELEMENT)))

    @classmethod
    def of_loops(cls, target: Target, elements: int, stages: int) -> Takeover:
        """Loops in so many stages."""
        ready = _COMPILING * stages
        tier = Tier(LIBRARY, "loops are compiled for each function")
        tier = taken_over(tier, 1, elements * _BY_TORCH, SPECIALISED, elements * _BY_ROWS, ready)
        return cls(target, ready, tier.early, tier.switch_at or math.inf)

    def __call__(self, compiled: Callable[[], Any]) -> bool:
        call = next(self._count)
        if self.serves or (self._target.kind != "cpu" and torch.cuda.is_current_stream_capturing()):
            return self.serves
        if self._arrival is None and call >= self._early:
            self._arrival = Arrival(compiled, self._target, self._seconds, told=lambda built: "code of a cascade")
        if self._arrival is not None and call >= self.due:
            built, self.due = self._arrival.result(), math.inf
            self.serves = not isinstance(built, str)
            if not self.serves:
                log.info("compiled code of a cascade does not take over: %s", built)
        return self.serves


class Loops:
    """The compiled loops of a plan on a CPU; called with each call of it, it says whether they serve."""

    def __init__(self, make: Callable[[], Rows], target: Target, elements: int, specialize: str) -> None:
        self._make, self._target, self._elements = make, target, elements
        self._serves, self._calls = False, 0
        self._takeover: Takeover | None = None
        self._never = specialize in ("never", "library")
        self._at_once = specialize == "now" or not begins_with_library("cpu")

    @cached_property
    def rows(self) -> Rows:
        """The loops of each stage, or why it has none."""
        return self._make()

    def __call__(self) -> bool:
        self._calls += 1
        if self._serves or self._never or (self._calls == 1 and not self._at_once):
            return self._serves
        wanted = [each for each in self.rows.values() if isinstance(each, StageRows)]
        if self._at_once or all(jit.at_hand(each.text.source) for each in wanted):
            _compile(wanted)
            self._serves = True
            return True
        if self._takeover is None:
            self._takeover = Takeover.of_loops(self._target, self._elements, len(wanted))
        self._serves = self._takeover(partial(_compile, wanted))
        return self._serves


def _compile(wanted: Sequence[StageRows]) -> None:
    for each in wanted:
        each.compile()
