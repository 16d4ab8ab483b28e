"""Roles of warps: how two consumers share output tiles, and how the roles share registers."""

from __future__ import annotations

from typing import NamedTuple

import torch

from weft.gpu.common.constraints import REGISTERS
from weft.spec import Contraction
from weft.spec.dtypes import FP8

WARPS = 4  # of each consumer and of each transformer: what a matrix instruction of Hopper takes
THREADS = 128  # of each of them; and of all producers with the idle warps that fill up their group of four
CONSUMERS = 2

# Registers of a thread. All threads of a CTA begin with the same number, a multiple of 8, and the roles then trade
# theirs (`setmaxnreg`). The assembler (ptxas 12.8) has any one instruction make do with the number at the beginning.
MOST_CONSUMER = 240
OTHER_CONSUMER = 24  # of a consumer, besides accumulators and what A's function is applied to
PRODUCER = 24
TRANSFORMER = {80: 80, 56: 40}  # of a transformer, and how many elements it then computes at once

WIDE_MMA, NARROW_MMA, NARROWEST_MMA = 256, 128, 64  # columns of a matrix instruction
NARROW_MMA_REGISTERS = 96  # that one of 128 columns needs at the beginning


class Consumers(NamedTuple):
    """How two consumers share output tiles."""

    name: str
    m_parts: int  # of an output tile's rows: 2, one for each consumer, or 1
    pipelines: int  # of tiles of A
    n_tiles: int  # output tiles that are taken at once, neighbours along n
    buffers: int  # of each consumer, for subtiles of D: of two, one is filled while TMA stores the other

    @property
    def b_pipelines(self) -> int:
        """Pipelines of tiles of B."""
        return self.pipelines * self.n_tiles


# Each consumer has half of the rows of an output tile, and both read every tile of B.
COOPERATIVE = Consumers("cooperative", m_parts=2, pipelines=1, n_tiles=1, buffers=2)
# Each has output tiles and a pipeline of its own: while one stores, or applies functions, the other multiplies.
PINGPONG = Consumers("pingpong", m_parts=1, pipelines=2, n_tiles=1, buffers=2)
# They have two output tiles of the same rows, and both read every tile of A.
PAIRED_N = Consumers("paired_n", m_parts=1, pipelines=1, n_tiles=2, buffers=1)


class WarpRoles(NamedTuple):
    """The roles besides the first consumer, which runs on the warps that the CTA starts with."""

    transformers: int
    warps: tuple[int, ...]  # of each role: the second consumer (and the first), transformers, producers
    registers: tuple[int, ...]  # of a thread of each
    elements: int = 0  # of B that a thread computes at once, where B has a function
    mma_columns: int = WIDE_MMA  # at most, of a matrix instruction


def roles(contraction: Contraction, tile: tuple[int, int, int], consumers: Consumers) -> WarpRoles | None:
    """The roles for a tile (M, N, K), or None where there are not enough registers for them.

    Consumers apply A's function, transformers B's. There are four transformers where each has registers to compute
    whole tiles at once, else two.
    """
    tile_m, tile_n, tile_k = tile
    rows = tile_m // consumers.m_parts
    product = contraction.arithmetic.product
    if product in FP8 and 2 * rows * tile_n // THREADS + OTHER_CONSUMER > MOST_CONSUMER:  # the sums of a step are apart
        return None
    if contraction.b_fn is None:
        # Triton knows no instruction of 256 columns for int8.
        return _roles(consumers, MOST_CONSUMER)._replace(mma_columns=NARROW_MMA if product is torch.int8 else WIDE_MMA)
    fragments = tile_k if contraction.a_fn is not None else 0  # of this step and the next, two elements to a register
    least = rows * (tile_n + fragments) // THREADS + OTHER_CONSUMER
    for transformers, elements in (4, tile_n * tile_k), (2, 0):
        if transformers % consumers.b_pipelines:
            continue
        threads = THREADS * (CONSUMERS + transformers + 1)
        first = REGISTERS // threads // 8 * 8
        mma_columns = NARROW_MMA if first >= NARROW_MMA_REGISTERS else NARROWEST_MMA
        for transforming, at_once in TRANSFORMER.items():
            left = first * threads - THREADS * (PRODUCER + transformers * transforming)
            consuming = min(MOST_CONSUMER, left // (CONSUMERS * THREADS) // 8 * 8)
            if consuming >= least and at_once * THREADS >= elements:
                found = _roles(consumers, consuming, transformers, transforming)
                return found._replace(elements=at_once, mma_columns=mma_columns)
    return None


def _roles(consumers: Consumers, consuming: int, transformers: int = 0, transforming: int = 0) -> WarpRoles:
    """Two consumers, some transformers, and a producer for each pipeline."""
    warps = (WARPS, *[WARPS] * transformers, *[1] * consumers.pipelines)
    registers = (consuming, *[transforming] * transformers, *[PRODUCER] * consumers.pipelines)
    return WarpRoles(transformers, warps, registers)
