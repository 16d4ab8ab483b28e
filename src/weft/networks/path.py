"""Which path: a given one, what opt_einsum or cotengra say, or of several the one that weft's count finds fastest.

Fewest multiply-adds is not least time: a step that reads and writes much, or one more launch, may cost more, and what
need not be sliced is not repeated. So paths of opt_einsum and cotengra are ranked by `weft.networks.tree`, and good
ones improved: their subtrees are searched anew for the least work, before slices are found and after. How long this
goes on follows from the number of operands and from predicted times, never from clocks: every process finds the same.

What is random in the searches of both is seeded and runs in this process and in Python alone: cotengra's pool seeds a
search for each of its workers, and its Rust searches have random numbers of their own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache
from itertools import combinations
from typing import Any, NamedTuple

from weft.base.figures import counted
from weft.errors import ArgumentError, NotationError, UnsupportedError, WorkspaceError
from weft.networks.graph import Graph
from weft.networks.tree import Model, Tree, pairs_of_path

WORDS = ("auto", "greedy", "optimal", "auto-hq")
FEWEST = 4  # operands up to which weft looks at every path itself: no search is imported
FEW = 8  # operands up to which the best of all paths is found at once
WORTH = 1.1  # times what its launches take, from which a contraction may become faster
LONG, LONGER = 0.01, 10.0  # seconds of a contraction that are worth some of search, and many
_QUICK, _MANY = 16, 128  # greedy searches of which the best is taken
_SEEDS = (1, 2, 3)  # of further ones
_SMALL, _WIDE = 6, 8  # nodes of the subtrees that are searched anew
_ROUNDS = 3  # of searching the wide ones once more
_TRIED = 2  # trees that are improved, and for which slices are found
_LARGE = 300  # operands from which a greedy search takes tenths of a second
SOME = 40  # operands up to which opt_einsum's own choice of a search is quick
_MOST = 256  # subtrees that are searched anew in one go
INSTALL = "pip install 'weft-tensor[networks]'"

_IMPROVED = ", improved"

Pairs = tuple[tuple[int, int], ...]
Fit = Callable[[Tree], Tree]  # a tree with the slices that it needs; `WorkspaceError` where none would do


def as_it_is(tree: Tree) -> Tree:
    """The slices of a tree where none are requested."""
    return tree


def find_path(graph: Graph, optimize: Any, model: Model, fit: Fit = as_it_is) -> Found:
    """The path that `optimize` asks for: a word, a path, or a tree or optimizer of cotengra or opt_einsum.

    Where the fastest is looked for, `fit` gives a tree the slices that count.
    Words other than `WORDS` go to opt_einsum or cotengra, which know many. `ArgumentError` for what is none of all.
    """
    count = len(graph.operands)
    if count <= 2:
        return Found(tuple((0, 1) for _ in range(count - 1)), "the only one")
    if graph.ordered:
        late = f"; nothing is reduced before the last step: {graph.early.broken}" if graph.early.never else ""
        return Found(from_left(count), f"from left to right, as nothing is known of the algebra's order{late}")
    if hasattr(optimize, "get_ssa_path"):
        return _of_tree(graph, optimize)
    if isinstance(optimize, str):
        if optimize == "auto":
            return fastest(graph, model, fit)
        return Found(asked(graph, optimize), optimize)
    if callable(optimize):
        return _of_optimizer(graph, optimize)
    if isinstance(optimize, Sequence):
        path = [entry for entry in optimize if not isinstance(entry, str)]  # opt_einsum heads its own with a word
        if not all(isinstance(entry, Sequence) for entry in path):
            raise ArgumentError(f"optimize={optimize!r}: a path is a sequence of pairs of places")
        return Found(pairs_of_path(path, count), "given")
    raise ArgumentError(
        f"optimize={optimize!r} is none of {', '.join(map(repr, WORDS))}, no path, and no tree or optimizer of cotengra"
    )


def _of_tree(graph: Graph, tree: Any) -> Found:
    """A tree of cotengra: its path, and the labels it slices."""
    if getattr(tree, "N", len(graph.operands)) != len(graph.operands):
        raise NotationError(f"the tree has {counted(tree.N, 'operand')}, the network {len(graph.operands)}")
    pairs = pairs_of_path(tree.get_ssa_path(), len(graph.operands), ssa=True)
    sliced = tuple(_label_like(graph, tree, label) for label in getattr(tree, "sliced_inds", ()))
    return Found(pairs, type(tree).__name__, sliced)


def _label_like(graph: Graph, tree: Any, label: Any) -> int:
    """Our number of a tree's label: by its name, or by where it stands, as a tree may have names of its own."""
    if label in graph.names:
        return graph.names.index(label)
    terms = getattr(tree, "inputs", ())
    for ours, theirs in zip(graph.terms, terms, strict=True):
        if label in theirs and len(ours) == len(theirs):
            return ours[list(theirs).index(label)]
    raise NotationError(f"the tree slices '{label}', which the network does not have")


def _of_optimizer(graph: Graph, optimizer: Callable[..., Any]) -> Found:
    """An optimizer as opt_einsum calls one; one of cotengra may slice too."""
    inputs, output, sizes = as_sets(graph)
    name = type(optimizer).__name__
    if hasattr(optimizer, "search") and type(optimizer).__module__.startswith("cotengra"):
        tree = optimizer.search(*as_tuples(graph))
        sliced = tuple(getattr(tree, "sliced_inds", ()))
        return Found(pairs_of_path(tree.get_ssa_path(), len(inputs), ssa=True), name, sliced)
    try:
        path = [tuple(map(int, step)) for step in optimizer(inputs, output, sizes)]
    except Exception as error:  # whatever a function of somebody else raises or returns
        raise ArgumentError(f"optimize={name} finds no path as opt_einsum calls it: {error}") from error
    return Found(pairs_of_path(path, len(inputs)), name)


def fastest(graph: Graph, model: Model, fit: Fit) -> Found:
    """The path of least time with the slices that `fit` gives it."""
    race = _Race(graph, model, fit)
    for source, pairs in _paths(graph):
        race.add(source, Tree.of(graph, pairs))
    count = len(graph.operands)
    many = count > FEW
    if count > FEWEST and race.best.seconds > WORTH * model.launch * count and has_cotengra():
        if many:
            for entry in race.ranked[:_TRIED]:
                race.improve(entry, _SMALL)
            _search_on(race)
        else:
            race.add("cotengra's optimal search", Tree.of(graph, exact(graph, model)))
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
        if self.fit is as_it_is:
            return self.best
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


def _paths(graph: Graph) -> Iterator[tuple[str, Pairs]]:
    """Paths worth comparing, each found in little time."""
    count = len(graph.operands)
    if count <= FEWEST:
        yield from ((", ".join(map(str, pairs[:-1])) + " first", pairs) for pairs in _EVERY[count])
        return
    if count <= FEW:
        yield "from left to right", from_left(count)
        yield "opt_einsum optimal", asked(graph, "optimal" if count <= 5 else "dp")
    yield "opt_einsum greedy", asked(graph, "greedy")
    if FEW < count <= SOME:
        yield "opt_einsum auto", asked(graph, "auto")
    if count > FEW and has_cotengra():
        yield "cotengra's greedy search", random_greedy(graph, max(1, min(_QUICK, _QUICK * _LARGE // count)))


def every_path(places: Iterable[int], new: int) -> Iterator[Pairs]:
    """All paths that meet the tensors at these places; a step's result stands at `new`, the next one's behind it."""
    left = tuple(places)
    if len(left) == 1:
        yield ()
    for pair in combinations(left, 2):
        rest = (place for place in left if place not in pair)
        yield from ((pair, *later) for later in every_path((*rest, new), new + 1))


_EVERY = {count: tuple(every_path(range(count), count)) for count in range(1, FEWEST + 1)}


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


class Found(NamedTuple):
    """A path, where it came from, and the labels that come sliced with it."""

    pairs: Pairs
    source: str
    sliced: tuple[int, ...] = ()


def from_left(count: int) -> Pairs:
    """Operands met from left to right."""
    return pairs_of_path([tuple(range(count))], count)


@cache
def has_cotengra() -> bool:
    """Whether cotengra is installed, which finds better paths of many operands, and slices."""
    try:
        import cotengra  # noqa: F401
    except ModuleNotFoundError:
        return False
    return True


def need_cotengra(what: str) -> None:
    """`UnsupportedError` says what to install where `what` needs cotengra and it is not there."""
    if not has_cotengra():
        raise UnsupportedError(f"{what}: cotengra does, which is not installed: {INSTALL}")


def asked(graph: Graph, word: str) -> Pairs:
    """A path of opt_einsum, or of cotengra where that alone knows the word."""
    import opt_einsum
    from opt_einsum.paths import get_path_fn

    inputs, output, sizes = as_sets(graph)
    try:
        search: Callable[..., Any] = get_path_fn(word)
    except KeyError:
        need_cotengra(f"opt_einsum does not know optimize={word!r}")
        import cotengra

        try:
            tree = cotengra.array_contract_tree(*as_tuples(graph), optimize=word, canonicalize=False)
        except (KeyError, ValueError) as error:
            raise ArgumentError(f"optimize={word!r} is known to neither opt_einsum nor cotengra") from error
        return pairs_of_path(tree.get_ssa_path(), len(inputs), ssa=True)
    if word == "auto-hq" and len(inputs) > SOME:
        search = opt_einsum.RandomGreedy(max_repeats=128, minimize="flops", parallel=False)
    return pairs_of_path(search(inputs, output, sizes), len(inputs))


def random_greedy(graph: Graph, repeats: int, seed: int = 0) -> Pairs:
    """The path of the fewest products among several randomized greedy """
    import cotengra

    search = cotengra.RandomGreedyOptimizer(max_repeats=repeats, seed=seed, accel=False, parallel=False)
    return pairs_of_path(search(*as_tuples(graph)), len(graph.operands))


def exact(graph: Graph, model: Model) -> Pairs:
    """The path of the least work, products and bytes weighed as the model does; for few operands."""
    return pairs_of_path(_optimal(model)(*as_tuples(graph)), len(graph.operands))


def reconfigured(tree: Tree, model: Model, size: int) -> Tree:
    """The tree with subtrees of `size` nodes exchanged for those of the least work, the same labels being sliced."""
    search = _optimal(model)
    found = as_cotengra(tree).subtree_reconfigure(
        subtree_size=size, minimize=search.minimize, optimize=search, maxiter=min(tree.leaves, _MOST)
    )
    return Tree.of(tree.graph, pairs_of_path(found.get_ssa_path(), tree.leaves, ssa=True), tree.sliced)


def as_cotengra(tree: Tree) -> Any:
    """A tree of cotengra, without the labels that are sliced."""
    import cotengra

    gone = frozenset(tree.sliced)
    graph = tree.graph
    inputs = [tuple(label for label in term if label not in gone) for term in graph.terms]
    output = tuple(label for label in graph.output if label not in gone)
    sizes = {label: max(extent, 1) for label, extent in enumerate(graph.extents)}
    found = cotengra.ContractionTree.from_path(inputs, output, sizes, ssa_path=tree.pairs)
    for node, _, _ in found.traverse("dfs"):  # from below: started at the result, it descends by recursion
        found.get_legs(node)
    return found


def as_sets(graph: Graph) -> tuple[list[frozenset[int]], frozenset[int], dict[int, int]]:
    """The graph as both libraries take it. Labels stay numbers: sets of them have one order in every process."""
    inputs = [frozenset(term) for term in graph.terms]
    return inputs, frozenset(graph.output), {label: max(extent, 1) for label, extent in enumerate(graph.extents)}


def as_tuples(graph: Graph) -> tuple[list[tuple[int, ...]], tuple[int, ...], dict[int, int]]:
    """The graph as cotengra takes it."""
    inputs, output, sizes = as_sets(graph)
    return [tuple(term) for term in inputs], tuple(output), sizes


def _optimal(model: Model) -> Any:
    """cotengra's search for the best of all paths, which is quick for some ten operands.

    It adds to a step's multiply-adds those that fit in the time of its result's elements: each is written and read.
    """
    from cotengra.pathfinders.path_basic import OptimalOptimizer

    elements = model.memory / model.item
    balance = max(1, round(2 * model.rate / model.factor / elements))
    return OptimalOptimizer(minimize=f"combo-{balance}", accel=False)
