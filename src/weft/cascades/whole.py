"""All of S at once, as one program of torch's operations: the reference, second derivatives, and calls of few elements.

Torch's autograd differentiates it, as often as is asked. A node of autograd in Python, blocks and loops cost more than
a few operations on a small S do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor, fx

from weft.api.contract import contract
from weft.autograd.graphs import GraphWriter, LabelGroups, Program
from weft.cascades.evaluate import operation, reduce_whole
from weft.fn.reductions import is_reduction
from weft.spec import Label

Shape = tuple[int, ...]
Laid = tuple[Sequence[Label], Sequence[int]]  # a tensor's labels and its shape


class WholeWriter(GraphWriter):
    """Writes a plan's two contractions and the function between them, computed in a type; a term has letters."""

    def __init__(self, plan: Any, wide: torch.dtype) -> None:
        self.plan, self.frame, self.between, self.wide = plan, plan.frame, plan.written, wide
        self._letters = {label: chr(0x100 + at) for at, label in enumerate((*plan.extents, *plan.frame.order))}
        super().__init__({self._letters[label]: extent for label, extent in plan.extents.items()})
        self.s = self._term(self.frame.order)
        self.values: dict[fx.Node, fx.Node] = {}
        self.shapes: dict[fx.Node, Shape] = {}

    def _term(self, labels: Sequence[Label]) -> str:
        return "".join(self._letters[label] for label in labels)

    def whole(self, tensors: Sequence[Laid], operands: Sequence[Laid]) -> Program:
        """The results of a plan, a tuple, as the caller has them, of tensors, operands and coordinates that lie so."""
        a, b, *c = [(self.graph.placeholder(f"tensor_{at}"), *each) for at, each in enumerate(tensors)]
        inputs = self.between.inputs
        for node, (labels, shape) in zip(inputs[1:], operands, strict=False):
            value, term = self._own(self.graph.placeholder(node.name), labels, shape)
            self._keep(node, self._along(value, term, self.s), term)
        for node in inputs[1 + len(operands) :]:
            self._keep(node, self.graph.placeholder(node.name), self._term(tuple(self.between.modes[node])))
        self._scores(a, b)
        for node in self.between.calls:
            self._call(node)
        outputs = list(self.between.outputs)
        results = [self._second(outputs.pop(0), c[0])] if c else []
        for at, node in enumerate(outputs):
            results.append(self._result(node, outputs[:at]))
        return self.program(results)

    def arranging(
        self, tensors: Sequence[Laid], orders: Sequence[Sequence[Label]], operands: Sequence[Laid]
    ) -> Program:
        """Tensors with the dimensions of orders, missing ones of extent 1, in the type of products; operands as S."""
        places = [self.graph.placeholder(f"tensor_{at}") for at in range(len(tensors) + len(operands))]
        results = []
        for x, laid, order in zip(places, tensors, orders, strict=False):
            value, term = self._own(x, *laid)
            wanted, product = self._term(order), self.frame.products.product
            lone = [at for at, label in enumerate(term) if label not in wanted]
            summed = [at for at in lone if self.extents[term[at]] != 1]
            if summed:
                value = self.graph.call_method("sum", (value, summed), {"keepdim": True, "dtype": self.wide})
            if lone:
                value = self.method("squeeze", value, lone)
            value = self._along(value, "".join(label for label in term if label in wanted), wanted)
            results.append(self.method("to", value, product) if summed or product != self.plan.said.dtype else value)
        for x, laid in zip(places[len(tensors) :], operands, strict=True):
            results.append(self._along(*self._own(x, *laid), self.s))
        return self.program(results)

    def _along(self, x: fx.Node, term: str, wanted: str) -> fx.Node:
        """A tensor with a dimension for each wanted mode, of extent 1 for those that it lacks."""
        x = self.permuted(x, term, "".join(label for label in wanted if label in term))
        shape = [self.extents[label] if label in term else 1 for label in wanted]
        return x if len(term) == len(wanted) else self.method("reshape", x, shape)

    def _keep(self, node: fx.Node, value: fx.Node, term: str) -> None:
        self.values[node] = value
        self.shapes[node] = tuple(self.extents[label] if label in term else 1 for label in self.s)

    def _own(self, x: fx.Node, labels: Sequence[Label], shape: Sequence[int]) -> tuple[fx.Node, str]:
        """A tensor without the modes that it broadcasts along, and its diagonal where it names one twice."""
        term, sizes = self._term(labels), list(shape)
        for label in dict.fromkeys(term):
            while term.count(label) > 1:
                first = term.index(label)
                second = term.index(label, first + 1)
                x, size = self.call(torch.diagonal, x, 0, first, second), sizes[first]
                keep = [at for at in range(len(term)) if at not in (first, second)]
                term, sizes = "".join(term[at] for at in keep) + label, [*(sizes[at] for at in keep), size]
        spread = [at for at, label in enumerate(term) if sizes[at] != self.extents[label]]
        if spread:
            x = self.method("squeeze", x, spread)
        return x, "".join(label for at, label in enumerate(term) if at not in spread)

    # -- the contractions ------------------------------------------------------------------------------------------

    def _scores(self, a: tuple[fx.Node, Sequence[Label], Sequence[int]], b: Any) -> None:
        """S, of all its modes."""
        (left, term_a), (right, term_b) = self._own(*a), self._own(*b)
        own = "".join(label for label in self.s if label in term_a or label in term_b)
        s = self.product(self._wide(left), term_a, self._wide(right), term_b, own)
        if self.frame.alpha != 1:
            s = self._scaled(s)
        if own != self.s:
            s = self.method("expand", self._along(s, own, self.s), self.shape(self.s))
        self._keep(self.between.inputs[0], s, self.s)

    def _scaled(self, s: fx.Node) -> fx.Node:
        """A product times the cascade's factor, by one call where it is one of matrices."""
        made: Any = s.args[0] if s.target == "view" else s
        by_one: Any = {torch.mm: torch.addmm, torch.bmm: torch.baddbmm}.get(made.target)
        if by_one is None:
            return self.call(torch.mul, s, self.frame.alpha)
        with self.graph.inserting_before(made):
            kind, device = self.wide, str(self.frame.device)
            nothing = self.graph.call_function(torch.empty, ((),), {"dtype": kind, "device": device})
        made.target, made.args = by_one, (nothing, *made.args)
        made.kwargs = {"beta": 0, "alpha": self.frame.alpha}
        return s

    def _wide(self, x: fx.Node) -> fx.Node:
        return x if self.wide == self.plan.said.dtype else self.method("to", x, self.wide)

    def _second(self, node: fx.Node, c: tuple[fx.Node, Sequence[Label], Sequence[int]]) -> fx.Node:
        """D, of the value that meets C."""
        p, frame = self._spread(node, self.s), self.frame
        if node.meta["dtype"] != self.wide:
            p = self.method("to", p, self.wide)
        right, term = self._own(*c)
        asked = self._term(self.plan.notation.d)
        own = "".join(label for label in asked if label in self.s or label in term)
        if frame.algebra is None:
            groups = LabelGroups.of(self.s, term, own)
            made = groups.batch + groups.rows + groups.columns
            d = self.permuted(self.product(p, self.s, self._wide(right), term, made), made, own)
        else:
            d = self.call(_contraction((self.s, term, own), frame.algebra.algebra), p, self._wide(right))
        if own != asked:
            d = self.filled(self.aligned(d, own, asked), asked)
        return d if self.plan.result_type == self.wide else self.method("to", d, self.plan.result_type)

    # -- the function between --------------------------------------------------------------------------------------

    def _call(self, node: fx.Node) -> None:
        shape = np.broadcast_shapes(*(self.shapes[each] for each in node.all_input_nodes))
        if is_reduction(node):
            labels, kind = self.between.reduced(node), str(node.args[1])
            term, dims = self._term(labels), self.frame.dims(labels)
            value = self._spread(node.all_input_nodes[0], term)
            self.values[node] = self.call(reduce_whole, kind, value, dims, self.size(term))
            kept = self.s if kind == "softmax" else ""
            shape = tuple(
                (self.extents[label] if label in kept else 1) if label in term else extent
                for label, extent in zip(self.s, shape, strict=True)
            )
        else:
            self.values[node] = operation(self.graph, node, self.values.__getitem__, self.frame)
        self.shapes[node] = shape

    def _spread(self, node: fx.Node, term: str) -> fx.Node:
        """A value that has these modes, too."""
        shape = self.shapes[node]
        own = zip(self.s, shape or (1,) * len(self.s), strict=True)
        wanted = tuple(self.extents[label] if label in term else extent for label, extent in own)
        return self.values[node] if shape == wanted else self.method("expand", self.values[node], wanted)

    def _result(self, node: fx.Node, before: Sequence[fx.Node]) -> fx.Node:
        """A result besides D, in memory of its own, with the modes that its value has in S's order."""
        dtype, modes = node.meta["dtype"], self.between.modes[node]
        stored = self.frame.stored_as(dtype) if node in self.between.elementwise else dtype
        term = self._term([label for label in self.frame.order if label in modes])
        asked = self._term([label for label in self.plan.notation.s if label in modes])
        value = self._spread(node, term)
        if stored != dtype or self.wide != self.frame.products.accumulate:
            value = self.graph.call_method("to", (value, stored), {"copy": True})
        elif value is not self.values[node] or node in before or _is_view(node) or node in self.between.inputs:
            value = self.graph.call_method("clone", (value,), {"memory_format": torch.contiguous_format})
        if len(term) < len(self.s):
            value = self.method("reshape", value, self.shape(term))
        return self.permuted(value, term, asked)


def _is_view(node: fx.Node) -> bool:
    """Whether an operation may return what it was given."""
    return node.op == "call_function" and any(each.alias_info is not None for each in node.target._schema.returns)  # type: ignore[union-attr]


def _contraction(terms: tuple[str, str, str], algebra: Any) -> Callable[[Tensor, Tensor], Any]:
    def contracted(x: Tensor, y: Tensor) -> Any:
        return contract(tuple(map(tuple, terms)), x, y, algebra=algebra)

    return contracted
