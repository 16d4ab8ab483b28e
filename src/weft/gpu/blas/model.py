"""Schedules of the library's products, and their cost."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import torch

from weft.gpu.common.constraints import SECTOR, VECTOR, sm_count
from weft.gpu.common.cost import launched, own_bytes
from weft.planner.coefficients import fitted
from weft.planner.schedule import Candidates, Target
from weft.spec import Contraction, Mode, Role
from weft.spec.dtypes import dtype_name

NAME = "blas"


class BlasForm(NamedTuple):
    """A contraction as (batched) matrix product: one mode for each role, None where there is none.

    A mode of m or n may serve as the batch; the operand that lacks it is then the same in each product.
    """

    batch: Mode | None
    m: Mode | None
    n: Mode | None
    k: Mode | None


@dataclass(frozen=True, slots=True)
class BlasSchedule:
    """One call of the library."""

    form: BlasForm
    swap_ab: bool  # D is contiguous along m: its transpose is computed from the transposed operands
    family: str = NAME
    workspace_bytes: int = 0  # of weft's; the library keeps its own

    def __str__(self) -> str:
        call = f"bmm over {self.form.batch.name}" if self.form.batch is not None else "mm"
        return f"blas {call}{' of the transposes' if self.swap_ab else ''}"


def forms(contraction: Contraction) -> Iterator[BlasForm]:
    """The contraction as it lies, and with a mode of m or n as the batch where it needs one."""
    batch, m, n, k = (contraction.of_role(role) for role in (Role.BATCH, Role.M, Role.N, Role.K))
    if len(k) > 1:
        return
    depth = next(iter(k), None)
    if max(len(batch), len(m), len(n)) <= 1:
        yield BlasForm(next(iter(batch), None), next(iter(m), None), next(iter(n), None), depth)
    if batch:
        return
    if len(m) == 2 and len(n) <= 1:
        yield BlasForm(m[0], m[1], next(iter(n), None), depth)
        yield BlasForm(m[1], m[0], next(iter(n), None), depth)
    if len(n) == 2 and len(m) <= 1:
        yield BlasForm(n[0], next(iter(m), None), n[1], depth)
        yield BlasForm(n[1], next(iter(m), None), n[0], depth)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    fitting = [form for form in forms(contraction) if misfit(contraction, form) is None]
    return Candidates(tuple(BlasSchedule(form, swaps_ab(form)) for form in fitting))


def along_k(schedule: BlasSchedule) -> tuple[bool, bool]:
    """Whether the left operand of the call is contiguous along k, and whether the right one is."""
    depth = schedule.form.k
    along = tuple(depth is not None and depth.strides[operand] == 1 for operand in (0, 1))
    return (along[1], along[0]) if schedule.swap_ab else (along[0], along[1])


def extent(mode: Mode | None) -> int:
    return mode.extent if mode is not None else 1


def _stride(mode: Mode | None, tensor: int) -> int:
    """Stride of a mode; 1 where there is none, as a mode of extent 1 may have any."""
    return mode.strides[tensor] if mode is not None else 1


def swaps_ab(form: BlasForm) -> bool:
    return _stride(form.n, 3) != 1


def misfit(contraction: Contraction, form: BlasForm) -> str | None:
    """Why a form cannot be asked of the library, in one sentence."""
    for operand, flag in enumerate((contraction.conjugate_a, contraction.conjugate_b)):
        if flag and not _conjugates(form, operand):
            return f"{'AB'[operand]} is conjugated, which BLAS does to what it transposes only: torch would copy it"
    return _stride_reason(contraction, form)


def _conjugates(form: BlasForm, operand: int) -> bool:
    """Whether BLAS reads an operand transposed, seen from D's rows; it conjugates no other.

    torch passes the transposed problem where D has contiguous rows, as it has here: the left operand is transposed
    where it is contiguous along D's rows, the right one where it is contiguous along k.
    """
    if form.m is None or form.n is None or form.k is None:
        return False
    left = (operand == 0) is not swaps_ab(form)
    near = (form.m, form.n)[operand] if left else form.k
    return near.strides[operand] == 1


def _stride_reason(contraction: Contraction, form: BlasForm) -> str | None:
    """Why BLAS could not read or write a tensor without copying it: no run of stride 1, or overlapping rows."""
    dims = ((form.m, form.k), (form.k, form.n), (form.m, form.n), (form.m, form.n))
    for tensor, pair in enumerate(dims):
        if tensor == 2 and contraction.c is None:
            continue
        steps = sorted((mode.strides[tensor], mode.extent) for mode in pair if mode is not None)
        if steps and steps[0][0] != 1:
            return f"{'ABCD'[tensor]} is contiguous along neither of its two dims"
        if len(steps) == 2 and steps[1][0] < steps[0][1]:
            return f"the rows of {'ABCD'[tensor]} overlap"
    return None


_fit = fitted("blas")

# launch: seconds
# memory_rate: bytes per second
SHORT_TILE, TILE = 128, 64  # rows and columns of the library's tiles, of half types and TF32 and of others
# Of single products of half types whose rows start at whole words it is taken to choose the fastest of these tiles, and
# to reach so many flops per second (small_rate, larger_rate) where all SMs have work. Chosen by 16 products of 512 to
# 3072 rows: times are off by 8 % (root mean square), and were by 37 % as if all tiles were small. Batches are not seen
# to gain so.
HALF_TILES = ((128, 128), (128, 192), (192, 128), (128, 256), (256, 128))
LEAST_TILE, WIDEST_TILE = 32, 256  # of short dims, and of long ones beside short ones
# tile_seconds: that an SM takes for each tile besides its arithmetic
# single_tile_seconds: the same of IEEE products in float32, by sums of 15 to 240 products in 36 to 144 columns, which
#   took up to half as long again as `tile_seconds` says; large products of 4096 rows a hundredth.
# hot_rate, hot_bytes: bytes per second of an operand of so many bytes that all matrices of a batch share, where its
#   rows do not start at whole sectors: all tiles read the same lines. The rate grows with the square of the bytes.
# across: steps along k that half types take longer where the left operand of the call is contiguous across k.
# even, odd: of the rate of half types, and of TF32, where addresses, rows or their lengths are multiples of two
#   elements but of no such word, and where they are odd. That of half types was chosen by 18 products of the suite
#   `dense`, whose rates are from 66 to 213 Tflop/s, the less the smaller they are.
# overlap: the norm that joins arithmetic and memory
SPLIT_FROM, SPLITS = 256, 16  # steps along k from which sums are split, and the splits of a sum at most
# least, least_split: seconds that no call takes less than, and none whose sum is split: the partials are added by
#   another kernel. Measured between 1.9 and 3.6, and between 6 and 12 microseconds, on the small and thin products of
#   the suite `dense`.
# thin_split: seconds that IEEE products in float32 of at most `THIN` rows or columns take longer where their sums are
#   split: 43 to 60 microseconds where 4096 x 4096 values meet 2 to 32 columns, and 30 as if they were not.
THIN = 64
# chain: seconds that a step along k of double precision takes at least: a tile's steps follow one another.
TF32_SPLITS = 4  # of a sum at most, in TF32
# tf32_across: steps along k that TF32 takes longer in the form (True, False) below
SHORTEST = 256  # sum that does so
# forms: what products take longer by in the forms (left operand along k, right operand along k), measured from 2048 to
#   4096; "tf32 10": in TF32, left along k, right across
# complex_form: what complex64 takes longer by where not both operands lie along k: TCCG 20 and 24 against 30.

# rates: flops per second of large products on an H200, measured through torch. With them the numbers above were
#   fitted to 930 calls of 13 shapes from 16 to 5184 indices along a dim, in every layout: predictions were off by 13
#   % on average. The rates of half types and of complex64 are later ones, at full clocks, as in
#   `weft.machine.timing`: under a load that does not end they are less. Those of complex ones are in real flops: a
#   complex multiply-add is eight.
_DOUBLE = (torch.float64, torch.complex128)


def predict(contraction: Contraction, schedule: BlasSchedule, target: Target) -> float:
    """Seconds by the roof of large products, whole tiles and whole waves, and by how the matrices lie."""
    batch, m, n, _ = schedule.form
    product = contraction.arithmetic.product
    sms = sm_count(target)
    tiling = _fastest(contraction, schedule, _rate(contraction, schedule), sms)
    single = product is torch.float32 and contraction.arithmetic.precision == "ieee"
    arithmetic = tiling.seconds + tiling.blocks * _fit("single_tile_seconds" if single else "tile_seconds") / sms
    own, hot_rate, hot_bytes = own_bytes(contraction), _fit("hot_rate"), _fit("hot_bytes")
    hot = sum(
        extent(batch) * -(-extent(other) // WIDEST_TILE) * size / (hot_rate * max(1.0, size / hot_bytes) ** 2)
        for operand, (other, size) in enumerate(zip((n, m), own, strict=False))
        if _hot(contraction, batch, operand)
    )
    norm = _fit("tf32_overlap") if contraction.arithmetic.precision == "tf32" else _fit("overlap")
    pipes = (arithmetic, sum(own) / _fit("memory_rate"), hot)
    seconds = launched(sum(pipe**norm for pipe in pipes) ** (1 / norm), _fit("launch"))
    if single and tiling.splits > 1 and 1 < min(extent(m), extent(n)) <= THIN:
        seconds += _fit("thin_split")
    chain = contraction.k / tiling.splits * _fit("chain") if product in _DOUBLE else 0.0
    return max(seconds, _fit("least_split") if tiling.splits > 1 else _fit("least") + chain)


def _rate(contraction: Contraction, schedule: BlasSchedule) -> float:
    """Flops per second of large products whose matrices lie so."""
    product, precision = contraction.arithmetic.product, contraction.arithmetic.precision
    rate = _fit("tf32_rate") if precision == "tf32" else _fit.table("rates")[dtype_name(product)]
    if product.itemsize == 2 or precision == "tf32":
        rate *= _word_share(contraction, schedule.form)
    if product.itemsize == 2 and not along_k(schedule)[0]:
        rate /= 1 + _fit("across") / contraction.k
    if product is torch.float32:
        left, right = along_k(schedule)
        rate /= _fit.table("forms")[f"{precision} {left:d}{right:d}"]
    if product is torch.complex64 and along_k(schedule) != (True, True):
        rate /= _fit("complex_form")
    if precision == "tf32" and along_k(schedule) == (True, False):
        rate /= 1 + _fit("tf32_across") / max(contraction.k, SHORTEST)
    return rate


class _Tiling(NamedTuple):
    """Seconds of whole tiles in whole waves, how many tiles there are, and the splits of each sum."""

    seconds: float
    blocks: int
    splits: float


def _fastest(contraction: Contraction, schedule: BlasSchedule, rate: float, sms: int) -> _Tiling:
    """The tiles that the library is taken to choose."""
    batch, m, n, _ = schedule.form
    product, precision = contraction.arithmetic.product, contraction.arithmetic.precision
    if product.itemsize == 2 and batch is None and _word_share(contraction, schedule.form) == 1:
        found = []
        for dims in HALF_TILES:
            tile = _tile(m, dims[0]), _tile(n, dims[1])
            most = _fit("larger_rate") if math.prod(tile) > SHORT_TILE**2 else _fit("small_rate")
            most = most * rate / _fit.table("rates")[dtype_name(product)]
            found.append(_tiled(contraction, schedule, tile, most, sms))
        fastest = min(found)
        least = 2.0 * extent(m) * extent(n) * contraction.k / rate  # power bounds large products
        return fastest._replace(seconds=max(fastest.seconds, least))
    edge = SHORT_TILE if product.itemsize == 2 or precision == "tf32" else TILE
    tiling = _tiled(contraction, schedule, (_tile(m, edge), _tile(n, edge)), rate, sms)
    if product in _DOUBLE and contraction.k <= SPLIT_FROM and 4 * tiling.blocks < sms:
        return _tiled(contraction, schedule, (LEAST_TILE, LEAST_TILE), rate, sms)  # to fill more of these
    if product.is_complex and tiling.blocks < sms:  # complex128: 512 x 512 sums of 256 take 13 to 15 us
        return min(tiling, _tiled(contraction, schedule, (_tile(m, LEAST_TILE), _tile(n, TILE)), rate, sms))
    return tiling


def _tiled(contraction: Contraction, schedule: BlasSchedule, tile: tuple[int, int], rate: float, sms: int) -> _Tiling:
    batch, m, n, _ = schedule.form
    blocks = extent(batch) * -(-extent(m) // tile[0]) * -(-extent(n) // tile[1])
    splits = _splits(contraction, schedule, blocks, sms)
    at_once = math.ceil(blocks * splits / sms) * sms / splits  # tiles' worth of the SMs' time
    flops = (8.0 if contraction.arithmetic.product.is_complex else 2.0) * at_once * math.prod(tile) * contraction.k
    return _Tiling(flops / rate, blocks, splits)


def _splits(contraction: Contraction, schedule: BlasSchedule, blocks: int, sms: int) -> float:
    """Splits of each sum."""
    if contraction.arithmetic.product in _DOUBLE and _word_share(contraction, schedule.form) < 1:
        return 1.0  # where rows do not start at whole words
    splits = min(max(1.0, sms / blocks), max(1.0, contraction.k / SPLIT_FROM), SPLITS)
    return min(math.floor(splits), TF32_SPLITS) if contraction.arithmetic.precision == "tf32" else splits


def _hot(contraction: Contraction, batch: Mode | None, operand: int) -> bool:
    """Whether all matrices of a batch share an operand whose rows start within sectors."""
    size = contraction.arithmetic.product.itemsize
    strides = [mode.strides[operand] for mode in contraction.modes]
    return batch is not None and not batch.strides[operand] and any(s > 1 and s * size % SECTOR for s in strides)


def _tile(mode: Mode | None, most: int) -> int:
    """Indices that a tile of the library takes of a dim."""
    return min(most, max(LEAST_TILE, 1 << (extent(mode) - 1).bit_length()))


def _word_share(contraction: Contraction, form: BlasForm) -> float:
    """The share of the full rate that is had where some tensor's rows do not start and end at whole words."""
    share = 1.0
    half = contraction.arithmetic.product.itemsize == 2
    even, odd = _fit("even" if half else "tf32_even"), _fit("odd" if half else "tf32_odd")
    for tensor, layout in enumerate((contraction.a, contraction.b, contraction.c, contraction.d)):
        if layout is None:
            continue
        modes = [mode for mode in form if mode is not None and mode.strides[tensor]]
        steps = [mode.strides[tensor] if mode.strides[tensor] > 1 else mode.extent for mode in modes]
        common = math.gcd(max(1, layout.alignment // layout.dtype.itemsize), *steps)
        if common * layout.dtype.itemsize % VECTOR:
            share = min(share, even if common > 1 else odd)
    return share
