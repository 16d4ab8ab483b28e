"""Every way to compute a complex contraction by one product: what is packed, what is left, and who may multiply it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from weft.gpu.common.tiling import A, B, D, by_stride
from weft.gpu.complex.interleaved.model import Transfer
from weft.gpu.complex.real_forms.aux_operands import of_product
from weft.gpu.complex.real_forms.products import (
    TensorView,
    as_stored,
    both_complex,
    complex_product,
    packed,
    planar,
    real_2x2,
    real_product,
    result_matrix,
    result_of_parts,
    three_m,
    values,
)
from weft.gpu.complex.real_forms.schedule import OTHERS, Form
from weft.spec import Contraction, Mode, Role

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
        yield _real_way(contraction, "planar", pair, result_of_parts(contraction, pair), OTHERS)


def _three_m_ways(contraction: Contraction, order: Sequence[Mode]) -> Iterator[RealFormWay]:
    """Both operands in three real planes, three real products in a batch, and D put together from them."""
    empty = 0 in (mode.extent for mode in contraction.modes)
    if not both_complex(contraction) or not contraction.arithmetic.three or empty:
        return
    for a_along in (True, False):
        for b_along in (True, False):
            pair = three_m(contraction, A, order, a_along), three_m(contraction, B, order, b_along)
            yield _real_way(contraction, "three_m", pair, result_matrix(contraction, pair), (*OTHERS, "simt"))


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
            yield _real_way(contraction, form, pair, result_matrix(contraction, pair) if finished else None, without)


def _interleaved_ways(contraction: Contraction, order: Sequence[Mode], finished: bool) -> Iterator[RealFormWay]:
    """Complex matrices, which the vendor's library multiplies, packed where they do not lie so."""
    for a in _views(contraction, A, order):
        for b in _views(contraction, B, order):
            if not finished and a.transfer is None and b.transfer is None:
                continue  # that is a plan of the library's own
            result = result_matrix(contraction, (a, b)) if finished else None
            product = complex_product(contraction, (a, b), result)
            yield _way(contraction, "interleaved", (a, b), product, result, (*OTHERS, "gett", "simt"))


def _real_way(
    contraction: Contraction, form: Form, pair: tuple[TensorView, TensorView], result: TensorView | None,
    without: tuple[str, ...],
) -> RealFormWay:  # fmt: skip
    return _way(contraction, form, pair, real_product(contraction, pair, result), result, without)


def _way(
    contraction: Contraction, form: Form, pair: tuple[TensorView, TensorView], product: Contraction,
    result: TensorView | None, without: tuple[str, ...],
) -> RealFormWay:  # fmt: skip
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
