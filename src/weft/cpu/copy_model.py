"""What it costs to copy a block, in seconds: torch's loops over it, and the memory on its far side."""

from __future__ import annotations

import math
from collections.abc import Sequence

# Seconds for an element on one core.
COPY_STRAIGHT = 0.15e-9  # both sides contiguous along the innermost dimension
COPY_STRIDED = 1.1e-9
COPY_ROW = 3e-9  # for each innermost row
COPY_TILE = 45e-9  # for each pair of innermost dimensions: torch's iterator steps once for each
FEW = 512  # elements that are copied in a microsecond one way or the other
TABLE = 0.9e-9  # by a table of offsets, in any order; the table itself is read too
PARALLEL = 32768  # elements from which torch spreads a copy over its threads

BANDWIDTH = 12e9  # bytes a second that one core moves from or to memory
LINE = 64  # bytes
PAGE = 4096
PAGE_START = 40e-9  # seconds until the first line on another page arrives


def compact(extents: Sequence[int]) -> list[int]:
    """Strides of a contiguous block."""
    strides, run = [], 1
    for extent in reversed(extents):
        strides.append(run)
        run *= extent
    return strides[::-1]


def copy_seconds(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int, cores: int) -> float:
    """Seconds to copy a block in cache-sized pieces, the larger side (elements of `size` bytes) in memory.

    torch's iterator takes the dimensions in the order of the destination's strides, merges neighbours, and runs one
    loop over the two innermost.
    """
    elements = math.prod(extents)
    work = loop_seconds(merged_dimensions(extents, to, source), elements, cores)
    return work + traffic_seconds(extents, to, source, size, cores)


def traffic_seconds(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int, cores: int) -> float:
    """The memory's share of a copy."""
    far = max(to, source, key=lambda strides: max(strides, default=0))
    run = _run(extents, far)
    return math.prod(extents) / run * _lines(run * size) / (BANDWIDTH * cores)


def crawls(extents: Sequence[int], to: Sequence[int], source: Sequence[int]) -> bool:
    """Whether torch's loops take so short steps that copying by a table is clearly faster."""
    elements = math.prod(extents)
    return elements > FEW and loop_seconds(merged_dimensions(extents, to, source), elements, 1) > 1.4 * TABLE * elements


def table_seconds(extents: Sequence[int], to: Sequence[int], source: Sequence[int], size: int, cores: int) -> float:
    """Seconds to copy a block by a table."""
    elements = math.prod(extents)
    work = elements * TABLE / (cores if elements >= PARALLEL else 1)
    return work + traffic_seconds(extents, to, source, size, cores)


def loop_seconds(merged: Sequence[tuple[int, int, int]], elements: int, cores: int) -> float:
    """Seconds in torch's loops over dimensions (extent, stride of the destination, stride of the source)."""
    inner, step_to, step_from = merged[0] if merged else (1, 1, 1)
    second = merged[1][0] if len(merged) > 1 else 1
    each = COPY_STRAIGHT if step_to == 1 and step_from <= 1 else COPY_STRIDED
    work = elements * (each + COPY_ROW / inner + COPY_TILE / (inner * second))
    return work / (cores if elements >= PARALLEL else 1)


def search_seconds(extents: Sequence[int], strides: Sequence[int], size: int, cores: int) -> float:
    """What it takes to find the pages that a block's runs lie on."""
    near = math.prod(extent for extent, stride in zip(extents, strides, strict=True) if stride * size < PAGE // 2)
    return math.prod(extents) / near * PAGE_START / cores


def ownership_seconds(extents: Sequence[int], strides: Sequence[int], size: int, cores: int) -> float:
    """What it takes to read the lines that are to be written, twice where two blocks write parts of one."""
    run = _run(extents, strides)
    edges = LINE if run * size % LINE else 0
    return math.prod(extents) / run * (run * size + 2 * edges) / (BANDWIDTH * cores)


def merged_dimensions(extents: Sequence[int], to: Sequence[int], source: Sequence[int]) -> list[tuple[int, int, int]]:
    """(extent, stride of the destination, stride of the source), innermost first."""
    dims = sorted((t, s, extent) for extent, t, s in zip(extents, to, source, strict=True) if extent > 1)
    merged: list[tuple[int, int, int]] = []
    for t, s, extent in dims:
        if merged and t == merged[-1][1] * merged[-1][0] and s == merged[-1][2] * merged[-1][0]:
            last = merged[-1]
            merged[-1] = (last[0] * extent, last[1], last[2])
        else:
            merged.append((extent, t, s))
    return merged


def _run(extents: Sequence[int], strides: Sequence[int]) -> int:
    """Elements of a block that lie side by side."""
    run = 1
    for stride, extent in sorted(zip(strides, extents, strict=True)):
        if extent > 1 and stride == run:
            run *= extent
    return run


def _lines(run_bytes: int) -> int:
    """Bytes of the cache lines that a run touches, on average over where it starts."""
    return run_bytes if run_bytes % LINE == 0 else run_bytes + LINE // 2
