"""Contenders that tests give their ways, a device to run them on, and the tensors of a case."""

from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import torch

from weft.machine import ceilings
from weft.machine.ceilings import Ceilings
from weft.testing import poisoned
from weft_bench import cases
from weft_bench.cases import Case
from weft_bench.peers.registry import Call, Prepared, Tensors, Way
from weft_bench.timed_sets import Sampling

CPU = torch.device("cpu")
QUICK = Sampling(mode="hot", budget=0.0, rrs=1e9)
CEILINGS = Ceilings("a CPU", "measured", 1e9, 1e9, 1e9, {"float32": 1e9}, 1e-6, None, "2026-11-20", {})
READY = Ceilings("a CPU", "measured", 1e10, 1e10, 1e10, {"float16": 1e11, "float32": 1e11}, 1e-6, None, "", {})


def have_ceilings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let ceilings stand ready: measuring takes half a minute and is tested elsewhere."""
    monkeypatch.setattr(ceilings, "_known", {})
    monkeypatch.setattr(ceilings, "measure_ceilings", lambda *place, **how: READY)


def tensors_of(case: Case, seed: int = 0) -> Tensors:
    place = poisoned(case.d_shape, case.dtypes[2], layout=case.layouts[3])
    return Tensors(*cases.operands(case, seed=seed), place.tensor)


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
