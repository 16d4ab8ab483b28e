"""One piece of memory for all intermediates: places by liveness, and how much is needed at most.

An intermediate lives from the step that makes it to the step that takes it. Places: `weft.base.lifetimes`. Besides
operands and intermediates a call holds

    result     always
    sums       of slices in half precision: one part of the result in float32, with `strip_exponent` all of it
    scaled     with `strip_exponent`: a slice's part of the result before and after it is scaled
    gathered   copies of operands at places that a CUDA graph of the steps was captured on
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

import torch

from weft.base.lifetimes import Placed, aligned, gaps, most_alive, place, place_by_size
from weft.networks.tree import Tree, TreeStep
from weft.plans.intermediates import WIDER

_SHARE = 64  # part of the whole from which an intermediate is large
SMALL = 1 << 20  # bytes up to which nothing shares a place: then steps may run side by side


@dataclass(frozen=True, slots=True)
class Arena:
    """The offset of every intermediate, in bytes."""

    places: Mapping[int, int]  # by node
    size: int
    shared: bool  # whether some place serves several

    def tensor(self, base: torch.Tensor, node: int, shape: tuple[int, ...], dtype: torch.dtype) -> torch.Tensor:
        """The intermediate as a view of the arena, whose bytes are `base`."""
        place, count = self.places[node], 1
        for extent in shape:
            count *= extent
        return base[place : place + count * dtype.itemsize].view(dtype).view(shape)


def arena(
    tree: Tree, dtypes: Mapping[int, torch.dtype], *, keep: bool = False, apart: int = SMALL
) -> Arena:
    """The arena of a tree whose nodes have these types.

    Nodes that are the same in every slice are made before the first one and kept for all, where a step of each slice
    takes them. `keep`: every intermediate is kept, for the next call. Up to `apart` bytes nothing shares a place.
    """
    sizes = _sizes(tree, dtypes)
    total = sum(sizes.values())
    if keep or total <= apart:
        return Arena(dict(zip(sizes, accumulate(sizes.values(), initial=0), strict=False)), total, False)
    lives = _lives(tree, sizes)
    capacity = most_alive(sizes, lives)
    found = _by_size(sizes, lives, [], {})
    if found.size > capacity:
        other = _from_both_ends(tree, sizes, lives, capacity)
        found = other if other is not None and other.size < found.size else found
    return found


def _by_size(
    sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]], placed: list[Placed], places: dict[int, int]
) -> Arena:
    """Offsets of blocks, the largest first, each as low as possible around those that are `placed`."""
    return Arena(places, place_by_size(sizes, lives, placed, places), True)


def _from_both_ends(
    tree: Tree, sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]], capacity: int
) -> Arena | None:
    """Large ones in the order of time, each at the other end than the larger of the two that it is made of; then the
    rest. None where a large one does not fit.

    In a chain of large intermediates each meets its two neighbours alone, and so no more than two are stored there at
    once.
    """
    made = {step.node: step for step in tree.steps}
    placed: list[Placed] = []
    places: dict[int, int] = {}
    for node in sorted(sizes, key=lambda node: lives[node]):
        if _SHARE * sizes[node] < capacity:
            continue
        free = [gap for gap in gaps(placed, lives[node], capacity) if (gap[1] or 0) - gap[0] >= sizes[node]]
        if not free:
            return None
        larger = max(made[node].left, made[node].right, key=lambda child: sizes.get(child, 0))
        high = places.get(larger) == 0
        low = (free[-1][1] or 0) - sizes[node] if high else free[0][0]
        place(placed, places, node, low, sizes[node], lives[node])
    return _by_size(sizes, lives, placed, places)


def least(tree: Tree, dtypes: Mapping[int, torch.dtype]) -> int:
    """Bytes that are alive at once, at most: what an arena takes at least."""
    sizes = _sizes(tree, dtypes)
    return most_alive(sizes, _lives(tree, sizes))


def _lives(tree: Tree, sizes: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """The first and the last step at which each intermediate must be there; steps in the order in which they run."""
    order, once = tree.ordered, tree.once
    at = {step.node: place for place, step in enumerate(order)}
    taken = tree.consumers()
    lives = {}
    for node in sizes:
        last = at[taken[node].node]
        if node in once and taken[node].node not in once:
            last = len(order) - 1
        lives[node] = (at[node], last)
    return lives


def _sizes(tree: Tree, dtypes: Mapping[int, torch.dtype]) -> dict[int, int]:
    """Bytes of each intermediate."""
    steps = [step.node for step in tree.steps if step.node != tree.root]
    return {node: aligned(tree.size(node) * dtypes[node].itemsize) for node in steps}


class ResultMemory(NamedTuple):
    """The memory that a call needs for a result of this type."""

    dtype: torch.dtype  # of the result
    scaled: bool = False  # `strip_exponent`

    def bytes(self, tree: Tree) -> int:
        """Result, sums and scaled parts, for the slices of this tree."""
        graph = tree.graph
        part = graph.size(label for label in graph.output if label not in tree.sliced)
        whole = graph.size(graph.output)
        kind, found = self.sum_type(tree), whole * self.dtype.itemsize
        if kind != self.dtype:
            found += (whole if self.scaled else part) * kind.itemsize
        return found + (2 * part * self.dtype.itemsize if self.scaled else 0)

    def sum_type(self, tree: Tree) -> torch.dtype:
        """The type in which slices of this tree are added up."""
        return self.dtype if tree.summed < 2 else WIDER.get(self.dtype, self.dtype)


def gathered_bytes(tree: Tree, dtypes: Mapping[int, torch.dtype]) -> int:
    """Copies of the operands that the steps of a slice take but for the last one, if operands are contiguous.

    Copies keep the layout of the parts that a slice sees, so their memory has gaps where those have.
    """
    steps = replayed(tree)
    taken = {child for step in steps for child in (step.left, step.right) if child < tree.leaves}
    return sum(_span(tree, leaf) * dtypes[leaf].itemsize for leaf in taken)


def replayed(tree: Tree) -> list[TreeStep]:
    """The steps of a slice but for the last one."""
    return [step for step in tree.steps if step.node != tree.root and step.node not in tree.once]


def _span(tree: Tree, leaf: int) -> int:
    """Elements from the first to the last of the part of an operand that a slice sees."""
    operand = tree.graph.operands[leaf]
    view = operand.view(torch.empty(operand.shape, device="meta"))
    if not view.numel():
        return 0
    dims = zip(operand.term, view.shape, view.stride(), strict=True)
    return 1 + sum((extent - 1) * stride for label, extent, stride in dims if label not in tree.sliced)
