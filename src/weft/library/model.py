"""Predicted seconds of torch's operations: on a GPU those of the device, and of the host, which a user may wait for.

A GPU runs products of matrices, at shares of the rates of its data sheet, and passes over memory. Constants are shares
and latencies, so that they hold for the devices of a generation.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from weft.cpu.host import HUGE, costs, multiplies_bytes
from weft.library.scheme import LibraryScheme, fuses
from weft.machine.ceilings import rate_name
from weft.machine.counts import distinct_elements
from weft.machine.datasheets import datasheet
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.planner.split_schemes import split_seconds
from weft.spec import Contraction, Layout, Mode
from weft.spec.dtypes import dtype_name
from weft.spec.permutation import Permutation

if TYPE_CHECKING:
    from weft.library.part import LibraryPart

_FITTED = fitted("library")

CALLED, LAUNCHED = _FITTED("called"), _FITTED("launched")  # seconds of the host: of a call, and of each operation
KERNEL = _FITTED("kernel")  # seconds of a kernel that does next to nothing
MEMORY, PRODUCTS = _FITTED("memory"), _FITTED("products")  # shares of the data sheet's rates
LEAST, BATCHED, MATRIX = _FITTED("least"), _FITTED("batched"), _FITTED("matrix")  # of a product, a batch, each matrix
ODD = _FITTED("odd")  # of the rate of half types where rows start at odd elements
OVERLAP = _FITTED("overlap")  # the norm that joins a product's arithmetic and memory
REDUCED = _FITTED("reduced")  # seconds of a sum of next to nothing
# Elements a second of copies and of products of elements that are not the same in all tensors, and of those that are
# read along one mode and written along another.
STRIDED, TURNED = _FITTED("strided"), _FITTED("turned")
# Passes over the pairs of an algebra, and of one that adds logarithms.
TABLES, LOGARITHMS = _FITTED("tables"), _FITTED("logarithms")
TILE, LEAST_TILE, SHORT_TILE = 64, 32, 128  # rows and columns of a product's tiles; those of half types
SHORT = 8  # indices of a mode so few that neighbours along it share what is read
SPLIT_FROM, SPLITS = 256, 32  # steps along k from which sums are split, and the splits of a sum at most
_UNKNOWN = (1e12, 1e13)  # bytes/s and flops/s where there is no data sheet


class Seconds(NamedTuple):
    """The device's part of a call, and the host's."""

    device: float
    host: float


class _Passes(NamedTuple):
    """Passes of a part besides its product: how many, and the bytes that they move."""

    kernels: int = 0
    moved: float = 0.0
    reductions: int = 0
    seconds: float = 0.0  # that they take at least, however little they move

    def and_(self, moved: float, kernels: int = 1, reduced: int = 0) -> _Passes:
        return self._replace(
            kernels=self.kernels + kernels, moved=self.moved + moved, reductions=self.reductions + reduced
        )  # fmt: skip


def contraction_seconds(part: LibraryPart, parts: int, target: Target) -> Seconds:
    """Seconds of a contraction in so many parts, the first of which is `part`."""
    scheme, (memory, _) = part.scheme, _rates(target.name, "")
    passes, product = _passes(part, parts, fuses(target)), 0.0
    if scheme.form == "product":
        product = _product(scheme, target)
    product += (parts - 1) * LEAST
    operations = passes.kernels + (scheme.form == "product")
    latency = passes.kernels * KERNEL + passes.reductions * (REDUCED - KERNEL)
    device = product + parts * latency + max(passes.moved / memory, passes.seconds)
    return Seconds(device, CALLED + parts * operations * LAUNCHED)


def permutation_seconds(permutation: Permutation, passes: int, slabs: int, target: Target) -> Seconds:
    """Seconds of a permutation that goes over its elements in so many passes, slab by slab."""
    memory, _ = _rates(target.name, "")
    size = permutation.size * (permutation.x.dtype.itemsize + permutation.d.dtype.itemsize)
    rate = _elements_rate(permutation.modes, (0, 3))
    moved = (passes - 1) * size / memory + max(size / memory, permutation.size / rate)  # one pass has both layouts
    device = slabs * passes * KERNEL + moved
    return Seconds(device, CALLED + slabs * passes * LAUNCHED)


def _elements_rate(modes: Sequence[Mode], tensors: Sequence[int]) -> float:
    """Elements that torch takes a second where tensors, the last of which is written, lie so."""
    moving = [mode for mode in modes if mode.extent > 1]
    layouts = {tuple([mode.strides[at] for mode in moving]) for at in tensors}
    if len(layouts) <= 1:
        return math.inf
    inner = [min(moving, key=lambda mode: mode.strides[at] or math.inf) for at in tensors]
    turned = any(each is not inner[-1] and inner[-1].strides[at] for each, at in zip(inner, tensors, strict=True))
    return TURNED if turned and min(each.extent for each in inner) > SHORT else STRIDED


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


def _passes(part: LibraryPart, parts: int, fused: bool) -> _Passes:
    """The passes of a part, and bytes of all parts: operands that are summed alone, packed, or passed through their
    functions; pairs; what follows on the sums."""
    scheme, contraction, packed = part.scheme, part.scheme.contraction, part.sums.packed_bytes
    batch, m, n, k = _sizes(contraction)
    d, item = batch * m * n * contraction.d.dtype.itemsize, scheme.types.result.itemsize
    found = _Passes()
    for place, (layout, function) in enumerate(((contraction.a, contraction.a_fn), (contraction.b, contraction.b_fn))):
        if scheme.roles.alone[place]:
            found = found.and_(_read(contraction, place, layout), reduced=1)
        elif function is not None and not fused:
            found = found.and_(2 * function.flops * _read(contraction, place, layout), function.flops)
    if scheme.form == "product":
        found = found.and_(2 * parts * packed) if packed else found
    elif scheme.form == "pairs":
        if not any(scheme.roles.alone):
            read = sum(_read(contraction, at, layout) for at, layout in enumerate((contraction.a, contraction.b)))
            elements = batch * m * n / _elements_rate(contraction.modes, (0, 1, 3))
            found = found.and_(read + d)._replace(seconds=elements)
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


_CALL, _RATE = 8e-6, 4e9  # of permutations: seconds of a call, bytes that are moved in a second


# Constants of the section "blas":
#   rate, memory          flops a second of one core, by type; bytes a second of one core
#   call, matrix          seconds of a call; of each matrix of a batch
#   looped, scattered     modes up to which torch.mul walks long runs, and how many times as long it takes beyond
#   narrow, narrowed      extent up to which matrices are narrow, and how many times as long their products take, which
#                         are packed for MKL's kernels
#   half_extent           an extent of this size runs at half of the rate
#   vectors               share of the rate that a batch of products with vectors gets
#   step                  seconds of an operation behind the product, for four bytes of D; elementary functions take two


def seconds(contraction: Contraction, part: LibraryPart, parts: int, target: Target) -> float:
    """Seconds of a call in so many parts, as a candidate among kernels."""
    scheme = part.scheme
    in_place = part.in_place and not part.sums.packed_bytes and all(scheme.plain)
    if parts > 1 or not in_place or scheme.form not in ("product", "pairs"):
        return _in_passes(scheme, parts, target)
    cost = costs("blas")
    rate = cost.table("rate").get(dtype_name(scheme.types.a))
    if rate is None or 0 in [mode.extent for mode in contraction.modes]:
        return _in_passes(scheme, parts, target)
    found = _elements_on_cpu(scheme, target) if scheme.form == "pairs" else _product_on_cpu(scheme, rate, target)
    function, steps = contraction.epilogue, int(contraction.c is not None)
    if part.adds:  # the product adds C; that of a batch copies it to D first
        steps += 1 if contraction.batch > 1 else -1
    steps, elementary = (steps, 0) if function is None else (steps + function.flops, function.elementary)
    words = contraction.batch * contraction.m * contraction.n * contraction.d.dtype.itemsize / 4
    passes = (steps + elementary) * cost("step") * words / max(target.processors, 1)
    return cost("call") * (1 + steps) + found + passes


def _elements_on_cpu(scheme: LibraryScheme, target: Target) -> float:
    """Products of elements, where operands and D lie."""
    cost, contraction = costs("blas"), scheme.contraction
    permuted = len(contraction.modes) > len(contraction.d.shape) or len(contraction.modes) > cost("looped")
    return _touched(scheme, target) * (cost("scattered") if permuted else 1)


def _product_on_cpu(scheme: LibraryScheme, rate: float, target: Target) -> float:
    """A product of matrices where they lie."""
    cost, contraction, cores = costs("blas"), scheme.contraction, max(target.processors, 1)
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    flops = 2 * batch * m * n * k * (4 if scheme.accumulate.is_complex else 1)
    thin, half = min(m, n), cost("half_extent")
    slowed = 1.0 if thin == 1 else (1 + half / m) * (1 + half / n) * (1 + half / k)
    slowed *= cost("narrowed") if thin <= cost("narrow") else 1.0
    products = flops * slowed / rate
    if thin == 1:
        products = products / cost("vectors") if batch > 1 else 0.0
    size = batch * m * n * contraction.d.dtype.itemsize
    stored = size / cost("memory") / min(cores, 2) if size >= HUGE else 0.0  # no cache keeps it
    return max(_touched(scheme, target), stored + (products + (batch - 1) * cost("matrix")) / cores)


def _touched(scheme: LibraryScheme, target: Target) -> float:
    """Seconds in which all tensors are read or written."""
    contraction = scheme.contraction
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    size = batch * (m * k + n * k + m * n) * contraction.d.dtype.itemsize
    return size / costs("blas")("memory") / min(max(target.processors, 1), 2)


def _in_passes(scheme: LibraryScheme, parts: int, target: Target) -> float:
    """Seconds with passes over what is packed, converted or moved. Constants are those of slow cases."""
    cost = costs("library")
    bytes_ = scheme.types.way == "bytes" or (scheme.form == "counts" and not scheme.roles.batch and multiplies_bytes())
    each = cost("byte" if bytes_ else "pair" if scheme.form == "algebra" else "product")
    return _passing(scheme, parts, target, cost("call"), cost("pass"), each)


def _passing(scheme: LibraryScheme, parts: int, target: Target, call: float, moved: float, each: float) -> float:
    """Seconds of so many calls, of elements that are moved, and of each product."""
    batch, m, n, k = _sizes(scheme.contraction)
    return parts * call + batch * (moved * (m * k + k * n + m * n) + each * m * n * k) / max(target.processors, 1)


def alone(scheme: LibraryScheme, parts: int, target: Target) -> float:
    """Seconds of a call as the tier that runs first takes.

    Fitted to twelve products of float32 on one core, within a factor of 1.6 but for many tiny ones.
    """
    cost, wide = fitted("library", "cpu-64.json"), scheme.accumulate.itemsize / 4
    each = cost("pair") if scheme.form == "algebra" else cost("alone_product")
    return _passing(scheme, parts, target, cost("alone_call"), cost("alone_pass") * wide, each * wide)


def moving(size: int) -> float:
    """Seconds of a permutation that reads and writes so many bytes."""
    return _CALL + size / _RATE
