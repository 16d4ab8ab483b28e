"""Packed operands: their layouts, and which of them pay."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

import torch

from weft.fn import Pointwise
from weft.gpu.common.constraints import LEAST_DOT, LINE, SECTOR, VECTOR
from weft.gpu.common.contraction_launch import product_bytes
from weft.gpu.common.tiling import A, B, D, by_stride, index_count, moving, placed, workspace_of
from weft.planner.schedule import Target
from weft.spec import Contraction, Layout, Mode, Role, Strides, canonical
from weft.spec.dtypes import MATRIX_SUMS
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.planner.planner import Choice


SLACK = 1 / 8  # of a row that may be added to it for the next to start with a line
SMALL = 2**20  # bytes of an operand whose rows start with lines whatever that adds, if they are longer than one
HOT = 2**15  # bytes of an operand whose rows all CTAs read from a few slices of L2
LEAST_PADDED = 256  # bytes of a row of an operand that is packed for nothing else


class Packing(NamedTuple):
    """How one operand is packed."""

    permutation: Permutation
    strides: tuple[int, ...]  # of every mode of the contraction in the workspace
    gathered: bool = True  # whether GETT is planned for it, too


def matrix(contraction: Contraction, operand: int, k: Sequence[Mode], along_k: bool) -> Packing | None:
    """The operand as ([batch,] outer, k), or as ([batch,] k, outer), its rows padded.

    None where that has no use: rows across k are for products that read either as well, of operands that lie so, and
    for those of float32, which the vendor's BLAS makes fastest of two operands across k.
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
    rows, row = (outer, k) if along_k else (k, outer)
    name = "·".join(mode.name for mode in (*reversed(batch), *reversed(rows), *reversed(row)))
    return _packing(contraction, operand, row, (*rows, *batch), name)


def for_tma(packing: Packing | None, *others: Packing | None) -> Packing | None:
    """A packing that TMA alone is planned for where there are others, as GETT reads those as well; None if it is one
    of them."""
    known = [other for other in others if other is not None]
    if packing is None or any(packing.permutation == other.permutation for other in known):
        return None
    return packing._replace(gathered=not known)


def applied(contraction: Contraction, operand: int) -> Packing | None:
    """The operand in its own order, its function or cast applied; None where there is neither."""
    layout, function = _given(contraction, operand)
    if function is None and layout.dtype == contraction.arithmetic.product:
        return None
    row, others = _row(contraction, operand)
    return _packing(contraction, operand, row, others, "stored")


def padded(contraction: Contraction, operand: int) -> Packing | None:
    """A plain operand in its own order, long rows that lie across lines padded to whole ones; None where none do."""
    layout, function = _given(contraction, operand)
    if function is not None or layout.dtype != contraction.arithmetic.product:
        return None
    row, others = _row(contraction, operand)
    size = layout.dtype.itemsize
    across = any(mode.strides[operand] * size % LINE for mode in others)
    if not across or index_count(row) * size < LEAST_PADDED:
        return None
    found = _packing(contraction, operand, row, others, "stored with padded rows", alone=True)
    return found._replace(gathered=False) if found is not None else None


def _given(contraction: Contraction, operand: int) -> tuple[Layout, Pointwise | None]:
    return (contraction.a, contraction.a_fn) if operand == A else (contraction.b, contraction.b_fn)


def _row(contraction: Contraction, operand: int) -> tuple[tuple[Mode, ...], tuple[Mode, ...]]:
    """An operand's row in its own order and what is outside of it, innermost first: the modes of one role that lie
    together where they fill whole lines, so that TMA tiles may run along all of them, else the innermost mode."""
    own = by_stride([mode for mode in contraction.modes if mode.strides[operand]], operand)
    length, count = 1, 0
    for mode in own:
        if mode.role is not own[0].role or mode.strides[operand] != length:
            break
        length, count = length * mode.extent, count + 1
    if length * contraction.arithmetic.product.itemsize % LINE:
        count = 1
    return own[:count], own[count:]


def _packing(
    contraction: Contraction, operand: int, row: Sequence[Mode], others: Sequence[Mode], name: str, alone: bool = False
) -> Packing | None:
    """The operand with its row contiguous and padded; both groups stand innermost first.

    None where nothing would change, or nothing but where rows start, unless for that `alone`.
    """
    layout, function = _given(contraction, operand)
    arguments = contraction.a_args if operand == A else contraction.b_args
    product = contraction.arithmetic.product
    tiled_dim = Role.M if operand == A else Role.N
    # Where an operand broadcasts along a mode of its own side its rows are written out: products need them in memory.
    own = tuple([mode for mode in group if mode.strides[operand] or mode.role is tiled_dim] for group in (row, others))
    if arguments or not any(own):
        return None
    pitches = _pitches(index_count(own[0]), index_count(own[1]), product.itemsize)
    words, lines = (placed(own[0], own[1], pitch) for pitch in pitches)
    if function is None and layout.dtype == product and layout.alignment >= VECTOR:
        same = (lines,) if alone else (words, lines)
        if {mode: mode.strides[operand] for mode in lines} in same:
            return None
    compute = function.dtypes[0] if function is not None else product
    strides = ((mode, Strides(mode.strides[operand], 0, 0, to)) for mode, to in lines.items())
    permutation = moving(strides, layout, workspace_of(lines, product), compute, fn=function, text=name)
    return Packing(permutation, tuple(lines.get(mode, 0) for mode in contraction.modes))


def _pitches(length: int, rows: int, size: int) -> tuple[int, int]:
    """Elements from one row of so many to the next: whole words, and what it is padded to."""
    if length == 1:
        return 1, 1
    word, sector, line = (-(-length * size // unit) * unit // size for unit in (VECTOR, SECTOR, LINE))
    long = length * size >= LINE
    if line <= (1 + SLACK) * length or (long and rows * line * size <= SMALL):
        return word, line
    return word, sector if not long and rows * sector * size <= HOT else word


MUCH_LARGER = 8  # times the elements that are packed: the product that any family may make of them
_OTHERS = ("ttgt", "pre_reduce", "simt")  # families that need no packed operands
TILED = ("warp_specialized", "gett")  # families that the library's product is planned without

Packings: TypeAlias = tuple[Packing | None, Packing | None]  # of A and B; None for one that is used as it lies


class PackingWay(NamedTuple):
    """How what is left of a contraction may be planned."""

    product: Contraction
    without: tuple[str, ...]  # families that are not asked
    finish: Choice | None = None


def packings(contraction: Contraction, by_tma: bool) -> Iterator[Packings]:
    """The ways to pack operands."""
    k = contraction.of_role(Role.K)
    orders = [k[::-1] if contraction.invariant else by_stride(k, operand) for operand in (A, B)]
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


def products(
    contraction: Contraction, packed: Packings, by_tma: bool, finish: Choice | None, alone: bool
) -> Iterator[PackingWay]:
    """The product that is left with operands packed, or `alone`, by the families that may be best at it."""
    rest = product_of(contraction, packed)
    if any(packed) or alone:
        gathered = not by_tma or contraction.invariant > 0 or _worth_gathering(contraction, packed)
        yield PackingWay(rest, _OTHERS if gathered else (*_OTHERS, "gett"))
    if finish is not None and rest.a_fn is None and rest.b_fn is None:
        yield PackingWay(replace(rest, epilogue=None), (*_OTHERS, *TILED), finish)


def product_of(contraction: Contraction, packed: Packings) -> Contraction:
    """The contraction that is left with the workspaces in the operands' places."""
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
    strides = ((mode, Strides(mode.strides.d, 0, 0, mode.strides.d)) for mode in contraction.modes if mode.strides.d)
    return moving(strides, d, d, epilogue.dtypes[0], fn=epilogue, text="D where it lies")


def reads_by_tma(contraction: Contraction, target: Target) -> bool:
    """Whether `warp_specialized` may load packed operands by TMA, which is faster than gathering them."""
    arithmetic = contraction.arithmetic
    if contraction.invariant and product_bytes(contraction) == 1:
        return False  # `gett` alone adds them in one order
    short = arithmetic.precision == "tf32" and arithmetic.accumulate is torch.float32
    stored = MATRIX_SUMS.get(arithmetic.product) is arithmetic.accumulate
    if min(contraction.m, contraction.n, contraction.k) < LEAST_DOT:
        return False
    return target.kind == "cuda" and target.capability == 90 and (short or stored)


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
