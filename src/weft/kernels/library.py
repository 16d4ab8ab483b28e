"""What is a matrix product as it lies, and fuses nothing, goes to the vendor's library through torch.

No operand is copied for it: each must have one run of stride 1, as BLAS asks. The library's process-wide permissions
for less exact arithmetic are not taken: products of float32 are IEEE unless the contraction asks for TF32, sums of half
products are kept in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from weft.kernels import cublas
from weft.kernels.cost import PROCESSORS, SECTOR, launched, own_bytes
from weft.plan.schedule import Candidates, Launch, ResourceError, Scalar, Target
from weft.spec import Contraction, Mode, Role
from weft.spec.arithmetic import dtype_name

NAME = "library"

LAUNCH = 5e-6  # seconds
MEMORY_RATE = 4.1e12  # bytes per second
SHORT_TILE, TILE = 128, 64  # rows and columns of the library's tiles, of half types and TF32 and of others
LEAST_TILE, WIDEST_TILE = 32, 256  # of short sides, and of long ones beside short ones
TILE_SECONDS = 0.45e-6  # that a processor takes for each tile besides its arithmetic
# Bytes per second of an operand of so many bytes that all matrices of a batch share, where its rows do not start at
# whole sectors: all tiles read the same lines. The rate grows with the square of the bytes.
HOT_RATE, HOT_BYTES = 0.7e12, 20e3
ACROSS = 60  # steps along k that half types take longer where the left operand of the call is contiguous across k
ALIGNMENT = 16  # bytes: of addresses and of every stride but the innermost, for the fast kernels of half types
# Of the rate of half types, and of TF32, where addresses, rows or their lengths are multiples of two elements but of no
# such word, and where they are odd. That of half types was chosen by 18 products of the suite `dense`, whose rates are
# from 66 to 213 Tflop/s, the less the smaller they are.
EVEN, ODD = 0.24, 0.14
TF32_EVEN, TF32_ODD = 0.4, 0.16
TF32_RATE = 4.3e14
OVERLAP = 2.6  # the norm that joins arithmetic and memory
SPLIT_FROM, SPLITS = 256, 16  # steps along k from which sums are split, and the parts of a sum at most
# Seconds that no call takes less than, and none whose sum is split: the parts are added by another kernel. Measured
# between 1.9 and 3.6, and between 6 and 12 microseconds, on the small and thin products of the suite `dense`.
LEAST, LEAST_SPLIT = 2.7e-6, 6.5e-6
CHAIN = 1e-8  # seconds that a step along k of double precision takes at least: a block's steps follow one another
TF32_SPLITS, TF32_OVERLAP = 4, 1.55  # of TF32: parts of a sum at most, and that norm
TF32_ACROSS, SHORTEST = 200, 256  # steps along k that TF32 takes longer in the form (True, False) below; least sum so
# What products take longer by in the forms (left operand along k, right operand along k), measured from 2048 to 4096.
_FORMS = {
    "ieee": {(True, False): 1.02, (True, True): 1.05, (False, False): 1.0, (False, True): 1.07},
    "tf32": {(True, False): 1.03, (True, True): 1.0, (False, False): 1.65, (False, True): 1.04},
}
COMPLEX_FORM = 1.025  # what complex64 takes longer by where not both operands lie along k: TCCG 20 and 24 against 30

# Flops per second of large products on an H200, measured through torch. With them the numbers above were fitted to 930
# calls of 13 shapes from 16 to 5184 indices along a side, in every layout: predictions were off by 13 % on average. The
# rates of half types and of complex64 are later ones, at full clocks, as in `weft.tune.timing`: under a load that does
# not end they are less.
_RATE = {
    torch.float16: 7.6e14,
    torch.bfloat16: 7.6e14,
    torch.float32: 5.1e13,
    torch.float64: 5.8e13,
}
# The same of complex ones, in real flops: a complex multiply-add is eight.
_RATE |= {torch.complex64: 5.6e13, torch.complex128: 5.6e13}
_SWITCHES = {  # process-wide permissions of torch for less exact products or sums
    torch.float32: ("allow_tf32",),
    torch.complex64: ("allow_tf32",),
    torch.float16: ("allow_fp16_reduced_precision_reduction",),
    torch.bfloat16: ("allow_bf16_reduced_precision_reduction",),
}


class Form(NamedTuple):
    """A contraction as (batched) matrix product: one mode for each role, None where there is none.

    A mode of m or n may serve as the batch; the operand that lacks it is then the same in each product.
    """

    batch: Mode | None
    m: Mode | None
    n: Mode | None
    k: Mode | None


@dataclass(frozen=True, slots=True)
class LibrarySchedule:
    """One call of the library."""

    form: Form
    flipped: bool  # D is contiguous along m: its transpose is computed from the transposed operands
    family: str = NAME
    workspace_bytes: int = 0  # of weft's; the library keeps its own

    def __str__(self) -> str:
        call = f"bmm over {self.form.batch.name}" if self.form.batch is not None else "mm"
        return f"library {call}{' of the transposes' if self.flipped else ''}"


def supports(contraction: Contraction, target: Target) -> str | None:
    arithmetic = contraction.arithmetic
    if target.kind not in ("cuda", "hip"):
        return "only a GPU's library is called"
    if contraction.extras or contraction.algebra is not None:
        return "the library takes neither operands of functions nor an algebra"
    if any((contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)):
        return "a function is fused, which the library cannot do"
    if arithmetic.precision == "tf32":
        if arithmetic.product is not torch.float32 or target.kind != "cuda":
            return "the library is called for TF32 products of float32 on NVIDIA GPUs only"
    elif arithmetic.precision != "ieee":
        return f"the library makes no {arithmetic.precision} products"
    if {contraction.a.dtype, contraction.b.dtype} != {arithmetic.product}:
        return "the library is called for products in the storage type only"
    if arithmetic.product not in _RATE or arithmetic.accumulate is not _accumulator(arithmetic.product):
        return f"{dtype_name(arithmetic.product)} in {dtype_name(arithmetic.accumulate)} is not asked of the library"
    if contraction.d.dtype != arithmetic.product and not _widens(contraction):
        return f"the library is not asked for {dtype_name(contraction.d.dtype)} of {dtype_name(arithmetic.product)}"
    if contraction.c is not None and contraction.c.dtype != contraction.d.dtype:
        return "C has another type than D"
    if 0 in (contraction.m, contraction.n, contraction.k, contraction.batch):
        return "a mode is empty"
    if any(number >= 2**31 for mode in contraction.modes for number in (mode.extent, *mode.strides)):
        return "an extent or stride is past the library's 32-bit integers"
    forms = list(_forms(contraction))
    if not forms:
        return "the modes of some role do not lie together: this is no matrix product as it lies"
    reasons = [_reason(contraction, form) for form in forms]
    return None if None in reasons else reasons[0]


def schedules(contraction: Contraction, target: Target) -> Candidates:
    fitting = [form for form in _forms(contraction) if _reason(contraction, form) is None]
    return Candidates(tuple(LibrarySchedule(form, _flipped(form)) for form in fitting))


def predict(contraction: Contraction, schedule: LibrarySchedule, target: Target) -> float:
    """Seconds by the roof of large products, whole tiles and whole waves, and by how the matrices lie."""
    batch, m, n, _ = schedule.form
    product = contraction.arithmetic.product
    short = product.itemsize == 2 or contraction.arithmetic.precision == "tf32"
    processors = target.processors if target.processors > 1 else PROCESSORS
    sides = [(_extent(mode), _tile(_extent(mode), SHORT_TILE if short else TILE)) for mode in (m, n)]
    blocks = _blocks(batch, sides)
    double = product in (torch.float64, torch.complex128)
    if double and contraction.k <= SPLIT_FROM and 4 * blocks < processors:  # smaller tiles fill more processors
        sides = [(extent, LEAST_TILE) for extent, _ in sides]
        blocks = _blocks(batch, sides)
    share = min(max(1.0, processors / blocks), max(1.0, contraction.k / SPLIT_FROM), SPLITS)
    if double and _word_share(contraction, schedule.form) < 1:
        share = 1.0  # but of double precision where rows do not start at whole words
    if contraction.arithmetic.precision == "tf32":
        share = min(math.floor(share), TF32_SPLITS)
    idle = math.ceil(blocks * share / processors) * processors / (blocks * share)
    flops = (8.0 if product.is_complex else 2.0) * blocks * math.prod(tile for _, tile in sides) * contraction.k
    rate = TF32_RATE if contraction.arithmetic.precision == "tf32" else _RATE[product]
    if short:
        rate *= _word_share(contraction, schedule.form)
    if product.itemsize == 2 and not _along_k(schedule)[0]:
        rate /= 1 + ACROSS / contraction.k
    if product is torch.float32:
        rate /= _FORMS[contraction.arithmetic.precision][_along_k(schedule)]
    if product is torch.complex64 and _along_k(schedule) != (True, True):
        rate /= COMPLEX_FORM
    if contraction.arithmetic.precision == "tf32" and _along_k(schedule) == (True, False):
        rate /= 1 + TF32_ACROSS / max(contraction.k, SHORTEST)
    arithmetic = idle * flops / rate + blocks * TILE_SECONDS / processors
    own = own_bytes(contraction)
    hot = sum(
        _extent(batch) * -(-other // WIDEST_TILE) * own[operand] / (HOT_RATE * max(1.0, own[operand] / HOT_BYTES) ** 2)
        for operand, (other, _) in enumerate(reversed(sides))
        if _hot(contraction, batch, operand)
    )
    norm = TF32_OVERLAP if contraction.arithmetic.precision == "tf32" else OVERLAP
    pipes = (arithmetic, sum(own) / MEMORY_RATE, hot)
    seconds = launched(sum(pipe**norm for pipe in pipes) ** (1 / norm), LAUNCH)
    chain = contraction.k / share * CHAIN if double else 0.0
    return max(seconds, LEAST_SPLIT if share > 1 else LEAST + chain)


def _blocks(batch: Mode | None, sides: Sequence[tuple[int, int]]) -> int:
    """Tiles of all products, of sides given as extents and tiles."""
    return _extent(batch) * math.prod(-(-extent // tile) for extent, tile in sides)


def _hot(contraction: Contraction, batch: Mode | None, operand: int) -> bool:
    """Whether all matrices of a batch share an operand whose rows start within sectors."""
    size = contraction.arithmetic.product.itemsize
    strides = [mode.strides[operand] for mode in contraction.modes]
    return batch is not None and not batch.strides[operand] and any(s > 1 and s * size % SECTOR for s in strides)


def _tile(extent: int, most: int) -> int:
    """Indices that a tile of the library takes of a side."""
    return min(most, max(LEAST_TILE, 1 << (extent - 1).bit_length()))


def build(contraction: Contraction, schedule: LibrarySchedule, target: Target) -> Launch:
    if contraction.arithmetic.precision == "ieee":
        return LibraryLaunch(contraction, schedule)
    if cublas.multiply() is None:
        raise ResourceError("the cuBLAS of this torch is not found")
    return ShortLaunch(contraction, schedule)


class LibraryLaunch:
    """The call of the library, with every tensor as the matrix that it is."""

    def __init__(self, contraction: Contraction, schedule: LibrarySchedule) -> None:
        self._conjugate = contraction.conjugate_a, contraction.conjugate_b
        outer, rows, columns, depth = schedule.form
        batch = (outer,) if outer is not None else ()
        left, right = (0, 1)
        if schedule.flipped:
            rows, columns, left, right = columns, rows, right, left
        self._flipped = schedule.flipped
        self._multiply: Any = torch.bmm if batch else torch.mm
        self._add: Any = torch.baddbmm if batch else torch.addmm
        if contraction.d.dtype != contraction.arithmetic.product:
            self._multiply, self._add = (
                partial(call, out_dtype=contraction.d.dtype) for call in (self._multiply, self._add)
            )
        self._switches = _SWITCHES.get(contraction.arithmetic.product, ())
        self._left = _view((*batch, rows, depth), left)
        self._right = _view((*batch, depth, columns), right)
        self._addend = _view((*batch, rows, columns), 2)
        self._result = _view((*batch, rows, columns), 3)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        a, b = (x.conj() if flag else x for x, flag in zip((a, b), self._conjugate, strict=True))
        left, right = (b, a) if self._flipped else (a, b)
        left, right, result = _seen(left, self._left), _seen(right, self._right), _seen(d, self._result)
        with _exact(self._switches):
            if c is None and alpha == 1:
                self._multiply(left, right, out=result)
            else:
                addend = _seen(c, self._addend) if c is not None else result
                self._add(addend, left, right, beta=beta if c is not None else 0, alpha=alpha, out=result)


class ShortLaunch:
    """The same in TF32, by the one call that says so itself."""

    def __init__(self, contraction: Contraction, schedule: LibrarySchedule) -> None:
        outer, rows, columns, depth = schedule.form
        left, right = (0, 1)
        if schedule.flipped:
            rows, columns, left, right = columns, rows, right, left
        self._flipped = schedule.flipped
        self._left = _view((outer, rows, depth), left)
        self._right = _view((outer, depth, columns), right)
        self._addend, self._result = (_view((outer, rows, columns), tensor) for tensor in (2, 3))

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        left, right = (b, a) if self._flipped else (a, b)
        result = _seen(d, self._result)
        if c is not None and c.data_ptr() != d.data_ptr():
            result.copy_(_seen(c, self._addend))
        added = float(beta.real) if c is not None else 0.0
        cublas.tf32(_seen(left, self._left), _seen(right, self._right), result, float(alpha.real), added)


def _seen(tensor: Tensor, view: tuple[tuple[int, ...], tuple[int, ...]]) -> Tensor:
    """The tensor as the library sees it; mostly it is that already."""
    shape, strides = view
    return tensor if tensor.shape == shape and tensor.stride() == strides else tensor.as_strided(shape, strides)


@contextmanager
def _exact(names: Sequence[str]) -> Iterator[None]:
    """Take back, for the call, whatever permission the process has given for less exact sums and products."""
    switches = torch.backends.cuda.matmul
    given = [name for name in names if getattr(switches, name)]
    for name in given:
        setattr(switches, name, False)
    try:
        yield
    finally:
        for name in given:
            setattr(switches, name, True)


def _widens(contraction: Contraction) -> bool:
    """Whether the library can leave half products in single precision: torch has a form of the call for that."""
    if not hasattr(torch.ops.aten.addmm, "dtype_out") or not hasattr(torch.ops.aten.baddbmm, "dtype_out"):
        return False
    return contraction.arithmetic.product.itemsize == 2 and contraction.d.dtype is torch.float32


def _accumulator(product: torch.dtype) -> torch.dtype:
    return product if product.is_complex or product is torch.float64 else torch.float32


def _forms(contraction: Contraction) -> Iterator[Form]:
    """The contraction as it lies, and with a mode of m or n as the batch where it needs one."""
    batch, m, n, k = (contraction.of_role(role) for role in (Role.BATCH, Role.M, Role.N, Role.K))
    if len(k) > 1:
        return
    depth = next(iter(k), None)
    if max(len(batch), len(m), len(n)) <= 1:
        yield Form(next(iter(batch), None), next(iter(m), None), next(iter(n), None), depth)
    if batch:
        return
    if len(m) == 2 and len(n) <= 1:
        yield Form(m[0], m[1], next(iter(n), None), depth)
        yield Form(m[1], m[0], next(iter(n), None), depth)
    if len(n) == 2 and len(m) <= 1:
        yield Form(n[0], next(iter(m), None), n[1], depth)
        yield Form(n[1], next(iter(m), None), n[0], depth)


def _word_share(contraction: Contraction, form: Form) -> float:
    """The share of the full rate that is had where some tensor's rows do not start and end at whole words."""
    share = 1.0
    even, odd = (EVEN, ODD) if contraction.arithmetic.product.itemsize == 2 else (TF32_EVEN, TF32_ODD)
    for tensor, layout in enumerate((contraction.a, contraction.b, contraction.c, contraction.d)):
        if layout is None:
            continue
        modes = [mode for mode in form if mode is not None and mode.strides[tensor]]
        steps = [mode.strides[tensor] if mode.strides[tensor] > 1 else mode.extent for mode in modes]
        common = math.gcd(max(1, layout.alignment // layout.dtype.itemsize), *steps)
        if common * layout.dtype.itemsize % ALIGNMENT:
            share = min(share, even if common > 1 else odd)
    return share


def _along_k(schedule: LibrarySchedule) -> tuple[bool, bool]:
    """Whether the left operand of the call is contiguous along k, and whether the right one is."""
    depth = schedule.form.k
    along = tuple(depth is not None and depth.strides[operand] == 1 for operand in (0, 1))
    return (along[1], along[0]) if schedule.flipped else (along[0], along[1])


def _extent(mode: Mode | None) -> int:
    return mode.extent if mode is not None else 1


def _stride(mode: Mode | None, tensor: int) -> int:
    """Stride of a mode; 1 where there is none, as a mode of extent 1 may have any."""
    return mode.strides[tensor] if mode is not None else 1


def _flipped(form: Form) -> bool:
    return _stride(form.n, 3) != 1


def _reason(contraction: Contraction, form: Form) -> str | None:
    """Why a form cannot be asked of the library, in one sentence."""
    for operand, flag in enumerate((contraction.conjugate_a, contraction.conjugate_b)):
        if flag and not _conjugates(form, operand):
            return f"{'AB'[operand]} is conjugated, which BLAS does to what it transposes only: torch would copy it"
    return _stride_reason(contraction, form)


def _conjugates(form: Form, operand: int) -> bool:
    """Whether BLAS reads an operand transposed, seen from D's rows; it conjugates no other.

    torch passes the transposed problem where D has contiguous rows, as it has here: the left operand is transposed
    where it is contiguous along D's rows, the right one where it is contiguous along k.
    """
    if form.m is None or form.n is None or form.k is None:
        return False
    left = (operand == 0) is not _flipped(form)
    near = (form.m, form.n)[operand] if left else form.k
    return near.strides[operand] == 1


def _stride_reason(contraction: Contraction, form: Form) -> str | None:
    """Why BLAS could not read or write a tensor without copying it: no run of stride 1, or overlapping rows."""
    sides = ((form.m, form.k), (form.k, form.n), (form.m, form.n), (form.m, form.n))
    for tensor, pair in enumerate(sides):
        if tensor == 2 and contraction.c is None:
            continue
        steps = sorted((mode.strides[tensor], mode.extent) for mode in pair if mode is not None)
        if steps and steps[0][0] != 1:
            return f"{'ABCD'[tensor]} is contiguous along neither of its two sides"
        if len(steps) == 2 and steps[1][0] < steps[0][1]:
            return f"the rows of {'ABCD'[tensor]} overlap"
    return None


def _view(modes: tuple[Mode | None, ...], tensor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor as the library sees it; a missing mode has extent 1."""
    shape = tuple(mode.extent if mode is not None else 1 for mode in modes)
    run = math.prod(shape)
    return shape, tuple(mode.strides[tensor] if mode is not None else run for mode in modes)
