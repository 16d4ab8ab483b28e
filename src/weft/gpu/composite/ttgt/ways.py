"""What TTGT may pack, and how; and the product that is left, with the families that may be best at it."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from weft.gpu.common.constraints import LEAST_DOT
from weft.gpu.common.tiling import A, B, D, by_stride
from weft.gpu.composite.ttgt.packing import Packing, applied, for_tma, matrix, padded
from weft.planner.schedule import Target
from weft.spec import Contraction, Mode, Role, Strides, canonical
from weft.spec.canonical import merged
from weft.spec.dtypes import MATRIX_SUMS
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.planner.planner import Choice

MUCH_LARGER = 8  # times the elements that are packed: the product that any family may make of them
_OTHERS = ("ttgt", "scatter", "pre_reduce", "simt")  # families that need no packed operands
_TILED = ("tma", "warp_specialized", "gett")  # families that the library's product is planned without

Packings: TypeAlias = tuple[Packing | None, Packing | None]  # of A and B; None for one that is used as it lies


class Way(NamedTuple):
    """How what is left of a contraction may be planned."""

    product: Contraction
    without: tuple[str, ...]  # families that are not asked
    finish: Choice | None = None


def packings(contraction: Contraction, by_tma: bool) -> Iterator[Packings]:
    """What may be packed, and how."""
    k = contraction.of_role(Role.K)
    orders = [by_stride(k, operand) for operand in (A, B)]
    own = [applied(contraction, operand) for operand in (A, B)]
    for order in orders:
        rows = [matrix(contraction, operand, order, along_k=True) for operand in (A, B)]
        across = [matrix(contraction, operand, order, along_k=False) for operand in (A, B)]
        rows = [for_tma(*each) for each in zip(rows, across, own, strict=True)]
        for a in (rows[A], across[A], own[A]):
            for b in (rows[B], across[B], own[B]):
                if a is not None and b is not None:
                    yield a, b
    for operand, order in ((A, orders[B]), (B, orders[A])):
        other = matrix(contraction, operand, order, along_k=False)
        in_rows = for_tma(matrix(contraction, operand, order, along_k=True), other, own[operand])
        in_lines = padded(contraction, operand) if by_tma and _is_small(contraction, operand) else None
        for packing in (in_rows, other, own[operand], in_lines):
            if packing is not None:
                yield (packing, None) if operand == A else (None, packing)
    yield None, None  # for the library, where an epilogue is all that is fused


def products(contraction: Contraction, packed: Packings, by_tma: bool, finish: Choice | None) -> Iterator[Way]:
    """What is left with those operands packed, by the families that may be best at it."""
    rest = product_of(contraction, packed)
    if any(packed):
        gathered = not by_tma or _worth_gathering(contraction, packed)
        yield Way(rest, _OTHERS if gathered else (*_OTHERS, "gett"))
    if finish is not None and rest.a_fn is None and rest.b_fn is None:
        yield Way(replace(rest, epilogue=None), (*_OTHERS, *_TILED), finish)


def product_of(contraction: Contraction, packed: Packings) -> Contraction:
    """What is left to be done with the workspaces in the operands' places."""
    modes = list(contraction.modes)
    changed: dict[str, object] = {}
    for operand, packing in enumerate(packed):
        if packing is not None:
            name = "ab"[operand]
            changed |= {name: packing.permutation.d, f"{name}_fn": None}
            modes = [
                mode._replace(strides=Strides(*mode.strides[:operand], stride, *mode.strides[operand + 1 :]))
                for mode, stride in zip(modes, packing.strides, strict=True)
            ]
    return canonical(replace(contraction, modes=tuple(modes), **changed))  # type: ignore[arg-type]


def epilogue_on_d(contraction: Contraction) -> Permutation | None:
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


def reads_by_tma(contraction: Contraction, target: Target) -> bool:
    """Whether TMA can load packed operands, which is faster than gathering them."""
    arithmetic = contraction.arithmetic
    short = arithmetic.precision == "tf32" and arithmetic.accumulate is torch.float32
    stored = MATRIX_SUMS.get(arithmetic.product) is arithmetic.accumulate
    if min(contraction.m, contraction.n, contraction.k) < LEAST_DOT:
        return False
    return target.kind in ("cuda", "interpreter") and target.capability >= 90 and (short or stored)


def _worth_gathering(contraction: Contraction, packed: Packings) -> bool:
    """Whether what is packed is little of what the product moves, so that even GETT may gain.

    One operand in another order is enough for that; both are packed where both have something to be applied.
    """
    changed = [packing for packing in packed if packing is not None]
    if not all(each.gathered for each in changed) or sum(each.permutation.fn is None for each in changed) > 1:
        return False
    return _is_small(contraction, *(operand for operand in (A, B) if packed[operand] is not None))


def _is_small(contraction: Contraction, *operands: int) -> bool:
    """Whether some operands are little of all that the product moves."""
    sizes = [math.prod(mode.extent for mode in contraction.modes if mode.strides[tensor]) for tensor in (A, B, D)]
    return MUCH_LARGER * sum(sizes[operand] for operand in operands) <= sum(sizes)
