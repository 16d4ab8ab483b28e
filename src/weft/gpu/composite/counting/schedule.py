"""`CountingSchedule`: a plan for the product that counts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.planner.planner import Choice

NAME = "counting"


@dataclass(frozen=True, slots=True)
class CountingSchedule:
    product: Choice
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        return self.product.best.schedule.workspace_bytes

    def __str__(self) -> str:
        return f"{self.family} pairs; {self.product.best.schedule}"
