"""`TtgtSchedule`: what is packed, how the library multiplies, and the pieces that D is made in."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.cpu.blas import BlasSchedule
from weft.cpu.ttgt.steps import name_of
from weft.cpu.ttgt.ways import Way

if TYPE_CHECKING:
    from weft.planner.planner import Choice

NAME = "ttgt"

Packers = tuple["Choice | None", "Choice | None"]  # plans that pack A and B; None for one that is read where it lies


@dataclass(frozen=True, slots=True)
class TtgtSchedule:
    way: Way
    packers: tuple[Packers, ...]  # for each extent that a piece has
    product: BlasSchedule
    threads: int
    workspace_bytes: int
    family: str = NAME

    def __str__(self) -> str:
        packed = [
            f"{name} as {step.description.text}"
            for name, step in zip("AB", self.packers[0], strict=True)
            if step is not None
        ]
        count, side = self.way.cut.count(self.way.order), self.way.order.side(self.way.cut.operand)
        pieces = f", in {count} pieces along {name_of(side)}" if count > 1 else ""
        last = f"; {self.way.last}" if self.way.last else ""
        return (
            f"ttgt {', '.join(packed) or 'nothing packed'}; blas {self.product.call}{last}{pieces}; "
            f"workspace {self.workspace_bytes / 1024:.0f} KiB"
        )
