"""Searches for paths that opt_einsum and cotengra make, and a network as they take one.

What is random in them is seeded and runs in this process and in Python alone: cotengra's pool seeds a search for each
of its workers, and its Rust searches have random numbers of their own. So every process finds the same.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, NamedTuple

from weft.errors import ArgumentError, UnsupportedError
from weft.networks.cost import Model
from weft.networks.graph import Graph
from weft.networks.tree import Tree, pairs_of_path

SOME = 40  # operands up to which opt_einsum's own choice of a search is quick
INSTALL = "pip install 'weft[networks]'"
_MOST = 256  # subtrees that are searched anew in one go
Pairs = tuple[tuple[int, int], ...]


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
    """The path of the fewest products among several randomized greedy searches."""
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
