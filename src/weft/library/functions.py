"""Traced functions in torch's operations: what they take alongside the value, what they allocate, and writing in place.

The last operation of a function writes where the result goes, where torch has a form of it that does; else the result
is copied there.

Products of matrices compute some epilogues themselves (`folded`): an operand is added to the sums, and negative ones
become 0.

    epilogue(sum) = relu(sum + operand)      the operand is C of the product, and D is written once more, or not at all

ReLU commutes with rounding, so that it may follow on D in D's own type. On a CPU so may any one operation that torch
writes in place, where D is in the type of the sums.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.fn import Pointwise
from weft.fn.graphs import behind
from weft.fn.pointwise import RecordedFunction
from weft.library.views import FIRST, Frame
from weft.planner.schedule import AuxTensors, Make, NewTensor, Scalar
from weft.spec import Contraction, Layout, Mode, Strides


class FunctionOperands:
    """Operands and coordinates that a function takes alongside the value, with a dimension for each of these modes.

    A coordinate is the element of a row of numbers that an operand would have there.
    """

    def __init__(self, contraction: Contraction, args: Sequence[int], modes: Sequence[int], frame: Frame) -> None:
        self._operands = [(arg, frame.view(modes, FIRST + arg, shared=True)) for arg in args]
        self._rows = {arg: contraction.aux[arg].dtype for arg in args if contraction.aux[arg].kind == "index"}

    def of(self, aux: Sequence[Any], device: torch.device) -> list[Tensor]:
        found = []
        for arg, view in self._operands:
            if arg in self._rows:
                row = torch.arange(view.start + max(view.shape), dtype=self._rows[arg], device=device)
                found.append(view.of(row))
            else:
                found.append(view.of(aux[arg]))
        return found


def value_of(function: Pointwise, *tensors: Tensor) -> Tensor:
    """The result of a function that has one."""
    found = function(*tensors)
    assert isinstance(found, Tensor), "this function has one result"
    return found


@lru_cache(maxsize=1024)
def live_bytes(function: Pointwise) -> int:
    """The most bytes for each element that a function's values take at once, the given ones left out."""
    if not isinstance(function, RecordedFunction):
        return 16
    nodes = list(function.graph.nodes)
    last = {used: at for at, node in enumerate(nodes) for used in node.all_input_nodes}
    most = held = 0
    for at, node in enumerate(nodes):
        if node.op == "call_function":
            held += node.meta["dtype"].itemsize
            most = max(most, held)
        held -= sum(used.meta["dtype"].itemsize for used in last if last[used] == at and used.op == "call_function")
    return most


Written = Callable[..., Any]  # of the places of the results, then of the function's inputs


@lru_cache(maxsize=1024)
def writing(function: RecordedFunction, dtypes: tuple[torch.dtype, ...], dense: bool) -> Written:
    """The function with places for its results, tensors of these types, before its inputs; it returns nothing.

    `dense`: the first place is contiguous.

    Results that may be written by the operations that make them are. A place may be the memory of the value itself
    where there is one result: nothing is read after it is written.
    """
    graph = fx.Graph()
    places = [graph.placeholder(f"place_{at}") for at in range(len(dtypes))]
    found: Any = graph.graph_copy(function.graph, {})
    results = list(found) if isinstance(found, (tuple, list)) else [found]
    value = next(node for node in graph.nodes if node.op == "placeholder" and node not in places)
    for place, dtype, result in zip(places, dtypes, results, strict=True):
        direct = len(results) == 1 and not result.users and result is not value and value in behind(result)
        if not (direct and result.meta.get("dtype") == dtype and _writes(result, place, dense)):
            graph.call_function(torch.ops.aten.copy_.default, (place, result))
    graph.output(None)
    return fx.GraphModule(torch.nn.Module(), graph).forward


def _writes(node: fx.Node, place: fx.Node, dense: bool) -> bool:
    """Make a node write to a place, where torch has a form of its operation that does."""
    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    if target is torch.ops.aten.gelu.default and not dense:  # oneDNN writes to a copy of a place that is not
        return False
    if target is torch.ops.aten.relu.default:  # which is that to torch
        target, node.args = torch.ops.aten.clamp_min.default, (*node.args, 0)
    form = writing_form(target)
    if form is None:
        return False
    node.target, name = form
    node.kwargs = {**node.kwargs, name: place}
    return True


@lru_cache(maxsize=1024)
def writing_form(target: torch._ops.OpOverload) -> tuple[torch._ops.OpOverload, str] | None:
    """The form of an operation that writes its result to a place, and its name of the place; None where it has none."""
    taken = [(arg.name, str(arg.type)) for arg in target._schema.arguments]
    for name in target.overloadpacket.overloads():
        other = getattr(target.overloadpacket, name)
        places = [arg for arg in other._schema.arguments if arg.is_out]
        if torch.Tag.generated in other.tags:  # it makes the result and copies it
            continue
        if len(places) == 1 and [(arg.name, str(arg.type)) for arg in other._schema.arguments[:-1]] == taken:
            return other, places[0].name
    return None


_ADD, _RELU = torch.ops.aten.add.Tensor, torch.ops.aten.relu.default


class FoldedEpilogue(NamedTuple):
    """A contraction without the epilogue that it was described with."""

    contraction: Contraction
    addend: int | None  # which auxiliary operand is C
    clamps: bool  # D's negative values become 0 afterwards
    after: Callable[[Tensor], Any] | None = None  # what is done to D in place afterwards


def folded(contraction: Contraction, kind: str) -> FoldedEpilogue | None:
    """The contraction with what products compute of its epilogue; None where they do not compute all of it."""
    function = contraction.epilogue
    if contraction.c is not None or contraction.algebra is not None or not isinstance(function, RecordedFunction):
        return None
    value, *others = (node for node in function.graph.nodes if node.op == "placeholder")
    node = next(node for node in function.graph.nodes if node.op == "output").args[0]
    if not isinstance(node, fx.Node) or (function.is_complex and node.target is _RELU):
        return None
    after = None
    if clamps := node.target is _RELU:
        (node,) = node.args
    elif node.target is not _ADD and kind == "cpu" and (after := _in_place(node, contraction)) is not None:
        node = node.args[0]
    bare = replace(contraction, epilogue=None, epilogue_args=())
    if node is value:
        return None if after is not None else FoldedEpilogue(bare, None, clamps)
    if node.target is not _ADD or node.kwargs or value not in node.args or node.meta["dtype"] != value.meta["dtype"]:
        return None
    left, right = node.args
    other = right if left is value else left
    if other is value or other not in others:
        return None
    found = _added(bare, contraction.epilogue_args[others.index(other)], clamps)
    return None if found is None else found._replace(after=after)


def _in_place(node: fx.Node, contraction: Contraction) -> Callable[[Tensor], Any] | None:
    """An operation on one tensor as one on D; None where it takes more, or needs a place of its own."""
    form = writing_form(node.target) if isinstance(node.target, torch._ops.OpOverload) else None
    d, dtype = contraction.d, contraction.arithmetic.accumulate
    dense = d.strides == Layout.contiguous(d.shape, d.dtype).strides
    if form is None or len(node.all_input_nodes) != 1 or not isinstance(node.args[0], fx.Node) or not dense:
        return None
    if not {d.dtype, node.meta["dtype"], node.args[0].meta["dtype"]} <= {dtype}:
        return None
    (call, place), rest, options = form, node.args[1:], dict(node.kwargs)

    def after(d: Tensor) -> None:
        call(d, *rest, **options, **{place: d})

    return after


def _added(bare: Contraction, at: int, clamps: bool) -> FoldedEpilogue | None:
    """The contraction with an auxiliary operand as C, if that is of D's type."""
    layout = bare.aux[at].layout
    if layout is None or layout.dtype != bare.d.dtype:
        return None
    modes = tuple([_with_addend(mode, mode.strides[FIRST + at]) for mode in bare.modes])
    return FoldedEpilogue(replace(bare, modes=modes, c=layout), at, clamps)


def _with_addend(mode: Mode, stride: int) -> Mode:
    a, b, _, *others = mode.strides
    return mode._replace(strides=Strides(a, b, stride, *others))


class FoldedLaunch:
    """The launch of a folded contraction, called as the one that was described."""

    def __init__(self, launch: Any, fold: FoldedEpilogue) -> None:
        self._launch, self._addend = launch, fold.addend
        clamps = fold.clamps and not launch.clamps
        self._after: Callable[[Tensor], Any] | None = Tensor.relu_ if clamps else fold.after

    def __call__(
        self, a: Tensor, b: Tensor, c: Tensor | None, d: Tensor, alpha: Scalar, beta: Scalar, aux: AuxTensors = ()
    ) -> None:
        if self._addend is not None:
            c, beta = aux[self._addend], 1
        self._launch(a, b, c, d, alpha, beta, aux)
        if self._after is not None:
            self._after(d)

    def maker(self, new: NewTensor) -> Make | None:
        """The product's plain call, and what is done to its D."""
        product: Make | None = self._launch.maker(new, self._addend)
        after = self._after
        if product is None or after is None:
            return product

        def make(a: Tensor, b: Tensor, *aux: Tensor | None) -> Tensor:
            found = product(a, b, *aux)
            after(found)
            return found

        return make
