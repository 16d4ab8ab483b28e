"""Complex products by real ones: schedules for a description, and the launch.

Every way is one product: what is packed, what is left, and who may multiply it.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.gpu.common.tiling import A, B, D, by_stride
from weft.gpu.complex import products
from weft.gpu.complex.interleaved import InterleavedLaunch, Transfer
from weft.gpu.complex.products import TensorView
from weft.planner import program
from weft.planner.program import (
    SLOT_A,
    SLOT_B,
    SLOT_C,
    SLOT_D,
    Program,
    ProgramLaunch,
    ProgramStep,
    SlotKind,
    predict,
)
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from weft.planner.planner import Choice


NAME = "complex"

# Families that pack, sum or take parts apart on their own.
OTHERS = ("complex", "complex_direct", "pre_reduce", "ttgt")

#: What is multiplied. interleaved: complex matrices, by the vendor's library. All others are products of real numbers.
#: real_2x2: one operand as 2x2 real matrices. planar: parts with parts, four products. three_m: three products.
#: mixed_domain: one operand is real, the other's (re, im) is one more mode of m or n. real: both are.
Form = Literal["interleaved", "real_2x2", "planar", "three_m", "mixed_domain", "real"]


def _span(layout: Layout) -> int:
    """Bytes from a tensor's first element to the end of its last."""
    if not all(layout.shape):
        return 0
    steps = zip(layout.shape, layout.strides, strict=True)
    return (1 + sum((extent - 1) * stride for extent, stride in steps)) * layout.dtype.itemsize


_WORDS = {"along_k": "along", "across_k": "across"}  # of an operand as 2x2 matrices: their rows run along k, or across


MUCH_LARGER = 16  # times the elements of D that operands have whose parts are multiplied in four products


class RealFormWay(NamedTuple):
    """Steps on the operands and on D, and the product that is left."""

    form: Form
    transfers: tuple[Transfer | None, Transfer | None, Transfer | None]  # for A, B and D
    product: Contraction
    without: tuple[str, ...]  # families that the product is not planned with
    aux_args: tuple[int, ...]  # positions of the auxiliary operands that the product takes


def ways(contraction: Contraction) -> Iterator[RealFormWay]:
    """Every way to compute a contraction, each once."""
    found: dict[RealFormWay, None] = dict.fromkeys(_planar_ways(contraction))
    for order in _orders(contraction):
        found.update(dict.fromkeys(_three_m_ways(contraction, order)))
    for finished in [True] if _must_finish(contraction) else [False, True]:  # whether a step of its own writes D
        for order in _orders(contraction):
            for x in (A, B):
                found.update(dict.fromkeys(_pair_ways(contraction, x, order, finished)))
            if _whole(contraction) and contraction.arithmetic.product.is_complex:
                found.update(dict.fromkeys(_interleaved_ways(contraction, order, finished)))
    yield from found


def _planar_ways(contraction: Contraction) -> Iterator[RealFormWay]:
    """All products of the parts of A with the parts of B, added to D's parts by the step that writes it.

    Operands are used as they lie; and where D is much smaller, with their parts as rows along k of their own.
    """
    if not products.both_complex(contraction):
        return
    a, b = (products.as_stored(contraction, operand) for operand in (A, B))
    pairs = [(a, b)] if a and b and a.factor == b.factor == 2 else []
    if _is_small(contraction):
        for order in _orders(contraction):
            of_a, of_b = (products.in_form(contraction, operand, order, "planar") for operand in (A, B))
            pairs.append((of_a, of_b))
    for pair in pairs:
        yield _way(contraction, "planar", pair, products.result_of_parts(contraction, pair), OTHERS)


def _three_m_ways(contraction: Contraction, order: Sequence[Mode]) -> Iterator[RealFormWay]:
    """Both operands in three real planes, three real products in a batch, and D put together from them."""
    empty = 0 in (mode.extent for mode in contraction.modes)
    if not products.both_complex(contraction) or not contraction.arithmetic.three or empty:
        return
    planes = [
        [products.in_form(contraction, operand, order, "three_m", along_k=along_k) for along_k in (True, False)]
        for operand in (A, B)
    ]
    for a, b in itertools.product(*planes):
        yield _way(contraction, "three_m", (a, b), products.result_matrix(contraction, (a, b)), (*OTHERS, "simt"))


def _pair_ways(contraction: Contraction, x: int, order: Sequence[Mode], finished: bool) -> Iterator[RealFormWay]:
    """(re, im) as a mode. X as 2x2 matrices, in one of two layouts, and Y as it lies or packed along k; or neither
    where one of them is real."""
    both = products.both_complex(contraction)
    if both:
        form: Form = "real_2x2"
    else:
        form = "mixed_domain" if any(products.values(contraction, operand).is_complex for operand in (A, B)) else "real"
    without = tuple(name for name in OTHERS if both or name != "ttgt")
    if finished and not _must_finish(contraction):
        without += ("gett", "simt")  # those write D itself as well as a workspace
    for y_view in _views(contraction, 1 - x, order, along_only=True):
        if both:
            mine = [products.in_form(contraction, x, order, form, y_view.conjugate) for form in ("along_k", "across_k")]
        else:
            mine = _views(contraction, x, order, along_only=True)
        for view in mine:
            if not both and (view.conjugate or y_view.conjugate):
                continue  # nothing of a real product conjugates
            pair = (view, y_view) if x == A else (y_view, view)
            result = products.result_matrix(contraction, pair) if finished else None
            yield _way(contraction, form, pair, result, without)


def _interleaved_ways(contraction: Contraction, order: Sequence[Mode], finished: bool) -> Iterator[RealFormWay]:
    """Complex matrices, which the vendor's library multiplies, packed where they do not lie so."""
    for a in _views(contraction, A, order):
        for b in _views(contraction, B, order):
            if not finished and a.transfer is None and b.transfer is None:
                continue  # that is a plan of the library's own
            result = products.result_matrix(contraction, (a, b)) if finished else None
            yield _way(contraction, "interleaved", (a, b), result, (*OTHERS, "gett", "simt"))


def _way(
    contraction: Contraction, form: Form, pair: tuple[TensorView, TensorView], result: TensorView | None,
    without: tuple[str, ...],
) -> RealFormWay:  # fmt: skip
    left, taken = products.product(contraction, pair, result, form != "interleaved")
    transfers = (pair[A].transfer, pair[B].transfer, result.transfer if result is not None else None)
    return RealFormWay(form, transfers, left, without, taken)


def _views(contraction: Contraction, operand: int, order: Sequence[Mode], along_only: bool = False) -> list[TensorView]:
    """An operand as it lies, unless a function is to be applied, and packed."""
    found = [products.as_stored(contraction, operand), products.packed(contraction, operand, order, along_k=True)]
    if not along_only and _whole(contraction):
        found.append(products.packed(contraction, operand, order, along_k=False))
    return [view for view in found if view is not None]


def _is_small(contraction: Contraction) -> bool:
    """Whether D is much smaller than the operands: four products of its elements weigh little."""
    sizes = [math.prod(mode.extent for mode in contraction.modes if mode.strides[tensor]) for tensor in (A, B, D)]
    return 0 < MUCH_LARGER * sizes[2] <= sizes[A] + sizes[B]


def _whole(contraction: Contraction) -> bool:
    """Whether products are made of all digits."""
    return contraction.arithmetic.precision == "ieee"


def _orders(contraction: Contraction) -> list[tuple[Mode, ...]]:
    """Orders of the modes of k that packed operands may have: A's and B's own."""
    k = contraction.of_role(Role.K)
    return list(dict.fromkeys(by_stride(k, operand) for operand in (A, B)))


def _must_finish(contraction: Contraction) -> bool:
    """Whether something is left to be done that no product does."""
    c, d, total = contraction.c, contraction.d, contraction.arithmetic.accumulate
    if contraction.epilogue is not None or contraction.c_fn is not None or not d.dtype.is_complex:
        return True
    if d.dtype.itemsize < total.itemsize or (c is not None and not c.dtype.is_complex):
        return True
    return not any(products.values(contraction, operand).is_complex for operand in (A, B))


class RealFormLaunch(ProgramLaunch):
    """A built program, whose product may be one of real numbers."""

    def __init__(self, schedule: Program, target: Target) -> None:
        #: Whether a complex alpha is multiplied into a packed operand's parts.
        self._packs_alpha = any(step.factors is None for step in schedule.steps[: schedule.main])
        super().__init__(schedule, target)

    def _call(self, launch: Any, step: ProgramStep) -> program.StepCall:
        description = step.choice.description
        if isinstance(description, Contraction) and not description.arithmetic.product.is_complex:
            launch = RealProduct(launch, self._packs_alpha)
        elif step.writes.kind is SlotKind.WORK and step.factors is None:
            launch = partial(_pack, launch)
        return super()._call(launch, step)


def _pack(
    launch: InterleavedLaunch, x: Tensor, c: None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
) -> None:
    """Pack an operand, its parts multiplied by a complex alpha; a real one is the product's."""
    launch(x, c, d, alpha if alpha.imag else 1, 0, aux)


class RealProduct:
    """A product of real numbers of tensors and factors that may be complex: what it cannot multiply in is multiplied
    before or after."""

    def __init__(self, launch: Any, packs_alpha: bool) -> None:
        self._launch, self._packs_alpha = launch, packs_alpha

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        alpha, beta = complex(alpha), complex(beta)
        after = alpha if alpha.imag and not self._packs_alpha else 1
        within = 1.0 if alpha.imag else alpha.real
        in_place = c is not None and c.data_ptr() == d.data_ptr()
        addend = None
        if c is not None and after != 1:  # nothing but zeros may be added before alpha is multiplied in
            addend, c = (c.clone(), d.zero_()) if in_place else (c, _zeros_like(c))
        elif in_place and beta.imag:
            d.mul_(beta)
            beta = 1 + 0j
        real = [_as_real(each) if each is not None else None for each in (a, b, c, d)]
        self._launch(*real, within, beta.real, aux)
        if after != 1:
            d.mul_(after)
        if addend is not None:
            d.add_(addend, alpha=beta)
        elif c is not None and beta.imag:
            _add_imaginary(d, c, beta.imag)


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


__all__ = ["NAME", "Program", "build", "predict", "schedules", "supports"]

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
    return Candidates.of(_proposals(contraction, target))


def _proposals(contraction: Contraction, target: Target) -> Iterator[Program | str]:
    from weft.planner.planner import choose

    for way in ways(contraction):
        try:
            product = choose(way.product, "triton", target, without=way.without)
            moves = [
                choose(each, "triton", target, without=("permute",)) if each is not None else None
                for each in way.transfers
            ]
        except UnsupportedError as error:
            yield str(error)
            continue
        for each in product.led_by_each(product.ranked[:KEPT]):
            yield _program(contraction, way, moves, each)


def _program(contraction: Contraction, way: RealFormWay, moves: Sequence[Choice | None], product: Choice) -> Program:
    """Pack operands, multiply, write D."""
    left, steps, names, reads = way.product, list[ProgramStep](), [], [SLOT_A, SLOT_B]
    takes_alpha = way.transfers[2] is None and left.arithmetic.product == left.arithmetic.accumulate
    *packs, (into_d, finish) = zip(way.transfers, moves, strict=True)
    for operand, (transfer, choice) in enumerate(packs):
        if transfer is not None and choice is not None:
            space, aux = program.work(len(steps)), program.aux_slots(transfer.aux_args.places)
            factors = None if takes_alpha and transfer.form != "plain" else (1, 0)
            steps.append(ProgramStep(choice, (reads[operand],), space, aux=aux, factors=factors))
            names.append(f"{'AB'[operand]} {_WORDS.get(transfer.form, 'as')} {program.literal(transfer.text)}")
            reads[operand] = space
    at, last, spare, taken = len(steps), "", 0, program.aux_slots(way.aux_args)
    head = " ".join((f"{NAME}.{way.form}", ", ".join(names))).rstrip()
    if into_d is not None and finish is not None:
        space, aux = program.work(at), program.aux_slots(into_d.aux_args.places)
        steps.append(ProgramStep(product, (reads[A], reads[B]), space, aux=taken))
        steps.append(ProgramStep(finish, (space,), SLOT_D, SLOT_C, aux, None))
        last = "; combine D" if way.form in ("planar", "three_m") else "; scatter D"
    else:
        if way.form != "interleaved" and left.c is not None and all(step.factors for step in steps):
            spare = max(_span(left.c), _span(left.d))  # for a complex alpha: C where it is D, or zeros in its place
        steps.append(ProgramStep(product, (reads[A], reads[B]), SLOT_D, SLOT_C, taken, None))
    return Program(NAME, tuple(steps), at, f"{head}; {{{at}}}{last}", spare=spare)


def build(contraction: Contraction, schedule: Program, target: Target) -> Launch:
    return RealFormLaunch(schedule, target)


def _complex_enters(contraction: Contraction) -> bool:
    """Whether a complex value is multiplied, written, or part of a function."""
    dtypes = (contraction.arithmetic.product, contraction.d.dtype, *(each.dtype for each in contraction.aux))
    functions = (contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)
    found = (function is not None and function.is_complex for function in functions)
    return any(dtype.is_complex for dtype in dtypes) or any(found)
