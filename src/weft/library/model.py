"""Predicted seconds of torch's operations on a CPU; those of a GPU are `weft.library.gpu_model`'s."""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

from weft.cpu.host import HUGE, costs, multiplies_bytes
from weft.library.gpu_model import PartWork
from weft.library.scheme import LibraryScheme
from weft.planner.coefficients import fitted
from weft.planner.schedule import Target
from weft.spec import Contraction
from weft.spec.dtypes import dtype_name

_CALL, _RATE = 8e-6, 4e9  # of permutations: seconds of a call, bytes that are moved in a second


class _BlasCost(NamedTuple):
    rate: dict[str, float]  # flops a second of one core, by type
    memory: float  # bytes a second of one core
    call: float  # seconds
    matrix: float  # seconds for each of a batch
    looped: float  # modes up to which torch.mul walks long runs,
    scattered: float  # and how many times as long it takes beyond
    narrow: float  # extent up to which matrices are narrow,
    narrowed: float  # and how many times as long their products take, which are packed for MKL's kernels
    half_extent: float  # an extent of this size runs at half of the rate
    vectors: float  # share of the rate that a batch of products with vectors gets
    step: float  # seconds of an operation behind the product, for four bytes of D; elementary functions take two


@lru_cache
def _cost() -> _BlasCost:
    found = costs("blas")
    return _BlasCost(found.table("rate"), *(found(name) for name in _BlasCost._fields[1:]))


def seconds(contraction: Contraction, scheme: LibraryScheme, part: PartWork, parts: int, target: Target) -> float:
    """Seconds of a call in so many parts, as a candidate among kernels."""
    in_place = part.in_place and not part.packed_bytes and all(scheme.plain)
    if parts > 1 or not in_place or scheme.form not in ("product", "pairs"):
        return _in_passes(scheme, parts, target)
    rate = _cost().rate.get(dtype_name(scheme.types.a))
    if rate is None or 0 in [mode.extent for mode in contraction.modes]:
        return _in_passes(scheme, parts, target)
    found = _pairs(scheme, target) if scheme.form == "pairs" else _product(scheme, rate, target)
    function, steps = contraction.epilogue, int(contraction.c is not None)
    if part.adds:  # the product adds C; that of a batch copies it to D first
        steps += 1 if contraction.batch > 1 else -1
    steps, elementary = (steps, 0) if function is None else (steps + function.flops, function.elementary)
    words = contraction.batch * contraction.m * contraction.n * contraction.d.dtype.itemsize / 4
    passes = (steps + elementary) * _cost().step * words / max(target.processors, 1)
    return _cost().call * (1 + steps) + found + passes


def _pairs(scheme: LibraryScheme, target: Target) -> float:
    """Products of elements, where operands and D lie."""
    cost, contraction = _cost(), scheme.contraction
    permuted = len(contraction.modes) > len(contraction.d.shape) or len(contraction.modes) > cost.looped
    return _touched(scheme, target) * (cost.scattered if permuted else 1)


def _product(scheme: LibraryScheme, rate: float, target: Target) -> float:
    """A product of matrices where they lie."""
    cost, contraction, cores = _cost(), scheme.contraction, max(target.processors, 1)
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    flops = 2 * batch * m * n * k * (4 if scheme.accumulate.is_complex else 1)
    thin, half = min(m, n), cost.half_extent
    slowed = 1.0 if thin == 1 else (1 + half / m) * (1 + half / n) * (1 + half / k)
    slowed *= cost.narrowed if thin <= cost.narrow else 1.0
    products = flops * slowed / rate
    if thin == 1:
        products = products / cost.vectors if batch > 1 else 0.0
    size = batch * m * n * contraction.d.dtype.itemsize
    stored = size / cost.memory / min(cores, 2) if size >= HUGE else 0.0  # no cache keeps it
    return max(_touched(scheme, target), stored + (products + (batch - 1) * cost.matrix) / cores)


def _touched(scheme: LibraryScheme, target: Target) -> float:
    """Seconds in which all tensors are read or written."""
    contraction = scheme.contraction
    batch, m, n, k = contraction.batch, contraction.m, contraction.n, contraction.k
    size = batch * (m * k + n * k + m * n) * contraction.d.dtype.itemsize
    return size / _cost().memory / min(max(target.processors, 1), 2)


def _in_passes(scheme: LibraryScheme, parts: int, target: Target) -> float:
    """Seconds with passes over what is packed, converted or moved. Constants are those of slow cases."""
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = costs("library"), max(target.processors, 1)
    bytes_ = scheme.types.way == "bytes" or (scheme.form == "counts" and not scheme.roles.batch and multiplies_bytes())
    each = cost("byte" if bytes_ else "pair" if scheme.form == "algebra" else "product")
    return parts * cost("call") + batch * (cost("pass") * (m * k + k * n + m * n) + each * m * n * k) / cores


def alone(scheme: LibraryScheme, parts: int, target: Target) -> float:
    """Seconds of a call as the tier that runs first takes.

    Fitted to twelve products of float32 on one core, within a factor of 1.6 but for many tiny ones.
    """
    contraction = scheme.contraction
    batch, m, n, k = (max(getattr(contraction, name), 1) for name in ("batch", "m", "n", "k"))
    cost, cores = fitted("library", "cpu-64.json"), max(target.processors, 1)
    each = cost("pair") if scheme.form == "algebra" else cost("alone_product")
    wide = scheme.accumulate.itemsize / 4
    moved = cost("alone_pass") * (m * k + k * n + m * n) * wide
    return parts * cost("alone_call") + batch * (moved + each * m * n * k * wide) / cores


def moving(size: int) -> float:
    """Seconds of a permutation that reads and writes so many bytes."""
    return _CALL + size / _RATE
