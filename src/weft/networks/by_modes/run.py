"""The steps of one rank: operands of a step come to where it needs them, its result is summed over ranks.

Every rank makes the same collectives in the same order. A tensor is dropped once the step that takes it has run.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from weft.base.memory import new_tensor
from weft.distributed.group.collectives import broadcast
from weft.distributed.group.ranks import Ranks
from weft.distributed.planned.moves import reduced
from weft.distributed.planned.placement import coordinates
from weft.networks.by_modes.plan import ModesPlan
from weft.networks.plan import WORKSPACE, NetworkPlan
from weft.networks.slicing import indices, part
from weft.networks.steps import ContractionCall, StepOptions, prepared
from weft.networks.tree import TreeStep
from weft.networks.work import combine_of, finish
from weft.plans.intermediates import WIDER

Values = dict[int, torch.Tensor]  # of nodes, as this rank has them


class ModesRun:
    """A network over ranks as one of them runs it, again and again."""

    def __init__(self, network: NetworkPlan, plan: ModesPlan, ranks: Ranks, lines: Sequence[Ranks]) -> None:
        self.plan, self.ranks = plan, ranks
        self._lines, self._at = lines, coordinates(ranks.rank, plan.mesh)
        self._dtypes = network.dtypes
        self._functions = network.functions
        self._asked = _asked(network, plan)
        self._combine = combine_of(network.settings.options.algebra)
        self._device = network.settings.device
        self._slices = indices(plan.tree)
        once = plan.tree.once
        self._once = [step for step in plan.tree.ordered if step.node in once]
        self._each = [step for step in plan.tree.ordered if step.node not in once]
        self._calls: dict[Any, ContractionCall] = {}

    def run(self, tensors: Sequence[torch.Tensor], out: torch.Tensor) -> None:
        """All slices, into `out` on every rank."""
        plan, tree = self.plan, self.plan.tree
        pairs = zip(tree.graph.operands, tensors, strict=True)
        whole = {leaf: operand.view(tensor).resolve_conj() for leaf, (operand, tensor) in enumerate(pairs)}
        shared: Values = dict(whole)  # with what is the same in every slice
        for step in self._once:
            self._step(step, shared)
        for step, child in plan.shared:
            self._bring(step, child, shared)
        total: torch.Tensor | None = None
        for number, where in enumerate(self._slices):
            values = shared | {leaf: part(each, tree.graph.terms[leaf], where) for leaf, each in whole.items()}
            for step in self._each:
                self._step(step, values)
            found = values.pop(tree.root)
            if total is None:
                total = found
            else:
                self._combine(total, found)
            if (number + 1) % tree.summed == 0:
                self._end(total, number // tree.summed, out)
                total = None

    def _bring(self, step: TreeStep, child: int, values: Values) -> None:
        """An operand of a step to where the step needs it."""
        values[child] = self.plan.routes[step.node, child].run(values[child], self._at, self._lines)

    def _step(self, step: TreeStep, values: Values) -> None:
        """One step; what it takes is dropped."""
        plan, node = self.plan, step.node
        for child in (step.left, step.right):
            if (step, child) not in plan.shared:
                self._bring(step, child, values)
        sums, dtype = plan.sums(step), self._dtypes[node]
        complete = node != plan.tree.root or plan.tree.summed == 1
        wide = WIDER.get(dtype, dtype) if sums or not complete else dtype
        found = new_tensor(plan.shape(node, plan.shared_out(step, node), self._at), wide, self._device)
        values[node] = found
        self._contract(step, values, complete)
        del values[step.left], values[step.right], found
        for line, target in sums:
            dim = None if target is None else plan.orders[node].index(target)
            what = f"the sum of node {node} over ranks"
            values[node] = reduced(values[node], dim, self._lines[line], self._combine, what)
        if complete:
            values[node] = values[node].to(dtype)

    def _contract(self, step: TreeStep, values: Values, complete: bool) -> None:
        """The contraction of what is here; steps with operands of equal layouts share a call."""
        tensors = (values[step.left], values[step.right], values[step.node])
        key = (step.node, *((each.shape, each.stride(), each.data_ptr() & 15) for each in tensors))
        call = self._calls.get(key)
        if call is None:
            asked, (a, b, d) = self._asked, tensors
            if complete and step.node in self._functions:
                asked = asked.having(epilogue=self._functions[step.node])
            call = self._calls[key] = prepared(step, self.plan.orders, (a, b, None, d), asked)
        call.run(values)  # type: ignore[arg-type]  # nodes by their numbers

    def _end(self, total: torch.Tensor, number: int, out: torch.Tensor) -> None:
        """A part of the result, from its complete sums: finished, and gathered on every rank."""
        plan, tree = self.plan, self.plan.tree
        if tree.summed > 1:
            found = torch.empty_like(total, dtype=out.dtype, memory_format=torch.contiguous_format)
            finish(total, found, self._functions.get(tree.root))
            total = found
        for line, mode in enumerate(plan.split[tree.root]):
            if mode is None and plan.mesh[line] > 1:  # made by each of its ranks, whose kernels may differ
                total = total.contiguous()
                if total.numel():
                    self._lines[line].wait(broadcast(self._lines[line], total), "the broadcast of the result")
        whole = plan.gathering.run(total, self._at, self._lines)
        part(tree.graph.result.view(out), tree.graph.output, self._slices[number * tree.summed]).copy_(whole)


def _asked(network: NetworkPlan, plan: ModesPlan) -> StepOptions:
    """The options of steps: kernels pack operands in what the limit leaves."""
    asked, limit = network.asked, network.settings.memory_limit
    if limit is None:
        return asked
    return replace(asked, options=replace(asked.options, workspace_limit=max(limit - plan.memory, WORKSPACE)))
