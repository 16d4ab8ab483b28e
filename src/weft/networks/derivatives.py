"""Derivatives of networks: every step is a contraction that torch can go back through, so one backward sweep over the
tree makes the gradients of all operands, and environments are shared between them.

Going back needs all intermediates. Where a `memory_limit` is set they are not kept: each slice is made anew in the
backward sweep, and there are as many slices as the intermediates of one need to fit. Under transforms of `torch.func`
they are kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch.utils.checkpoint import checkpoint

from weft.algebra import Algebra
from weft.api.einsum import of_one
from weft.api.entry import contraction
from weft.base.arrays import is_transforming
from weft.base.figures import si
from weft.errors import UnsupportedError, WorkspaceError
from weft.networks.memory import indices, lengthened, part, sliceable
from weft.networks.operands import check_alone
from weft.networks.order import Orders
from weft.networks.plan import NetworkPlan, kept_whole
from weft.networks.rescale import scaled
from weft.networks.tree import Tree, TreeStep
from weft.planner.options import Options
from weft.plans.intermediates import WIDER, intermediate_type, step_options
from weft.spec import Notation

Place = tuple[int, ...]  # of a part of the result: the indices of its sliced labels


class Contractions:
    """The steps of a network as contractions of their own, which torch's derivatives and its tracers see."""

    def __init__(self, plan: NetworkPlan, tree: Tree | None = None, options: Options | None = None) -> None:
        """`tree`: the plan's, with as many slices as the derivative needs. `options`: of each step, and what is asked
        of the result."""
        self.plan, self.tree = plan, tree or plan.tree
        self._steps: list[tuple[TreeStep, Any, Options]] = []
        options, dtypes = options or plan.settings.of_steps, dict(plan.dtypes)
        orders = _orders(self.tree, plan.orders)
        for step in self.tree.steps:
            terms = orders[step.left], orders[step.right], orders[step.node]
            asked = step_options(options.of_steps(), dtypes[step.left], dtypes[step.right], plan.asked.halves)
            if (function := plan.functions.get(step.node)) is not None:
                asked = asked.having(epilogue=function)
            if step.node != self.tree.root:
                dtypes[step.node] = intermediate_type(dtypes[step.node], options.out_dtype, options.accumulate)
            elif self.tree.summed > 1:
                dtypes[step.node] = WIDER.get(plan.dtype, plan.dtype)
            self._steps.append((step, terms, replace(asked, out_dtype=dtypes[step.node])))

    def __call__(self, *tensors: torch.Tensor) -> torch.Tensor:
        """The result of operands, of a network without slices."""
        return self.of(self.views(tensors))

    def views(self, tensors: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Operands with the labels of their terms."""
        return [each.view(tensor) for each, tensor in zip(self.tree.graph.operands, tensors, strict=True)]

    def of(
        self, views: Sequence[torch.Tensor], finish: Callable[[torch.Tensor], torch.Tensor] | None = None
    ) -> torch.Tensor:
        """The result of one slice; each step's passes through `finish`."""
        return self._run(self._steps, views, finish, False)[self.tree.root]

    def last_two(self, views: Sequence[torch.Tensor], validate: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """The operands of the last step."""
        values, (step, _, _) = self._run(self._steps[:-1], views, None, validate), self._steps[-1]
        return values[step.left], values[step.right]

    @staticmethod
    def _run(steps: Sequence[tuple[TreeStep, Any, Options]], views: Any, finish: Any, validate: bool) -> dict[int, Any]:
        values: dict[int, Any] = dict(enumerate(views))
        for step, terms, options in steps:
            made = contraction(terms, values.pop(step.left), values.pop(step.right), options, validate=validate)
            values[step.node] = made if finish is None else finish(made)
        return values


def _orders(tree: Tree, planned: Orders) -> Orders:
    """The order of every node's labels in a tree that may have other slices than the one that is planned."""
    known = planned | dict(enumerate(tree.graph.terms)) | {tree.root: tree.graph.output}
    found = {node: tuple([label for label in order if label in tree.nodes[node]]) for node, order in known.items()}
    return {node: (*order, *sorted(tree.nodes[node].difference(order))) for node, order in found.items()}


def differentiable(steps: Contractions, operands: Sequence[torch.Tensor]) -> torch.Tensor:
    """The result, connected to its operands for torch's autograd in any of its modes."""
    plan, tree = steps.plan, steps.tree
    if plan.settings.strip_exponent:
        raise UnsupportedError("strip_exponent has no derivative: take the logarithm of a result that is in range")
    if not tree.steps:
        return alone(plan, operands[0])
    views = steps.views(operands)
    if not tree.sliced and plan.settings.memory_limit is None:
        return steps.of(views)
    if tree.slices > 1 and tree.root in plan.functions:
        raise UnsupportedError("the derivative of a function of the whole result, in slices: apply it to the result")
    partial: dict[Place, list[torch.Tensor]] = {}
    algebra = plan.settings.options.algebra
    for place, parts in _slices(tree, views):
        if is_transforming():  # they take no checkpoints
            found = steps.of(parts)
        else:
            found = checkpoint(lambda *given: steps.of(given), *parts, use_reentrant=False)
        known = partial.setdefault(place, [])
        if known and algebra is None:
            known[0] = known[0] + found
        else:
            known.append(found)
    return _assembled(plan, tree, {place: _reduced(algebra, known) for place, known in partial.items()})


def as_operations(steps: Contractions, operands: Sequence[torch.Tensor], out: torch.Tensor | None) -> Any:
    """The result of a call that torch wants to see, in `out` where that is given."""
    if not steps.plan.settings.strip_exponent:
        found = differentiable(steps, operands)
        return found if out is None else out.copy_(found)
    mantissa, exponent = _scaled(Contractions(steps.plan), operands)
    return (mantissa if out is None else out.copy_(mantissa)), exponent


def _scaled(steps: Contractions, operands: Sequence[torch.Tensor]) -> tuple[torch.Tensor, torch.Tensor]:
    """The result over 10**exponent, and the exponent; every intermediate is scaled by a pass of its own."""
    tree, views = steps.tree, steps.views(operands)
    slices = []
    for place, parts in _slices(tree, views):
        exponents: list[torch.Tensor] = []

        def strip(tensor: torch.Tensor, into: list[torch.Tensor] = exponents) -> torch.Tensor:
            value, exponent = scaled(tensor)
            into.append(exponent)
            return value

        if tree.steps:
            value = steps.of([strip(each) for each in parts], strip)
        else:
            value = alone(steps.plan, strip(operands[0]))
        slices.append((place, value, torch.stack(exponents).sum()))
    whole = torch.stack([exponent for _, _, exponent in slices]).amax()
    sums: dict[Place, torch.Tensor] = {}
    for place, value, exponent in slices:
        found = value * torch.pow(10.0, exponent - whole).to(value.dtype.to_real())
        sums[place] = sums[place] + found if place in sums else found
    return _assembled(steps.plan, tree, sums), whole


def alone(plan: NetworkPlan, tensor: torch.Tensor, out: torch.Tensor | None = None) -> torch.Tensor:
    """The result of a network of one operand, which is moved or reduced: nothing meets."""
    graph, options, view = plan.tree.graph, plan.settings.options, plan.tree.graph.operands[0].view(tensor)
    if out is not None:
        options = replace(options, tune=None, out_dtype=out.dtype)
    moved: torch.Tensor = of_one(Notation((graph.operands[0].term,), graph.output), view, options, out=out)
    if out is not None and plan.settings.check_finite:
        check_alone(tensor, out)
    return moved


def contractions_of(plan: NetworkPlan) -> Contractions:
    """The steps with so many slices that all intermediates of one fit in the limit together with two gradients."""
    tree, limit = plan.tree, plan.settings.memory_limit
    if limit is None:
        return Contractions(plan)
    whole = kept_whole(tree, plan.functions)

    def needed(each: Tree) -> int:
        sizes = [each.size(step.node) * plan.dtypes[step.node].itemsize for step in each.steps]
        return sum(sizes) + 2 * max(sizes, default=0) + plan.result_bytes

    while (needs := needed(tree)) > limit:
        more = [tree.with_slices((*tree.sliced, label)) for label in sliceable(tree, whole)]
        if not more:
            raise WorkspaceError(
                f"memory_limit is {limit} bytes ({si(limit, 'B')}); going back through the network needs "
                f"{needs} bytes ({si(needs, 'B')}) with all that may be sliced"
            )
        tree = min(more, key=lambda each: (needed(each), each.slices))
    added = set(tree.sliced) - set(plan.tree.sliced)
    return Contractions(plan, lengthened(tree, added, lambda each: needed(each) <= limit, plan.model))


def _reduced(algebra: Algebra | None, partial: Sequence[torch.Tensor]) -> torch.Tensor:
    """The sum of partial sums in an algebra."""
    if len(partial) == 1:
        return partial[0]
    stacked = torch.stack(list(partial))
    labels = tuple(range(stacked.dim()))
    options = Options(stacked.dtype, algebra=algebra, specialize="auto")
    return of_one(Notation((labels,), labels[1:]), stacked, options)


def _outer(tree: Tree) -> list[int]:
    """The sliced labels of the result."""
    return [label for label in tree.graph.output if label in tree.sliced]


def _slices(tree: Tree, views: Sequence[torch.Tensor]) -> Iterator[tuple[Place, list[torch.Tensor]]]:
    """The part of the result that each slice adds to, and the parts of operands that it sees."""
    for where in indices(tree):
        parts = [part(view, term, where) for view, term in zip(views, tree.graph.terms, strict=True)]
        yield tuple([where[label] for label in _outer(tree)]), parts


def _assembled(plan: NetworkPlan, tree: Tree, sums: Mapping[Place, torch.Tensor]) -> torch.Tensor:
    """The result of its parts, which come by the indices of its sliced labels."""
    parts, outer = dict(sums), _outer(tree)
    for at in reversed(range(len(outer))):
        extent = tree.graph.extents[outer[at]]
        heads = dict.fromkeys(place[:at] for place in parts)
        parts = {head: torch.stack([parts[(*head, index)] for index in range(extent)]) for head in heads}
    rest = [label for label in tree.graph.output if label not in outer]
    stacked = [*outer, *rest]
    whole = parts[()].permute([stacked.index(label) for label in tree.graph.output])
    return whole.reshape(plan.graph.shape).to(plan.dtype)
