"""Attention by torch: cascades whose function is a softmax over all columns of S, or over those up to the row's own.

`torch.nn.functional.scaled_dot_product_attention` has kernels for these. On an H100 weft's run at 0.98 to 1.01 times
their speed forward and 0.71 to 0.75 with gradients (`results/h100/attention.json`); only long masked ones without
gradients are faster. So torch runs the others from the first call on, where it has a kernel that keeps S on the chip.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, fx
from torch.nn.functional import scaled_dot_product_attention

from weft.base.arrays import grad_mode
from weft.cascades.backward import gradients_of
from weft.cascades.between import Between
from weft.cascades.operations import WholeWriter
from weft.fn.reductions import is_reduction
from weft.machine.exactness import shortened
from weft.spec import Label

_ATEN = torch.ops.aten
_TYPES = {"cpu": (torch.float32, torch.float64), "cuda": (torch.float16, torch.bfloat16)}
_LONGEST, _MULTIPLE = 256, 8  # of a head, in torch's kernels on a GPU
_MANY = 1 << 14  # columns of a triangle, of which weft's kernel on an H200 makes D in 0.72 of the time of torch's
#: Comparisons of a column with its row that hold up to the row's own column, and those that hold beyond it.
_UP_TO, _BEYOND = {_ATEN.le.Tensor: 1, _ATEN.ge.Tensor: -1}, {_ATEN.gt.Tensor: 1, _ATEN.lt.Tensor: -1}


class Softmax(NamedTuple):
    """A softmax over the columns of `scale` times S; with a `row`, over columns that are not beyond it."""

    scale: float
    row: Label | None


def softmax_of(between: Between, columns: Sequence[Label], indices: dict[str, Label]) -> Softmax | None:
    """The softmax over columns that a function is; None for another function. `indices`: labels of coordinates."""
    (weights, *others) = between.outputs
    if others or not is_reduction(weights) or weights.args[1] != "softmax":
        return None
    if set(between.reduced(weights)) != set(columns):
        return None
    value, row = weights.args[0], None
    masked = _masked(value)
    if masked is not None:
        value, condition, seen = masked
        places = {node: indices.get(name) for name, node in zip(between.names, between.inputs[1:], strict=True)}
        row = _last_row(condition, seen, places, columns)
        if row is None:
            return None
    scale = 1.0
    while value is not between.inputs[0]:
        if not isinstance(value, fx.Node) or value.target not in (_ATEN.mul.Tensor, _ATEN.div.Tensor):
            return None
        inner, factor = value.args
        if not isinstance(factor, (int, float)):
            return None
        scale = scale * factor if value.target is _ATEN.mul.Tensor else scale / factor
        value = inner
    return Softmax(scale, row)


def _masked(node: Any) -> tuple[Any, Any, bool] | None:
    """The value of a choice whose other alternative is minus infinity, its condition, and when the value is taken."""
    if node.target is _ATEN.masked_fill.Scalar and node.args[2] == -math.inf:
        return node.args[0], node.args[1], False
    if node.target is not _ATEN.where.self:
        return None
    condition, *values = node.args
    for taken, (value, other) in ((True, values), (False, values[::-1])):
        if other.target is _ATEN.scalar_tensor.default and other.args[0] == -math.inf:
            return value, condition, taken
    return None


def _last_row(condition: Any, seen: bool, places: dict[Any, Any], columns: Sequence[Label]) -> Label | None:
    """The label of rows up to whose own index columns are seen; None for another condition."""
    turn = (_UP_TO if seen else _BEYOND).get(condition.target)
    if turn is None or len(columns) != 1:
        return None
    column, row = (places.get(each) for each in condition.args[::turn])
    return row if column == columns[0] and row is not None else None


class TorchAttention:
    """A plan's call by torch's attention.

    Rows that share keys, those of members of a group say, are heads where columns are masked by rows, else more rows.
    """

    def __init__(self, plan: Any, found: Softmax) -> None:
        self.plan, self._scale, self._causal = plan, plan.frame.alpha * found.scale, found.row is not None
        self._columns = math.prod(plan.frame.extents[label] for label in plan.frame.first.n)
        #: D alone, a tuple, of A, B and C.
        self.program = _AttentionWriter(plan, plan.types.accumulate).attention(found.row, self)

    def serves(self, grads: bool) -> bool:
        """Whether torch runs a call: on a CPU it rounds no factors, on a GPU weft's kernel is not the better one."""
        if self.plan.said.device.type == "cpu":
            return not shortened()
        own = torch.are_deterministic_algorithms_enabled() if grads else self._causal and self._columns >= _MANY
        return torch.backends.cuda.flash_sdp_enabled() and not own

    def attended(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """The call of torch, of matrices of (batch, head)."""
        if not q.stride(-1) == k.stride(-1) == v.stride(-1) == 1:  # which torch's kernels ask for
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        grouped = q.shape[1] != k.shape[1]
        return scaled_dot_product_attention(q, k, v, is_causal=self._causal, scale=self._scale, enable_gqa=grouped)


class _AttentionWriter(WholeWriter):
    """Writes the views of operands that torch's attention takes, and that of its result."""

    def attention(self, row: Label | None, by: TorchAttention) -> Any:
        """D alone, a tuple, of A, B and C. `row`: the label of rows that mask columns."""
        frame, said, first = self.frame, self.plan.said, self.frame.first
        batch, rows, columns, summed = (self._term(each) for each in (first.batch, first.m, first.n, first.k))
        outer, heads, last = batch[:-1], batch[-1:], rows if row is None else self._term((row,))
        members = "".join(each for each in rows if each not in last)
        own = self._term(frame.second.n)
        laid = zip(self.plan.notation.terms, said.shapes, strict=True)
        read = [self._own(self.graph.placeholder(f"tensor_{at}"), *each) for at, each in enumerate(laid)]
        groups = ((heads + members, last, summed), (heads, columns, summed), (heads, columns, own))
        pairs = zip(frame.places, groups, strict=True)
        views = [self._matrix(read[at][0], read[at][1], [outer, *each]) for at, each in pairs]
        found, term = self.call(by.attended, *views), outer + heads + members + last + own
        asked = self._term(self.plan.notation.d)
        found = self.permuted(self.method("reshape", found, self.shape(term)), term, asked)
        return self.program([self.method("contiguous", found)])


class AttentionRun:
    """A call with gradients. Torch's own graph of it is kept with the call; second derivatives are the cascade's."""

    def __init__(self, plan: Any) -> None:
        self.plan = plan

    def forward(self, given: Sequence[Tensor], needs: Sequence[bool]) -> tuple[list[Tensor], list[Tensor]]:
        if not any(needs):
            return [*self.plan.attention.program(*given)], []
        with grad_mode(True):
            self._leaves = [each.detach().requires_grad_(need) for each, need in zip(given, needs, strict=True)]
            (self._found,) = self.plan.attention.program(*self._leaves)
        return [self._found.detach()], []

    def backward(
        self, given: Sequence[Tensor], d: Sequence[Tensor], states: Sequence[Tensor],
        grads: Sequence[Tensor | None], needs: Sequence[bool],
    ) -> list[Tensor | None]:  # fmt: skip
        """Gradients of A, B and C."""
        return gradients_of([self._found], grads, self._leaves, kept=True)


def attention_of(plan: Any) -> TorchAttention | None:
    """Torch's attention for a plan that it has a kernel for; None for others."""
    frame, options, types = plan.frame, plan.options, plan.types
    first, second, kind = frame.first, frame.second, plan.said.device.type
    if not frame.meets or frame.algebra is not None or plan.said.operands or options.workspace_limit is not None:
        return None
    if options.backend != "auto" or plan.said.dtype not in _TYPES.get(kind, ()) or plan.result_type != plan.said.dtype:
        return None
    if (second.batch, second.m, second.k) != (first.batch, first.m, first.n) or not all(frame.extents.values()):
        return None
    width, own = (math.prod(frame.extents[label] for label in labels) for labels in (first.k, second.n))
    if width != own or types.accumulate != (torch.float32 if kind == "cuda" else plan.said.dtype):
        return None
    found = softmax_of(plan.written, first.n, dict(frame.indices))
    if found is None or not _has_kernel(plan, found, width):
        return None
    return TorchAttention(plan, found)


def _has_kernel(plan: Any, found: Softmax, width: int) -> bool:
    """Whether torch has a kernel that keeps S on the chip, and it is no slower than weft's."""
    if plan.said.device.type == "cpu":
        return plan.frame.products.precision == "ieee" and (found.row is None or len(plan.frame.first.m) == 1)
    if torch.version.hip is not None or plan.options.specialize == "now":
        return False
    return width <= _LONGEST and width % _MULTIPLE == 0 and torch.cuda.get_device_capability(plan.said.device) >= (8, 0)
