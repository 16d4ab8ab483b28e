"""Slices: labels that take one index at a time, so that what is between the operands and the result fits in memory.

Every slice repeats the steps under which a sliced label stands. cotengra's `SliceFinder` looks for the labels that
repeat least for a size of the largest intermediate; what is asked for here is a size of all that is alive at once, so
the size is lowered until that fits.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from weft.base.figures import counted, si
from weft.errors import NotationError, WorkspaceError
from weft.networks.arena import SMALL, arena, least
from weft.networks.cost import Model, invariant
from weft.networks.memory import Beside
from weft.networks.searches import as_cotengra
from weft.networks.tree import Tree

_REPEATS = 8  # searches for each size, seeded
_KEPT = 3  # proposals of each that are looked at


def read_slices(tree: Tree, slices: Any) -> tuple[int, ...]:
    """Labels that are to be sliced, by their names; `NotationError` for one that is not there."""
    found = []
    for name in slices:
        if name not in tree.graph.names:
            raise NotationError(f"label {name!r} cannot be sliced: no operand has it")
        label = tree.graph.names.index(name)
        if tree.graph.extents[label]:  # of an empty label there is no slice: it stays whole
            found.append(label)
    return tuple(dict.fromkeys(found))


def held(tree: Tree, item: Mapping[int, int], beside: Beside) -> int:
    """Bytes that a call holds at once besides its operands: intermediates, the result, and what is needed for it."""
    return least(tree, item, invariant(tree)) + beside.bytes(tree)


def fitted_slices(
    tree: Tree, item: Mapping[int, int], beside: Beside, limit: int, model: Model, kept: Collection[int] = ()
) -> Tree:
    """The tree with as few slices as `limit` bytes allow; labels in `kept` are never sliced.

    A tree that comes with slices loses those that are not needed. `WorkspaceError` says the least that would do.
    """
    whole = tree.with_slices(()) if tree.sliced else tree
    if held(whole, item, beside) <= limit and _fits(whole, item, beside, limit):
        return whole
    if tree.sliced and held(tree, item, beside) <= limit:
        found = [_batched(tree, item, beside, limit, model), tree]
        for each in found:
            if _fits(each, item, beside, limit):
                return each
    smallest = min(held(whole, item, beside), held(tree, item, beside))
    largest = max(whole.size(step.node) for step in whole.steps)
    target = min(largest, max(1, limit // max(item.values())))
    while True:
        proposed = [whole.with_slices(labels) for labels in _proposals(whole, target, frozenset(kept))]
        fitting = [_batched(each, item, beside, limit, model) for each in proposed if held(each, item, beside) <= limit]
        fitting = [each for each in fitting if _fits(each, item, beside, limit)]
        if fitting:
            return min(fitting, key=model.total)
        smallest = min([smallest, *(held(each, item, beside) for each in proposed)])
        if target <= 1:
            free = sliceable(whole, frozenset(kept))
            smallest = min(smallest, held(whole.with_slices(free), item, beside))
            result = beside.bytes(whole)
            raise WorkspaceError(
                f"memory_limit is {counted(limit, 'byte')} ({si(limit, 'B')}); with all that may be sliced the network "
                f"still needs {counted(smallest, 'byte')} ({si(smallest, 'B')}), {si(result, 'B')} of it for its result"
            )
        target = target // 2


def _fits(tree: Tree, item: Mapping[int, int], beside: Beside, limit: int) -> bool:
    room = limit - beside.bytes(tree)
    return arena(tree, item, invariant(tree), apart=apart_within(room)).size <= room


def apart_within(limit: int) -> int:
    """Bytes up to which nothing shares a place in an arena that may have so many."""
    return min(SMALL, max(limit, 0))


def _batched(tree: Tree, item: Mapping[int, int], beside: Beside, limit: int, model: Model) -> Tree:
    """The tree without slices that it does not need: a label that fits as a whole makes its slices one batch."""
    while True:
        fewer = [tree.with_slices(label for label in tree.sliced if label != out) for out in tree.sliced]
        fitting = [each for each in fewer if held(each, item, beside) <= limit]
        if not fitting:
            return tree
        tree = min(fitting, key=model.total)


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
    found: list[dict[int, int]] = [{}]
    for label in order:
        found = [{**known, label: index} for known in found for index in range(graph.extents[label])]
    return found


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
