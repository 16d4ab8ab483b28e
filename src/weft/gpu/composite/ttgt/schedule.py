"""`TtgtSchedule`: a plan for each operand that is packed, and one for the product."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from weft.gpu.composite.workspace import size_bytes

if TYPE_CHECKING:
    from weft.gpu.permute.pair import Move
    from weft.planner.planner import Choice

NAME = "ttgt"


@dataclass(frozen=True, slots=True)
class TtgtSchedule:
    """A plan for each operand that is packed, None for one that is used as it lies, one for the product, and one for
    the epilogue where the product does not apply it."""

    steps: tuple[Choice | None, Choice | None]  # for A and B
    product: Choice
    finish: Choice | None = None  # the epilogue, on D where it lies
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        own = sum(size_bytes(step.description.d) for step in self.steps if step is not None)
        return own + self.product.best.schedule.workspace_bytes

    @property
    def packed_together(self) -> tuple[Move, Move] | None:
        """What one launch packs of both operands, where it can."""
        from weft.gpu.permute.pair import Move, supports
        from weft.gpu.permute.schedule import PermuteSchedule

        a, b = self.steps
        if a is None or b is None or not all(isinstance(step.best.schedule, PermuteSchedule) for step in (a, b)):
            return None
        moves = Move(a.description, a.best.schedule), Move(b.description, b.best.schedule)  # type: ignore[arg-type]
        return moves if supports(*moves) else None

    def __str__(self) -> str:
        packed = [
            f"{name} as {step.description.text}"
            for name, step in zip("AB", self.steps, strict=True)
            if step is not None
        ]
        once = " in one launch" if self.packed_together is not None else ""
        last = "; epilogue on D" if self.finish is not None else ""
        return f"{self.family} {', '.join(packed) or 'nothing packed'}{once}; {self.product.best.schedule}{last}"
