"""Predicted seconds of torch's operations on a GPU: of the device, and of the host, which a user may wait for.

The device runs products of matrices, at shares of the rates of its data sheet, and passes over memory. Constants are
shares and latencies, so that they hold for the devices of a generation.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any, NamedTuple

import torch

from weft.gpu.pointwise.nvrtc import identity
from weft.library.scheme import LibraryScheme
from weft.machine.ceilings import rate_name
from weft.machine.counts import distinct_elements
from weft.machine.datasheets import datasheet
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.planner.split_schemes import split_seconds
from weft.spec import Layout
from weft.spec.permutation import Permutation

_FITTED = fitted("library")

CALLED, LAUNCHED = _FITTED("called"), _FITTED("launched")  # seconds of the host: of a call, and of each operation
KERNEL = _FITTED("kernel")  # seconds of a kernel that does next to nothing
MEMORY, PRODUCTS = _FITTED("memory"), _FITTED("products")  # shares of the data sheet's rates
LEAST, BATCHED, MATRIX = _FITTED("least"), _FITTED("batched"), _FITTED("matrix")  # of a product, a batch, each matrix
ODD = _FITTED("odd")  # of the rate of half types where rows start at odd elements
OVERLAP = _FITTED("overlap")  # the norm that joins a product's arithmetic and memory
TURNED = _FITTED("turned")  # elements a second that are read along one mode and written along another
# Passes over the pairs of an algebra, and of one that adds logarithms.
TABLES, LOGARITHMS = _FITTED("tables"), _FITTED("logarithms")
TILE, LEAST_TILE, SHORT_TILE = 64, 32, 128  # rows and columns of a product's tiles; those of half types
SPLIT_FROM, SPLITS = 256, 32  # steps along k from which sums are split, and the splits of a sum at most
_UNKNOWN = (1e12, 1e13)  # bytes/s and flops/s where there is no data sheet


class Seconds(NamedTuple):
    """The device's part of a call, and the host's."""

    device: float
    host: float


class PartWork(NamedTuple):
    """The work of a part that its scheme does not tell."""

    packed_bytes: int  # of operands that are packed before they are multiplied
    in_place: bool  # sums are stored where D is
    adds: bool  # C, in the product
    clamps: bool  # negative values, in the product


class _Passes(NamedTuple):
    """Passes of a part besides its product: how many, and the bytes that they move."""

    kernels: int = 0
    moved: float = 0.0

    def and_(self, moved: float, kernels: int = 1) -> _Passes:
        return _Passes(self.kernels + kernels, self.moved + moved)


def fuses(target: Target) -> bool:
    """Whether functions run as one pass each, and not as one of torch's operations after the other."""
    return target.kind == "cuda" and identity() is not None


def contraction_seconds(scheme: LibraryScheme, parts: int, part: PartWork, target: Target) -> Seconds:
    """Seconds of a contraction in so many parts, the first of which is `part`."""
    memory, _ = _rates(target.name, "")
    passes, product = _passes(scheme, part, parts, fuses(target)), 0.0
    if scheme.form == "product":
        product = _product(scheme, target)
    product += (parts - 1) * LEAST
    operations = passes.kernels + (scheme.form == "product")
    device = product + parts * passes.kernels * KERNEL + passes.moved / memory
    return Seconds(device, CALLED + parts * operations * LAUNCHED)


def permutation_seconds(permutation: Permutation, passes: int, slabs: int, target: Target) -> Seconds:
    """Seconds of a permutation that goes over its elements in so many passes, slab by slab."""
    memory, _ = _rates(target.name, "")
    size = permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize)
    moving = [mode for mode in permutation.modes if mode.extent > 1]
    inner = {min(moving, key=lambda mode: mode.strides[at] or math.inf, default=None) for at in (0, 3)}
    turned = permutation.size / TURNED if len(inner) > 1 else 0.0
    device = slabs * passes * KERNEL + max(passes * size / memory, turned)
    return Seconds(device, CALLED + slabs * passes * LAUNCHED)


def _product(scheme: LibraryScheme, target: Target) -> float:
    """Seconds of products of matrices: whole tiles, and what is read and written."""
    contraction, types = scheme.contraction, scheme.types
    batch, m, n, k = _sizes(contraction)
    memory, rate = _rates(target.name, _rate_name(scheme))
    if types.way == "split":
        arithmetic = split_seconds(batch, m, n, k)
    else:
        edge = SHORT_TILE if types.a.itemsize == 2 else LEAST_TILE if types.a.is_complex else TILE
        rows, columns = (min(edge, max(LEAST_TILE, 1 << (extent - 1).bit_length())) for extent in (m, n))
        tiles = batch * -(-m // rows) * -(-n // columns)
        splits = min(max(1.0, target.processors / tiles), max(1.0, k / SPLIT_FROM), SPLITS)
        at_once = max(tiles, target.processors / splits)
        rate *= ODD if types.a.itemsize == 2 and _is_odd(scheme) else 1.0
        flops = (8 if scheme.accumulate.is_complex else 2) * at_once * rows * columns * k
        arithmetic = flops / rate if min(m, n) > 1 else 0.0  # a vector's product is as fast as it is read
    if types.way == "limbs":
        arithmetic *= (scheme.accumulate.itemsize // 2) ** 2
    a, b, d = batch * m * k * types.a.itemsize, batch * n * k * types.b.itemsize, batch * m * n * types.result.itemsize
    moved = (a + b + d) / memory
    once = LEAST + (BATCHED + batch * MATRIX if batch > 1 else 0.0)
    return once + (arithmetic**OVERLAP + moved**OVERLAP) ** (1 / OVERLAP)


def _is_odd(scheme: LibraryScheme) -> bool:
    """Whether rows of a matrix start at odd elements."""
    modes = scheme.contraction.modes
    return any(mode.strides[at] > 1 and mode.strides[at] % 2 for mode in modes for at in (0, 1, 3))


def _passes(scheme: LibraryScheme, part: PartWork, parts: int, fused: bool) -> _Passes:
    """The passes of a part, and bytes of all parts: operands that are summed alone, packed, or passed through their
    functions; pairs; what follows on the sums."""
    contraction = scheme.contraction
    batch, m, n, k = _sizes(contraction)
    d, item = batch * m * n * contraction.d.dtype.itemsize, scheme.types.result.itemsize
    found = _Passes()
    for place, (layout, function) in enumerate(
        ((contraction.a, contraction.a_fn), (contraction.b, contraction.b_fn))
    ):
        if scheme.roles.alone[place]:
            found = found.and_(_read(contraction, place, layout))
        elif function is not None and not fused:
            found = found.and_(2 * function.flops * _read(contraction, place, layout), function.flops)
    if scheme.form == "product":
        found = found.and_(2 * parts * part.packed_bytes) if part.packed_bytes else found
    elif scheme.form == "pairs":
        if not any(scheme.roles.alone):
            read = sum(_read(contraction, at, layout) for at, layout in enumerate((contraction.a, contraction.b)))
            found = found.and_(read + d)
    else:
        algebra: Any = contraction.algebra
        times = LOGARITHMS if algebra.name == "log" else TABLES
        found = found.and_(times * batch * m * n * k * scheme.accumulate.itemsize, math.ceil(times))
    behind = [function for function in (contraction.c_fn, contraction.epilogue) if function is not None]
    added = contraction.c is not None and not part.adds
    if scheme.clamps and not part.clamps:
        found = found.and_(2 * d)
    if not (behind or added or not part.in_place):
        return found
    count = 1 if fused or not behind else sum(function.flops for function in behind)
    elements = scheme.form == "pairs" and fused  # which are multiplied in the pass
    moved = (0 if elements else batch * m * n * item + d) + (d if added else 0)
    return found.and_(count * moved, 0 if elements else count)


def _read(contraction: Any, place: int, layout: Layout) -> int:
    """Bytes of an operand."""
    modes = contraction.modes
    strides = [mode.strides[place] for mode in modes]
    return layout.dtype.itemsize * distinct_elements([mode.extent for mode in modes], strides)


def _sizes(contraction: Any) -> tuple[int, int, int, int]:
    return max(contraction.batch, 1), max(contraction.m, 1), max(contraction.n, 1), max(contraction.k, 1)


def _rate_name(scheme: LibraryScheme) -> str:
    if scheme.types.way == "limbs":
        return rate_name(torch.float64, torch.float64)
    return rate_name(scheme.types.a, scheme.accumulate)


@lru_cache(maxsize=64)
def _rates(name: str, products: str) -> tuple[float, float]:
    """Bytes and flops a second of a device by its name."""
    sheet = datasheet(name)
    if sheet is None:
        return _UNKNOWN
    return MEMORY * sheet.bandwidth, PRODUCTS * dict(sheet.matrix).get(products, _UNKNOWN[1])
