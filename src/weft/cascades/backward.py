"""Gradients of a program, by blocks: each pass makes its blocks of S again and pulls back through the function there.

Passes come in reverse order. The gradient of a reduction is known before the pass that accumulated it, since the passes
that read it come after. Blocks are added up in one order: results are the same from run to run.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, fx

from weft.base.arrays import grad_mode
from weft.base.caches import cached_property
from weft.cascades.blocks import Blocks, idle_labels
from weft.cascades.frame import Box, narrowed
from weft.cascades.lowering import PEAK
from weft.cascades.operations import run_whole
from weft.cascades.program import FINISHED, PRODUCT, CascadeTarget, Stage, Tensors, Values
from weft.fn.reductions import is_reduction


class Gradients:
    """Gradients of A, B, C and of nodes, added up from blocks; those of operands are among the nodes'."""

    def __init__(self, blocks: Blocks, tensors: Tensors, needs: Sequence[bool], values: Values) -> None:
        self.blocks, self.program, self.frame = blocks, blocks.program, blocks.frame
        self.tensors, self.values = tensors, values
        wide = self.frame.products.accumulate
        self.sums = tuple(
            each.new_zeros(each.shape, dtype=wide) if each is not None and need else None
            for each, need in zip(tensors, needs, strict=True)
        )
        self.of_nodes: dict[fx.Node, Tensor] = {}
        self.counts: dict[fx.Node, Tensor] = {}

    # -- small values ----------------------------------------------------------------------------------------------

    def through_tail(self, nodes: Sequence[fx.Node]) -> None:
        """Pull back through values that follow from small ones."""
        wanted = [node for node in nodes if node in self.of_nodes and self.values[node].is_floating_point()]
        if not wanted:
            return
        leaves: Values = {}
        for source in {each for node in nodes for each in node.all_input_nodes} - set(nodes):
            leaves[source] = self._leaf(source, self.values[source])
        with grad_mode(True):
            found = dict(leaves)
            run_whole(tuple(nodes), self.program, found)
        self._pull([(found[node], self.of_nodes[node]) for node in wanted], leaves, None)

    def _leaf(self, node: fx.Node, value: Tensor) -> Tensor:
        """A value to pull back to; peaks are constants, as sums over them are rescaled by what they are."""
        value = value.detach()
        constant = is_reduction(node) and node.args[1] == PEAK
        return value.requires_grad_() if value.is_floating_point() and not constant else value

    def through_factor(self, d: Tensor) -> None:
        """Take down the gradient of D's factor."""
        node, frame = self.program.factor, self.frame
        assert node is not None
        if not self.values[node].dim():
            return  # a number
        factor = frame.on_d(self.values[node])
        known = self.of_nodes.get(node)
        if PRODUCT in self.values:
            grad = frame.along_s((d * self.values[PRODUCT]).sum_to_size(factor.shape))
        else:  # a D that is finished has its factor
            total = (d.to(factor.dtype) * self.values[FINISHED]).sum_to_size(factor.shape)
            grad = frame.along_s(torch.where(factor == 0, 0.0, total / factor))
        self.of_nodes[node] = grad if known is None else known + grad

    # -- blocks ----------------------------------------------------------------------------------------------------

    def through_block(self, stage: Stage, box: Box, d: Tensor | None) -> None:
        """Pull back through a block, made again; `d` is the gradient of D."""
        a, b, c = self.tensors
        frame = self.frame
        scores = frame.scores(a, b, box).requires_grad_()
        inputs = self.blocks.inputs(stage, self.values, box)
        leaves = {node: self._leaf(node, each) for node, each in inputs.items()}
        with grad_mode(True):
            found = self.blocks.made(stage, scores, leaves)
        pairs = []
        for target in stage.targets:
            value = found[target.node]
            grad: Tensor | None
            if target.kind == "product" and d is not None:
                grad = self._through_product(value.detach(), c, d, box)
            else:
                grad = self._through_target(target, value.detach(), box)
            if grad is not None and value.requires_grad:
                pairs.append((value, grad))
        leaves[self.program.between.inputs[0]] = scores
        self._pull(pairs, leaves, box)

    def _through_product(self, value: Tensor, c: Tensor, d: Tensor, box: Box) -> Tensor:
        frame, roles = self.frame, self.frame.second
        block = narrowed(d, roles.result, box)  # batch, m, n
        right = narrowed(c, roles.y, box)  # batch, n, k
        if frame.algebra is not None:
            total, free = (narrowed(each, roles.result, box) for each in (self.values[PRODUCT], self._free))
            grad, of_c = frame.algebra.gradients(roles, frame.met(value, box), right, total, block, free)
            if self.sums[2] is not None:
                narrowed(self.sums[2], roles.y, box).add_(of_c)
            return frame.unmet(grad, box).sum_to_size(value.shape)
        if self.sums[2] is not None:
            grad = frame.products.gradient_of_y(roles, frame.met(value, box), block)
            narrowed(self.sums[2], roles.y, box).add_(grad)
        return frame.unmet(frame.products.gradient_of_x(roles, right, block), box).sum_to_size(value.shape)

    @cached_property
    def _free(self) -> Tensor:
        """Marks of elements of D whose gradient no block has yet."""
        return torch.ones_like(self.values[PRODUCT], dtype=torch.bool)

    def _through_target(self, target: CascadeTarget, value: Tensor, box: Box) -> Tensor | None:
        grad = self.of_nodes.get(target.gives)
        if grad is None or target.kind == "product":
            return None
        if any(box[label][0] for label in idle_labels(target, self.program)):
            return None
        grad = self.frame.place(grad, box)
        if target.kind in ("store", "sum"):
            return grad
        if target.kind in ("amax", "amin"):
            total = self.frame.place(self.values[target.gives], box)
            return torch.where(value == total, grad / self.frame.place(self.counts[target.gives], box), 0.0)
        return None

    def count(self, stage: Stage, box: Box) -> None:
        """Count the equal values that share the gradient of the largest or smallest."""
        a, b, _ = self.tensors
        inputs = self.blocks.inputs(stage, self.values, box)
        found = self.blocks.made(stage, self.frame.scores(a, b, box), inputs)
        for target in self.selecting(stage):
            labels = self.program.between.reduced(target.gives)
            value = found[target.node]
            total = self.values[target.gives]
            counts = self.counts.setdefault(target.gives, torch.zeros_like(total))
            equal = value == self.frame.place(total, box)
            equal = self.frame.along(equal, labels, box)
            if not any(box[label][0] for label in idle_labels(target, self.program)):
                self.frame.place(counts, box).add_(equal.sum(self.frame.dims(labels), keepdim=True))

    def selecting(self, stage: Stage) -> list[CascadeTarget]:
        """Targets whose gradient goes to the selected elements."""
        return [each for each in stage.targets if each.kind in ("amax", "amin") and each.gives in self.of_nodes]

    # -- sums ------------------------------------------------------------------------------------------------------

    def _pull(self, pairs: list[tuple[Tensor, Tensor]], leaves: Values, box: Box | None) -> None:
        grads = [grad.to(value.dtype).expand(value.shape) for value, grad in pairs]
        found = gradients_of([value for value, _ in pairs], grads, [*leaves.values()])
        s = self.program.between.inputs[0]
        for node, grad in zip(leaves, found, strict=True):
            if grad is None:
                continue
            if node is s:
                assert box is not None
                self._into_first(grad, box)
            else:
                value = self.values[node]
                if node not in self.of_nodes:
                    dtype = torch.promote_types(value.dtype, torch.float32)
                    self.of_nodes[node] = value.new_zeros(value.shape, dtype=dtype)
                place = self.of_nodes[node]
                (place if box is None else self.frame.place(place, box)).add_(grad)

    def _into_first(self, grad: Tensor, box: Box) -> None:
        """The gradients of A and B from that of a block of S."""
        a, b, _ = self.tensors
        roles, products, alpha = self.frame.first, self.frame.products, self.frame.alpha
        if self.sums[0] is not None:
            left = products.gradient_of_x(roles, narrowed(b, roles.y, box), grad, alpha)
            narrowed(self.sums[0], roles.x, box).add_(left)
        if self.sums[1] is not None:
            right = products.gradient_of_y(roles, narrowed(a, roles.x, box), grad, alpha)
            narrowed(self.sums[1], roles.y, box).add_(right)


def gradients(
    blocks: Blocks, tensors: Tensors, needs: Sequence[bool], values: Values, cotangents: Mapping[fx.Node, Tensor],
    launch: Any = None, wanted: Collection[fx.Node] = (),
) -> Gradients:  # fmt: skip
    """Gradients of A, B, C where `needs` says so and of `wanted` operands, from those of results.

    `values` are all whole values of the forward run, `cotangents` gradients of results by node, of D under `PRODUCT`.
    With a `launch` kernels make those of A, B and C, and where they can those of operands.
    """
    aux = bool(wanted) if launch is None else not launch.makes(launch.behind(wanted))
    program = blocks.program
    found = Gradients(blocks, tensors, needs if launch is None else (False,) * 3, values)
    for node, grad in cotangents.items():
        if node is not PRODUCT:
            found.of_nodes[node] = grad.to(torch.promote_types(grad.dtype, torch.float32)).clone()
    d = cotangents.get(PRODUCT)
    if d is not None and program.factor is not None:
        found.through_factor(d)
    before = d  # the gradient of the sum before its factor
    if d is not None and program.factor is not None and (launch is None or aux):
        before = d * blocks.frame.on_d(values[program.factor])
    sums = found.sums
    for stage in reversed(program.stages):
        found.through_tail(stage.tail)
        if launch is not None:
            behind = [] if aux else launch.behind(wanted)
            sums, of_inputs = launch(tensors, needs, d, values, found.of_nodes, behind)
            for node, grad in of_inputs.items():
                known = found.of_nodes.get(node)
                found.of_nodes[node] = grad if known is None else known + grad
            if not aux:
                break
        boxes = blocks.cut(stage, values)
        if found.selecting(stage):
            for box in boxes:
                found.count(stage, box)
        for box in boxes:
            found.through_block(stage, box, before)
    found.through_tail(program.prelude)
    found.sums = sums
    return found


def gradients_of(
    results: Sequence[Tensor], grads: Sequence[Tensor | None], leaves: Sequence[Tensor | None], again: bool = False,
    kept: bool = False,
) -> list[Tensor | None]:  # fmt: skip
    """The gradients of leaves that require one, None for others; `again`: which have gradients themselves.

    `kept`: the graph stays, for another pass.
    """
    each = zip(results, grads, strict=True)
    pairs = [(value, grad) for value, grad in each if grad is not None and value.requires_grad]
    wanted = [each for each in leaves if each is not None and each.requires_grad]
    if not pairs or not wanted:
        return [None] * len(leaves)
    values, given = zip(*pairs, strict=True)
    found = iter(torch.autograd.grad(values, wanted, given, again or kept, again, allow_unused=True))
    return [next(found) if leaf is not None and leaf.requires_grad else None for leaf in leaves]


def gradients_at(
    run: Callable[[list[Tensor]], Sequence[Tensor]], tensors: Sequence[Tensor], grads: Sequence[Tensor | None],
    wanted: Collection[int],
) -> list[Tensor]:  # fmt: skip
    """The gradients of the tensors at the places `wanted`, from those of what `run` makes of all; zeros for none."""
    leaves = [each.detach().requires_grad_(at in wanted) for at, each in enumerate(tensors)]
    places = [leaves[at] for at in wanted]
    with grad_mode(True):
        found = gradients_of(run(leaves), grads, places)
    return [torch.zeros_like(leaf) if grad is None else grad for leaf, grad in zip(places, found, strict=True)]
