"""The family that brings operands into a better layout first, and then plans what is left.

A permutation writes an operand into a workspace: as a matrix whose rows run along k or along the operand's own side,
or in its own order with the function applied, or with its rows at whole lines. Functions and casts happen there, once
for each element, where the product would repeat them for every block that reads the element. It pays where elements are
used often, and moves every staged operand once more, at the speed of memory; two operands by one launch. Where that
leaves nothing to fuse but the epilogue, and D is small beside the sums, the vendor's library may make the product, and
a last step applies the epilogue where D lies. It has no kernels of its own: each step is planned by the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from weft.gpu.common.constraints import LEAST_DOT
from weft.gpu.common.cost import FUNCTION_RATE, READING_SLOTS
from weft.gpu.common.tiling import by_stride
from weft.gpu.composite.packing import Stage, applied, for_tma, matrix, padded
from weft.gpu.permute.cost import LAUNCH
from weft.planner.schedule import AuxTensors, Candidates, Launch, Ranked, ResourceError, Scalar, Target
from weft.spec import Contraction, Mode, Role, Strides, canonical
from weft.spec.canonical import merged
from weft.spec.dtypes import MATRIX_SUMS, dtype_name
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.gpu.permute.pair import Move, PermutePairLaunch
    from weft.planner.planner import Choice

NAME = "ttgt"

A, B, C, D = range(4)
KEPT = 4  # schedules of the product that are proposed for each way to stage, besides the best of each family
MUCH_LARGER = 8  # times the elements that are staged: the product that any family may make of them
LEAST_FLOPS = 2**27  # of a product that is worth another launch
_OTHERS = ("ttgt", "scatter", "pre_reduce", "simt")  # families that need no staged operands
_GATHERING = ("tma", "warp_specialized", "gett")  # families that the library's product is planned without

Stages = tuple[Stage | None, Stage | None]


class Way(NamedTuple):
    """How what is left of a contraction may be planned."""

    product: Contraction
    without: tuple[str, ...]  # families that are not asked
    finish: Choice | None = None


@dataclass(frozen=True, slots=True)
class TtgtSchedule:
    """A plan for each operand that is staged, None for one that is used as it lies, one for the product, and one for
    the epilogue where the product does not apply it."""

    steps: tuple[Choice | None, Choice | None]  # for A and B
    product: Choice
    finish: Choice | None = None  # D in its place
    family: str = NAME

    @property
    def workspace_bytes(self) -> int:
        own = sum(_bytes(step) for step in self.steps if step is not None)
        return own + self.product.best.schedule.workspace_bytes

    def __str__(self) -> str:
        steps = [
            f"{name} as {step.description.text}"
            for name, step in zip("AB", self.steps, strict=True)
            if step is not None
        ]
        once = " in one launch" if moved_together(self) is not None else ""
        staged = f"staged {' and '.join(steps)}{once}; " if steps else ""
        return f"{staged}{self.product.best.schedule}{'; epilogue on D' if self.finish is not None else ''}"


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.algebra is not None:
        return f"the algebra {contraction.algebra.name} multiplies nothing that staging would speed up"
    if contraction.arithmetic.product.is_complex:
        return f"{dtype_name(contraction.arithmetic.product)} is staged by the family complex"
    if 0 in (mode.extent for mode in contraction.modes):
        return "a mode is empty"
    if 2 * contraction.m * contraction.n * contraction.k * contraction.batch < LEAST_FLOPS:
        return "the product is too small to be worth another launch"
    return None


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.errors import UnsupportedError
    from weft.planner.planner import choose

    found: list[TtgtSchedule] = []
    excluded: dict[str, None] = {}
    by_tma = _by_tma(contraction, target)
    finish = choose(last, "triton", target) if (last := _finish(contraction)) is not None else None
    for staged in dict.fromkeys(_ways(contraction, by_tma)):
        try:
            steps = [choose(stage.permutation, "triton", target) if stage is not None else None for stage in staged]
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        for way in _products(contraction, staged, by_tma, finish):
            try:
                product = choose(way.product, "triton", target, without=way.without)
            except UnsupportedError as error:
                excluded[str(error)] = None
                continue
            kept = _kept(product.ranked)
            for at, ranked in enumerate(kept):
                chosen = replace(product, best=ranked, ranked=kept[at:])
                found.append(TtgtSchedule((steps[A], steps[B]), chosen, way.finish))
    return Candidates(tuple(found), tuple(excluded))


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of each family."""
    best: dict[str, Ranked] = {}
    for each in ranked:
        best.setdefault(each.schedule.family, each)
    return tuple(each for at, each in enumerate(ranked) if at < KEPT or each is best[each.schedule.family])


def predict(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> float:
    """Seconds of all steps; functions hide behind memory as far as they take no longer."""
    moves = [step for step in (*schedule.steps, schedule.finish) if step is not None]
    seconds = sum(math.hypot(step.best.seconds, _function_seconds(step)) for step in moves)
    return schedule.product.best.seconds + seconds - (LAUNCH if moved_together(schedule) is not None else 0.0)


def _function_seconds(step: Choice) -> float:
    """Of the function that a step applies."""
    permutation = step.description
    if not isinstance(permutation, Permutation) or permutation.fn is None:
        return 0.0
    elements = math.prod(mode.extent for mode in permutation.modes)
    return elements * (READING_SLOTS + _slots(permutation)) / FUNCTION_RATE


def build(contraction: Contraction, schedule: TtgtSchedule, target: Target) -> Launch:
    return TtgtLaunch(schedule, target)


class TtgtLaunch:
    """Stage the operands that need it, then multiply."""

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
            torch.empty(layout.shape[0] * layout.strides[0], dtype=layout.dtype, device=operand.device)
            if layout is not None
            else operand
            for operand, layout in zip((a, b), self._workspaces, strict=True)
        ]
        if self._both is not None:
            self._both(a, operands[A], b, operands[B])
        for step, operand, workspace in zip(self._steps, (a, b), operands, strict=False):
            if step is not None:
                step(operand, None, workspace, 1, 0)
        self._product(*operands, c, d, alpha, beta, aux)
        if self._finish is not None:
            self._finish(d, None, d, 1, 0)


def moved_together(schedule: TtgtSchedule) -> tuple[Move, Move] | None:
    """What one launch stages of both operands, where it can."""
    from weft.gpu.permute.pair import Move, supports

    a, b = schedule.steps
    if a is None or b is None:
        return None
    moves = Move(a.description, a.best.schedule), Move(b.description, b.best.schedule)  # type: ignore[arg-type]
    return moves if supports(*moves) else None


def _built_together(schedule: TtgtSchedule, target: Target) -> PermutePairLaunch | None:
    """The launch of both; None where there is none, or the device cannot hold it."""
    from weft.gpu.permute.pair import PermutePairLaunch

    moves = moved_together(schedule)
    if moves is None:
        return None
    try:
        return PermutePairLaunch(*moves, target)
    except ResourceError:
        return None


def _ways(contraction: Contraction, by_tma: bool) -> Iterator[Stages]:
    """What may be staged, and how; None for an operand that is used as it lies."""
    sums = contraction.of_role(Role.K)
    orders = [by_stride(sums, operand) for operand in (A, B)]
    own = [applied(contraction, operand) for operand in (A, B)]
    for order in orders:
        rows = [matrix(contraction, operand, order, along_k=True) for operand in (A, B)]
        across = [matrix(contraction, operand, order, along_k=False) for operand in (A, B)]
        rows = [for_tma(*stages) for stages in zip(rows, across, own, strict=True)]
        for a in (rows[A], across[A], own[A]):
            for b in (rows[B], across[B], own[B]):
                if a is not None and b is not None:
                    yield a, b
    for operand, order in ((A, orders[B]), (B, orders[A])):
        other = matrix(contraction, operand, order, along_k=False)
        in_rows = for_tma(matrix(contraction, operand, order, along_k=True), other, own[operand])
        in_lines = padded(contraction, operand) if by_tma and _is_small(contraction, operand) else None
        for stage in (in_rows, other, own[operand], in_lines):
            if stage is not None:
                yield (stage, None) if operand == A else (None, stage)
    yield None, None  # for the library, where an epilogue is all that is fused


def _products(contraction: Contraction, staged: Stages, by_tma: bool, finish: Choice | None) -> Iterator[Way]:
    """What is left with those operands staged, by the families that may be best at it."""
    rest = _product(contraction, staged)
    if any(staged):
        gathered = not by_tma or _worth_gathering(contraction, staged)
        yield Way(rest, _OTHERS if gathered else (*_OTHERS, "gett"))
    if finish is not None and rest.a_fn is None and rest.b_fn is None:
        yield Way(replace(rest, epilogue=None), (*_OTHERS, *_GATHERING), finish)


def _worth_gathering(contraction: Contraction, staged: Stages) -> bool:
    """Whether what is staged is little beside what the product moves, so that even what gathers well may gain.

    One operand in another order is enough for that; both are staged where both have something to be applied.
    """
    changed = [stage for stage in staged if stage is not None]
    if not all(stage.gathered for stage in changed) or sum(stage.permutation.fn is None for stage in changed) > 1:
        return False
    return _is_small(contraction, *(operand for operand in (A, B) if staged[operand] is not None))


def _is_small(contraction: Contraction, *operands: int) -> bool:
    """Whether some operands are little beside all that the product moves."""
    sizes = [math.prod(mode.extent for mode in contraction.modes if mode.strides[tensor]) for tensor in (A, B, D)]
    return MUCH_LARGER * sum(sizes[operand] for operand in operands) <= sum(sizes)


def _slots(permutation: Permutation) -> float:
    """Issue slots that the function of a permutation takes for each element."""
    return permutation.fn.issue_slots if permutation.fn is not None else 0.0


def _by_tma(contraction: Contraction, target: Target) -> bool:
    """Whether staged operands can be read in boxes, which is faster than gathering them."""
    arithmetic = contraction.arithmetic
    short = arithmetic.precision == "tf32" and arithmetic.accumulate is torch.float32
    stored = MATRIX_SUMS.get(arithmetic.product) is arithmetic.accumulate
    if min(contraction.m, contraction.n, contraction.k) < LEAST_DOT:
        return False
    return target.kind in ("cuda", "interpreter") and target.capability >= 90 and (short or stored)


def _finish(contraction: Contraction) -> Permutation | None:
    """The epilogue on D where it lies; None where D does not hold what it sees, or where more than that is fused."""
    epilogue, d = contraction.epilogue, contraction.d
    if epilogue is None or contraction.aux or contraction.c_fn is not None:
        return None
    if d.dtype is not contraction.arithmetic.accumulate or epilogue.result is not d.dtype:
        return None
    own = [mode for mode in contraction.modes if mode.strides[D]]
    modes = [
        Mode(mode.labels, mode.extent, Role.M, Strides(mode.strides[D], 0, 0, mode.strides[D]))
        for mode in sorted(own, key=lambda mode: -mode.strides[D])
    ]
    return Permutation(
        modes=tuple(merged(modes)), x=d, c=None, d=d, compute=epilogue.dtypes[0], fn=epilogue, text="D where it lies"
    )


def _product(contraction: Contraction, staged: Stages) -> Contraction:
    """What is left to be done with the workspaces in the operands' places."""
    modes = list(contraction.modes)
    changed: dict[str, object] = {}
    for operand, stage in enumerate(staged):
        if stage is not None:
            name = "ab"[operand]
            changed |= {name: stage.permutation.d, f"{name}_fn": None}
            modes = [
                mode._replace(strides=Strides(*mode.strides[:operand], stride, *mode.strides[operand + 1 :]))
                for mode, stride in zip(modes, stage.strides, strict=True)
            ]
    return canonical(replace(contraction, modes=tuple(modes), **changed))  # type: ignore[arg-type]


def _bytes(step: Choice) -> int:
    layout = step.description.d
    return layout.shape[0] * layout.strides[0] * layout.dtype.itemsize
