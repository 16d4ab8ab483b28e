"""How TMA sees an operand: tiles of one or two runs along its own side, a run of k, single indices of all else."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import attrgetter

from weft.gpu.common.hardware import VECTOR
from weft.gpu.common.launch import TensorMap
from weft.gpu.common.tiling import A, D, by_stride
from weft.spec import Contraction, Layout, Mode, Role

MOST_DIMENSIONS = 5  # of a tensor map
_EXTENT = attrgetter("extent")
_ACROSS = 2  # bytes of an element that matrix instructions also read across k from shared memory


@dataclass(frozen=True, slots=True)
class TmaView:
    """One way to read an operand: the dimensions of its tensor map, each of modes that lie together (innermost first).

    Dimensions that a tile spans a run of come last, the contiguous one at the very end: two of them, or three where
    there is a `second` one. Dimensions of single indices stand before them, wherever they lie in memory. So a tile in
    shared memory is a matrix as it is, and matrix instructions read it there. Its rows are the indices of `outer`, and
    slower ones those of `second`.
    """

    dimensions: tuple[tuple[Mode, ...], ...]
    outer: tuple[Mode, ...]  # the dimension on the operand's own side that a tile spans a run of
    along_k: bool  # the innermost dimension is k
    second: tuple[Mode, ...] = ()  # another such dimension, right before the last two
    count: int = 1  # indices of `second` in a tile

    @property
    def own(self) -> tuple[tuple[Mode, ...], ...]:
        """The dimensions of the operand's own side."""
        return tuple([group for group in self.dimensions if group[0].role is self.outer[0].role])

    def lengths(self, tile: int) -> dict[tuple[Mode, ...], int]:
        """Indices of each of those dimensions in a tile of so many rows, the runs last."""
        runs = {self.second: self.count} if self.second else {}
        runs[self.outer] = tile // self.count
        return dict.fromkeys([group for group in self.own if group not in runs], 1) | runs

    def spans(self, tile: int, k: Mode, depth: int) -> dict[tuple[Mode, ...], int]:
        """Indices of each dimension in a tile of so many rows, `depth` long along k."""
        return self.lengths(tile) | {(k,): depth}


def tma_views(contraction: Contraction, operand: int, k: Mode) -> Iterator[TmaView]:
    """Ways to read A or B in tiles that span a run of the mode `k`."""
    own = contraction.of_role(Role.M if operand == A else Role.N)
    sums, batch = contraction.of_role(Role.K), contraction.of_role(Role.BATCH)
    size = contraction.arithmetic.product.itemsize
    for outer in _outer_runs(own, operand):
        others = [mode for mode in own if mode not in outer]
        groups = [outer, *_chains(others, operand), *((mode,) for mode in (*sums, *batch))]
        groups.sort(key=lambda group: (group in (outer, (k,)), -group[0].strides[operand]))
        inner = groups[-1]
        steps = [group[0].strides[operand] for group in groups]
        if inner not in (outer, (k,)) or steps[-1] != 1 or len(groups) > MOST_DIMENSIONS:
            continue
        if any([step <= 0 or step * size % VECTOR for step in steps[:-1]]):  # noqa: C419
            continue
        if size != _ACROSS and inner == outer:
            continue  # other matrix instructions read both operands along k from shared memory only
        yield TmaView(tuple(groups), outer, along_k=inner == (k,))


def with_second_run(view: TmaView, tile: int, least: int) -> TmaView:
    """The same in tiles of runs of two dimensions, if tiles then cover fewer indices past the ends of modes.

    The run of `outer` is no shorter than `least`. Only views that are contiguous along k get a second run: in others a
    line of memory runs along `outer`, and TMA is slow for short lines.
    """
    if not view.along_k:
        return view
    ways = [view]
    for second in reversed([group for group in view.own if group != view.outer]):
        others = [group for group in view.dimensions[:-2] if group != second]
        dimensions = (*others, second, *view.dimensions[-2:])
        counts = [1 << bit for bit in range(1, (tile // least).bit_length())]
        ways += [TmaView(dimensions, view.outer, True, second, count) for count in counts]

    def taken(way: TmaView) -> int:
        return math.prod(covered(extent(group), length) for group, length in way.lengths(tile).items())

    return min(ways, key=taken)


def covered(length: int, tile: int) -> int:
    """Indices that whole tiles cover, of so many that exist."""
    return -(-length // tile) * tile


def _outer_runs(own: Sequence[Mode], operand: int) -> list[tuple[Mode, ...]]:
    """What a tile may span a run of on an operand's own side: modes that lie together, or D's innermost alone."""
    runs = _chains(own, operand)
    return list(dict.fromkeys([*runs, by_stride(own, D)[:1]]))


def _chains(modes: Sequence[Mode], tensor: int) -> list[tuple[Mode, ...]]:
    """Modes grouped as they lie together in a tensor, innermost first."""
    found: list[list[Mode]] = []
    for mode in by_stride(modes, tensor):
        if found and mode.strides[tensor] == found[-1][-1].strides[tensor] * found[-1][-1].extent:
            found[-1].append(mode)
        else:
            found.append([mode])
    return [tuple(group) for group in found]


def tensor_map(layout: Layout, operand: int, view: TmaView, spans: dict[tuple[Mode, ...], int]) -> TensorMap:
    """The tensor map of A or B, in tiles of so many indices of each dimension, one of those that are not named."""
    shape = tuple(extent(group) for group in view.dimensions)
    strides = tuple(group[0].strides[operand] for group in view.dimensions)
    tile = tuple(spans.get(group, 1) for group in view.dimensions)
    return TensorMap(Layout(shape, strides, layout.dtype, layout.alignment), tile)


@lru_cache(maxsize=8192)
def extent(group: tuple[Mode, ...]) -> int:
    """Indices of modes that lie together."""
    return math.prod(map(_EXTENT, group))
