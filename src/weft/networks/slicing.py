"""Slices: labels that take some of their indices at a time, so that what is between the operands and the result fits
in memory.

Every slice repeats the steps under which a sliced label stands. So a slice has as many indices as fit: those of a label
that may be whole, and else a stretch of them. cotengra's `SliceFinder` looks for the labels that repeat least for a
size of the largest intermediate; the limit here is the size of all that is alive at once, so the size is lowered
until that fits.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch

from weft.base.figures import counted, si
from weft.errors import NotationError, WorkspaceError
from weft.networks.arena import SMALL, ResultMemory, arena, least
from weft.networks.cost import Model
from weft.networks.path import Fit, as_cotengra, need_cotengra
from weft.networks.settings import Settings
from weft.networks.tree import Tree
from weft.spec.arguments import read_sequence

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


def fit_of(settings: Settings, leaves: Sequence[torch.dtype], model: Model, slices: Any = ()) -> Fit:
    """A function that gives a tree its slices: the labels `slices`, and as many as the limit of these settings needs.

    `leaves` are the operands' types.
    """

    def fit(tree: Tree) -> Tree:
        named = read_slices(tree, slices)
        tree = tree.with_slices(named) if named else tree
        if settings.memory_limit is None or settings.reuse:
            return tree
        dtypes = settings.node_dtypes(tree, leaves)
        result_memory = ResultMemory(dtypes[tree.root], settings.strip_exponent)
        return fitted_slices(tree, dtypes, result_memory, settings.memory_limit, model)

    return fit


def held(tree: Tree, dtypes: Mapping[int, torch.dtype], result_memory: ResultMemory) -> int:
    """Bytes that a call holds at once in addition to operands: intermediates, the result, and what is needed for it."""
    return least(tree, dtypes) + result_memory.bytes(tree)


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
        return (
            held(each, dtypes, result_memory) <= limit
            and arena(each, dtypes, apart=apart_within(room)).size <= room
        )

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
