"""Running a complex contraction: pack operands, multiply, write D."""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property

import torch
from torch import Tensor

from weft.gpu.complex.interleaved.launch import InterleavedLaunch
from weft.gpu.complex.real_forms.schedule import FINISH, OTHERS, RealFormSchedule
from weft.planner.schedule import AuxTensors, Scalar, Target


class RealFormLaunch:
    """Pack operands, multiply, write D."""

    def __init__(self, schedule: RealFormSchedule, target: Target) -> None:
        self._schedule = schedule
        self._packs_alpha = schedule.packs_alpha
        self._steps = [
            InterleavedLaunch(step.transfer, step.schedule, target) if step is not None else None
            for step in schedule.steps
        ]
        self._product = schedule.product.built_as_a_step()[1]
        if (finish := schedule.steps[FINISH]) is not None:
            self._result = finish.transfer.permutation.x
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
        elif not self._schedule.of_reals:
            self._multiply(a, b, c, d, alpha, beta, aux)
        else:
            self._real(a, b, c, d, alpha, beta, aux)

    def _real(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: complex, beta: complex, aux: AuxTensors
    ) -> None:
        """The real product with complex factors: what it cannot multiply in is multiplied before or after."""
        packed = alpha if alpha.imag and self._packs_alpha else 1
        after = alpha if alpha.imag and not self._packs_alpha else 1
        within = 1.0 if alpha.imag else alpha.real
        if c is None or (after == 1 and not beta.imag):
            self._multiply(a, b, c, d, within, beta.real, aux, packed)
        elif after == 1 and c.data_ptr() == d.data_ptr():
            d.mul_(beta)
            self._multiply(a, b, c, d, within, 1.0, aux, packed)
        else:
            addend = c.clone() if c.data_ptr() == d.data_ptr() else c
            self._without_c._real(a, b, None, d, alpha, 0j, aux)
            d.add_(addend, alpha=beta)
            return
        if after != 1:
            d.mul_(after)

    def _multiply(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors,
        packed: complex = 1,
    ) -> None:  # fmt: skip
        """Pack, the parts of one operand multiplied by a complex factor, and multiply."""
        operands = [a, b]
        for at, step in enumerate(self._schedule.steps[:FINISH]):
            if step is not None:
                transfer = step.transfer
                workspace = torch.empty(transfer.size, dtype=transfer.permutation.d.dtype, device=d.device)
                factor = packed if transfer.form != "plain" else 1
                if transfer.permutation.size:
                    self._steps[at](operands[at], None, workspace, factor, 0, aux)  # type: ignore[misc]
                operands[at] = workspace
        if self._schedule.of_reals:
            operands = [_as_real(operand) for operand in operands]
            c, d = _as_real(c) if c is not None else None, _as_real(d)
        taken = tuple(aux[place] for place in self._schedule.aux_args)
        self._product(*operands, c, d, alpha, beta, taken)

    @cached_property
    def _without_c(self) -> RealFormLaunch:
        """The same product with nothing added to it; planned when first needed."""
        from weft.planner.planner import choose

        choice = self._schedule.product
        bare = choose(replace(choice.description, c=None), "triton", choice.target, without=OTHERS)
        return RealFormLaunch(replace(self._schedule, product=bare), choice.target)


def _as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as the real one that it is in memory."""
    return torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor
