"""Which path: asked of opt_einsum and cotengra, or given; of several the one that weft's own count finds fastest.

Fewest multiply-adds is not least time: a step that reads and writes much, or one more launch, may cost more.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

from weft.base.figures import counted
from weft.errors import ArgumentError, NotationError
from weft.networks.cost import Model
from weft.networks.graph import Graph
from weft.networks.tree import Tree, pairs_of_path

FEW = 8  # operands up to which several searches are quick enough to be compared
SOME = 40  # up to which opt_einsum's own choice of a search is
LONG = 0.1  # seconds of a contraction that are worth a longer search
_LONGER = ("cotengra's longer greedy search",)
Pairs = tuple[tuple[int, int], ...]
WORDS = ("auto", "greedy", "optimal", "auto-hq")


class Found(NamedTuple):
    """A path, where it came from, and the labels that come sliced with it."""

    pairs: Pairs
    source: str
    sliced: tuple[int, ...] = ()


def find_path(graph: Graph, optimize: Any, model: Model) -> Found:
    """The path that `optimize` asks for: a word, a path, or a tree or optimizer of cotengra or opt_einsum.

    Words other than `WORDS` go to opt_einsum or cotengra, which know many. `ArgumentError` for what is none of all.
    """
    count = len(graph.operands)
    if count <= 2:
        return Found(tuple((0, 1) for _ in range(count - 1)), "the only one")
    if graph.ordered:
        return Found(_from_left(count), "from left to right, as nothing is known of the algebra's order")
    if hasattr(optimize, "get_ssa_path"):
        return _of_tree(graph, optimize)
    if isinstance(optimize, str):
        if optimize == "auto":
            return _fastest(graph, _candidates(graph), model)
        return Found(_asked(graph, optimize), optimize)
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


def _fastest(graph: Graph, candidates: Iterator[tuple[str, Pairs]], model: Model) -> Found:
    """The candidate of least time; of equal ones the first."""
    best: tuple[float, Found] | None = None
    seen: dict[Pairs, None] = {}
    for source, pairs in candidates:
        if best is not None and best[0] < LONG and source in _LONGER:
            break
        if pairs in seen:
            continue
        seen[pairs] = None
        seconds = model.total(Tree.of(graph, pairs))
        if best is None or seconds < best[0]:
            best = seconds, Found(pairs, source)
    assert best is not None, "there is always a greedy path"
    found = best[1]
    return found._replace(source=f"{found.source}, the fastest of {len(seen)} by weft's count")


def _candidates(graph: Graph) -> Iterator[tuple[str, Pairs]]:
    """Paths worth comparing, in a time that fits the number of operands."""
    count = len(graph.operands)
    if count <= FEW:
        yield "from left to right", _from_left(count)
        yield "opt_einsum optimal", _asked(graph, "optimal" if count <= 5 else "dp")
    yield "opt_einsum greedy", _asked(graph, "greedy")
    if FEW < count <= SOME:
        yield "opt_einsum auto", _asked(graph, "auto")
    if count > FEW:
        yield "cotengra's greedy search", _random_greedy(graph, 16)
        yield "cotengra's longer greedy search", _random_greedy(graph, 128)


def _from_left(count: int) -> Pairs:
    return pairs_of_path([tuple(range(count))], count)


def _asked(graph: Graph, word: str) -> Pairs:
    """A path of opt_einsum, or of cotengra where that alone knows the word; both are deterministic here."""
    import opt_einsum
    from opt_einsum.paths import get_path_fn

    inputs, output, sizes = _terms(graph)
    try:
        search: Callable[..., Any] = get_path_fn(word)
    except KeyError:
        import cotengra

        try:
            tree = cotengra.array_contract_tree(
                [tuple(term) for term in inputs], tuple(output), sizes, optimize=word, canonicalize=False
            )
        except (KeyError, ValueError) as error:
            raise ArgumentError(f"optimize={word!r} is known to neither opt_einsum nor cotengra") from error
        return pairs_of_path(tree.get_ssa_path(), len(inputs), ssa=True)
    if word == "auto-hq":
        search = opt_einsum.RandomGreedy(max_repeats=128, minimize="flops", parallel=False) if len(inputs) > SOME else (
            get_path_fn(word)
        )
    return pairs_of_path(search(inputs, output, sizes), len(inputs))


def _random_greedy(graph: Graph, repeats: int) -> Pairs:
    """The best of some greedy searches with chance, seeded, so that every process finds the same.

    In this process: cotengra's pool seeds a search for each of its workers, so what it finds depends on their number.
    """
    import cotengra

    inputs, output, sizes = _terms(graph)
    search = cotengra.RandomGreedyOptimizer(max_repeats=repeats, seed=0, accel=False, parallel=False)
    return pairs_of_path(search([tuple(term) for term in inputs], tuple(output), sizes), len(inputs))


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
    inputs, output, sizes = _terms(graph)
    name = type(optimizer).__name__
    if hasattr(optimizer, "search") and type(optimizer).__module__.startswith("cotengra"):
        tree = optimizer.search([tuple(term) for term in inputs], tuple(output), sizes)
        sliced = tuple(getattr(tree, "sliced_inds", ()))
        return Found(pairs_of_path(tree.get_ssa_path(), len(inputs), ssa=True), name, sliced)
    return Found(pairs_of_path(optimizer(inputs, output, sizes), len(inputs)), name)


def _terms(graph: Graph) -> tuple[list[frozenset[int]], frozenset[int], dict[int, int]]:
    """The graph as both libraries take it. Labels stay numbers: sets of them have one order in every process."""
    inputs = [frozenset(term) for term in graph.terms]
    return inputs, frozenset(graph.output), {label: max(extent, 1) for label, extent in enumerate(graph.extents)}
