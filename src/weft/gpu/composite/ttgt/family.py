"""Operands packed first, then a product of matrices (TTGT)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.gpu.common.cost import FUNCTION_RATE, READING_SLOTS
from weft.gpu.composite.ttgt.packing import epilogue_on_d, packings, products, reads_by_tma
from weft.gpu.composite.workspace import elements, size_bytes
from weft.gpu.permute.model import LAUNCH
from weft.planner.schedule import AuxTensors, Candidates, Launch, Ranked, ResourceError, Scalar, Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.gpu.permute.pair import Move, PermutePairLaunch
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
    def choices(self) -> tuple[Choice, ...]:
        return tuple(step for step in (*self.steps, self.product, self.finish) if step is not None)

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


def predict(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> float:
    """Seconds of all steps; functions hide behind memory as far as they take no longer."""
    moves = [step for step in (*schedule.steps, schedule.finish) if step is not None]
    seconds = sum(math.hypot(step.best.seconds, _function_seconds(step)) for step in moves)
    return schedule.product.best.seconds + seconds - (LAUNCH if schedule.packed_together is not None else 0.0)


def _function_seconds(step: Choice) -> float:
    """Of the function that a step applies."""
    permutation = step.description
    if not isinstance(permutation, Permutation) or permutation.fn is None:
        return 0.0
    elements = math.prod(mode.extent for mode in permutation.modes)
    return elements * (READING_SLOTS + permutation.fn.issue_slots) / FUNCTION_RATE


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


__all__ = ["NAME", "TtgtSchedule", "build", "predict", "schedules", "supports"]

KEPT = 4  # schedules of the product that are proposed for each way to pack, besides the best of each family
LEAST_FLOPS = 2**27  # of a product that is worth another launch


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} multiplies nothing that packing would speed up"
    if contraction.arithmetic.product.is_complex:
        return f"{dtype_name(contraction.arithmetic.product)} is packed by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth another launch"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.planner.planner import choose

    found: list[TtgtSchedule] = []
    excluded: dict[str, None] = {}
    by_tma = reads_by_tma(contraction, target)
    finish = choose(last, "triton", target) if (last := epilogue_on_d(contraction)) is not None else None
    for packed in dict.fromkeys(packings(contraction, by_tma)):
        try:
            a, b = (choose(each.permutation, "triton", target) if each is not None else None for each in packed)
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        for way in products(contraction, packed, by_tma, finish):
            try:
                product = choose(way.product, "triton", target, without=way.without)
            except UnsupportedError as error:
                excluded[str(error)] = None
                continue
            found += [TtgtSchedule((a, b), each, way.finish) for each in product.led_by_each(_kept(product.ranked))]
    return Candidates(tuple(found), tuple(excluded))


def build(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> Launch:
    return TtgtLaunch(schedule, target)


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of each family."""
    best: dict[str, Ranked] = {}
    for each in ranked:
        best.setdefault(each.schedule.family, each)
    return tuple(each for at, each in enumerate(ranked) if at < KEPT or each is best[each.schedule.family])
