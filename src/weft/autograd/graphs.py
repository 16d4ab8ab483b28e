"""Contractions written as graphs of torch's operations, which torch differentiates: views, sums, products of matrices.

A graph becomes one Python function (`program`) that calls torch's bindings one after the other. A node of autograd in
Python costs more than a small product does, and torch's functions of elements are at par with fused ones on a CPU. So a
call there of few elements, or of whole matrices, is one such program (`handed`):

    D = epilogue(a_fn(A) as a matrix @ b_fn(B) as a matrix + c_fn(C))

Derivatives of any order are torch's, by the conventions that weft's rules have as well. Other algebras are a node of
their own within such a program, or the best of all pairs where these are few.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import BuiltinFunctionType
from typing import Any, NamedTuple

import torch
from torch import fx

from weft.algebra import NAMED
from weft.api.entry import FEW
from weft.autograd.spec import A_FN, B_FN, C_FN, EPILOGUE, FIRST_OPERAND, A, B, Spec
from weft.base.arrays import any_autocast, dispatch_modes
from weft.fn.graphs import behind, results_of, run
from weft.fn.pointwise import RecordedFunction
from weft.machine.exactness import shortened
from weft.machine.store import Store
from weft.planner.options import Options
from weft.planner.promotion import begins_with_library
from weft.planner.request import Request
from weft.planner.target import target_of
from weft.planner.tuned import ROOM, is_stored
from weft.plans.tiers import is_overheard
from weft.spec import Layout

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


STEPS = 8  # operations of functions, each a pass over memory, of tensors that are not few

Core = Callable[[Spec], Callable[[torch.Tensor, torch.Tensor], torch.Tensor]]  # a bare contraction of an algebra
Metas = Sequence[torch.Tensor | None]  # A, B, C (or None) and the operands, without memory

_TYPES = (torch.float32, torch.float64, torch.complex64, torch.complex128)


def _largest(pairs: torch.Tensor) -> torch.Tensor:
    return torch.max(pairs, -1)[0] if pairs.requires_grad else torch.amax(pairs, -1)


def _smallest(pairs: torch.Tensor) -> torch.Tensor:
    return torch.min(pairs, -1)[0] if pairs.requires_grad else torch.amin(pairs, -1)


#: What makes the result of few pairs along their last mode; of equal ones the first is best.
_OF_PAIRS = {"max_plus": _largest, "min_plus": _smallest}


def serves() -> bool:
    """Whether torch's products are those of weft now: in their own type, of factors that are not rounded, and seen by
    no mode, which hears of weft's operations."""
    return not (dispatch_modes() or any_autocast() or shortened())


def _handed_over(request: Request, c: torch.Tensor | None) -> bool:
    """Whether torch's operations may take a request: on a CPU, in the library tier, where nothing was tuned."""
    if is_overheard() or request.device.type != "cpu" or request.schedule is not None:
        return False
    if not begins_with_library("cpu"):
        return False
    if not Store(ROOM).directory.is_dir():
        return True
    extents = request.extents
    d = Layout.contiguous([extents[label] for label in request.notation.output], request.d_dtype)
    added = None if c is None else Layout(tuple(c.shape), c.stride(), c.dtype)
    target = target_of("cpu", request.device)
    return not is_stored(request.contraction(added, d), "cpu", target, request.workspace_limit)


def handed(
    request: Request, c: torch.Tensor | None, spec: Spec, tensors: Metas, moves: bool, core: Core | None
) -> Program | None:
    """A request with C in torch's operations, of the tensors of its plain form; None where weft's own rule serves.

    `moves`: B is a one along new modes. `core` makes the differentiable function of a bare contraction of an
    algebra; without it such a contraction is none of torch's operations.
    """
    if not _handed_over(request, c) or spec.how != Options(specialize="auto", promote=spec.how.promote):
        return None
    kind = spec.accumulate
    if kind not in _TYPES or spec.arithmetic.product is not kind:
        return None
    if any(each is not kind for each in (*spec.storage[:FIRST_OPERAND], spec.results[0])):
        return None
    if any(each is not None and not isinstance(each, RecordedFunction) for each in spec.functions):
        return None
    if not set(spec.term_d) <= set(spec.term_a + spec.term_b):
        return None
    writer = _CallWriter(spec, tensors)
    if spec.algebra is not None:
        return writer.of_an_algebra(core)
    return writer.of_products(moves) if writer.is_worth_it(moves) else None


class _CallWriter(GraphWriter):
    """Writes all of a contraction."""

    def __init__(self, spec: Spec, tensors: Metas) -> None:
        self.spec, self.tensors = spec, tensors
        super().__init__(spec.extents(None if each is None else each.shape for each in tensors))
        names = ("a", "b", "c", *(name for name, _ in spec.operands))
        self.places = {name: self.graph.placeholder(name) for name in names}

    def is_worth_it(self, moves: bool) -> bool:
        """Whether tensors are few, or matrices as they lie with few functions."""
        spec, elements = self.spec, [each.numel() for each in self.tensors if each is not None]
        if max(*elements, self.size(spec.term_d)) <= FEW:
            return True
        functions = [each for each in spec.functions if isinstance(each, RecordedFunction)]
        steps = sum([len([node for node in each.graph.nodes if node.op == "call_function"]) for each in functions])
        return not moves and steps <= STEPS and self._is_of_matrices()

    def _is_of_matrices(self) -> bool:
        """Whether both operands are matrices as they lie, one of their strides 1, and so is D."""
        spec = self.spec
        batch, rows, columns, summed, alone = LabelGroups.of(spec.term_a, spec.term_b, spec.term_d)
        if alone or not summed or spec.term_d not in (batch + rows + columns, batch + columns + rows):
            return False
        for at, term, kept in ((A, spec.term_a, rows), (B, spec.term_b, columns)):
            tensor = self.tensors[at]
            assert tensor is not None
            lies = tensor.permute([term.index(x) for x in batch + kept + summed])
            try:
                matrix = lies.view(*map(self.size, (batch, kept, summed)))
            except RuntimeError:
                return False
            if 1 not in matrix.stride()[1:]:
                return False
        return True

    # -- the whole -------------------------------------------------------------------------------------------------

    def of_products(self, moves: bool) -> Program:
        spec = self.spec
        addend = None
        if spec.term_c is not None:
            addend = self.aligned(self._through(C_FN, "c", spec.term_c), spec.term_c, spec.term_d)
        a = self._through(A_FN, "a", spec.term_a)
        if moves:
            a, term = self.summed_alone(a, spec.term_a, LabelGroups.of(spec.term_a, spec.term_b, spec.term_d).alone)
            value = self.filled(self.aligned(a, term, spec.term_d), spec.term_d)
        else:
            b = self._through(B_FN, "b", spec.term_b)
            value = self.product(a, spec.term_a, b, spec.term_b, spec.term_d)
        return self.program(self._finished(value if addend is None else self.plus(value, addend)))

    def of_an_algebra(self, core: Core | None) -> Program | None:
        spec = self.spec
        if spec.term_c is not None:
            return None
        a, b = self._through(A_FN, "a", spec.term_a), self._through(B_FN, "b", spec.term_b)
        if (of_pairs := self._of_few_pairs()) is not None:
            value = self._by_pairs(a, b, of_pairs)
        elif core is None:
            return None
        else:
            value = self.call(core(replace(spec.without(0, 1, 2, 3), results=(spec.accumulate,), several=False)), a, b)
        return self.program(self._finished(value))

    def _of_few_pairs(self) -> Callable[[torch.Tensor], torch.Tensor] | None:
        """The function that makes the result of all pairs, where these are few."""
        algebra, every = self.spec.algebra, set(self.spec.term_a + self.spec.term_b)
        if algebra is None or NAMED.get(algebra.name) is not algebra or self.spec.accumulate.is_complex:
            return None
        return _OF_PAIRS.get(algebra.name) if 0 < self.size(every) <= FEW and every > set(self.spec.term_d) else None

    def _by_pairs(self, a: fx.Node, b: fx.Node, of_pairs: Callable[[torch.Tensor], torch.Tensor]) -> fx.Node:
        spec = self.spec
        reduced = "".join(x for x in dict.fromkeys(spec.term_a + spec.term_b) if x not in spec.term_d)
        every = spec.term_d + reduced
        pairs = self.call(torch.add, self.aligned(a, spec.term_a, every), self.aligned(b, spec.term_b, every))
        if len(reduced) > 1:
            pairs = self.method("reshape", pairs, [*self.shape(spec.term_d), self.size(reduced)])
        return self.method("contiguous", self.call(of_pairs, pairs))

    # -- functions -------------------------------------------------------------------------------------------------

    def _through(self, hook: int, place: str, term: str) -> fx.Node:
        """A tensor through its function, in the type of products: the function may return truth values, say."""
        function = self.spec.functions[hook]
        if function is None:
            return self.places[place]
        (value,), kind = self._inlined(hook, self.places[place], term), self.spec.accumulate
        return value if function.result is kind else self.method("to", value, kind)

    def _finished(self, value: fx.Node) -> list[fx.Node]:
        """The results, in their types."""
        spec, function = self.spec, self.spec.functions[EPILOGUE]
        if function is None:
            return [value]
        found = zip(self._inlined(EPILOGUE, value, spec.term_d), function.results, spec.results, strict=True)
        return [each if own is wanted else self.method("to", each, wanted) for each, own, wanted in found]

    def _inlined(self, hook: int, value: fx.Node, term: str) -> list[fx.Node]:
        """The results of a function of a value that has these modes."""
        function = self.spec.functions[hook]
        assert isinstance(function, RecordedFunction)
        inputs = [node for node in function.graph.nodes if node.op == "placeholder"]
        taken = zip(self.spec.names[hook], function.dtypes[1:], strict=True)
        given = [value, *(self._beside(name, term, kind) for name, kind in taken)]

        def call(node: fx.Node, args: Any, kwargs: Any) -> fx.Node:
            if hook == EPILOGUE and (other := _addend(node, inputs)) is not None:
                return self.plus(value, args[node.args.index(other)])
            return self.graph.call_function(bound(node.target), args, kwargs)

        found, results = run(function.graph, given, call), results_of(function.graph)
        return [
            made if _is_its_own(each, inputs[0], results[:at]) else self.filled(made, term)
            for at, (each, made) in enumerate(zip(results, found, strict=True))
        ]

    def _beside(self, name: str, term: str, kind: torch.dtype) -> fx.Node:
        """An operand or a coordinate that a function takes, along the modes of its value."""
        if name in self.places:
            return self.aligned(self.places[name], self.spec.modes(name), term)
        label = dict(self.spec.indices)[name]
        along = self.graph.call_function(torch.arange, (self.extents[label],), {"dtype": kind, "device": "cpu"})
        return self.aligned(along, label, term)


def _is_its_own(node: fx.Node, value: fx.Node, before: Sequence[fx.Node]) -> bool:
    """Whether a result fills memory of its own: no earlier result is the same, and its operation makes no view."""
    if node in before or value not in behind(node):
        return False
    if node is value:
        return True
    views = any(each.alias_info is not None for each in node.target._schema.returns)  # type: ignore[union-attr]
    return not views and node.target is not torch.ops.aten.conj_physical.default  # which of real values is none


def _addend(node: fx.Node, inputs: list[fx.Node]) -> fx.Node | None:
    """The operand of the value's type that an operation adds to the value, where nothing else reads that."""
    value = inputs[0]
    if node.target is not torch.ops.aten.add.Tensor or len(value.users) != 1 or node.kwargs:
        return None
    others = [each for each in node.args if isinstance(each, fx.Node) and each is not value]
    fits = len(others) == 1 and others[0] in inputs and others[0].meta["dtype"] is value.meta["dtype"]
    return others[0] if fits and value in node.args else None


def bound(target: Any) -> Callable[..., Any]:
    """An operation by its binding where it has one, which is called in half of the time.

    Numbers are made by the operation itself: its binding makes them on torch's default device.
    """
    if target is torch.ops.aten.scalar_tensor.default:
        return target
    name = target._schema.name.partition("::")[2]
    for home in (torch, torch._C._nn):
        if isinstance(found := getattr(home, name, None), BuiltinFunctionType):
            return found
    return target
