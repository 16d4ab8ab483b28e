"""When compiled loops take over from torch's operations on a CPU: by counted calls, as kernels of contractions do.

The first call of a cascade waits for no compiler. Loops that are on disk already serve from the second on; others are
compiled in a thread beside the calls once these have lost enough by the model's count.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import count
from math import inf
from typing import Any

from weft.base.cached import cached_property
from weft.base.log import log
from weft.cascades.program import Stage
from weft.cascades.rows import StageRows
from weft.cpu import jit
from weft.planner.promotion import LIBRARY, SPECIALISED, Tier, begins_with_library, taken_over
from weft.planner.schedule import Target
from weft.plans.arrival import Arrival

_BY_TORCH, _BY_ROWS = 3e-9, 1e-9  # seconds for an element of S, products not counted
_COMPILING = 1.5  # seconds for a stage

Rows = Mapping[Stage, "StageRows | str"]


class Takeover:
    """The loops of a plan; called with each call of it, it says whether they serve."""

    def __init__(self, make: Callable[[], Rows], target: Target, elements: int, specialize: str) -> None:
        self._make, self._target, self._elements, self._specialize = make, target, elements, specialize
        self._count = count(1)
        self._early = self._switch = inf
        self._arrival: Arrival | None = None
        self._serves = False

    @cached_property
    def rows(self) -> Rows:
        """The loops of each stage, or why it has none."""
        return self._make()

    def __call__(self) -> bool:
        call = next(self._count)
        if self._serves or self._specialize in ("never", "library"):
            return self._serves
        at_once = self._specialize == "now" or not begins_with_library("cpu")
        if call == 1 and not at_once:
            return False
        wanted = [each for each in self.rows.values() if isinstance(each, StageRows)]
        if at_once or all(jit.at_hand(each.text.source) for each in wanted):
            self._serves = self._compile() or True
        elif call >= self._due(call, len(wanted)):
            self._turn(call)
        return self._serves

    def _due(self, call: int, stages: int) -> float:
        """The call at which something is due next."""
        if self._early == inf:
            tier = Tier(LIBRARY, "loops are compiled for each function")
            seconds, ready = self._elements * _BY_TORCH, _COMPILING * stages
            tier = taken_over(tier, call, seconds, SPECIALISED, self._elements * _BY_ROWS, ready)
            self._early, self._switch = tier.early, tier.switch_at or inf
        return self._early if self._arrival is None else self._switch

    def _turn(self, call: int) -> None:
        if self._arrival is None:
            self._arrival = Arrival(self._compile, self._target, _COMPILING, told=lambda built: "loops of a cascade")
        if call >= self._switch:
            found = self._arrival.result()
            self._serves = not isinstance(found, str)
            if isinstance(found, str):
                log.info("loops of a cascade: %s", found)
                self._specialize = "never"

    def _compile(self) -> Any:
        for each in self.rows.values():
            if isinstance(each, StageRows):
                each.compile()
