"""A first cost model for gathering kernels: the slowest of four pipes, rounded up to whole waves.

    memory   compulsory bytes over the copy rate
    L2       every tile's sectors over the L2 rate
    access   one cycle for each 128-byte line that a warp's access touches, at least one for each access
    matrix   flops, lanes past the extents included, over the rate of the arithmetic

It ranks schedules of one contraction on one device. The constants were measured on an H200 or fitted there; on other
devices they scale every schedule alike.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch

from weft.kernels.geometry import Axis
from weft.plan.schedule import Target
from weft.spec import Contraction, Layout, Role

COPY_RATE = 4.2e12  # bytes per second
L2_RATE = 5.5e12
CLOCK = 1.7e9  # cycles per second
PROCESSORS = 132
LAUNCH = 3e-6  # seconds
SECTOR, LINE, WIDEST = 32, 128, 16  # bytes

# Flops per second of a full-size tile, by product type and precision.
_MATRIX_RATE = {
    (torch.float16, "ieee"): 6.0e14,
    (torch.bfloat16, "ieee"): 6.0e14,
    (torch.float32, "tf32"): 3.0e14,
    (torch.float32, "tf32x3"): 1.0e14,
    (torch.float32, "ieee"): 4.0e13,
    (torch.float64, "ieee"): 5.0e13,
}
_VECTOR_RATE = 2.5e13  # flops of multiplications and sums outside the matrix units


class Access(NamedTuple):
    """One tensor's accesses: bytes in all, bytes that one instruction can take, bytes that lie together in a tile."""

    bytes: int
    width: int
    stretch: int


def tile_access(layout: Layout | None, tensor: int, tiles: int, axes: Sequence[Axis]) -> Access:
    """What `tiles` tiles over `axes` read or write of a tensor; axes that it does not have cost nothing."""
    if layout is None:
        return Access(0, WIDEST, LINE)
    size = layout.dtype.itemsize
    own = [axis for axis in axes if axis.present[tensor]]
    width = max((min(axis.runs[tensor].length, layout.alignment // size) for axis in own), default=1)
    stretch = max((axis.stretches[tensor] for axis in own), default=1)
    return Access(tiles * math.prod(axis.tile for axis in own) * size, max(width, 1) * size, stretch * size)


def direct_seconds(
    contraction: Contraction,
    target: Target,
    accesses: tuple[Access, ...],
    flops: float,
    blocks: int,
    warps: int,
    tile: tuple[int, int] | None,
    rearranged: bool = False,
) -> float:
    """Predicted time of a direct kernel. `tile` is (M, N) on matrix units, None off them; `rearranged` operands are
    shuffled in registers on their way."""
    processors = target.processors if target.processors > 1 else PROCESSORS
    pipes = (
        compulsory_bytes(contraction) / COPY_RATE,
        sum(_sector_bytes(access) for access in accesses) / L2_RATE,
        sum(_cycles(access) for access in accesses) / (processors * CLOCK),
        flops / _rate(contraction, tile) * (2.0 if rearranged else 1.0),
    )
    resident = processors * max(1, 16 // warps)
    filled = max(blocks, 1) / resident
    busy = max(pipes) + 0.15 * (sum(pipes) - max(pipes))  # the other pipes are never hidden completely
    return LAUNCH + busy * math.ceil(filled) / filled


def compulsory_bytes(contraction: Contraction) -> int:
    """Each distinct element of A, B and C once in, each of D once out."""
    layouts = (contraction.a, contraction.b, contraction.c, contraction.d)
    return sum(
        math.prod(mode.extent for mode in contraction.modes if mode.strides[at]) * layout.dtype.itemsize
        for at, layout in enumerate(layouts)
        if layout is not None
    )


def _sector_bytes(access: Access) -> float:
    return access.bytes * max(1.0, SECTOR / access.stretch)


def _cycles(access: Access) -> float:
    return max(access.bytes / (32 * min(WIDEST, access.width)), access.bytes / min(LINE, access.stretch))


def _rate(contraction: Contraction, tile: tuple[int, int] | None) -> float:
    if tile is None:
        return _VECTOR_RATE
    arithmetic = contraction.arithmetic
    product = torch.float64 if arithmetic.accumulate is torch.float64 else arithmetic.product
    rate = _MATRIX_RATE[product, arithmetic.precision]
    if arithmetic.precision != "ieee" and not _both_along_k(contraction):
        rate *= 0.27  # TF32 matrix instructions read both operands along k from shared memory only
    return rate * min(1.0, math.sqrt(tile[0] * tile[1] / (128 * 256)))


def _both_along_k(contraction: Contraction) -> bool:
    depth = contraction.of_role(Role.K)
    return all(any(mode.strides[tensor] == 1 for mode in depth) for tensor in (0, 1))
