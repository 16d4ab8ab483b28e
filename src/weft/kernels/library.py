"""What is a matrix product as it lies, and fuses nothing, goes to the vendor's library through torch.

No operand is copied for it: each must have one run of stride 1, as BLAS asks. The library's process-wide permissions
for less exact arithmetic are not taken: products of float32 are IEEE, sums of half products are kept in float32.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from weft.kernels.cost import PROCESSORS, compulsory_bytes
from weft.plan.schedule import Candidates, Launch, Scalar, Target
from weft.spec import Contraction, Mode, Role
from weft.spec.arithmetic import dtype_name

NAME = "library"

LAUNCH = 5e-6  # seconds
MEMORY_RATE = 3.6e12  # bytes per second
TILE = 128  # rows and columns that the library computes at least

# Flops per second of large products on an H200, measured through torch.
_RATE = {
    torch.float16: 6.7e14,
    torch.bfloat16: 6.7e14,
    torch.float32: 5.0e13,
    torch.float64: 5.8e13,
}
_SWITCHES = (  # process-wide permissions of torch and what exactness needs of them
    "allow_tf32",
    "allow_fp16_reduced_precision_reduction",
    "allow_bf16_reduced_precision_reduction",
)


@dataclass(frozen=True, slots=True)
class LibrarySchedule:
    """One call of the library."""

    call: str  # "mm" or "bmm"
    flipped: bool  # D is contiguous along m: its transpose is computed from the transposed operands
    family: str = NAME
    workspace_bytes: int = 0  # of weft's; the library keeps its own

    def __str__(self) -> str:
        return f"library {self.call}{' of the transposes' if self.flipped else ''}"


def supports(contraction: Contraction, target: Target) -> str | None:
    arithmetic = contraction.arithmetic
    if target.kind not in ("cuda", "hip"):
        return "only a GPU's library is called"
    if contraction.extras or contraction.algebra is not None:
        return "the library takes neither operands of functions nor an algebra"
    if any((contraction.a_fn, contraction.b_fn, contraction.c_fn, contraction.epilogue)):
        return "a function is fused, which the library cannot do"
    if arithmetic.precision != "ieee" or {contraction.a.dtype, contraction.b.dtype} != {arithmetic.product}:
        return "the library is called for products in the storage type only"
    if arithmetic.product not in _RATE or arithmetic.accumulate is not _accumulator(arithmetic.product):
        return f"{dtype_name(arithmetic.product)} in {dtype_name(arithmetic.accumulate)} is not asked of the library"
    if contraction.d.dtype != arithmetic.product and not _widens(contraction):
        return f"the library is not asked for {dtype_name(contraction.d.dtype)} of {dtype_name(arithmetic.product)}"
    if contraction.c is not None and contraction.c.dtype != contraction.d.dtype:
        return "C has another type than D"
    for role in Role:
        if len(contraction.of_role(role)) > 1:
            return f"the modes of role {role.value} do not lie together: this is no matrix product as it lies"
    if 0 in (contraction.m, contraction.n, contraction.k, contraction.batch):
        return "a mode is empty"
    if any(number >= 2**31 for mode in contraction.modes for number in (mode.extent, *mode.strides)):
        return "an extent or stride is past the library's 32-bit integers"
    return _stride_reason(contraction)


def schedules(contraction: Contraction, target: Target) -> Candidates:
    call = "bmm" if contraction.of_role(Role.BATCH) else "mm"
    return Candidates((LibrarySchedule(call, flipped=_stride(contraction, Role.N, 3) != 1),))


def predict(contraction: Contraction, schedule: LibrarySchedule, target: Target) -> float:
    """Seconds by the roof of large products, whole tiles and whole waves."""
    rows, columns = (-(-extent // TILE) for extent in (contraction.m, contraction.n))
    blocks = contraction.batch * rows * columns
    processors = target.processors if target.processors > 1 else PROCESSORS
    share = min(max(1.0, processors / blocks), max(1.0, contraction.k / 256))  # long sums are split
    idle = math.ceil(blocks * share / processors) * processors / (blocks * share)
    flops = 2.0 * blocks * TILE * TILE * contraction.k
    rate = _RATE[contraction.arithmetic.product]
    return LAUNCH + max(idle * flops / rate, compulsory_bytes(contraction) / MEMORY_RATE)


def build(contraction: Contraction, schedule: LibrarySchedule, target: Target) -> Launch:
    return LibraryLaunch(contraction, schedule)


class LibraryLaunch:
    """The call of the library, with every tensor as the matrix that it is."""

    def __init__(self, contraction: Contraction, schedule: LibrarySchedule) -> None:
        rows, columns, depth = (_mode(contraction, role) for role in (Role.M, Role.N, Role.K))
        batch = (_mode(contraction, Role.BATCH),) if schedule.call == "bmm" else ()
        left, right = (0, 1)
        if schedule.flipped:
            rows, columns, left, right = columns, rows, right, left
        self._flipped = schedule.flipped
        self._call: Any = torch.baddbmm if batch else torch.addmm
        if contraction.d.dtype != contraction.arithmetic.product:
            self._call = partial(self._call, out_dtype=contraction.d.dtype)
        self._left = _view((*batch, rows, depth), left)
        self._right = _view((*batch, depth, columns), right)
        self._addend = _view((*batch, rows, columns), 2)
        self._result = _view((*batch, rows, columns), 3)

    def __call__(self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar) -> None:
        left, right = (b, a) if self._flipped else (a, b)
        result = d.as_strided(*self._result)
        addend = c.as_strided(*self._addend) if c is not None else result
        with _exact():
            self._call(
                addend,
                left.as_strided(*self._left),
                right.as_strided(*self._right),
                beta=beta if c is not None else 0,
                alpha=alpha,
                out=result,
            )


@contextmanager
def _exact() -> Iterator[None]:
    """Take back, for the call, whatever permission the process has given for less exact sums and products."""
    switches = torch.backends.cuda.matmul
    given = [name for name in _SWITCHES if getattr(switches, name)]
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
    return torch.float64 if product is torch.float64 else torch.float32


def _mode(contraction: Contraction, role: Role) -> Mode | None:
    modes = contraction.of_role(role)
    return modes[0] if modes else None


def _stride(contraction: Contraction, role: Role, tensor: int) -> int:
    """Stride of a role's only mode; 1 where there is none, as a mode of extent 1 may have any."""
    mode = _mode(contraction, role)
    return mode.strides[tensor] if mode is not None else 1


def _stride_reason(contraction: Contraction) -> str | None:
    """Why BLAS could not read or write a tensor without copying it: no run of stride 1, or overlapping rows."""
    sides = ((Role.M, Role.K), (Role.K, Role.N), (Role.M, Role.N), (Role.M, Role.N))
    for tensor, (rows, columns) in enumerate(sides):
        if tensor == 2 and contraction.c is None:
            continue
        modes = [mode for role in (rows, columns) if (mode := _mode(contraction, role)) is not None]
        steps = sorted((mode.strides[tensor], mode.extent) for mode in modes)
        if steps and steps[0][0] != 1:
            return f"{'ABCD'[tensor]} is contiguous along neither of its two sides"
        if len(steps) == 2 and steps[1][0] < steps[0][1]:
            return f"the rows of {'ABCD'[tensor]} overlap"
        batch = _mode(contraction, Role.BATCH)
        if batch is not None and tensor != 2 and not batch.strides[tensor]:
            return f"{'ABCD'[tensor]} is shared by the batch"
    return None


def _view(modes: tuple[Mode | None, ...], tensor: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Shape and strides of a tensor as the library sees it; a missing mode has extent 1."""
    shape = tuple(mode.extent if mode is not None else 1 for mode in modes)
    run = math.prod(shape)
    return shape, tuple(mode.strides[tensor] if mode is not None else run for mode in modes)
