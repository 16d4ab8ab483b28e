"""Running a complex contraction: stage and expand operands, multiply, finish D; see `real_forms`."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.gpu.complex.schedule import FINISH, OTHERS, ComplexSchedule
from weft.gpu.complex.views import A, B
from weft.planner.schedule import AuxTensors, Scalar, Target


class ComplexLaunch:
    """Stage and expand operands, multiply, finish D."""

    def __init__(self, schedule: ComplexSchedule, target: Target) -> None:
        from weft.gpu.complex import pairs

        self._schedule = schedule
        self._folds = schedule.folds
        self._steps = [
            pairs.built(step.task, step.schedule, target) if step is not None else None for step in schedule.steps
        ]
        self._product = schedule.product.built_as_a_step()[1]
        if (finish := schedule.steps[FINISH]) is not None:
            self._result = finish.task.permutation.x
        self.kernels = (
            *getattr(self._product, "kernels", ()), *(step.launch for step in self._steps if step is not None)
        )  # fmt: skip

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        alpha, beta = complex(alpha), complex(beta)
        finish = self._steps[FINISH]
        if finish is not None:
            product = torch.empty(self._result.shape, dtype=self._result.dtype, device=d.device)
            self._multiply(a, b, None, product, 1.0, 0.0, aux)
            finish(product, c, d, alpha, beta, aux)
        elif not self._schedule.real:
            self._multiply(a, b, c, d, alpha, beta, aux)
        else:
            self._real(a, b, c, d, alpha, beta, aux)

    def _real(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: complex, beta: complex, aux: AuxTensors
    ) -> None:
        """The real product with complex factors: what it cannot multiply in is multiplied before or after."""
        folded = alpha if alpha.imag and self._folds else 1
        after = alpha if alpha.imag and not self._folds else 1
        within = 1.0 if alpha.imag else alpha.real
        if c is None or (after == 1 and not beta.imag):
            self._multiply(a, b, c, d, within, beta.real, aux, folded)
        elif after == 1 and c.data_ptr() == d.data_ptr():
            d.mul_(beta)
            self._multiply(a, b, c, d, within, 1.0, aux, folded)
        else:
            addend = c.clone() if c.data_ptr() == d.data_ptr() else c
            self._without_c._real(a, b, None, d, alpha, 0j, aux)
            d.add_(addend, alpha=beta)
            return
        if after != 1:
            d.mul_(after)

    def _multiply(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors,
        folded: complex = 1,
    ) -> None:  # fmt: skip
        operands = [a, b]
        for at, step in enumerate(self._schedule.steps[:FINISH]):
            if step is not None:
                task = step.task
                workspace = torch.empty(task.size, dtype=task.permutation.d.dtype, device=d.device)
                factor = folded if task.form != "plain" else 1
                if task.permutation.size:
                    self._steps[at](operands[at], None, workspace, factor, 0, aux)  # type: ignore[misc]
                operands[at] = workspace
        if self._schedule.real:
            operands = [_parts(operand) for operand in operands]
            c, d = _parts(c) if c is not None else None, _parts(d)
        taken = tuple(aux[place] for place in self._schedule.aux_args)
        self._product(operands[A], operands[B], c, d, alpha, beta, taken)

    @cached_property
    def _without_c(self) -> ComplexLaunch:
        """The same product with nothing added to it; planned when first needed."""
        from weft.planner.planner import choose

        schedule = self._schedule
        choice = schedule.product
        bare = choose(replace(choice.description, c=None), "triton", choice.target, without=OTHERS)
        return ComplexLaunch(replace(schedule, product=bare), choice.target)


def _parts(tensor: Tensor) -> Tensor:
    """A complex tensor as the real one that it is in memory."""
    return torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
