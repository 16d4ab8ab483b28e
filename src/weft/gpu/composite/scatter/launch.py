"""Running both steps: the product into a workspace, and D from there."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.base.kept import constant, prepare
from weft.gpu.composite.scatter.schedule import ScatterSchedule
from weft.gpu.composite.workspace import elements
from weft.planner.pre_reduce import number
from weft.planner.schedule import AuxTensors, Scalar
from weft.spec.permutation import Permutation


class ScatterLaunch:
    """Multiply into a workspace, then write D."""

    def __init__(self, schedule: ScatterSchedule) -> None:
        self._workspace = schedule.product.description.d
        self._product = schedule.product.built_as_a_step()[1]
        self._finish = schedule.finish.built_as_a_step()[1]
        self._moves = isinstance(schedule.finish.description, Permutation)
        if not self._moves:
            prepare(1, self._workspace.dtype, schedule.finish.target.device)
        last = self._finish.launch if self._moves else self._finish
        self.kernels = (*getattr(self._product, "kernels", ()), *getattr(last, "kernels", (last,)))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        dtype = self._workspace.dtype
        workspace = torch.empty(elements(self._workspace), dtype=dtype, device=d.device)
        if self._moves:
            self._product(a, b, None, workspace, alpha, beta)
            self._finish(workspace, None, d, 1, 0)
        else:
            self._product(a, b, None, workspace, number(1, dtype), number(0, dtype))
            self._finish(workspace, constant(1, dtype, d.device), c, d, alpha, beta, aux)
