"""Contenders that tests give their ways, and a device to run them on."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from weft.machine.ceilings import Ceilings
from weft_bench.cases import Case
from weft_bench.peers.registry import Call, Prepared, Tensors, Way
from weft_bench.timed_sets import Sampling

CPU = torch.device("cpu")
QUICK = Sampling(mode="hot", budget=0.0, rrs=1e9)
CEILINGS = Ceilings("a CPU", "measured", 1e9, 1e9, 1e9, {"float32": 1e9}, 1e-6, None, "2026-11-20", {})


class Side:
    """A contender with ways that the test gives it."""

    def __init__(self, name: str, *ways: Way | Call, answer: str | BaseException = "", yardstick: str = "") -> None:
        self.name, self.answer, self.yardstick = name, answer, frozenset([yardstick] if yardstick else [])
        self.ways = [way if isinstance(way, Way) else Way("", way) for way in ways]
        self.settled: list[str] = []

    def prepare(self, case: Case, tensors: Tensors) -> Prepared | str:
        if isinstance(self.answer, BaseException):
            raise self.answer
        refused = {"other": "not supported"} if len(self.ways) > 1 else {}
        return self.answer or Prepared(self.ways, refused, yardstick=self.yardstick)

    @contextmanager
    def settings(self, case: Case) -> Iterator[None]:
        self.settled.append("on")
        yield
        self.settled.append("off")
