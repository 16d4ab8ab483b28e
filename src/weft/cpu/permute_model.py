"""What a permutation costs on the CPU, in seconds: its copies, what they wait for, and what lies between.

A simple model for ranking, . Its constants were fitted on the same machine to 1877 timed schedules
of the suite's permutations, of 1 to 30 Mi elements of 2 to 16 bytes: it is off by 30 % (standard deviation), and what
it chooses takes 8 % longer than the best (geometric mean).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from weft.cpu.copy_model import LINE, compact, merged_dimensions
from weft.cpu.permute_blocks import Blocks, Units, stored_type
from weft.spec.permutation import Permutation

WORKERS_CALL = 80e-6  # and one by several workers
FUNCTION = 0.5e-9  # a user's function: seconds for an element on one core

LAUNCH = 5e-6
STEP = 4.4e-6  # a step on a block: Python and torch's dispatch
SCALE = 0.3e-9  # an element that is scaled, or added to

# Copies on one core. Where both sides are contiguous, each byte; elsewhere each element, by its size.
NEAR_BYTE = 0.05e-9  # from cache to cache, or one side streaming from or to memory
FAR_BYTE = 0.13e-9  # from memory to memory
STRIDED = {1: 0.7e-9, 2: 0.7e-9, 4: 0.76e-9, 8: 1.0e-9, 16: 2.4e-9}
ROW = 3e-9  # each innermost row of a straight copy
PAIR = 57e-9  # each pair of innermost dimensions of a block: torch's iterator steps once for each
READ_BYTE = 0.07e-9  # more, of a block that is read from memory,
READ_RUN = 34e-9  # and for each of its runs;
WRITE_RUN = 141e-9  # for each run that is written to memory
# A line that is read in pieces comes back after so many bytes of others; each piece then costs so much more.
MISSES = (
    *((1 << 12, 0.1e-9), (1 << 18, 0.5e-9), (1 << 21, 0.9e-9)),
    *((1 << 24, 2.5e-9), (1 << 29, 8.5e-9), (1 << 62, 80e-9)),
)
# torch transposes a contiguous matrix as a whole in tiles, on one thread.
MATRIX = {1: 1.0e-9, 2: 1.0e-9, 4: 1.7e-9, 8: 3e-9, 16: 6e-9}

# Transposing a block in cache, on one core: each word, and as much again where there are few rows.
EXCHANGE = {2: 0.68e-9, 4: 0.24e-9, 8: 1.24e-9}
FEW_ROWS, FEW_ROWS_EXCHANGE = 8, {4: 0.4e-9}


def straight_seconds(moved: Units, cores: int) -> float:
    """One strided copy in D's order, by torch's threads."""
    extents = [max(mode.extent, 1) for mode in moved.modes]
    to_d, from_x = ([mode.strides[tensor] for mode in moved.modes] for tensor in (3, 0))
    size, elements = moved.dtype.itemsize, math.prod(extents)
    if _is_whole_matrix(extents, to_d, from_x):
        return LAUNCH + elements * MATRIX[size]
    row = math.prod(e for e, t, s in zip(extents, to_d, from_x, strict=True) if t == s == 1)
    missed = next(cost for reach, cost in MISSES if _distance(extents, to_d, from_x, size) <= reach)
    seconds = elements * (size * FAR_BYTE if row > 1 else STRIDED[size])
    seconds += elements / _loops(extents, to_d, from_x)[0][0] * ROW
    seconds += elements / row * missed if row * size < LINE else 0.0
    return LAUNCH + seconds / cores


def blocked_seconds(
    permutation: Permutation, moved: Units, blocks: Blocks, workers: int, cores: int, *, shuffle: bool
) -> float:
    """Every block read, computed, transposed and written, by `workers` with `cores` each."""
    size, stored = moved.dtype.itemsize, stored_type(permutation, moved).itemsize
    read, written = blocks.read_order, blocks.written_order if shuffle else blocks.read_order
    elements = blocks.size(read)
    steps, work = 2, 0.0
    extents = [blocks.tile[at] for at in read]
    strides = [moved.modes[at].strides.a for at in read]
    work += _copy(extents, compact(extents), strides, size)
    work += elements * size * READ_BYTE + elements / _run(extents, strides) * READ_RUN
    if permutation.fn is not None:
        steps, work = steps + 1, work + elements * FUNCTION
    if permutation.scaled:
        steps, work = steps + 1, work + elements * SCALE
    if shuffle:
        steps, work = steps + exchanges(stored, blocks), work + _exchange(stored, blocks)
    extents = [blocks.tile[at] for at in written]
    strides = [moved.modes[at].strides.d for at in written]
    copy = _copy(extents, strides, compact(extents), stored) + elements / _run(extents, strides) * WRITE_RUN
    work += blocks.size(blocks.repeated) * copy
    turns = math.ceil(block_count(moved, blocks) / workers)
    return LAUNCH + (workers > 1) * WORKERS_CALL + turns * (steps * STEP + work / cores)


def block_count(moved: Units, blocks: Blocks) -> int:
    """How many blocks there are; one where there are no elements."""
    return math.prod(math.ceil(max(mode.extent, 1) / tile) for mode, tile in zip(moved.modes, blocks.tile, strict=True))


def exchanges(size: int, blocks: Blocks) -> int:
    """How often a block is transposed: once more where several words stay together."""
    return 1 + (_words_together(size, blocks) > 1)


def _words_together(size: int, blocks: Blocks) -> int:
    return blocks.size(blocks.run) * max(size // 8, 1)


def _exchange(size: int, blocks: Blocks) -> float:
    """[rows, columns x run] -> [columns x run, rows], and where a run stays together its words back in order."""
    run, rows = _words_together(size, blocks), blocks.size(blocks.rows)
    words = blocks.size(blocks.read_order) * max(size // 8, 1)
    seconds = _transposition(min(size, 8), words, rows)
    return seconds + (_transposition(min(size, 8), words, run) if run > 1 else 0.0)


def _transposition(size: int, words: int, rows: int) -> float:
    return words * (EXCHANGE[size] + (FEW_ROWS_EXCHANGE.get(size, 0.0) if rows < FEW_ROWS else 0.0))


def _copy(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int) -> float:
    """A strided copy within cache on one core."""
    elements = math.prod(extents)
    dims = _loops(extents, to, source)
    (inner, step_to, step_from), second = dims[0], dims[1][0] if len(dims) > 1 else 1
    each = size * NEAR_BYTE if step_to == step_from == 1 else STRIDED[size]
    return elements * (each + PAIR / (inner * second))


def _loops(extents: Sequence[int], to: Sequence[int], source: Sequence[int]) -> list[tuple[int, int, int]]:
    """(extent, stride of the destination, of the source) as torch's iterator goes over them; one at least."""
    return merged_dimensions(extents, to, source) or [(1, 1, 1)]


def _run(extents: Sequence[int], strides: Sequence[int]) -> int:
    """Elements that lie together in one tensor."""
    run = 1
    for stride, extent in sorted((s, e) for s, e in zip(strides, extents, strict=True) if e > 1 and s > 0):
        if stride != run:
            break
        run *= extent
    return run


def _distance(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int) -> int:
    """Bytes of lines that are touched between two visits to one line of the source."""
    dims = sorted((s, t, e) for e, t, s in zip(extents, to, source, strict=True) if e > 1 and s > 0)
    run, between = size, 0
    for s, t, extent in dims:
        if run >= LINE or s * size >= LINE:
            break
        run *= extent
        between = max(between, math.prod(other for _, u, other in dims if u < t))
    return between * LINE


def _is_whole_matrix(extents: Sequence[int], to: Sequence[int], source: Sequence[int]) -> bool:
    """Whether both sides are a contiguous matrix, one the other's transpose; D's modes stand outermost first."""
    if len(extents) != 2:
        return False
    rows, columns = extents
    return tuple(to) == (columns, 1) and tuple(source) == (1, rows)
