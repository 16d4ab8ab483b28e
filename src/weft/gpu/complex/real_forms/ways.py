"""Every way to compute a complex contraction by one product: what is packed, what is left, and who may multiply it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, NamedTuple

from weft.gpu.common.tiling import A, B, D, by_stride
from weft.gpu.complex.interleaved.family import Transfer
from weft.gpu.complex.real_forms.products import (
    TensorView,
    as_stored,
    both_complex,
    complex_product,
    of_product,
    packed,
    planar,
    real_2x2,
    real_product,
    result_matrix,
    result_of_parts,
    three_m,
    values,
)
from weft.spec import Contraction, Layout, Mode, Role

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
    if not both_complex(contraction):
        return
    a, b = (as_stored(contraction, operand) for operand in (A, B))
    pairs = [(a, b)] if a and b and a.factor == b.factor == 2 else []
    if _is_small(contraction):
        pairs += [(planar(contraction, A, order), planar(contraction, B, order)) for order in _orders(contraction)]
    for pair in pairs:
        yield _way(contraction, "planar", pair, result_of_parts(contraction, pair), OTHERS)


def _three_m_ways(contraction: Contraction, order: Sequence[Mode]) -> Iterator[RealFormWay]:
    """Both operands in three real planes, three real products in a batch, and D put together from them."""
    empty = 0 in (mode.extent for mode in contraction.modes)
    if not both_complex(contraction) or not contraction.arithmetic.three or empty:
        return
    for a_along in (True, False):
        for b_along in (True, False):
            pair = three_m(contraction, A, order, a_along), three_m(contraction, B, order, b_along)
            yield _way(contraction, "three_m", pair, result_matrix(contraction, pair), (*OTHERS, "simt"))


def _pair_ways(contraction: Contraction, x: int, order: Sequence[Mode], finished: bool) -> Iterator[RealFormWay]:
    """(re, im) as a mode. X as 2x2 matrices, in one of two layouts, and Y as it lies or packed along k; or neither
    where one of them is real."""
    both = both_complex(contraction)
    if both:
        form: Form = "real_2x2"
    else:
        form = "mixed_domain" if any(values(contraction, operand).is_complex for operand in (A, B)) else "real"
    without = tuple(name for name in OTHERS if both or name != "ttgt")
    if finished and not _must_finish(contraction):
        without += ("gett", "simt")  # those write D itself as well as a workspace
    for y_view in _views(contraction, 1 - x, order, along_only=True):
        if both:
            mine = [real_2x2(contraction, x, order, along_k, y_view.conjugate) for along_k in (True, False)]
        else:
            mine = _views(contraction, x, order, along_only=True)
        for view in mine:
            if not both and (view.conjugate or y_view.conjugate):
                continue  # nothing of a real product conjugates
            pair = (view, y_view) if x == A else (y_view, view)
            yield _way(contraction, form, pair, result_matrix(contraction, pair) if finished else None, without)


def _interleaved_ways(contraction: Contraction, order: Sequence[Mode], finished: bool) -> Iterator[RealFormWay]:
    """Complex matrices, which the vendor's library multiplies, packed where they do not lie so."""
    for a in _views(contraction, A, order):
        for b in _views(contraction, B, order):
            if not finished and a.transfer is None and b.transfer is None:
                continue  # that is a plan of the library's own
            result = result_matrix(contraction, (a, b)) if finished else None
            yield _way(contraction, "interleaved", (a, b), result, (*OTHERS, "gett", "simt"))


def _way(
    contraction: Contraction, form: Form, pair: tuple[TensorView, TensorView], result: TensorView | None,
    without: tuple[str, ...],
) -> RealFormWay:  # fmt: skip
    product = (complex_product if form == "interleaved" else real_product)(contraction, pair, result)
    transfers = (pair[A].transfer, pair[B].transfer, result.transfer if result is not None else None)
    return RealFormWay(form, transfers, product, without, of_product(contraction, (pair[A].fn, pair[B].fn)).places)


def _views(contraction: Contraction, operand: int, order: Sequence[Mode], along_only: bool = False) -> list[TensorView]:
    """An operand as it lies, unless a function is to be applied, and packed."""
    found = [as_stored(contraction, operand), packed(contraction, operand, order, along_k=True)]
    if not along_only and _whole(contraction):
        found.append(packed(contraction, operand, order, along_k=False))
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
    return not any(values(contraction, operand).is_complex for operand in (A, B))
