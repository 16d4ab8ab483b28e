"""Epilogues that products of matrices compute themselves: an operand is added to the sums, and negative ones become 0.

    epilogue(sum) = relu(sum + operand)      the operand is C of the product, and D is written once more, or not at all

ReLU commutes with rounding, so that it may follow on D in D's own type. On a CPU so may any one operation that torch
writes in place, where D is in the type of the sums.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx

from weft.fn.pointwise import RecordedFunction
from weft.library.functions import writing_form
from weft.library.views import FIRST
from weft.planner.schedule import AuxTensors, Make, NewTensor, Scalar
from weft.spec import Contraction, Layout, Mode, Strides

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
        self._after: Callable[[Tensor], Any] | None = Tensor.relu_ if fold.clamps else fold.after

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
