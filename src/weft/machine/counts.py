"""Flops, distinct elements and compulsory bytes of a description."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from weft.fn import Pointwise
from weft.spec import Contraction, Layout, Mode, Role

_ENUMERATED = 1 << 22  # offsets: up to here they are listed where no rule counts them


def distinct_elements(extents: Sequence[int], strides: Sequence[int]) -> int:
    """The number of different offsets ``sum(index * stride)`` over all indices; strides count elements.

    A stride of 0 (an expanded mode) adds nothing, a sliding window counts each element once. The count is exact for
    nested and for sliding modes, and for any other overlap up to 4 Mi indices; beyond that it is a lower bound.
    """
    if 0 in extents:
        return 0
    steps = sorted((s, e) for e, s in zip(extents, strides, strict=True) if e > 1 and s != 0)
    if not steps:
        return 1
    within, reach = 1, 0  # distinct offsets of one block, and its last offset
    (grain, blocks), *rest = steps  # blocks lie `grain` apart
    for stride, extent in rest:
        if stride % grain == 0 and stride <= blocks * grain:  # the same grid of blocks, made longer
            blocks += (extent - 1) * (stride // grain)
        elif stride > reach + (blocks - 1) * grain:  # past the end of all blocks: they become one block
            within, reach = within * blocks, reach + (blocks - 1) * grain
            grain, blocks = stride, extent
        elif math.prod(e for _, e in steps) <= _ENUMERATED:
            return _listed(steps)
        # else: leave the mode out; what the others reach is there in any case
    return within * blocks


def _listed(steps: Sequence[tuple[int, int]]) -> int:
    offsets = np.zeros(1, dtype=np.int64)
    for stride, extent in steps:
        offsets = np.unique(offsets[:, None] + stride * np.arange(extent))
    return int(offsets.size)


@dataclass(frozen=True, slots=True)
class Work:
    """Work that a computation asks of a device."""

    flops: int  # of products and sums
    function_flops: int  # of a_fn, b_fn, c_fn and epilogue, or of a permutation's function
    read_a: int  # bytes
    read_b: int
    read_c: int
    write_d: int
    read_aux: int = 0  # operands of functions
    write_aux: int = 0  # what an epilogue yields after D

    @property
    def reads(self) -> int:
        return self.read_a + self.read_b + self.read_c + self.read_aux

    @property
    def writes(self) -> int:
        return self.write_d + self.write_aux

    @property
    def traffic(self) -> int:
        """All bytes, read and written."""
        return self.reads + self.writes

    @property
    def intensity(self) -> float:
        """Flops of products and sums over bytes; infinite without traffic, 0 without either."""
        if self.traffic:
            return self.flops / self.traffic
        return math.inf if self.flops else 0.0


_NONE = Work(0, 0, 0, 0, 0, 0)


def contraction_work(contraction: Contraction, *, beta: complex = 1) -> Work:
    """Count a contraction in any form, canonical or not. `beta` matters only for being zero."""
    outputs = contraction.extent_of(Role.BATCH, Role.M, Role.N)
    if outputs == 0:
        return _NONE
    empty_sum = contraction.k == 0
    a = 0 if empty_sum else _elements(contraction.modes, 0)
    b = 0 if empty_sum else _elements(contraction.modes, 1)
    c = 0 if contraction.c is None or beta == 0 else _elements(contraction.modes, 2)
    return Work(
        flops=0 if empty_sum else _product_flops(contraction, outputs),
        function_flops=(
            a * _flops(contraction.a_fn)
            + b * _flops(contraction.b_fn)
            + c * _flops(contraction.c_fn)
            + outputs * _flops(contraction.epilogue)
        ),
        read_a=a * contraction.a.dtype.itemsize,
        read_b=b * contraction.b.dtype.itemsize,
        read_c=c * contraction.c.dtype.itemsize if contraction.c is not None else 0,
        write_d=outputs * contraction.d.dtype.itemsize,
        read_aux=_operand_bytes(contraction, [] if empty_sum else [*contraction.a_args, *contraction.b_args], c > 0),
        write_aux=sum(outputs * contraction.aux[at].dtype.itemsize for at in contraction.outputs),
    )


def permutation_work(x: Layout, d: Layout, fn: Pointwise | None = None) -> Work:
    """Count a permutation of `x` into `d`, which holds each element of the result once, `fn` applied on the way.

    Elements that `x` repeats (stride 0, overlaps) are read, and `fn` applied to them, once.
    """
    written = math.prod(d.shape)
    if written == 0:
        return _NONE
    read = distinct_elements(x.shape, x.strides)
    return Work(0, read * _flops(fn), read * x.dtype.itemsize, 0, 0, written * d.dtype.itemsize)


def _elements(modes: tuple[Mode, ...], operand: int) -> int:
    """Distinct elements of A (0), B (1), C (2) or an auxiliary operand (4 and on)."""
    present = [mode for mode in modes if mode.strides[operand]]
    return distinct_elements([mode.extent for mode in present], [mode.strides[operand] for mode in present])


def _operand_bytes(contraction: Contraction, prologues: Sequence[int], added: bool) -> int:
    """Distinct elements of the operands that functions take; `added` says whether C is read. Coordinates are free."""
    taken = {*prologues, *contraction.epilogue_args, *(contraction.c_args if added else ())}
    return sum(
        _elements(contraction.modes, 4 + at) * each.dtype.itemsize
        for at, each in enumerate(contraction.aux)
        if each.kind == "operand" and at in taken
    )


def _product_flops(contraction: Contraction, outputs: int) -> int:
    if contraction.algebra is not None:  # nothing says that single-operand modes may be reduced first
        return 2 * outputs * contraction.k
    shared, flops = 1, 0
    alone = {0: False, 1: False}
    for mode in contraction.of_role(Role.K):
        if mode.strides.a and mode.strides.b:
            shared *= mode.extent
        elif mode.extent > 1:
            alone[0] |= mode.strides.a != 0
            alone[1] |= mode.strides.b != 0
    complex_a = _is_complex(contraction.a, contraction.a_fn)
    complex_b = _is_complex(contraction.b, contraction.b_fn)
    for operand, is_complex in ((0, complex_a), (1, complex_b)):
        if alone[operand]:
            flops += _elements(contraction.modes, operand) * (2 if is_complex else 1)
    products = (2 if complex_a else 1) * (2 if complex_b else 1)
    if products == 4 and contraction.arithmetic.three:
        products = 3
    return flops + 2 * products * outputs * shared


def _is_complex(operand: Layout, fn: Pointwise | None) -> bool:
    """Whether the factors from this operand are complex, its function (abs, say) applied."""
    result = operand.dtype if fn is None else fn.result
    return isinstance(result, torch.dtype) and result.is_complex


def _flops(fn: Pointwise | None) -> int:
    return 0 if fn is None else fn.flops
