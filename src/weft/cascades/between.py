"""The function of a cascade, traced: its graph, and the modes of every value in it.

    s      has all modes of S                      where(j <= i, s, -inf)    all that enter it
    i      its own                                 logsumexp(s, "k")         those of s but k

A value depends on elements of S (it is `elementwise`) or on reductions of them alone. Elementwise values exist for a
block at a time; the others are as small as what the function is given, and exist whole.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from weft.cascades.described import CascadeNotation, labels_of
from weft.errors import FunctionError, ShapeError
from weft.fn.graphs import behind, output_of, results_of
from weft.fn.pointwise import RecordedFunction
from weft.fn.reductions import is_reduction
from weft.fn.trace import trace
from weft.spec import Label


class Between:
    """A traced function of elements of S.

    `inputs` are the placeholders, s first, then those of `names`; `outputs` what it returns. `modes` and `elementwise`
    say of each node which labels it has and whether it depends on elements of S.
    """

    def __init__(
        self, graph: fx.Graph, names: Sequence[str], given: Mapping[str, frozenset[Label]], notation: CascadeNotation
    ) -> None:
        self.graph = graph
        self.names = tuple(names)
        self.notation = notation
        self.inputs = tuple(node for node in graph.nodes if node.op == "placeholder")
        self.several, self.outputs = isinstance(output_of(graph), tuple), results_of(graph)
        self.modes: dict[fx.Node, frozenset[Label]] = {}
        self.elementwise: set[fx.Node] = set()
        places = (frozenset(notation.s), *(given[name] for name in names))
        for node, modes in zip(self.inputs, places, strict=True):
            self.modes[node] = modes
        self.elementwise.add(self.inputs[0])
        for node in self.calls:
            self._describe(node)

    @property
    def calls(self) -> list[fx.Node]:
        """The operations, in order."""
        return [node for node in self.graph.nodes if node.op == "call_function"]

    @property
    def reductions(self) -> list[fx.Node]:
        """The operations that reduce over modes, in order."""
        return [node for node in self.calls if is_reduction(node)]

    def reduced(self, node: fx.Node) -> tuple[Label, ...]:
        """The labels that a reduction reduces."""
        return labels_of(node.args[2], self.notation)  # type: ignore[arg-type]

    @property
    def given(self) -> dict[str, frozenset[Label]]:
        """The labels of operands and coordinates by name."""
        return {name: self.modes[node] for name, node in zip(self.names, self.inputs[1:], strict=True)}

    def large(self, node: fx.Node) -> bool:
        """Whether a node reduces elements of S."""
        return is_reduction(node) and node.args[0] in self.elementwise

    def ancestors(self, nodes: Sequence[fx.Node], known: Mapping[fx.Node, Any] | frozenset[fx.Node]) -> set[fx.Node]:
        """The nodes that enter some, themselves included; what lies behind a known one does not count."""
        return behind(*nodes, cut=known)

    def function(
        self, results: Sequence[fx.Node], given: Sequence[fx.Node], settled: Collection[fx.Node] = (),
        alone: bool = False,
    ) -> RecordedFunction:  # fmt: skip
        """Some values as a function of others; settled choices are their first alternative. `alone`: there is one."""
        graph, new = fx.Graph(), dict[Any, fx.Node]()
        for at, node in enumerate(given):
            new[node] = graph.placeholder(f"x{at}")
            new[node].meta.update(dtype=node.meta["dtype"], scalar=False)
        needed = self.ancestors(results, frozenset(given))
        for node in self.calls:
            if node in needed and node not in new:
                new[node] = new[node.args[1]] if node in settled else graph.node_copy(node, new.__getitem__)
        found = tuple(new[node] for node in results)
        graph.output(found[0] if alone else found)
        return as_function(graph)

    def _describe(self, node: fx.Node) -> None:
        sources = node.all_input_nodes
        modes = frozenset().union(*(self.modes[each] for each in sources))
        within = any(each in self.elementwise for each in sources)
        if is_reduction(node):
            reduced = self.reduced(node)
            if node.args[1] != "softmax":
                modes, within = modes - set(reduced), False
        elif sources and not any(modes <= self.modes[each] for each in sources):
            within = True  # of two small values a large one: a mask of two coordinates
        self.modes[node] = modes
        if within:
            self.elementwise.add(node)


#: Types and labels of operands and coordinates.
Given = Mapping[str, tuple[torch.dtype, frozenset[Label]]]


def traced(function: Callable[..., Any] | None, notation: CascadeNotation, dtype: torch.dtype, given: Given) -> Between:
    """`function` of values of that type, and of operands and coordinates."""
    graph = recorded((lambda value: value) if function is None else function, dtype, given).graph
    return Between(graph, tuple(given), {name: labels for name, (_, labels) in given.items()}, notation)


def recorded(function: Callable[..., Any], dtype: torch.dtype, given: Given) -> RecordedFunction:
    """The computation of a function as it is now; arguments as of `traced`."""
    types = [kind for kind, _ in given.values()]
    found = trace(function, (dtype, *types), names=tuple(given), hook="between", reduces=True)
    if not isinstance(found, RecordedFunction):
        raise FunctionError("between: a Triton function cannot stand between two contractions: write it in torch")
    if found.is_complex:
        raise FunctionError("between: complex values do not run in a cascade")
    return found


def as_function(graph: fx.Graph) -> RecordedFunction:
    """The function of a graph's placeholders."""
    graph.eliminate_dead_code()
    return RecordedFunction(graph, [node.name for node in graph.nodes if node.op == "placeholder"])


def check_reductions(between: Between, extents: Mapping[Label, int]) -> None:
    """`ShapeError` for a largest or smallest value of no elements."""
    for node in between.reductions:
        kind = node.args[1]
        if kind in ("argmax", "argmin") and 0 in [extents[label] for label in between.reduced(node)]:
            raise ShapeError(f"between: weft.{kind} of no elements: mode '{node.args[2][0]}' has extent 0")  # type: ignore[index]
