"""Operands packed first, then a product of matrices, and D permuted where no product writes it well (TTGT).

D by way of a workspace: a product as a plain matrix, then one pass that writes D. It is for a D that no product writes
well: a batch mode innermost, gaps, modes of A and B in turn.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weft.errors import UnsupportedError
from weft.gpu.common.constraints import VECTOR
from weft.gpu.common.tiling import A, B, D, by_stride, index_count, moving, placed, workspace_of
from weft.gpu.composite.packing import TILED, epilogue_on_d, packings, products, reads_by_tma
from weft.planner import program
from weft.planner.coefficients import fitted
from weft.planner.program import SLOT_A, SLOT_B, SLOT_D, Program, ProgramStep, Slot, build, predict
from weft.planner.schedule import Candidates, Ranked, Target
from weft.spec import Arithmetic, Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.canonical import merged
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.planner.planner import Choice


class ResultWay(NamedTuple):
    """The product into one workspace, and what writes D from there."""

    product: Contraction
    finish: Permutation | Contraction  # a contraction with the number one, where more is done than to move elements
    by_library: bool  # whether the vendor's library alone gains by it


def ways(contraction: Contraction) -> Iterator[ResultWay]:
    """Workspaces as matrices, the side of D's innermost mode innermost; modes in the order of an operand or of D."""
    left, written_well = _is_left_to_library(contraction), _is_matrix(contraction)
    if not _of_d(contraction) or (written_well and not left):
        return
    if contraction.invariant or contraction.a_args or contraction.b_args:
        return  # the product is another one, and passes on no operands or coordinates of a_fn and b_fn
    inner = min(_of_d(contraction), key=lambda mode: mode.strides[D])
    always = contraction.d.alignment < VECTOR or left
    batch = by_stride(contraction.of_role(Role.BATCH), A)
    for rows in _orders(contraction, Role.M, A):
        for columns in _orders(contraction, Role.N, B):
            row, others = (rows, columns) if inner.role is Role.M else (columns, rows)
            steps = _steps(contraction, row, (*others, *batch))
            if always or any(mode.strides[D] != step for mode, step in steps.items()):
                yield _way(contraction, steps, written_well)


def _is_matrix(contraction: Contraction) -> bool:
    """Whether D is written well by any product: one mode of m and of n, one of them contiguous, rows at whole words."""
    modes = _of_d(contraction)
    if not modes:
        return True
    inner = min(modes, key=lambda mode: mode.strides[D])
    if inner.strides[D] != 1 or inner.role is Role.BATCH:
        return False
    if max(len(merged(_alone(contraction, role))) for role in (Role.M, Role.N)) > 1:
        return False
    if _is_wide(contraction):
        return True  # the fast kernels of wider types ask for no whole words
    size = contraction.d.dtype.itemsize
    words = all(mode.strides[D] * size % VECTOR == 0 for mode in modes if mode is not inner)
    return words and contraction.d.alignment >= VECTOR


def _is_wide(contraction: Contraction) -> bool:
    return contraction.arithmetic.product.itemsize > 2 and contraction.arithmetic.precision == "ieee"


def _is_left_to_library(contraction: Contraction) -> bool:
    """Whether all that is fused stands behind the product, which the vendor's library is the fastest at."""
    plain = contraction.a_fn is None and contraction.b_fn is None
    return _is_wide(contraction) and not _moves(contraction) and plain


def _moves(contraction: Contraction) -> bool:
    """Whether nothing is left for the last pass to compute."""
    return contraction.c is None and contraction.epilogue is None and not contraction.aux


def _alone(contraction: Contraction, role: Role) -> list[Mode]:
    """The modes of a role as D alone has them, outermost first."""
    modes = sorted(contraction.of_role(role), key=lambda mode: -mode.strides[D])
    return [mode._replace(strides=Strides(0, 0, 0, mode.strides[D])) for mode in modes]


def _of_d(contraction: Contraction) -> tuple[Mode, ...]:
    return contraction.of_role(Role.BATCH, Role.M, Role.N)


def _orders(contraction: Contraction, role: Role, operand: int) -> list[tuple[Mode, ...]]:
    """The modes of one side as an operand has them and as D has them, innermost first."""
    modes = contraction.of_role(role)
    return list(dict.fromkeys((by_stride(modes, operand), by_stride(modes, D))))


def _steps(contraction: Contraction, row: Sequence[Mode], others: Sequence[Mode]) -> dict[Mode, int]:
    """Strides of a workspace with its row contiguous and padded to whole words; both groups stand innermost first."""
    size = (contraction.d.dtype if _moves(contraction) else contraction.arithmetic.accumulate).itemsize
    words = max(1, VECTOR // size)
    return placed(row, others, -(-index_count(row) // words) * words)


def _way(contraction: Contraction, steps: dict[Mode, int], by_library: bool) -> ResultWay:
    """The product into a workspace of such strides, where nothing is added or applied, and the step from there to D."""
    accumulate = contraction.arithmetic.accumulate
    moves = _moves(contraction)
    workspace = workspace_of(steps, contraction.d.dtype if moves else accumulate)
    into = tuple(mode._replace(strides=Strides(*mode.strides[:2], 0, steps.get(mode, 0))) for mode in contraction.modes)
    product = canonical(
        replace(
            contraction, modes=into, c=None, d=workspace, c_fn=None, epilogue=None, aux=(), c_args=(), epilogue_args=(),
        )
    )  # fmt: skip
    out = [(mode, Strides(step, 0, *mode.strides[2:])) for mode, step in steps.items()]
    if moves:
        return ResultWay(product, moving(out, workspace, contraction.d, contraction.d.dtype, text="D"), by_library)
    modes = tuple(mode._replace(role=Role.M, strides=own) for mode, own in out)
    finish = canonical(
        replace(
            contraction, modes=modes, a=workspace, b=Layout((), (), accumulate),
            arithmetic=Arithmetic(accumulate, accumulate), a_fn=None, b_fn=None, conjugate_a=False, conjugate_b=False,
        )
    )  # fmt: skip
    return ResultWay(product, finish, by_library)


__all__ = ["NAME", "adds_in_order", "build", "predict", "schedules", "supports"]

NAME = "ttgt"
KEPT = 4  # schedules of the product that are proposed for each way to pack, besides the best of each family
LEAST_FLOPS = 2**27  # of a product that is worth another launch


class Packs(NamedTuple):
    """The passes that pack operands, what the product reads then, and how that is printed."""

    steps: tuple[ProgramStep, ...]
    reads: tuple[Slot, Slot]
    text: str


def packs_of(a: Choice | None, b: Choice | None) -> Packs:
    """The passes of A and of B; None for one that is used as it lies."""
    reads, names = [SLOT_A, SLOT_B], []
    steps: list[ProgramStep] = []
    for operand, choice in enumerate((a, b)):
        if choice is not None:
            space = program.work(len(steps))
            steps.append(ProgramStep(choice, (reads[operand],), writes=space, predicted=_seconds(choice)))
            names.append(f"{'AB'[operand]} as {program.literal(choice.description.text)}")
            reads[operand] = space
    once = a is not None and b is not None and pairs(a, b)
    if once:
        steps[0] = replace(steps[0], paired=True, predicted=steps[0].seconds - fitted("permute")("launch"))
    text = f"{', '.join(names) or 'nothing packed'}{' in one launch' if once else ''}"
    return Packs(tuple(steps), (reads[0], reads[1]), text)


def program_of(packs: Packs, product: Choice, finish: Choice | None = None, written: Choice | None = None) -> Program:
    """Pack operands, multiply, and apply an epilogue that the product leaves to D where it lies; or have D `written`
    from the workspace of the product."""
    steps, main, last = [*packs.steps], len(packs.steps), ""
    if written is None:
        steps.append(program.as_called(product, *packs.reads))
    else:
        steps += _by_workspace(packs, product, written)
        last = "; D permuted"
    if finish is not None:
        steps.append(ProgramStep(finish, (SLOT_D,), writes=SLOT_D, predicted=_seconds(finish)))
        last = "; epilogue on D"
    return Program(NAME, tuple(steps), main, f"{NAME} {packs.text}; {{{main}}}{last}")


def _by_workspace(packs: Packs, product: Choice, written: Choice) -> tuple[ProgramStep, ProgramStep]:
    space = program.work(len(packs.steps))
    if isinstance(written.description, Permutation):  # which scales nothing
        multiply = ProgramStep(product, packs.reads, writes=space, factors=None)
        return multiply, ProgramStep(written, (space,), writes=SLOT_D)
    one = program.number_slot(1, product.description.d.dtype)
    return ProgramStep(product, packs.reads, writes=space), program.as_called(written, space, one)


def pairs(a: Choice, b: Choice) -> bool:
    """Whether one launch packs both operands."""
    from weft.gpu.permute.family import PermuteMove, supports_pair
    from weft.gpu.permute.schedule import PermuteSchedule

    if not all(isinstance(step.best.schedule, PermuteSchedule) for step in (a, b)):
        return False
    return supports_pair(*(PermuteMove(step.description, step.best.schedule) for step in (a, b)))  # type: ignore[arg-type]


def _seconds(step: Choice) -> float:
    """Seconds of a pass; its function hides behind memory as far as it takes no longer."""
    permutation = step.description
    if not isinstance(permutation, Permutation) or permutation.fn is None:
        return step.best.seconds
    fit = fitted("common")
    function = permutation.size * (fit("reading_slots") + permutation.fn.issue_slots) / fit("function_rate")
    return math.hypot(step.best.seconds, function)


def adds_in_order(contraction: Contraction, schedule: Program) -> bool:
    """As its product, of operands that are packed with the modes of k in order: `packings` has no others then."""
    return True


def supports(contraction: Contraction, target: Target) -> str | None:
    if contraction.invariant and (contraction.a_fn is not None or contraction.b_fn is not None):
        return "the bits of a function might depend on the kernel that applies it"
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
    return Candidates.of(_proposals(contraction, target))


def _proposals(contraction: Contraction, target: Target) -> Iterator[Program | str]:
    from weft.planner.planner import choose

    yield from _packed(contraction, target)
    for way in dict.fromkeys(ways(contraction)):
        try:
            written = choose(way.finish, "triton", target, without=(NAME, "pre_reduce"))
        except UnsupportedError as error:
            yield str(error)
            continue
        yield from _packed(way.product, target, written, TILED if way.by_library else ())


def _packed(
    contraction: Contraction, target: Target, written: Choice | None = None, without: tuple[str, ...] = ()
) -> Iterator[Program | str]:
    """Programs of every way to pack operands; with what writes D where the product does not."""
    from weft.planner.planner import choose

    by_tma = reads_by_tma(contraction, target)
    last = epilogue_on_d(contraction) if not contraction.invariant else None
    finish = choose(last, "triton", target) if last is not None else None
    for packed in dict.fromkeys(packings(contraction, by_tma)):
        try:
            a, b = (choose(each.permutation, "triton", target) if each is not None else None for each in packed)
        except UnsupportedError as error:
            yield str(error)
            continue
        packs = packs_of(a, b)
        for way in products(contraction, packed, by_tma, finish, alone=written is not None):
            try:
                product = choose(way.product, "triton", target, without=(*way.without, *without))
            except UnsupportedError as error:
                yield str(error)
                continue
            for each in product.led_by_each(_kept(product.ranked)):
                yield program_of(packs, each, way.finish, written)


def _kept(ranked: Sequence[Ranked]) -> tuple[Ranked, ...]:
    """The best few schedules of a product, and the best of each family."""
    best: dict[str, Ranked] = {}
    for each in ranked:
        best.setdefault(each.schedule.family, each)
    return tuple(each for at, each in enumerate(ranked) if at < KEPT or each is best[each.schedule.family])
