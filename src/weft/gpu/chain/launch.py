"""Which tiles a chain gets, and its launch."""

from __future__ import annotations

import itertools
import math
from typing import NamedTuple

import torch

from weft.base.bounded_cache import BoundedCache
from weft.gpu.common.constants import DeviceFunction
from weft.gpu.common.constraints import power_of_two, sm_count
from weft.gpu.common.launch import TRITON_TYPES, KernelLaunch, collecting
from weft.planner.schedule import Scalar, Target
from weft.spec import Arithmetic, Layout

KERNEL = DeviceFunction("weft.gpu.chain.kernel", "chain_kernel")

MOST_P = 64  # rows of G in a tile
MOST_Q = 128  # columns of G, all of which a program has
ROWS = 128  # of a tile: of several b together
LEAST = 16  # of a side of `tl.dot`
STAGES = 2
OVERHEAD = 4096  # products that a step along c takes the time of
# Multiply-adds from which two contractions are faster, in types that no matrix unit multiplies as they are: one launch
# makes the intermediate again for every block of r, and its small tiles reach 14 TFLOP/s of fp32 on an H200 (256
# updates of two sites, 0.29e9 multiply-adds: 39.6 us, torch's two products 24.6; 16 updates: 7.5 us and 9.7).
MOST_PLAIN = 8e7

_KERNELS = BoundedCache(256)


class Extents(NamedTuple):
    b: int
    p: int
    q: int
    c: int
    r: int


class ChainTile(NamedTuple):
    b: int
    p: int
    q: int
    c: int
    r: int
    warps: int


def fits(extents: Extents) -> bool:
    """Whether the intermediate of a tile stays on the chip, and indices in 32 bits."""
    return extents.q <= MOST_Q and all(extents) and math.prod(extents[:3]) * max(extents[3:]) < 2**31


def pays(extents: Extents, arithmetic: Arithmetic) -> bool:
    """Whether one launch is as fast as two contractions."""
    b, p, q, c, r = extents
    plain = arithmetic.precision == "ieee" and arithmetic.product.itemsize >= 4
    return not plain or b * p * c * (q + r) <= MOST_PLAIN


def choose_tile(extents: Extents, itemsize: int, processors: int) -> ChainTile:
    """The tile of the least work on the busiest SM."""
    p = min(max(power_of_two(extents.p), 1), MOST_P)
    q = max(power_of_two(extents.q), 1)
    least = max(1, -(-LEAST // min(p, q)))  # b's that fill the smallest product
    c = 32 if itemsize < 8 else 16
    found = []
    for many, r in itertools.product((1, 2, 4, 8, 16), (16, 32, 64, 128)):
        if many < least or (many > least and (many * max(p, q) > ROWS or many > 2 * extents.b)):
            continue
        if r > LEAST and r >= 2 * power_of_two(extents.r):
            continue
        rows, inner = many * p, many * q
        programs = -(-extents.b // many) * -(-extents.p // p) * -(-extents.r // r)
        waves = -(-programs // processors)
        work = waves * -(-extents.c // c) * (rows * inner * c + rows * c * r + OVERHEAD)
        found.append((work, ChainTile(many, p, q, c, r, 4 if rows * r >= 512 else 2)))
    return min(found)[1]


class ChainLaunch:
    """Runs on G, X, M and Y of those extents and strides."""

    def __init__(
        self, extents: Extents, tensors: tuple[Layout, Layout, Layout, Layout], arithmetic: Arithmetic, add: bool,
        target: Target,
    ) -> None:  # fmt: skip
        item = 4 if _is_wide(arithmetic) else tensors[0].dtype.itemsize
        self.tile = choose_tile(extents, item, sm_count(target))
        unit = tuple([layout.strides[-1] == 1 for layout in tensors])
        key = (self.tile, unit, tuple([(each.dtype, each.alignment) for each in tensors]), arithmetic, add, target)
        kernel = _KERNELS.get(key) if not collecting() else None
        numbers = (*extents, *(stride for layout in tensors for stride in layout.strides))
        if kernel is None:
            kernel = _made(self.tile, unit, tensors, arithmetic, add, target)
            if not collecting():
                _KERNELS.put(key, kernel)
        programs = -(-extents.b // self.tile.b) * -(-extents.p // self.tile.p) * -(-extents.r // self.tile.r)
        self.kernel = kernel.at(programs, numbers)

    def __str__(self) -> str:
        tile = "x".join(map(str, self.tile[:5]))
        return f"one launch: tiles of {tile} along b, p, q, c and r, {self.tile.warps} warps"

    def __call__(
        self, g: torch.Tensor, x: torch.Tensor, m: torch.Tensor, y: torch.Tensor, alpha: Scalar = 1.0,
        beta: Scalar = 1.0,
    ) -> None:  # fmt: skip
        self.kernel((g, x, m, y), alpha, beta)


def _is_wide(arithmetic: Arithmetic) -> bool:
    """Whether the intermediate is in float32, as a half has not its range."""
    return arithmetic.product == torch.float16 and arithmetic.accumulate == torch.float32


def _made(
    tile: ChainTile, unit: tuple[bool, ...], tensors: tuple[Layout, ...], arithmetic: Arithmetic, add: bool,
    target: Target,
) -> KernelLaunch:  # fmt: skip
    wide = _is_wide(arithmetic)
    constants = {
        "TILE": tuple(tile[:5]), "UNIT": unit, "ADD": add, "PRODUCT": TRITON_TYPES[arithmetic.product],
        "ACCUMULATE": TRITON_TYPES[arithmetic.accumulate], "RESULT": TRITON_TYPES[tensors[3].dtype],
        "PRECISION": arithmetic.precision, "MIDDLE": TRITON_TYPES[torch.float32 if wide else arithmetic.product],
        "MIDDLE_PRECISION": "tf32" if wide else arithmetic.precision,
    }  # fmt: skip
    return KernelLaunch(KERNEL, tensors, constants, True, target, 1, tile.warps, STAGES, numbers=(0,) * 15)
