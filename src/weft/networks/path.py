"""Which path: the fastest that is found, what opt_einsum or cotengra say, or a given one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from weft.base.figures import counted
from weft.errors import ArgumentError, NotationError
from weft.networks.cost import Model
from weft.networks.fastest import Fit, as_it_is, fastest
from weft.networks.graph import Graph
from weft.networks.searches import Found, as_sets, asked, from_left
from weft.networks.tree import pairs_of_path

WORDS = ("auto", "greedy", "optimal", "auto-hq")


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
        tree = optimizer.search([tuple(term) for term in inputs], tuple(output), sizes)
        sliced = tuple(getattr(tree, "sliced_inds", ()))
        return Found(pairs_of_path(tree.get_ssa_path(), len(inputs), ssa=True), name, sliced)
    try:
        path = [tuple(map(int, step)) for step in optimizer(inputs, output, sizes)]
    except Exception as error:  # whatever a function of somebody else raises or returns
        raise ArgumentError(f"optimize={name} finds no path as opt_einsum calls it: {error}") from error
    return Found(pairs_of_path(path, len(inputs)), name)
