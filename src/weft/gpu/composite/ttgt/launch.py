"""Running TTGT: pack the operands that need it, multiply, apply what is left of the epilogue."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.gpu.composite.ttgt.schedule import TtgtSchedule
from weft.gpu.composite.workspace import elements
from weft.planner.schedule import AuxTensors, ResourceError, Scalar, Target

if TYPE_CHECKING:
    from weft.gpu.permute.pair import PermutePairLaunch


class TtgtLaunch:
    """Pack the operands that need it, then multiply."""

    def __init__(self, schedule: TtgtSchedule, target: Target) -> None:
        self._workspaces = [step.description.d if step is not None else None for step in schedule.steps]
        self._both = _built_together(schedule, target)
        alone = schedule.steps if self._both is None else ()
        self._steps = [step.built_as_a_step()[1] if step is not None else None for step in alone]
        self._product = schedule.product.built_as_a_step()[1]
        self._finish = schedule.finish.built_as_a_step()[1] if schedule.finish is not None else None
        launches = [getattr(step, "launch", None) for step in (self._both, *self._steps, self._finish)]
        self.kernels = (*getattr(self._product, "kernels", ()), *(launch for launch in launches if launch is not None))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        operands = [
            torch.empty(elements(layout), dtype=layout.dtype, device=operand.device) if layout is not None else operand
            for operand, layout in zip((a, b), self._workspaces, strict=True)
        ]
        if self._both is not None:
            self._both(a, operands[0], b, operands[1])
        for step, operand, workspace in zip(self._steps, (a, b), operands, strict=False):
            if step is not None:
                step(operand, None, workspace, 1, 0)
        self._product(*operands, c, d, alpha, beta, aux)
        if self._finish is not None:
            self._finish(d, None, d, 1, 0)


def _built_together(schedule: TtgtSchedule, target: Target) -> PermutePairLaunch | None:
    """One launch that packs both; None where there is none, or the device cannot hold it."""
    from weft.gpu.permute.pair import PermutePairLaunch

    moves = schedule.packed_together
    if moves is None:
        return None
    try:
        return PermutePairLaunch(*moves, target)
    except ResourceError:
        return None
