"""What the kernel takes of a schedule, as compile-time constants."""

from __future__ import annotations

from typing import NamedTuple

from weft.fn.triton.padding import masked_operands
from weft.gpu.common.constraints import widened
from weft.gpu.common.launch import wide, wide_index
from weft.gpu.common.tiling import TENSORS, A, B, TiledDim, nearest, rest, tiled_dim
from weft.gpu.gett.schedule import GettSchedule
from weft.planner.schedule import Target
from weft.spec import Contraction, Role


class GettParams(NamedTuple):
    batch: TiledDim
    m: TiledDim
    n: TiledDim
    k: TiledDim
    k_of_a: TiledDim  # the same axes of k in A's order
    swap_k: bool
    stored: tuple[int, ...]  # extents of the stored tile: every axis longer than one index
    group: int
    blocks: int  # output tiles
    splits: int  # programs that share the sum of each output tile
    steps: int  # along k, in each of them
    widen: bool  # products are made in the accumulator's type
    masked: tuple[bool, bool]  # what the functions of A and B make of the zeros past the end of k is masked
    apart: bool  # the product of each step is added by a rounded sum
    transposed: tuple[bool, bool]  # A and B are transposed via registers, see `_transposed`
    wide: tuple[bool, ...]  # offsets need 64 bits, per tensor
    wide_index: bool  # indices along an axis do


def gett_params(contraction: Contraction, schedule: GettSchedule, target: Target) -> GettParams:
    tensors = TENSORS + len(contraction.aux)
    m = tiled_dim([*rest(contraction.of_role(Role.M), schedule.m), *schedule.m], tensors=tensors)
    stored_of_m = [axis.tile for axis in m.axes if axis.place >= 0]
    n = tiled_dim([*rest(contraction.of_role(Role.N), schedule.n), *schedule.n], len(stored_of_m), tensors)
    k, k_of_a = tiled_dim(schedule.k, tensors=tensors), tiled_dim(schedule.k[::-1], tensors=tensors)
    return GettParams(
        batch=tiled_dim(rest(contraction.of_role(Role.BATCH), ()), tensors=tensors),
        m=m,
        n=n,
        k=k,
        k_of_a=k_of_a,
        swap_k=len(schedule.k) > 1,
        stored=(*stored_of_m, *[axis.tile for axis in n.axes if axis.place >= 0]),
        group=schedule.group,
        blocks=contraction.batch * m.blocks * n.blocks,
        splits=schedule.splits,
        steps=-(-k.blocks // schedule.splits),
        widen=widened(contraction, target),
        masked=(False, False) if k.exact else masked_operands(contraction.a_fn, contraction.b_fn),
        apart=schedule.apart,
        transposed=_transposed(contraction),
        wide=wide(contraction.modes, tensors),
        wide_index=wide_index((*schedule.m, *schedule.n, *schedule.k)),
    )


def _transposed(contraction: Contraction) -> tuple[bool, bool]:
    """Which operands are contiguous along m or n, where a TF32 instruction reads shared memory along k.

    Left alone, the compiler transposes such an operand while it copies, four bytes at a time. Transposed via registers
    it is copied in runs, and A need not even return to shared memory.
    """
    if contraction.arithmetic.precision != "tf32":
        return False, False
    m_modes, n_modes = contraction.of_role(Role.M), contraction.of_role(Role.N)
    return nearest(m_modes, A) is not None, nearest(n_modes, B) is not None
