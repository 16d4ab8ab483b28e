"""A contraction by the plainest kernel there is, whose result stands for the reference in the ring of `fpsan`.

With that instrumentation Triton computes with floats as elements of a ring of integers: sums and products are exact,
in any order, and casts keep them. So whatever the schedule, all elements of a result are equal to those of this kernel,
which shares no code with weft's: a thread an element of D, a loop over all summed modes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TypeGuard

import torch
import triton
import triton.language as tl

from weft.oracle.problem import Operands
from weft.planner.schedule import Description
from weft.spec import Contraction, Mode

_WHOLE = ("ieee", "tf32")  # precisions whose products are of the values as they are
_TILE = 128
_PLACES = {"a": 0, "b": 1, "d": 3}  # in a mode's strides


def covers(description: Description) -> TypeGuard[Contraction]:
    """Whether there is such a reference: of sums of products of real floats, as they are, and nothing else."""
    if not isinstance(description, Contraction) or description.algebra is not None or description.c is not None:
        return False
    if any((description.a_fn, description.b_fn, description.c_fn, description.epilogue)):
        return False
    return description.d.dtype.is_floating_point and description.arithmetic.precision in _WHOLE


def computed(description: Contraction, operands: Operands) -> torch.Tensor:
    """D by `ring_kernel`, in memory of its own; alpha is 1."""
    result = torch.empty_like(operands.d)
    own = [mode for mode in description.modes if mode.strides[_PLACES["d"]]]
    summed = [mode for mode in description.modes if mode not in own]
    device = operands.d.device
    tables = [_offsets(modes, which).to(device) for modes, which in
              ((own, "a"), (own, "b"), (own, "d"), (summed, "a"), (summed, "b"))]  # fmt: skip
    elements, steps = tables[0].numel(), tables[3].numel()
    wide = description.arithmetic.accumulate is torch.float64
    ring_kernel[(triton.cdiv(elements, _TILE),)](
        operands.a, operands.b, result, *tables, elements, steps, TILE=_TILE, WIDE=wide
    )
    return result


def _offsets(modes: Sequence[Mode], which: str) -> torch.Tensor:
    """The offset in a tensor of every index of some modes."""
    found = torch.zeros(1, dtype=torch.int64)
    for mode in modes:
        step = torch.arange(mode.extent) * mode.strides[_PLACES[which]]
        found = (found[:, None] + step[None, :]).reshape(-1)
    assert found.numel() == math.prod(mode.extent for mode in modes)
    return found


@triton.jit
def ring_kernel(  # type: ignore[no-untyped-def]
    a, b, d, own_a, own_b, own_d, summed_a, summed_b, elements, steps, TILE: tl.constexpr, WIDE: tl.constexpr
):
    at = tl.program_id(0) * TILE + tl.arange(0, TILE)
    there = at < elements
    a_rows = a + tl.load(own_a + at, there, 0)
    b_rows = b + tl.load(own_b + at, there, 0)
    real = tl.float64 if WIDE else tl.float32
    total = tl.zeros((TILE,), real)
    for step in range(steps):
        x = tl.load(a_rows + tl.load(summed_a + step), there, 0.0).to(real)
        y = tl.load(b_rows + tl.load(summed_b + step), there, 0.0).to(real)
        total += x * y
    tl.store(d + tl.load(own_d + at, there, 0), total.to(d.dtype.element_ty), there)
