"""The input sets that a case is timed on, the same for all contenders, and how they are timed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import chain, count
from typing import Any

import torch

from weft.machine import timing
from weft.machine.rotation import MOST_SETS, InputSet, Mode, cache_bytes, memory_bytes, rotation, touched_bytes
from weft.machine.timing import measure
from weft_bench.peers.registry import Call
from weft_bench.problems import copied_set


@dataclass(frozen=True)
class Sampling:
    """How a run times: see `weft.machine.timing.measure`."""

    mode: Mode = "cold"
    rrs: float = timing.RRS_BOUND
    budget: float = timing.BUDGET
    threads: int | None = None  # of torch on the CPU
    most_sets: int = MOST_SETS  # of inputs; fewer may leave small cases in the cache, which their timings then say
    within_budget: bool = False  # no more sets than the budget goes through once: for devices that may be slow
    capture: bool = True  # in a CUDA graph; without one the host's work for each call is in the time


class TimedSets:
    """Sets for one case, each with its own place for the result. All but the first are made when they are first needed.

    The later ones copy the first to other addresses.
    """

    def __init__(self, first: Any, device: torch.device, sampling: Sampling) -> None:
        self.first = first
        self._device, self._sampling = device, sampling
        self._sets: tuple[InputSet, ...] = ()

    def rotated(self, call: Call) -> tuple[InputSet, ...]:
        """All sets. `call`, the first one that is timed, says how many the budget allows."""
        if not self._sets:
            device, most = self._device, self._sampling.most_sets
            if self._sampling.within_budget and self._sampling.mode == "cold":
                most = min(most, self._affordable(call))
            memory = min(memory_bytes(device), most * touched_bytes([self.first]))
            sets = chain([self.first], (copied_set(self.first) for _ in count()))
            made = rotation(lambda: next(sets), self._sampling.mode, cache=cache_bytes(device), memory=memory)
            self._sets = made.sets
        return self._sets

    def _affordable(self, call: Call) -> int:
        """How many calls fit into the budget, at least two: a timing goes through all sets at least five times.

        On a CPU that has other work calls take many times longer. Where the sets become too few for a cold cache the
        timing's notes say so.
        """
        trial = measure(call, [self.first], device=self._device, mode="hot", rrs=math.inf, budget=0)
        return max(2, int(self._sampling.budget / trial.seconds))
