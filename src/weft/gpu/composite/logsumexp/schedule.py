"""`LogSumExpSchedule`: a plan for each step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from weft.planner.planner import Choice
    from weft.planner.schedule import Schedule

NAME = "logsumexp"


@dataclass(frozen=True, slots=True)
class LogSumExpSchedule:
    """A plan for each step: largest values, exponentials, their product, and the tiles that are computed again."""

    largest: tuple[Choice, Choice]  # of A and B
    factors: tuple[Choice, Choice]
    product: Choice
    direct: Schedule  # of the family `semiring`
    precision: str  # of the product
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        stored = [step.description.d for step in (*self.largest, *self.factors)]
        marks = math.prod(self.product.description.d.shape)
        own = sum(math.prod(layout.shape) * layout.dtype.itemsize for layout in stored) + marks
        steps = (*self.largest, *self.factors, self.product)
        return own + max(step.best.schedule.workspace_bytes for step in steps)

    def __str__(self) -> str:
        return f"{self.family} {self.precision}; {self.product.best.schedule}; sums out of range: {self.direct}"
