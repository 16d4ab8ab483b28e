"""A family made up for tests, which computes right or goes wrong in a way that it is told."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import pytest
import torch

from weft.planner import registry
from weft.planner.schedule import Candidates
from weft.selftest import cases
from weft.selftest.cases import Trial
from weft_bench.cases import from_letters

MODULE = "weft.made.family"
WRONG = ("wrong", "raises when built", "raises when run", "unwritten", "past the end", "writes an operand")


@dataclass(frozen=True)
class MadeSchedule:
    family: str = "made"
    workspace_bytes: int = 0

    def __str__(self) -> str:
        return "made"


@dataclass
class MadeFamily:
    """Matrix products "mk,kn->mn" of contiguous operands, cheaper by its own account than any other family's."""

    behaviour: str = "right"
    built: list[Any] = field(default_factory=list)  # descriptions

    def install(self, patch: pytest.MonkeyPatch) -> None:
        """Stand before the families of the CPU backend, with one trial."""
        module = ModuleType(MODULE)
        module.__dict__.update(
            NAME="made",
            supports=lambda description, target: None if self._serves(description) else "it is for matrices",
            schedules=lambda description, target: Candidates((MadeSchedule(),)),
            predict=lambda description, schedule, target: 1e-12,
            build=self._build,
        )
        patch.setitem(sys.modules, MODULE, module)
        patch.setitem(registry.FAMILIES, "cpu", (MODULE, *registry.FAMILIES["cpu"]))
        trial = Trial(MODULE, from_letters("a product", "mk,kn->mn", m=5, k=7, n=3))
        patch.setitem(cases.TRIALS, "cpu", (trial, *cases.TRIALS["cpu"]))

    def _serves(self, description: Any) -> bool:
        layouts = (description.a, description.b, description.d)
        plain = description.algebra is None and description.c is None and description.epilogue is None
        return plain and all(len(layout.shape) == 2 and layout.strides[1] == 1 for layout in layouts)

    def _build(self, description: Any, schedule: Any, target: Any) -> Callable[..., None]:
        self.built.append(description)
        if self.behaviour == "raises when built":
            raise AttributeError("module 'triton.language' has no attribute 'gone'\nand more lines")

        def launch(
            a: torch.Tensor, b: torch.Tensor, c: Any, d: torch.Tensor, alpha: float, beta: float, aux: Any = ()
        ) -> None:
            if self.behaviour == "raises when run":
                raise RuntimeError("an illegal instruction was met")
            value = alpha * (a @ b)
            if self.behaviour == "wrong":
                value[-1, -1] += 1
            if self.behaviour == "unwritten":
                d[:-1] = value[:-1]
                return
            d.copy_(value)
            if self.behaviour == "past the end":
                d.as_strided((d.numel() + 1,), (1,))[-1] = 0
            if self.behaviour == "writes an operand":
                a[0, 0] += 1

        return launch
