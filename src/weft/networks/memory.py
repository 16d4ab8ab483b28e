"""One piece of memory for all intermediates; and slices: labels that take some of their indices at a time, to fit.

An intermediate lives from the step that makes it to the step that takes it. Places: `weft.base.lifetimes`. Besides
operands and intermediates a call holds

    result     always
    sums       of slices in half precision: one part of the result in float32, with `strip_exponent` all of it
    scaled     with `strip_exponent`: a slice's part of the result before and after it is scaled
    gathered   copies of operands at places that a CUDA graph of the steps was captured on

Every slice repeats the steps under which a sliced label stands. So a slice has as many indices as fit: those of a label
that may be whole, and else a stretch of them. cotengra's `SliceFinder` looks for the labels that repeat least for a
size of the largest intermediate; the limit here is the size of all that is alive at once, so the size is lowered
until that fits."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, product
from typing import Any, NamedTuple

import torch

from weft.base.figures import counted, si
from weft.base.lifetimes import Placed, aligned, gaps, most_alive, place, place_by_size
from weft.errors import NotationError, WorkspaceError
from weft.networks.path import as_cotengra, need_cotengra
from weft.networks.tree import Model, Tree, TreeStep
from weft.plans.intermediates import WIDER
from weft.spec.arguments import read_sequence
from weft.spec.memory import reach

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
        place = self.places[node]
        return base[place : place + math.prod(shape) * dtype.itemsize].view(dtype).view(shape)


def arena(tree: Tree, dtypes: Mapping[int, torch.dtype], *, keep: bool = False, apart: int = SMALL) -> Arena:
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
    places: dict[int, int] = {}
    found = Arena(places, place_by_size(sizes, lives, [], places), True)
    if found.size > capacity:
        other = _from_both_ends(tree, sizes, lives, capacity)
        found = other if other is not None and other.size < found.size else found
    return found


def _from_both_ends(
    tree: Tree, sizes: Mapping[int, int], lives: Mapping[int, tuple[int, int]], capacity: int
) -> Arena | None:
    """Large ones in the order of time, each at the other end than the larger of the two that it is made of; then the
    rest, the largest first, each as low as possible. None where a large one does not fit.

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
    return Arena(places, place_by_size(sizes, lives, placed, places), True)


def _lives(tree: Tree, sizes: Mapping[int, int]) -> dict[int, tuple[int, int]]:
    """The first and the last step at which each intermediate must be there; steps in the order in which they run."""
    order, once = tree.ordered, tree.once
    at = {step.node: place for place, step in enumerate(order)}
    taken = tree.consumers()
    shared = {node for node in sizes if node in once and taken[node].node not in once}
    return {node: (at[node], len(order) - 1 if node in shared else at[taken[node].node]) for node in sizes}


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
    first = dict.fromkeys(tree.sliced, 0)
    operands = tree.graph.operands
    views = [(operands[at], torch.empty(operands[at].shape, dtype=dtypes[at], device="meta")) for at in taken]
    return sum(reach(part(operand.view(tensor), operand.term, first)) for operand, tensor in views)


def replayed(tree: Tree) -> list[TreeStep]:
    """The steps of a slice but for the last one."""
    return [step for step in tree.steps if step.node != tree.root and step.node not in tree.once]


_REPEATS = 8  # searches for each size, seeded
_KEPT = 3  # proposals of each that are looked at
Fits = Callable[[Tree], bool]


def read_slices(tree: Tree, slices: Any) -> tuple[int, ...]:
    """Labels that are to be sliced, by their names; `NotationError` for one that is not there."""
    found = []
    for name in slices if isinstance(slices, str) else read_sequence("slices", [] if slices is None else slices):
        if name not in tree.graph.names:
            raise NotationError(f"label {name!r} cannot be sliced: no operand has it")
        label = tree.graph.names.index(name)
        if tree.graph.extents[label]:  # of an empty label there is no slice: it stays whole
            found.append(label)
    return tuple(dict.fromkeys(found))


def held(tree: Tree, dtypes: Mapping[int, torch.dtype], result_memory: ResultMemory) -> int:
    """Bytes that a call holds at once in addition to operands: intermediates, the result, and what is needed for it."""
    sizes = _sizes(tree, dtypes)
    return most_alive(sizes, _lives(tree, sizes)) + result_memory.bytes(tree)  # what an arena takes at least


def fitted_slices(
    tree: Tree, dtypes: Mapping[int, torch.dtype], result_memory: ResultMemory, limit: int, model: Model,
    kept: Collection[int] = (),
) -> Tree:  # fmt: skip
    """The tree with as few slices as `limit` bytes allow; labels in `kept` are never sliced.

    A tree that comes with slices loses those that are not needed. `WorkspaceError` says the least that would do.
    """
    whole = tree.whole()

    def fits(each: Tree) -> bool:
        room = limit - result_memory.bytes(each)
        return held(each, dtypes, result_memory) <= limit and arena(each, dtypes, apart=apart_within(room)).size <= room

    if fits(whole):
        return whole
    tree = whole.with_slices(tree.sliced_labels)
    if tree.sliced and fits(tree):
        return _batched(tree, fits, model)
    need_cotengra(f"memory_limit is {counted(limit, 'byte')}, and weft itself finds no slices that fit")
    smallest = min(held(whole, dtypes, result_memory), held(tree, dtypes, result_memory))
    largest = max(whole.size(step.node) for step in whole.steps)
    target = min(largest, max(1, limit // max(dtypes[step.node].itemsize for step in whole.steps)))
    while True:
        proposed = [whole.with_slices(labels) for labels in _proposals(whole, target, frozenset(kept))]
        fitting = [_batched(each, fits, model) for each in proposed if fits(each)]
        if fitting:
            return min(fitting, key=model.total)
        smallest = min([smallest, *(held(each, dtypes, result_memory) for each in proposed)])
        if target <= 1:
            free = whole.with_slices(sliceable(whole, frozenset(kept)))
            if fits(free):
                return _batched(free, fits, model)
            smallest = min(smallest, held(free, dtypes, result_memory))
            result = result_memory.bytes(whole)
            raise WorkspaceError(
                f"memory_limit is {counted(limit, 'byte')} ({si(limit, 'B')}); with all that may be sliced the network "
                f"still needs {counted(smallest, 'byte')} ({si(smallest, 'B')}), {si(result, 'B')} of it for its result"
            )
        target = target // 2


def apart_within(limit: int) -> int:
    """Bytes up to which nothing shares a place in an arena that may have so many."""
    return min(SMALL, max(limit, 0))


def _batched(tree: Tree, fits: Fits, model: Model) -> Tree:
    """The tree with no more slices than it needs: each is a batch of as many as fit."""
    while True:
        fewer = [tree.with_slices(label for label in tree.sliced if label != out) for out in tree.sliced]
        fitting = [each for each in fewer if fits(each)]
        if not fitting:
            return lengthened(tree, tree.sliced, fits, model)
        tree = min(fitting, key=model.total)


def lengthened(tree: Tree, labels: Collection[int], fits: Fits, model: Model) -> Tree:
    """The tree with the stretch of each of these sliced labels that costs least, of those that fit and divide its
    extent."""
    extents = tree.graph.extents
    for label in sorted(labels, key=lambda label: -extents[label]):
        longer = [tree.in_stretches(label, length) for length in _divisors(extents[label])]
        tree = min([tree, *(each for each in longer if fits(each))], key=model.total)
    return tree


def _divisors(number: int) -> list[int]:
    """But for one and itself."""
    small = [each for each in range(2, math.isqrt(number) + 1) if number % each == 0]
    return sorted({*small, *(number // each for each in small)})


def sliceable(tree: Tree, kept: frozenset[int]) -> tuple[int, ...]:
    """Labels of some intermediate, but for those that must be whole."""
    inner = frozenset().union(*(tree.nodes[step.node] for step in tree.steps)) if tree.steps else frozenset()
    return tuple(sorted(label for label in inner - kept if tree.graph.extents[label] > 1))


def _proposals(tree: Tree, target: int, kept: frozenset[int]) -> list[tuple[int, ...]]:
    """Sets of labels after which no intermediate has more than `target` elements, those that repeat least first."""
    from cotengra.slicer import SliceFinder

    finder = SliceFinder(as_cotengra(tree), target_size=target, seed=0)
    finder.forbidden = set(finder.forbidden) | kept
    try:
        finder.search(max_repeats=_REPEATS)
        return [tuple(sorted(labels)) for labels, _ in finder.best(k=_KEPT)]
    except (RuntimeError, ValueError):  # nothing that may be sliced makes them so small
        return []


def indices(tree: Tree) -> list[dict[int, int]]:
    """The index of every sliced label in each slice; slices that add to the same part of the result stand together."""
    graph = tree.graph
    order = sorted(tree.sliced, key=lambda label: label not in graph.output)
    every = product(*(range(graph.extents[label]) for label in order))
    return [dict(zip(order, each, strict=True)) for each in every]


def part(tensor: torch.Tensor, term: Sequence[int], at: Mapping[int, int]) -> torch.Tensor:
    """The part of a tensor that one slice sees."""
    for dim in range(len(term) - 1, -1, -1):
        if term[dim] in at:
            tensor = tensor.select(dim, at[term[dim]])
    return tensor


def least_aligned(tensor: torch.Tensor, term: Sequence[int], sliced: frozenset[int]) -> torch.Tensor:
    """The part of one slice whose address is a multiple of least: what holds for it holds for all parts."""
    found = {label: 0 for label in term if label in sliced}
    if not found:
        return tensor
    worst, least = dict(found), 1 << 30
    for label, extent in zip(term, tensor.shape, strict=True):
        if label in found:
            where = {**found, label: 1 if extent > 1 else 0}
            address = part(tensor, term, where).data_ptr() % 16 or 16
            if address & -address < least:
                worst, least = where, address & -address
    return part(tensor, term, worst)
