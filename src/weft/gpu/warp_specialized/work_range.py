"""Which work tiles a CTA takes, or a consumer with a pipeline of its own; and what of a sum each of them is.

A work tile is a split-K partial of one output tile, or of two neighbours along n (`paired_n`). With stream-K a CTA has
a work range: consecutive steps of all sums laid end to end. Each output tile that it meets is a work tile.
"""

from __future__ import annotations

from triton.experimental import gluon
from triton.experimental.gluon import language as gl

from weft.gpu.common.split_k import range_start, split_of_tile


@gluon.jit
def output_tile_of(work_tile, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """Of a work tile without stream-K: the number of the partial, and that of a consumer's output tile."""
    N_TILES: gl.constexpr = PARAMS.consumers.n_tiles
    return work_tile // PARAMS.tiles, work_tile % PARAMS.tiles * N_TILES + CONSUMER % N_TILES


@gluon.jit
def work_range(number, PARAMS: gl.constexpr):
    """The work tiles of CTA (or pipeline) `number`: first, end, and how far from one to the next."""
    STREAM_K: gl.constexpr = PARAMS.stream_k
    if STREAM_K is None:
        return number, PARAMS.tiles * PARAMS.tma.splits, PARAMS.consumers.pipelines * PARAMS.tma.programs
    else:
        end = range_start(number + 1, STREAM_K)
        return range_start(number, STREAM_K) // STREAM_K.steps, (end - 1) // STREAM_K.steps + 1, 1


@gluon.jit
def split_of(work_tile, number, PARAMS: gl.constexpr, CONSUMER: gl.constexpr):
    """Of a work tile: the number of the partial, that of a consumer's output tile, first step along k, and steps."""
    STEPS: gl.constexpr = PARAMS.tma.steps
    STREAM_K: gl.constexpr = PARAMS.stream_k
    split, output_tile = output_tile_of(work_tile, PARAMS, CONSUMER)
    if STREAM_K is None:
        return split, output_tile, split * STEPS, STEPS
    else:
        split, first_step, steps = split_of_tile(work_tile, number, STREAM_K)
        return split, output_tile, first_step, steps
