"""`ScatterSchedule`: a plan for the product, and one for the pass that writes D."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.gpu.composite.workspace import size_bytes

if TYPE_CHECKING:
    from weft.planner.planner import Choice

NAME = "scatter"


@dataclass(frozen=True, slots=True)
class ScatterSchedule:
    product: Choice
    finish: Choice  # writes D from the workspace
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        steps = max(step.best.schedule.workspace_bytes for step in (self.product, self.finish))
        return size_bytes(self.product.description.d) + steps

    def __str__(self) -> str:
        return f"{self.family} D; {self.product.best.schedule}"
