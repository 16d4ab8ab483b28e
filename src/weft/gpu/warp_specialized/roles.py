"""How the roles of specialised warps share blocks of D, and registers."""

from __future__ import annotations

from typing import NamedTuple

from weft.gpu.common.hardware import REGISTERS
from weft.spec import Contraction

WARPS = 4  # of each worker and applier
THREADS = 128  # of each worker and applier, and of all loaders with the warps that are added to theirs
CONSUMERS = 2
MOST_WORKING = 240  # registers of a thread of a worker
OTHER_WORKING = 24  # besides accumulators, and rows on their way through a function
LOADING = 24
AUX_PLACES = 32  # of a worker besides accumulators, where functions are applied to rows where they lie
APPLYING_PLACES = 32  # of a thread of an applier there
AT_ONCE_IN_PLACES = 8  # elements that it then computes, while it waits for as many more
APPLYING = {80: 80, 56: 40}  # of a thread of an applier, and elements that it then computes at once
WIDEST_COLUMNS, NARROWER_COLUMNS, NARROWEST_COLUMNS = 256, 128, 64  # columns of a matrix instruction
NARROWER_LEAST = 96  # registers that one of the narrower needs


class Consumers(NamedTuple):
    """How two workers share blocks of D."""

    name: str
    shares: int  # that the rows of a block are divided into: one for each worker, or 1
    pipelines: int  # of boxes of rows
    abreast: int  # blocks that are taken at once, next to each other along n
    buffers: int  # of each worker, for pieces of D on their way: of two, one is filled while the other leaves

    @property
    def pipelines_of_columns(self) -> int:
        return self.pipelines * self.abreast


COOPERATIVE = Consumers("cooperative", shares=2, pipelines=1, abreast=1, buffers=2)  # half of the rows of each block
PINGPONG = Consumers("pingpong", shares=1, pipelines=2, abreast=1, buffers=2)  # blocks of their own, one after the other
PAIRED_N = Consumers("paired_n", shares=1, pipelines=1, abreast=2, buffers=1)  # blocks of the same rows
SMEM_TRANSFORM = Consumers("smem_transform", shares=2, pipelines=1, abreast=1, buffers=2)  # as together, functions applied to boxes


class Roles(NamedTuple):
    """Of the roles besides the first worker, which is the program itself: how many appliers there are, warps of each
    role, and registers of each of their threads."""

    transformers: int
    warps: tuple[int, ...]
    registers: tuple[int, ...]
    at_once: int = 0  # elements that a thread of an applier computes
    widest: int = WIDEST_COLUMNS  # columns of a matrix instruction


def _roles(
    consumers: Consumers, working: int, transformers: int = 0, applying: int = 0, at_once: int = 0, widest: int = WIDEST_COLUMNS
) -> Roles:
    warps = (WARPS, *[WARPS] * transformers, *[1] * consumers.pipelines)
    registers = (working, *[applying] * transformers, *[LOADING] * consumers.pipelines)
    return Roles(transformers, warps, registers, at_once, widest)


def roles(contraction: Contraction, tile: tuple[int, int, int], consumers: Consumers) -> Roles | None:
    """Workers have A's function in registers, or where rows lie, and appliers have B's: four of them where registers
    suffice for each to compute whole boxes at once, else two. None where there are no registers for them.

    All threads begin with the same number of registers, a multiple of 8, and then share those. The assembler (ptxas
    12.8) has any one instruction make do with the number that threads begin with.
    """
    if contraction.b_fn is None:
        return _roles(consumers, MOST_WORKING)
    tile_m, tile_n, tile_k = tile
    rows = tile_m // consumers.shares
    if consumers == SMEM_TRANSFORM:
        return _in_place(rows * tile_n // THREADS)
    twice = tile_k if contraction.a_fn is not None else 0  # two elements to a register
    least = rows * (tile_n + twice) // THREADS + OTHER_WORKING
    for transformers, elements in (4, tile_n * tile_k), (2, 0):
        if transformers % consumers.pipelines_of_columns:
            continue
        threads = THREADS * (CONSUMERS + transformers + 1)
        first = REGISTERS // threads // 8 * 8
        widest = NARROWER_COLUMNS if first >= NARROWER_LEAST else NARROWEST_COLUMNS
        for applying, at_once in APPLYING.items():
            left = first * threads - THREADS * (LOADING + transformers * applying)
            working = min(MOST_WORKING, left // (CONSUMERS * THREADS) // 8 * 8)
            if working >= least and at_once * THREADS >= elements:
                return _roles(consumers, working, transformers, applying, at_once, widest)
    return None


def _in_place(accumulators: int) -> Roles | None:
    """Workers, of which one brings boxes, and three appliers."""
    transformers = 3
    threads = THREADS * (CONSUMERS + transformers)
    first = REGISTERS // threads // 8 * 8
    working = (first * threads - transformers * THREADS * APPLYING_PLACES) // (CONSUMERS * THREADS) // 8 * 8
    if working < accumulators + AUX_PLACES:
        return None
    registers = (working, *[APPLYING_PLACES] * transformers)
    return Roles(transformers, (WARPS,) * (1 + transformers), registers, AT_ONCE_IN_PLACES, NARROWER_COLUMNS)
