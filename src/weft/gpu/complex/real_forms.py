"""The family for complex numbers: a complex product is a real one with twice the modes of extent 2.

A complex tensor is a real one with one more mode, innermost, of extent 2: its real and imaginary part. One operand, X,
is expanded into a workspace where each of its elements is the matrix that multiplies a pair by it,

    | x_re   x_im |
    |-x_im   x_re |     rows: met by the other operand's re and im; columns: what they add to D's re and im

and then D, seen as real, is a plain real contraction of the other operand Y, seen as real, with that workspace. Neither
Y nor D is split into parts, and every real family applies, at the real rate: boxes, the library, split sums.
Conjugation changes signs in the expansion, a complex alpha is multiplied into it.

This is the four-product form: each part of D is a sum of products of parts, and as exact as sums of their size are.
Where the arithmetic lets three products do,

    p = A_re B_re,   q = A_im B_im,   s = (A_re + A_im) (B_re + B_im),   D = (p - q) + i (s - p - q)

Both operands are written as three real matrices each, one batched product multiplies them, and D is put together from
the three results. That is three quarters of the arithmetic, and its error keeps the same bound by moduli as before
(N. J. Higham, Accuracy and Stability of Numerical Algorithms, 2nd edition, section 23.2.4); but an imaginary part that
is small beside its real part has the rounding errors of the larger one. So it is never the default.

Where D is small beside the operands, they stay as they lie, or are written as real rows of their parts: all four
products of these are kept, and added when D is written from there.

A real operand with a complex one needs no workspace at all: the pair is one more mode of m or of n. Two real ones that
meet complex values in a function, or whose product is written as complex numbers, are multiplied as such. Where the
vendor's library can take complex matrices, it multiplies those, staged where they do not lie so. Functions of complex
values are applied where an operand is staged or expanded, with what they take beside the value. An epilogue, and D
where no product can be written into it as it lies, take one more pass: the product goes to a workspace, and a last step
writes D from there.

The family has no kernels of its own beside `pairs`: each product is planned by the other families.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple

from weft.gpu.common.tiling import by_stride
from weft.gpu.complex.aux_operands import of_product
from weft.gpu.complex.launch import ComplexLaunch
from weft.gpu.complex.schedule import NAME as NAME
from weft.gpu.complex.schedule import OTHERS, ComplexSchedule, Step
from weft.gpu.complex.views import (
    A,
    B,
    D,
    Seen,
    as_it_lies,
    expanded,
    in_halves,
    in_thirds,
    product_of,
    real_product,
    result_matrix,
    staged,
    values,
)
from weft.planner.schedule import Candidates, Launch, Target
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from weft.gpu.complex.pairs import Task

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


def _complex_enters(contraction: Contraction) -> bool:
    """Whether a complex value is multiplied, written, or part of a function."""
    dtypes = (contraction.arithmetic.product, contraction.d.dtype, *(each.dtype for each in contraction.aux))
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    found = (function is not None and function.is_complex for function in functions)
    return any(dtype.is_complex for dtype in dtypes) or any(found)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    from weft.errors import UnsupportedError
    from weft.planner.planner import choose

    found: list[ComplexSchedule] = []
    excluded: dict[str, None] = {}
    known: dict[Task, Step] = {}
    for way in ways(contraction):
        try:
            product = choose(way.product, "triton", target, without=way.without)
            steps = [known.get(task) or _step(task, target) if task is not None else None for task in way.tasks]
        except UnsupportedError as error:
            excluded[str(error)] = None
            continue
        known |= {step.task: step for step in steps if step is not None}
        for at, ranked in enumerate(product.ranked[:KEPT]):
            rest = (ranked, *product.ranked[at + 1 : KEPT])
            chosen = replace(product, best=ranked, ranked=rest)
            found.append(ComplexSchedule((steps[0], steps[1], steps[2]), chosen, way.real, way.aux_args))
    return Candidates(tuple(found), tuple(excluded))


def predict(contraction: Contraction, schedule: ComplexSchedule, target: Target) -> float:
    """Seconds of all steps."""
    return schedule.product.best.seconds + sum(step.seconds for step in schedule.steps if step is not None)


def build(contraction: Contraction, schedule: ComplexSchedule, target: Target) -> Launch:
    return ComplexLaunch(schedule, target)


class Way(NamedTuple):
    """What is done to the operands and to D, and the product that is left."""

    tasks: tuple[Task | None, Task | None, Task | None]  # for A, B and D
    product: Contraction
    real: bool
    without: tuple[str, ...]  # families that the product is not planned with
    aux_args: tuple[int, ...]  # positions of the auxiliary operands that the product takes


def ways(contraction: Contraction) -> Iterator[Way]:
    """Every way to compute a contraction, each once."""
    made: dict[Way, None] = {}
    made.update(dict.fromkeys(_folded_ways(contraction)))
    for order in _orders(contraction):
        made.update(dict.fromkeys(_three_ways(contraction, order)))
    for finished in _finishes(contraction):
        for order in _orders(contraction):
            for x in (A, B):
                for way in _real_ways(contraction, x, order, finished):
                    made[way] = None
            if _whole(contraction) and contraction.arithmetic.product.is_complex:
                made.update(dict.fromkeys(_library_ways(contraction, order, finished)))
    yield from made


def _real_ways(contraction: Contraction, x: int, order: Sequence[Mode], finished: bool) -> Iterator[Way]:
    """X expanded, in one of two layouts, and Y as it lies or staged along k; or neither where one of them is real."""
    both = all(values(contraction, operand).is_complex for operand in (A, B))
    for other in _views(contraction, 1 - x, order, along_only=True):
        if both:
            mine = [expanded(contraction, x, order, along_k, other.conjugate) for along_k in (True, False)]
        else:
            mine = _views(contraction, x, order, along_only=True)
        for view in mine:
            if not both and (view.conjugate or other.conjugate):
                continue  # nothing of a real product conjugates
            pair = (view, other) if x == A else (other, view)
            result = result_matrix(contraction, pair) if finished else None
            without = [name for name in OTHERS if both or name != "ttgt"]
            if finished and not _must_finish(contraction):
                without += ["gett", "simt"]  # those write D itself as well as a workspace
            yield _way(contraction, pair, real_product(contraction, pair, result), result, True, tuple(without))


def _folded_ways(contraction: Contraction) -> Iterator[Way]:
    """All products of the parts of A with the parts of B, added to D's parts by its last step.

    Operands are used as they lie; and where D is small beside them, with their parts as rows along k of their own.
    """
    if not all(values(contraction, operand).is_complex for operand in (A, B)):
        return
    lies = [as_it_lies(contraction, operand) for operand in (A, B)]
    pairs = [(a, b) for a in lies[:1] for b in lies[1:] if a and b and a.factor == b.factor == 2]
    if _is_small(contraction):
        for order in _orders(contraction):
            pairs.append((in_halves(contraction, A, order), in_halves(contraction, B, order)))
    for pair in pairs:
        result = result_matrix(contraction, pair, folded=True)
        yield _way(contraction, pair, real_product(contraction, pair, result), result, True, OTHERS)


def _is_small(contraction: Contraction) -> bool:
    """Whether D is small beside the operands: four products of its elements weigh little."""
    sizes = [math.prod(mode.extent for mode in contraction.modes if mode.strides[tensor]) for tensor in (A, B, D)]
    return 0 < 16 * sizes[2] <= sizes[A] + sizes[B]


def _three_ways(contraction: Contraction, order: Sequence[Mode]) -> Iterator[Way]:
    """Both operands in three real parts, three real products in a batch, and D put together from them."""
    both = all(values(contraction, operand).is_complex for operand in (A, B))
    if not both or not contraction.arithmetic.three or 0 in (mode.extent for mode in contraction.modes):
        return
    for a_along in (True, False):
        for b_along in (True, False):
            pair = in_thirds(contraction, A, order, a_along), in_thirds(contraction, B, order, b_along)
            result = result_matrix(contraction, pair)
            yield _way(
                contraction, pair, real_product(contraction, pair, result), result, True, (*OTHERS, "tma", "simt")
            )


def _library_ways(contraction: Contraction, order: Sequence[Mode], finished: bool) -> Iterator[Way]:
    for a in _views(contraction, A, order):
        for b in _views(contraction, B, order):
            if not finished and a.task is None and b.task is None and contraction.arithmetic.precision == "ieee":
                continue  # that is a plan of the library's own
            result = result_matrix(contraction, (a, b)) if finished else None
            without = (*OTHERS, "tma", "gett", "simt")
            yield _way(contraction, (a, b), product_of(contraction, (a, b), result), result, False, without)


def _way(
    contraction: Contraction, pair: tuple[Seen, Seen], product: Contraction, result: Seen | None, real: bool,
    without: tuple[str, ...],
) -> Way:  # fmt: skip
    tasks = (pair[A].task, pair[B].task, result.task if result is not None else None)
    return Way(tasks, product, real, without, of_product(contraction, (pair[A].fn, pair[B].fn)).places)


def _views(contraction: Contraction, operand: int, order: Sequence[Mode], along_only: bool = False) -> list[Seen]:
    """An operand as it lies, unless a function is to be applied, and staged."""
    found = [as_it_lies(contraction, operand), staged(contraction, operand, order, along_k=True)]
    if not along_only and _whole(contraction):
        found.append(staged(contraction, operand, order, along_k=False))
    return [view for view in found if view is not None]


def _whole(contraction: Contraction) -> bool:
    """Whether products are made of all digits."""
    return contraction.arithmetic.precision == "ieee"


def _orders(contraction: Contraction) -> list[tuple[Mode, ...]]:
    """Orders of the modes of k that staged operands may have: A's and B's own."""
    sums = contraction.of_role(Role.K)
    return list(dict.fromkeys(by_stride(sums, operand) for operand in (A, B)))


def _finishes(contraction: Contraction) -> list[bool]:
    """Whether D is written by a step of its own."""
    return [True] if _must_finish(contraction) else [False, True]


def _must_finish(contraction: Contraction) -> bool:
    """Whether something is left to be done that no product does."""
    c, d, total = contraction.c, contraction.d, contraction.arithmetic.accumulate
    if contraction.epilogue is not None or contraction.c_fn is not None or not d.dtype.is_complex:
        return True
    if d.dtype.itemsize < total.itemsize or (c is not None and not c.dtype.is_complex):
        return True
    return not any(values(contraction, operand).is_complex for operand in (A, B))


def _step(task: Task, target: Target) -> Step:
    from weft.errors import UnsupportedError
    from weft.gpu.complex import pairs

    reason = pairs.reason_against(task, target)
    if reason is not None:
        raise UnsupportedError(reason)
    return Step(task, *pairs.best(task, target))
