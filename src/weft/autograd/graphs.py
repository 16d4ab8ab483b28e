"""Contractions written as graphs of torch's operations: views, sums, and products of matrices.

A graph becomes one Python function (`program`) that calls torch's bindings one after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, NamedTuple

import torch
from torch import fx

Program = Callable[..., Any]


class LabelGroups(NamedTuple):
    """The modes of two operands and D by where they stand, in D's order, or in A's."""

    batch: str
    rows: str  # of A and D
    columns: str  # of B and D
    summed: str  # of A and B
    alone: str  # of one operand

    @classmethod
    def of(cls, a: str, b: str, d: str) -> LabelGroups:
        summed = "".join(x for x in a if x in b and x not in d)
        return cls(
            "".join(x for x in d if x in a and x in b), "".join(x for x in d if x not in b),
            "".join(x for x in d if x not in a), summed, "".join(x for x in a + b if x not in d + summed),
        )  # fmt: skip


class GraphWriter:
    """Writes operations into a graph; `extents` are those of all labels. A term is text, a letter for each mode."""

    def __init__(self, extents: Mapping[str, int]) -> None:
        self.graph, self.extents = fx.Graph(), extents

    def program(self, results: Iterable[fx.Node]) -> Program:
        """The function of the placeholders that returns a tuple."""
        self.graph.output(tuple(results))
        self.graph.eliminate_dead_code()
        return fx.GraphModule(torch.nn.Module(), self.graph).forward

    def call(self, function: Callable[..., Any], *arguments: Any) -> fx.Node:
        return self.graph.call_function(function, arguments)

    def method(self, name: str, *arguments: Any) -> fx.Node:
        return self.graph.call_method(name, arguments)

    def size(self, labels: Iterable[str]) -> int:
        return math.prod(self.extents[label] for label in labels)

    def shape(self, term: str) -> list[int]:
        return [self.extents[label] for label in term]

    # -- views -----------------------------------------------------------------------------------------------------

    def permuted(self, x: fx.Node, term: str, order: str) -> fx.Node:
        if term == order:
            return x
        return self.method("t", x) if len(term) == 2 else self.method("permute", x, [term.index(y) for y in order])

    def aligned(self, x: fx.Node, term: str, want: str) -> fx.Node:
        """A tensor that broadcasts along the modes of `want` that it lacks."""
        order = "".join(label for label in want if label in term)
        x = self.permuted(x, term, order)
        if want.endswith(order):
            return x
        return self.method("reshape", x, [self.extents[label] if label in term else 1 for label in want])

    def filled(self, x: fx.Node, term: str) -> fx.Node:
        """A tensor of its own that has all these modes."""
        found = self.method("expand", x, self.shape(term))
        return self.graph.call_method("clone", (found,), {"memory_format": torch.contiguous_format})

    def _matrix(self, x: fx.Node, term: str, groups: list[str]) -> fx.Node:
        x = self.permuted(x, term, "".join(groups))
        return x if all(len(group) == 1 for group in groups) else self.method("reshape", x, [*map(self.size, groups)])

    # -- sums of products ------------------------------------------------------------------------------------------

    def summed_alone(self, x: fx.Node, term: str, alone: str) -> tuple[fx.Node, str]:
        """An operand summed over the modes that it has alone, and its term then."""
        along = [at for at, label in enumerate(term) if label in alone]
        if not along:
            return x, term
        return self.method("sum", x, along), "".join(label for label in term if label not in alone)

    def product(self, a: fx.Node, term_a: str, b: fx.Node, term_b: str, term_d: str) -> fx.Node:
        """The contraction, contiguous: one product of matrices, or of elements where nothing is summed."""
        groups = LabelGroups.of(term_a, term_b, term_d)
        a, term_a = self.summed_alone(a, term_a, groups.alone)
        b, term_b = self.summed_alone(b, term_b, groups.alone)
        batch, rows, columns, summed, _ = groups
        if not summed:
            found = self.call(torch.mul, self.aligned(a, term_a, term_d), self.aligned(b, term_b, term_d))
            return self.method("contiguous", found)
        if term_d == batch + columns + rows:
            a, b, term_a, term_b, rows, columns = b, a, term_b, term_a, columns, rows
        before = [batch] if batch else []
        left = self._matrix(a, term_a, [*before, rows, summed])
        right = self._matrix(b, term_b, [*before, summed, columns])
        found, kept = self.call(torch.bmm if batch else torch.mm, left, right), batch + rows + columns
        if any(len(group) != 1 for group in (*before, rows, columns)):
            found = self.method("view", found, self.shape(kept))
        if kept != term_d:
            found = self.method("contiguous", self.permuted(found, kept, term_d))
        return found

    def plus(self, total: fx.Node, addend: fx.Node) -> fx.Node:
        """A sum and an addend, by one call where the sum is a product of matrices."""
        by_one: Any = {torch.mm: torch.addmm, torch.bmm: torch.baddbmm}.get(total.target)  # type: ignore[arg-type]
        return self.call(torch.add, total, addend) if by_one is None else self.call(by_one, addend, *total.args)
