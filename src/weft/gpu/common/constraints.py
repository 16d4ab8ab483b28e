"""Limits that the hardware sets, and the sentences of what they exclude."""

from __future__ import annotations

import torch

from weft.planner.schedule import Target
from weft.spec import Contraction

SECTOR, LINE = 32, 128  # bytes: what memory moves at least, and a line of the caches
VECTOR = 16  # bytes: the widest access of a thread; TMA wants addresses and strides aligned so, and cuBLAS is fast then
LEAST_COPY = 4  # bytes: of the smallest asynchronous copy to shared memory (`cp.async`)
GROUP_ROWS = 64  # rows of D that one instruction of a group of four warps (`wgmma`) makes
REGISTERS, SHARED_MEMORY, WARPS = 65536, 227 * 1024, 64  # of one SM, on Hopper; 32-bit registers, bytes
SM_COUNT = 132  # of an H200, which costs were fitted on


def sm_count(target: Target) -> int:
    """SMs of the device; those of an H200 for a target without any, as Triton's interpreter."""
    return target.processors if target.processors > 1 else SM_COUNT


LEAST_DOT = 16  # indices of m, n and k that a matrix instruction takes, and so a tile of `tl.dot`
LEAST_SPLIT_STEPS = 4  # along k, of each part of a split sum on matrix units: fewer are not worth a second kernel


def overhang(contraction: Contraction, m: int, n: int, least: tuple[int, int] = (LEAST_DOT, LEAST_DOT)) -> str | None:
    """Why a tile so long along m and n, longer than the `least`, should not be used, in one sentence."""
    for name, tile, extent, few in (("m", m, contraction.m, least[0]), ("n", n, contraction.n, least[1])):
        if tile > few and tile >= 2 * extent:
            return f"a tile of {tile} along {name} is at least twice its extent {extent}"
    return None


def is_product_of_vectors(contraction: Contraction) -> bool:
    """Whether there is nothing for a matrix instruction to share: then no product is shortened, though it may be."""
    return min(contraction.m, contraction.n) < 2 and contraction.batch > 1


def widened(contraction: Contraction, target: Target) -> bool:
    """Whether products are made in the accumulator's type: no matrix instruction accumulates single in double, and
    Triton's interpreter takes bfloat16 for integers."""
    product, accumulate = contraction.arithmetic.product, contraction.arithmetic.accumulate
    if accumulate is torch.float64:
        return product is not torch.float64
    return product is torch.bfloat16 and target.kind == "interpreter"


def power_of_two(extent: int) -> int:
    """The least power of two that is not under `extent`."""
    return 1 << max(extent - 1, 0).bit_length()


LONG = 5e10  # flops, which take about 70 us of an H200's matrix units


def is_short(contraction: Contraction) -> bool:
    """Whether a kernel that stays on the device should follow the launch before it, see `device`."""
    return 2.0 * contraction.batch * contraction.m * contraction.n * contraction.k < LONG
