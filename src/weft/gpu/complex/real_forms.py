"""Complex products by real ones: schedules for a description, and the launch.

Every way is one product: what is packed, what is left, and who may multiply it.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

import torch
from torch import Tensor

from weft.errors import UnsupportedError
from weft.gpu.common.tiling import A, B, D, by_stride
from weft.gpu.complex import interleaved, products
from weft.gpu.complex.interleaved import InterleavedLaunch, Transfer
from weft.gpu.complex.products import TensorView
from weft.planner.schedule import AuxTensors, Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Layout, Mode, Role
from weft.spec.dtypes import dtype_name

if TYPE_CHECKING:
    from weft.gpu.permute.schedule import PermuteSchedule
    from weft.planner.planner import Choice


NAME = "complex"
FINISH = 2  # place of the step that writes D

# Families that pack, sum or take parts apart on their own.
OTHERS = ("complex", "complex_direct", "pre_reduce", "ttgt")

#: What is multiplied. interleaved: complex matrices, by the vendor's library. All others are products of real numbers.
#: real_2x2: one operand as 2x2 real matrices. planar: parts with parts, four products. three_m: three products.
#: mixed_domain: one operand is real, the other's (re, im) is one more mode of m or n. real: both are.
Form = Literal["interleaved", "real_2x2", "planar", "three_m", "mixed_domain", "real"]


class RealFormStep(NamedTuple):
    """One pass over a tensor, and how it is to run."""

    transfer: Transfer
    schedule: PermuteSchedule
    seconds: float


@dataclass(frozen=True, slots=True)
class RealFormSchedule:
    """A step for each operand that is packed, one for D where a pass of its own writes it, and the product's plan."""

    form: Form
    steps: tuple[RealFormStep | None, RealFormStep | None, RealFormStep | None]  # for A, B and D
    product: Choice
    aux_args: tuple[int, ...] = ()  # positions of the auxiliary operands that the product takes
    family: str = NAME

    @property
    def of_reals(self) -> bool:
        """Whether the product is one of real numbers."""
        return self.form != "interleaved"

    @property
    def choices(self) -> tuple[Choice, ...]:
        return (self.product,)

    @property
    def workspace_bytes(self) -> int:
        own = sum(step.transfer.workspace_bytes for step in self.steps[:FINISH] if step is not None)
        finish = self.steps[FINISH]
        if finish is not None:
            layout = finish.transfer.permutation.x
            own += layout.shape[0] * layout.dtype.itemsize
        left = self.product.description
        if self.of_reals and isinstance(left, Contraction) and left.c is not None and not self.packs_alpha:
            own += max(_span(left.c), _span(left.d))  # for a complex alpha: C where it is D, or zeros in its place
        return own + self.product.best.schedule.workspace_bytes

    @property
    def packs_alpha(self) -> bool:
        """Whether a complex alpha is multiplied into a packed operand's parts."""
        left = self.product.description
        exact = isinstance(left, Contraction) and left.arithmetic.product == left.arithmetic.accumulate
        return exact and any(step.transfer.form != "plain" for step in self.steps if step is not None)

    def __str__(self) -> str:
        packed = [
            f"{name} {_WORDS.get(step.transfer.form, 'as')} {step.transfer.permutation.text}"
            for name, step in zip("AB", self.steps, strict=False)
            if step is not None
        ]
        head = " ".join((f"{NAME}.{self.form}", ", ".join(packed))).rstrip()
        finish = self.steps[FINISH]
        last = "" if finish is None else "; combine D" if self.form in ("planar", "three_m") else "; scatter D"
        return f"{head}; {self.product.best.schedule}{last}"


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
            pairs.append((products.planar(contraction, A, order), products.planar(contraction, B, order)))
    for pair in pairs:
        yield _way(contraction, "planar", pair, products.result_of_parts(contraction, pair), OTHERS)


def _three_m_ways(contraction: Contraction, order: Sequence[Mode]) -> Iterator[RealFormWay]:
    """Both operands in three real planes, three real products in a batch, and D put together from them."""
    empty = 0 in (mode.extent for mode in contraction.modes)
    if not products.both_complex(contraction) or not contraction.arithmetic.three or empty:
        return
    for a_along in (True, False):
        for b_along in (True, False):
            pair = products.three_m(contraction, A, order, a_along), products.three_m(contraction, B, order, b_along)
            yield _way(contraction, "three_m", pair, products.result_matrix(contraction, pair), (*OTHERS, "simt"))


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
            mine = [products.real_2x2(contraction, x, order, along_k, y_view.conjugate) for along_k in (True, False)]
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
    product = (products.complex_product if form == "interleaved" else products.real_product)(contraction, pair, result)
    transfers = (pair[A].transfer, pair[B].transfer, result.transfer if result is not None else None)
    taken = products.of_product(contraction, (pair[A].fn, pair[B].fn)).places
    return RealFormWay(form, transfers, product, without, taken)


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
