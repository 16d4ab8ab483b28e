"""The path of `optimize="auto"`: of several the one that weft's own count finds fastest, slices counted.

Fewest multiply-adds is not least time: a step that reads and writes much, or one more launch, may cost more, and what
need not be sliced is not repeated. So paths of opt_einsum and cotengra are ranked by `weft.networks.cost`, and good
ones improved: their subtrees are searched anew for the least work, before slices are found and after. How long this
goes on follows from the number of operands and from predicted times, never from clocks: every process finds the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from weft.base.figures import counted
from weft.errors import WorkspaceError
from weft.networks.cost import Model
from weft.networks.graph import Graph
from weft.networks.searches import (
    INSTALL,
    SOME,
    Found,
    Pairs,
    asked,
    exact,
    from_left,
    has_cotengra,
    random_greedy,
    reconfigured,
)
from weft.networks.tree import Tree

FEW = 8  # operands up to which the best of all paths is found at once
WORTH = 1.1  # times what its launches take, from which a contraction may become faster
LONG, LONGER = 0.01, 10.0  # seconds of a contraction that are worth some of search, and many
_QUICK, _MANY = 16, 128  # greedy searches of which the best is taken
_SEEDS = (1, 2, 3)  # of further ones
_SMALL, _WIDE = 6, 8  # nodes of the subtrees that are searched anew
_ROUNDS = 3  # of searching the wide ones once more
_TRIED = 2  # trees that are improved, and for which slices are found
_LARGE = 300  # operands from which a greedy search takes tenths of a second

_IMPROVED = ", improved"

Fit = Callable[[Tree], Tree]  # a tree with the slices that it needs; `WorkspaceError` where none would do


def as_it_is(tree: Tree) -> Tree:
    """The slices of a tree where none are requested."""
    return tree


def fastest(graph: Graph, model: Model, fit: Fit) -> Found:
    """The path of least time with the slices that `fit` gives it."""
    race = _Race(graph, model, fit)
    for source, pairs in _paths(graph, model):
        race.add(source, Tree.of(graph, pairs))
    many = len(graph.operands) > FEW
    if many and has_cotengra() and race.best.seconds > WORTH * model.launch * len(graph.operands):
        for entry in race.ranked[:_TRIED]:
            race.improve(entry, _SMALL)
        _search_on(race)
    found = race.sliced()
    source = f"{found.source}, the fastest of {counted(race.looked_at, 'path')} by weft's count"
    if many and not has_cotengra():
        source += f"; cotengra finds better ones: {INSTALL}"
    return Found(found.tree.pairs, source, found.tree.sliced_labels)


class _RankedTree(NamedTuple):
    """A tree that was looked at. Of equally fast ones the first is taken."""

    seconds: float
    number: int
    source: str
    tree: Tree


class _Race:
    """The trees of one network that were looked at so far."""

    def __init__(self, graph: Graph, model: Model, fit: Fit) -> None:
        self.graph, self.model, self.fit = graph, model, fit
        self._entries: dict[tuple[Pairs, tuple[int, ...]], _RankedTree] = {}
        self._sliced: dict[Pairs, _RankedTree | None] = {}

    @property
    def looked_at(self) -> int:
        return len({pairs for pairs, _ in self._entries})

    @property
    def ranked(self) -> list[_RankedTree]:
        """Trees without slices, the fastest first."""
        return sorted(entry for (_, sliced), entry in self._entries.items() if not sliced)

    @property
    def best(self) -> _RankedTree:
        return self.ranked[0]

    def add(self, source: str, tree: Tree) -> _RankedTree:
        key = tree.pairs, tree.sliced
        if key not in self._entries:
            self._entries[key] = _RankedTree(self.model.total(tree), len(self._entries), source, tree)
        return self._entries[key]

    def improve(self, entry: _RankedTree, size: int, rounds: int = 1) -> _RankedTree:
        """An entry whose subtrees are searched anew while that makes it faster, where cotengra is there to search."""
        if not has_cotengra():
            return entry
        for _ in range(rounds):
            tree = reconfigured(entry.tree, self.model, size)
            found = self.add(f"{entry.source.removesuffix(_IMPROVED)}{_IMPROVED}", tree)
            if found >= entry:
                break
            entry = found
        return entry

    def sliced(self) -> _RankedTree:
        """The fastest once the better ones have the slices that they need; without any where none would do."""
        found = [self._with_slices(entry) for entry in self.ranked[:_TRIED]]
        return min((entry for entry in found if entry is not None), default=self.best)

    def _with_slices(self, entry: _RankedTree) -> _RankedTree | None:
        if entry.tree.pairs not in self._sliced:
            self._sliced[entry.tree.pairs] = self._newly_sliced(entry)
        return self._sliced[entry.tree.pairs]

    def _newly_sliced(self, entry: _RankedTree) -> _RankedTree | None:
        try:
            found = self.add(entry.source, self.fit(entry.tree))
            if not found.tree.sliced:
                return found
            better = self.improve(found, _SMALL)
            return min(found, self.add(better.source, self.fit(better.tree)))
        except WorkspaceError:
            return None


def _paths(graph: Graph, model: Model) -> Iterator[tuple[str, Pairs]]:
    """Paths worth comparing, each found in little time."""
    count = len(graph.operands)
    if count <= FEW:
        yield "from left to right", from_left(count)
        yield "opt_einsum optimal", asked(graph, "optimal" if count <= 5 else "dp")
        if has_cotengra():
            yield "cotengra's optimal search", exact(graph, model)
    yield "opt_einsum greedy", asked(graph, "greedy")
    if FEW < count <= SOME:
        yield "opt_einsum auto", asked(graph, "auto")
    if count > FEW and has_cotengra():
        yield "cotengra's greedy search", random_greedy(graph, max(1, min(_QUICK, _QUICK * _LARGE // count)))


def _search_on(race: _Race) -> None:
    """Longer searches, as far as the time of the contraction is worth theirs."""
    seconds = race.sliced().seconds
    starts = [(_MANY, 0)] if seconds > LONG else []
    starts += [(_QUICK, seed) for seed in _SEEDS] if seconds > LONGER else []
    for repeats, seed in starts:
        pairs = random_greedy(race.graph, repeats, seed)
        race.improve(race.add("cotengra's longer greedy search", Tree.of(race.graph, pairs)), _SMALL)
    if seconds > LONG or len(race.graph.operands) <= _LARGE:
        for entry in race.ranked[:_TRIED]:
            race.improve(entry, _WIDE)
    if seconds > LONG:
        race.improve(race.best, _WIDE, _ROUNDS)
