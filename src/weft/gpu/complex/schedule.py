"""`ComplexSchedule`: how a complex contraction is made of a real one; see `real_forms`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from weft.spec import Contraction

if TYPE_CHECKING:
    from weft.gpu.complex.pairs import Task
    from weft.gpu.permute.schedule import PermuteSchedule
    from weft.planner.planner import Choice

NAME = "complex"
FINISH = 2  # place of the step that writes D

# Families that pack, sum or take parts apart on their own.
OTHERS = ("complex", "complex_direct", "pre_reduce", "ttgt", "scatter")


class Step(NamedTuple):
    """One pass over a tensor, and how it is to run."""

    task: Task
    schedule: PermuteSchedule
    seconds: float


@dataclass(frozen=True, slots=True)
class ComplexSchedule:
    """A step for each operand that is staged or expanded, one for D where it is finished, and the product's plan."""

    steps: tuple[Step | None, Step | None, Step | None]  # for A, B and D
    product: Choice
    real: bool  # the product is one of real numbers
    aux_args: tuple[int, ...] = ()  # positions of the auxiliary operands that the product takes
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        own = sum(step.task.workspace_bytes for step in self.steps[:FINISH] if step is not None)
        finish = self.steps[FINISH]
        if finish is not None:
            layout = finish.task.permutation.x
            own += layout.shape[0] * layout.dtype.itemsize
        left = self.product.description
        if self.real and isinstance(left, Contraction) and left.c is not None and not self.folds:
            own += math.prod(left.d.shape) * left.d.dtype.itemsize  # of C, where it is D and alpha is complex
        return own + self.product.best.schedule.workspace_bytes

    @property
    def folds(self) -> bool:
        """Whether a complex alpha is multiplied into an expanded operand."""
        left = self.product.description
        exact = isinstance(left, Contraction) and left.arithmetic.product == left.arithmetic.accumulate
        return exact and any(step.task.form != "plain" for step in self.steps if step is not None)

    def __str__(self) -> str:
        texts = [
            f"{name} {_VERBS[step.task.form]} {step.task.permutation.text}"
            for name, step in zip("AB", self.steps, strict=False)
            if step is not None
        ]
        finish = self.steps[FINISH]
        if finish is not None:
            texts.append("D folded last" if finish.task.fold or finish.task.thirds else "D written last")
        kind = "real" if self.real else "complex"
        return f"complex, {'; '.join((*texts, f'{kind} {self.product.best.schedule}'))}"


_VERBS = {
    "plain": "as",
    "along": "expanded along",
    "across": "expanded across",
    "halves": "in halves as",
    "thirds": "in thirds as",
}
