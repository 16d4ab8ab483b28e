"""Running the steps: largest values, exponentials, their product, and output tiles that are computed again."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from weft.base.kept import constant, prepare
from weft.gpu.composite.logsumexp.schedule import LogSumExpSchedule
from weft.gpu.composite.logsumexp.steps import MARKS, marks_of, operand_count, with_marks
from weft.planner.schedule import AuxTensors, Launch, Scalar, Target
from weft.spec import Contraction, Layout


def build(contraction: Contraction, schedule: LogSumExpSchedule, target: Target) -> Launch:
    from weft.gpu.semiring import family as semiring

    described = with_marks(contraction)
    for value in (0, 1):
        for dtype in {contraction.a.dtype, contraction.b.dtype}:
            prepare(value, dtype, target.device)
    guard = next(at for at, each in enumerate(described.aux) if each.name == MARKS)
    direct = semiring.build(described, schedule.direct, target, guard=guard)  # type: ignore[arg-type]
    return LogSumExpLaunch(contraction, schedule, direct)


class LogSumExpLaunch:
    def __init__(self, contraction: Contraction, schedule: LogSumExpSchedule, direct: Any) -> None:
        self._largest = [step.built_as_a_step() for step in schedule.largest]
        self._factors = [step.built_as_a_step() for step in schedule.factors]
        self._product = schedule.product.built_as_a_step()[1]
        self._direct = direct
        self._marks = marks_of(contraction).layout
        self._operands = operand_count(contraction)
        launches = [*(launch for _, launch in (*self._largest, *self._factors)), self._product, direct]
        self.kernels = tuple(kernel for launch in launches for kernel in getattr(launch, "kernels", (launch,)))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        tops, factors = [], []
        for x, (top_plan, largest), (plan, factor) in zip((a, b), self._largest, self._factors, strict=True):
            top, scaled = (_empty(step.description.d, x.device) for step in (top_plan, plan))
            largest(x, constant(0, x.dtype, x.device), None, top, 1.0, 1.0)
            factor(x, constant(1, x.dtype, x.device), None, scaled, 1.0, 1.0, (top,))
            tops.append(top)
            factors.append(scaled)
        marks = _empty(self._marks, d.device)
        operands, outputs = aux[: self._operands], aux[self._operands :]
        self._product(*factors, None, d, 1.0, 1.0, (*operands, *tops, *outputs, marks))
        self._direct(a, b, None, d, 1.0, 1.0, (*operands, marks, *outputs))


def _empty(layout: Layout, device: torch.device) -> Tensor:
    return torch.empty(layout.shape, dtype=layout.dtype, device=device)
