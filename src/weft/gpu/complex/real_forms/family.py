"""Complex products by real ones: schedules for a description, and the launch."""

from __future__ import annotations

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.gpu.complex.interleaved import family as interleaved
from weft.gpu.complex.interleaved.family import InterleavedLaunch, Transfer
from weft.gpu.complex.real_forms.ways import FINISH, NAME, RealFormSchedule, RealFormStep, ways
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name


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
        in_place = c is not None and c.data_ptr() == d.data_ptr()
        addend = None
        if c is not None and after != 1:  # nothing but zeros may be added before alpha is multiplied in
            addend, c = (c.clone(), d.zero_()) if in_place else (c, _zeros_like(c))
        elif in_place and beta.imag:
            d.mul_(beta)
            beta = 1 + 0j
        self._multiply(a, b, c, d, within, beta.real, aux, packed)
        if after != 1:
            d.mul_(after)
        if addend is not None:
            d.add_(addend, alpha=beta)
        elif c is not None and beta.imag:
            _add_imaginary(d, c, beta.imag)

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


def _as_real(tensor: Tensor) -> Tensor:
    """A complex tensor as the real one that it is in memory."""
    return torch.view_as_real(tensor) if tensor.dtype.is_complex else tensor


def _zeros_like(tensor: Tensor) -> Tensor:
    """Zeros that lie as a tensor does, gaps included."""
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=tensor.device).zero_()


def _add_imaginary(d: Tensor, c: Tensor, factor: float) -> None:
    """Add C times an imaginary number, part by part: what is infinite in one part stays out of the other."""
    if c.is_complex():
        d.real.sub_(c.imag, alpha=factor)
    d.imag.add_(c.real, alpha=factor)


__all__ = ["NAME", "RealFormSchedule", "build", "predict", "schedules", "supports"]

KEPT = 2  # schedules of the product that are proposed for each way


def supports(contraction: Contraction, target: Target) -> str | None:
    total = contraction.arithmetic.accumulate
    if not _complex_enters(contraction):
        return f"{dtype_name(contraction.arithmetic.product)} is not complex"
    if not total.is_complex and not total.is_floating_point:
        return f"sums in {dtype_name(total)} meet no complex values on the GPU yet"
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} of complex numbers does not run on the GPU yet"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    found: list[RealFormSchedule] = []
    excluded: dict[str, None] = {}
    known: dict[Transfer, RealFormStep] = {}
    for way in ways(contraction):
        try:
            product = choose(way.product, "triton", target, without=way.without)
            steps = [known.get(each) or _step(each, target) if each is not None else None for each in way.transfers]
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        known |= {step.transfer: step for step in steps if step is not None}
        for chosen in product.led_by_each(product.ranked[:KEPT]):
            found.append(RealFormSchedule(way.form, (steps[0], steps[1], steps[2]), chosen, way.aux_args))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: RealFormSchedule, target: Target) -> float:
    """Seconds of all steps."""
    return schedule.product.best.seconds + sum(step.seconds for step in schedule.steps if step is not None)


def build(contraction: Contraction, schedule: RealFormSchedule, target: Target) -> Launch:
    return RealFormLaunch(schedule, target)


def _complex_enters(contraction: Contraction) -> bool:
    """Whether a complex value is multiplied, written, or part of a function."""
    dtypes = (contraction.arithmetic.product, contraction.d.dtype, *(each.dtype for each in contraction.aux))
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    found = (function is not None and function.is_complex for function in functions)
    return any(dtype.is_complex for dtype in dtypes) or any(found)


def _step(transfer: Transfer, target: Target) -> RealFormStep:
    reason = interleaved.reason_against(transfer, target)
    if reason is not None:
        raise UnsupportedError(reason)
    return RealFormStep(transfer, *interleaved.best(transfer, target))
