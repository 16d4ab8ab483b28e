"""The family that brings operands into a better layout first, and then plans what is left.

A permutation writes an operand into a workspace: as a matrix whose rows run along k or along the operand's own side,
or in its own order with the function applied. Functions and casts happen there, once for each element, where the
product would repeat them for every block that reads the element. It pays where elements are used often, and moves
every staged operand once more, at the speed of memory. Where that leaves nothing to fuse but the epilogue, and D is
small beside the sums, the vendor's library may make the product, and a last step applies the epilogue where D lies. It
has no kernels of its own: each step is planned by the others.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from weft.kernels.cost import FUNCTION_RATE, READING_SLOTS
from weft.kernels.geometry import by_stride
from weft.plan.schedule import Candidates, Extras, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.arithmetic import MATRIX_SUMS, dtype_name
from weft.spec.canonical import merged
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.plan.planner import Choice

NAME = "staged"

A, B, C, D = range(4)
ALIGNMENT = 16  # bytes: rows of a workspace start at multiples
KEPT = 3  # schedules of the product that are proposed for each way to stage
LEAST_BOX = 16  # elements of m, n and k: shorter ones do not go in boxes
MUCH_LARGER = 8  # times the elements that are staged: the product that any family may make of them
LEAST_FLOPS = 2**27  # of a product that is worth another launch
_OTHERS = ("staged", "last", "reduced", "vector")  # families that need no staged operands
_GATHERING = ("boxes", "specialised", "matrix")  # families that the library's product is planned without


class Stage(NamedTuple):
    """How one operand is staged."""

    permutation: Permutation
    strides: tuple[int, ...]  # of every mode of the contraction in the workspace
    gathered: bool = True  # whether it is one that gathering kernels are planned for, too


Stages = tuple[Stage | None, Stage | None]


class Way(NamedTuple):
    """How what is left of a contraction may be planned."""

    product: Contraction
    without: tuple[str, ...]  # families that are not asked
    finish: Choice | None = None


@dataclass(frozen=True, slots=True)
class StagedSchedule:
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
        staged = f"staged {' and '.join(steps)}; " if steps else ""
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
    from weft.plan.planner import choose

    found: list[StagedSchedule] = []
    excluded: dict[str, None] = {}
    in_boxes = _in_boxes(contraction, target)
    finish = choose(last, "triton", target) if (last := _finish(contraction)) is not None else None
    for staged in dict.fromkeys(_ways(contraction)):
        try:
            steps = [choose(stage.permutation, "triton", target) if stage is not None else None for stage in staged]
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        for way in _products(contraction, staged, in_boxes, finish):
            try:
                product = choose(way.product, "triton", target, without=way.without)
            except UnsupportedError as error:
                excluded[str(error)] = None
                continue
            for at, ranked in enumerate(product.ranked[:KEPT]):
                kept = replace(product, best=ranked, ranked=(ranked, *product.ranked[at + 1 : KEPT]))
                found.append(StagedSchedule((steps[A], steps[B]), kept, way.finish))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: StagedSchedule, target: Target) -> float:
    """Seconds of all steps; functions hide behind memory as far as they take no longer."""
    moves = [step for step in (*schedule.steps, schedule.finish) if step is not None]
    return schedule.product.best.seconds + sum(math.hypot(step.best.seconds, _function_seconds(step)) for step in moves)


def _function_seconds(step: Choice) -> float:
    """Of the function that a step applies."""
    permutation = step.description
    if not isinstance(permutation, Permutation) or permutation.fn is None:
        return 0.0
    elements = math.prod(mode.extent for mode in permutation.modes)
    return elements * (READING_SLOTS + _slots(permutation)) / FUNCTION_RATE


def build(contraction: Contraction, schedule: StagedSchedule, target: Target) -> Launch:
    return StagedLaunch(schedule)


class StagedLaunch:
    """Stage the operands that need it, then multiply."""

    def __init__(self, schedule: StagedSchedule) -> None:
        self._steps = [step.built()[1] if step is not None else None for step in schedule.steps]
        self._workspaces = [step.description.d if step is not None else None for step in schedule.steps]
        self._product = schedule.product.built()[1]
        self._finish = schedule.finish.built()[1] if schedule.finish is not None else None
        launches = [getattr(step, "launch", None) for step in (*self._steps, self._finish)]
        self.kernels = (*getattr(self._product, "kernels", ()), *(launch for launch in launches if launch is not None))

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, *extras: Extras
    ) -> None:
        operands = []
        for operand, step, layout in zip((a, b), self._steps, self._workspaces, strict=True):
            if step is not None and layout is not None:
                size = layout.shape[0] * layout.strides[0]
                workspace = torch.empty(size, dtype=layout.dtype, device=operand.device)
                step(operand, None, workspace, 1, 0)
                operand = workspace
            operands.append(operand)
        self._product(*operands, c, d, alpha, beta, *extras)
        if self._finish is not None:
            self._finish(d, None, d, 1, 0)


def _ways(contraction: Contraction) -> Iterator[Stages]:
    """What may be staged, and how; None for an operand that is used as it lies."""
    sums = contraction.of_role(Role.K)
    orders = [by_stride(sums, operand) for operand in (A, B)]
    applied = [_applied(contraction, operand) for operand in (A, B)]
    for order in orders:
        rows = [_matrix(contraction, operand, order, along_k=True) for operand in (A, B)]
        across = [_matrix(contraction, operand, order, along_k=False) for operand in (A, B)]
        rows = [_for_boxes(*stages) for stages in zip(rows, across, applied, strict=True)]
        for a in (rows[A], across[A], applied[A]):
            for b in (rows[B], across[B], applied[B]):
                if a is not None and b is not None:
                    yield a, b
    for operand, order in ((A, orders[B]), (B, orders[A])):
        other = _matrix(contraction, operand, order, along_k=False)
        for stage in (_for_boxes(_matrix(contraction, operand, order, along_k=True), other, applied[operand]), other):
            if stage is not None:
                yield (stage, None) if operand == A else (None, stage)
        if applied[operand] is not None:
            yield (applied[A], None) if operand == A else (None, applied[B])
    yield None, None  # for the library, where an epilogue is all that is fused


def _products(contraction: Contraction, staged: Stages, in_boxes: bool, finish: Choice | None) -> Iterator[Way]:
    """What is left with those operands staged, by the families that may be best at it."""
    rest = _product(contraction, staged)
    if any(staged):
        gathered = not in_boxes or _worth_gathering(contraction, staged)
        yield Way(rest, _OTHERS if gathered else (*_OTHERS, "matrix"))
    if finish is not None and rest.a_fn is None and rest.b_fn is None:
        yield Way(replace(rest, epilogue=None), (*_OTHERS, *_GATHERING), finish)


def _worth_gathering(contraction: Contraction, staged: Stages) -> bool:
    """Whether what is staged is little beside what the product moves, so that even what gathers well may gain.

    One operand in another order is enough for that; both are staged where both have something to be applied.
    """
    changed = [stage for stage in staged if stage is not None]
    if not all(stage.gathered for stage in changed) or sum(stage.permutation.fn is None for stage in changed) > 1:
        return False
    sizes = [math.prod(mode.extent for mode in contraction.modes if mode.strides[tensor]) for tensor in (A, B, D)]
    return MUCH_LARGER * sum(sizes[operand] for operand in (A, B) if staged[operand] is not None) <= sum(sizes)


def _slots(permutation: Permutation) -> float:
    """Issue slots that the function of a permutation takes for each element."""
    return permutation.fn.slots if permutation.fn is not None else 0.0


def _in_boxes(contraction: Contraction, target: Target) -> bool:
    """Whether staged operands can be read in boxes, which is faster than gathering them."""
    arithmetic = contraction.arithmetic
    short = arithmetic.precision == "tf32" and arithmetic.accumulate is torch.float32
    stored = MATRIX_SUMS.get(arithmetic.product) is arithmetic.accumulate
    if min(contraction.m, contraction.n, contraction.k) < LEAST_BOX:
        return False
    return target.kind in ("cuda", "interpreter") and target.capability >= 90 and (short or stored)


def _matrix(contraction: Contraction, operand: int, sums: Sequence[Mode], along_k: bool) -> Stage | None:
    """The operand as ([batch,] outer, k), or as ([batch,] k, outer), its rows padded to whole words.

    None where that has no use: rows across k are for products that read either as well, of operands that lie so, and
    for those of float32, which the library makes fastest of two operands across k.
    """
    role = Role.M if operand == A else Role.N
    outer = by_stride(contraction.of_role(role), D)
    batch = tuple(reversed(contraction.of_role(Role.BATCH)))
    if not along_k:
        nearest = by_stride(contraction.modes, operand)[:1]
        if not nearest or contraction.arithmetic.precision != "ieee":
            return None
        if nearest[0].role is Role.K and contraction.arithmetic.product is not torch.float32:
            return None
        if contraction.arithmetic.product.itemsize == 1:
            return None
    rows, row = (outer, sums) if along_k else (sums, outer)
    name = "·".join(mode.name for mode in (*reversed(batch), *reversed(rows), *reversed(row)))
    return _stage(contraction, operand, row, (*rows, *batch), name)


def _for_boxes(stage: Stage | None, *others: Stage | None) -> Stage | None:
    """A stage of which gathering kernels make no more than of the others, where there are any; None if it is one."""
    known = [other for other in others if other is not None]
    if stage is None or any(stage.permutation == other.permutation for other in known):
        return None
    return stage._replace(gathered=not known)


def _applied(contraction: Contraction, operand: int) -> Stage | None:
    """The operand in its own order, its function or cast applied; None where there is neither."""
    layout = contraction.a if operand == A else contraction.b
    function = contraction.a_fn if operand == A else contraction.b_fn
    if function is None and layout.dtype == contraction.arithmetic.product:
        return None
    own = by_stride([mode for mode in contraction.modes if mode.strides[operand]], operand)
    return _stage(contraction, operand, own[:1], own[1:], "it lies")


def _stage(
    contraction: Contraction, operand: int, row: Sequence[Mode], others: Sequence[Mode], name: str
) -> Stage | None:
    """The operand with its row contiguous and padded to whole words; both groups stand innermost first.

    None where nothing would change.
    """
    layout = contraction.a if operand == A else contraction.b
    function = contraction.a_fn if operand == A else contraction.b_fn
    arguments = contraction.a_args if operand == A else contraction.b_args
    product = contraction.arithmetic.product
    side = Role.M if operand == A else Role.N
    # Where an operand is expanded along a mode of its own side its rows are written out: products need them in memory.
    own = tuple([mode for mode in group if mode.strides[operand] or mode.role is side] for group in (row, others))
    if arguments or not any(own):
        return None
    words = ALIGNMENT // product.itemsize
    steps: dict[Mode, int] = {}
    step = 1
    for group, unit in zip(own, (words, 1), strict=True):
        for mode in group:
            steps[mode] = step
            step *= mode.extent
        step = -(-step // unit) * unit
    lies = layout.dtype == product and layout.alignment >= ALIGNMENT
    if function is None and lies and all(mode.strides[operand] == steps[mode] for mode in steps):
        return None
    modes = [
        Mode(mode.labels, mode.extent, Role.M, Strides(mode.strides[operand], 0, 0, to)) for mode, to in steps.items()
    ]
    modes.sort(key=lambda mode: -mode.strides.d)
    workspace = Layout(tuple(mode.extent for mode in modes), tuple(mode.strides.d for mode in modes), product)
    permutation = Permutation(
        modes=tuple(merged(modes)), x=layout, c=None, d=workspace,
        compute=function.dtypes[0] if function is not None else product, fn=function, text=name,
    )  # fmt: skip
    return Stage(permutation, tuple(steps.get(mode, 0) for mode in contraction.modes))


def _finish(contraction: Contraction) -> Permutation | None:
    """The epilogue on D where it lies; None where D does not hold what it sees, or where more than that is fused."""
    epilogue, d = contraction.epilogue, contraction.d
    if epilogue is None or contraction.extras or contraction.c_fn is not None:
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
                replace(mode, strides=Strides(*mode.strides[:operand], stride, *mode.strides[operand + 1 :]))
                for mode, stride in zip(modes, stage.strides, strict=True)
            ]
    return canonical(replace(contraction, modes=tuple(modes), **changed))  # type: ignore[arg-type]


def _bytes(step: Choice) -> int:
    layout = step.description.d
    return layout.shape[0] * layout.strides[0] * layout.dtype.itemsize
