"""What a permutation costs on the CPU, in seconds: its copies, what they miss in cache, and what lies between.

Constants were fitted like those of `weft.cpu.model`, on the same machine.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.cpu.model import compact, copy_seconds
from weft.cpu.permute_blocks import Blocks, Units
from weft.spec.permutation import Permutation

CALL = 5e-6  # a step on a block: Python, dispatch, waking the threads
EXCHANGE = {1: math.inf, 2: 0.35e-9, 4: 0.18e-9, 8: 0.95e-9}  # each word of a block that is transposed, on one core
FUNCTION = 0.5e-9  # an element of a user's function
SCALE = 0.3e-9  # an element that is scaled, or added to

# A line that is read in pieces comes back after so many bytes of others, and each piece then costs so much.
MISSES = ((1 << 15, 0.0), (1 << 20, 0.8e-9), (1 << 25, 4e-9), (1 << 62, 15e-9))
LINE = 64  # bytes


def straight_seconds(moved: Units, cores: int) -> float:
    """One strided copy in D's order."""
    extents = [mode.extent for mode in moved.modes]
    to_d, from_x = ([mode.strides[tensor] for mode in moved.modes] for tensor in (3, 0))
    return CALL + _copy(extents, to_d, from_x, moved.dtype.itemsize, cores)


def blocked_seconds(permutation: Permutation, moved: Units, blocks: Blocks, cores: int, *, shuffle: bool) -> float:
    """Every block read, computed, transposed and written."""
    size = moved.dtype.itemsize
    read, written = blocks.read_order, blocks.written_order if shuffle else blocks.read_order
    elements = blocks.size(read)
    extents = [blocks.tile[at] for at in read]
    seconds = 2 * CALL + _copy(extents, compact(extents), [moved.modes[at].strides.a for at in read], size, cores)
    if permutation.fn is not None:
        seconds += CALL + elements * FUNCTION / cores
    if permutation.scaled:
        seconds += CALL + elements * SCALE / cores
    if shuffle:
        words = elements * max(size // 8, 1)
        seconds += exchanges(size, blocks) * (CALL + words * EXCHANGE[min(size, 8)] / cores)
    extents = [blocks.tile[at] for at in written]
    copy = _copy(extents, [moved.modes[at].strides.d for at in written], compact(extents), size, cores)
    seconds += blocks.size(blocks.repeated) * copy
    count = math.prod(math.ceil(mode.extent / tile) for mode, tile in zip(moved.modes, blocks.tile, strict=True))
    return CALL + count * seconds


def exchanges(size: int, blocks: Blocks) -> int:
    """How often a block is transposed: once more where several words stay together."""
    return 1 + (blocks.size(blocks.run) * max(size // 8, 1) > 1)


def _copy(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int, cores: int) -> float:
    """A strided copy, reading against the grain included."""
    row = math.prod(e for e, t, s in zip(extents, to, source, strict=True) if t == s == 1)
    pieces = math.prod(extents) / row if row * size < LINE else 0
    missed = next(cost for reach, cost in MISSES if _distance(extents, to, source, size) <= reach)
    return copy_seconds(extents, to, source, size, cores) + pieces * missed / cores


def _distance(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int) -> int:
    """Bytes of lines that are touched between two visits to one line of the source."""
    dims = [(s, t, e) for e, t, s in zip(extents, to, source, strict=True) if e > 1 and s > 0]
    run = size
    between = 0
    for s, t, e in sorted(dims):
        if run >= LINE or s * size >= LINE:
            break
        run *= e
        between = max(between, math.prod(other for _, u, other in dims if u < t))
    return between * LINE
