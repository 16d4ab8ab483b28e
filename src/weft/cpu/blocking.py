"""Blocks of modes: how far one reaches along each mode, whether it lies as a matrix, and where all blocks start.

A block takes a part of every mode. Two things decide its shape: whole cache lines of every tensor that it touches,
and a size at which packing it is paid for by the product it takes part in.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from operator import add
from typing import NamedTuple

from weft.cpu.index_groups import Anatomy, Group
from weft.spec import Mode, Strides

# Knobs. Sizes of blocks are chosen among these targets, in elements along a group of modes.
FREE_TARGETS = (64, 256, 512, 1024, 2048, 4096, 16384)
SUM_TARGETS = (64, 256, 512, 1024, 2048)
WORKSPACE_CAP = 32 << 20  # bytes: no schedule allocates more, whatever the operands' size
SMALL_WORKSPACE = 1 << 20  # bytes: one schedule within this is offered too, for callers with a limit
BATCH_BYTES = 1 << 20  # bytes of operand blocks that one batched product aims at
LINE = 16  # elements of a cache line, of four bytes each
RUNS = (16, 32, 64)  # elements: runs along each tensor's contiguous modes that a block tries to hold, in turn


class Span(NamedTuple):
    """One block's part of a group of modes: its extent along each, their product, and its offset in each tensor."""

    extents: tuple[int, ...]
    size: int
    at: Strides  # elements


class Targets(NamedTuple):
    """How many elements a block should span along each group."""

    m: int
    n: int
    k: int


def order_group(group: Group, *preferred: Sequence[int]) -> Group:
    """The modes outermost first, as they lie in the first tensor (given by its strides); others break ties."""
    return tuple(sorted(group, key=lambda at: [-strides[at] for strides in preferred]))


def fill(
    group: Group, target: int, extents: Sequence[int], tensors: Sequence[Sequence[int]], limits: Mapping[int, int]
) -> dict[int, int]:
    """Block extents along a group whose product is at most `target`.

    First the modes in which the tensors are contiguous, in turn, until cache lines are whole and then some; after that
    inner modes before outer ones.
    `limits` caps single modes.
    """
    tile = dict.fromkeys(group, 1)
    contiguous = {at for at in group if any(strides[at] == 1 for strides in tensors)}

    def grow(at: int, wanted: int) -> None:
        room = max(target // max(math.prod(tile[other] for other in group if other != at), 1), 1)
        whole = limits.get(at, extents[at])
        reach = max(tile[at], min(whole, wanted, room))
        if whole == extents[at]:
            # Nearly equal parts: a last block of one or two elements would cost as much as a whole one.
            reach = even_part(whole, reach)
            if at in contiguous and LINE < reach < whole:
                reach -= reach % LINE  # whole cache lines, of which no two blocks write parts
        tile[at] = reach

    for run in RUNS:
        for strides in tensors:
            for at in sorted((at for at in group if 0 < strides[at] < run), key=lambda at: strides[at]):
                grow(at, math.ceil(run / strides[at]))
    for at in reversed(group):
        grow(at, extents[at])
    return tile


def even_part(extent: int, reach: int) -> int:
    """The least part of `extent` that needs no more parts than `reach` does."""
    if extent <= 1 or reach >= extent:
        return max(extent, 1)
    return math.ceil(extent / math.ceil(extent / reach))


def chain(group: Group, extents: Sequence[int], tensors: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The longest run of modes, outermost first, that lie as one mode in each tensor; with its contiguous mode if any.

    Starts at a mode of stride 1 in some tensor where the group has one, otherwise where the run gets largest.
    """
    runs = [_chain_from(at, group, extents, tensors) for at in group]
    if not runs:
        return ()
    return max(runs, key=lambda run: (any(s[run[-1]] == 1 for s in tensors), math.prod(extents[at] for at in run)))


def _chain_from(start: int, group: Group, extents: Sequence[int], tensors: Sequence[Sequence[int]]) -> tuple[int, ...]:
    run = [start]
    while True:
        inner = run[0]
        for outer in group:
            if outer not in run and all(s[outer] == s[inner] * extents[inner] for s in tensors):
                run.insert(0, outer)
                break
        else:
            return tuple(run)


def collapsed_stride(group: Group, tile: Mapping[int, int], strides: Sequence[int]) -> int | None:
    """The stride of a block's part of `group` as one dimension: None where it is not one, 0 where it is one element."""
    first = inner = None
    for at in reversed(group):
        if tile[at] == 1:
            continue
        if strides[at] == 0 or (inner is not None and strides[at] != strides[inner] * tile[inner]):
            return None
        first, inner = at if first is None else first, at
    return 0 if first is None else strides[first]


def group_spans(anatomy: Anatomy, group: Group, tile: Mapping[int, int]) -> list[Span]:
    """Every block's part of a group, the innermost mode's blocks fastest."""
    spans = [Span((), 1, Strides(0, 0, 0, 0, *(0 for _ in anatomy.contraction.aux)))]
    for at in group:
        parts = _mode_spans(anatomy.contraction.modes[at], tile[at])
        spans = [_joined(span, part) for span in spans for part in parts]
    return spans


def _mode_spans(mode: Mode, tile: int) -> list[Span]:
    spans = []
    for start in range(0, mode.extent, tile):
        extent = min(tile, mode.extent - start)
        spans.append(Span((extent,), extent, Strides(*(start * stride for stride in mode.strides))))
    return spans


def _joined(outer: Span, inner: Span) -> Span:
    return Span(outer.extents + inner.extents, outer.size * inner.size, Strides(*map(add, outer.at, inner.at)))


def block_counts(group: Group, tile: Mapping[int, int], extents: Sequence[int]) -> int:
    return math.prod(math.ceil(extents[at] / tile[at]) for at in group)


def target_grid(anatomy: Anatomy) -> Iterator[Targets]:
    """Every combination of block sizes worth pricing; sizes beyond a group's own fall together."""
    m, n, k = (anatomy.size(group) for group in (anatomy.m, anatomy.n, anatomy.k))
    for m_target, n_target, k_target in itertools.product(
        _clipped(FREE_TARGETS, m), _clipped(FREE_TARGETS, n), _clipped(SUM_TARGETS, k)
    ):
        yield Targets(m_target, n_target, k_target)


def _clipped(targets: Sequence[int], size: int) -> list[int]:
    return sorted({min(target, size) for target in targets} | {size})
