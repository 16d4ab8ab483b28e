"""The plan of a network whose intermediates are distributed by modes, what follows from it, and its run.

    split    of a step, for each dimension of the mesh: the label whose indices its ranks share out; None: they all
             compute the same
    places   of a step's result, once its sums are complete: the label that each dimension of the mesh splits
    route    of an operand of a step: from its places to where the split needs it
    sums     where a label that ranks share out is summed: over the ranks of that dimension, to all of them or split

Operands of the network are whole on every rank, so their parts are views. Ranks hold parts as `weft.distributed` has
them: those of `torch.chunk`. Operands of a step come to where it needs them, its result is summed over ranks. Every
rank makes the same collectives in the same order. A tensor is dropped once the step that takes it has run.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch

from weft.base.caches import cached_property
from weft.base.memory import new_tensor
from weft.distributed.link import Link, broadcast
from weft.distributed.moves import PIECE, TensorRoute, reduced
from weft.distributed.placement import Places, coordinates, held
from weft.distributed.ranks import Ranks
from weft.distributed.strategy import RankReduction
from weft.networks.memory import ResultMemory, indices, part
from weft.networks.order import Orders
from weft.networks.plan import WORKSPACE, NetworkPlan
from weft.networks.steps import ContractionCall, prepared
from weft.networks.tree import Model, Tree, TreeStep
from weft.networks.work import combine_of, finish
from weft.plans.intermediates import WIDER

Modes = tuple[int | None, ...]  # the label that each dimension of the mesh splits


@dataclass(frozen=True)
class Prices:
    """Costs of steps and messages; bytes of an element are by node."""

    model: Model
    link: Link
    items: Mapping[int, int]
    sums: Mapping[int, int]  # of sums that are not complete
    result: ResultMemory
    functions: frozenset[int] = frozenset()  # nodes whose function needs complete sums


class StepCost(NamedTuple):
    """Seconds that a step takes on the rank with the largest parts, and the bytes that it sends meanwhile."""

    compute: float
    travel: float
    sent: float


@dataclass(frozen=True)
class ModesPlan:
    """Steps over a mesh of ranks; equal on every rank."""

    tree: Tree
    orders: Orders
    mesh: tuple[int, ...]
    prices: Prices
    split: dict[int, Modes]  # by the node that a step makes
    places: dict[int, Modes]  # of its result

    @property
    def nowhere(self) -> Modes:
        """The places of what is whole on every rank."""
        return (None,) * len(self.mesh)

    def held_as(self, node: int) -> Modes:
        """The places of a node where no step has asked for others."""
        return self.places.get(node, self.nowhere)

    @cached_property
    def routes(self) -> dict[tuple[int, int], TensorRoute]:
        """The way of each step's operands, by its node and theirs, to where the step needs them."""
        pairs = [(step, child) for step in self.tree.steps for child in (step.left, step.right)]
        return {
            (step.node, child): self._route(child, self.held_as(child), self.shared_out(step, child))
            for step, child in pairs
        }

    @cached_property
    def gathering(self) -> TensorRoute:
        """The way of the result, or of a part of it, to every rank."""
        return self._route(self.tree.root, self.held_as(self.tree.root), self.nowhere)

    def _route(self, node: int, source: Places, target: Places) -> TensorRoute:
        order = self.orders[node]
        shape = tuple(self.tree.graph.extents[label] for label in order)
        name = f"operand {node}" if node < self.tree.leaves else f"node {node}"
        return TensorRoute(name, tuple(order), shape, source, target, self.mesh)

    def shared_out(self, step: TreeStep, node: int) -> Modes:
        """The places of a step's tensors while it runs: of its result before it is summed over ranks."""
        labels = self.tree.nodes[node]
        return tuple(label if label in labels else None for label in self.split[step.node])

    def sums(self, step: TreeStep) -> list[RankReduction]:
        """Sums of a step's result over dimensions of the mesh."""
        labels, places = self.tree.nodes[step.node], self.places[step.node]
        summed = [label is not None and label not in labels for label in self.split[step.node]]
        return [RankReduction(line, places[line]) for line, each in enumerate(summed) if each]

    def shape(self, node: int, places: Places, at: Sequence[int]) -> tuple[int, ...]:
        """The shape of what the rank at `at` holds of a node."""
        extents = self.tree.graph.extents
        return tuple(held(label, extents[label], places, self.mesh, at).extent for label in self.orders[node])

    def size(self, labels: Iterable[int], places: Places) -> int:
        """Elements of a tensor of these labels on the rank that has most; each label is split once at most."""
        extents = self.tree.graph.extents
        ranks = {mode: self.mesh[line] for line, mode in enumerate(places) if mode is not None}
        return math.prod([-(-extents[label] // ranks.get(label, 1)) for label in labels])

    # -- time ----------------------------------------------------------------------------------------------------------

    def message(self, kind: str, size: float, line: int) -> float:
        """Seconds of a collective along one dimension of the mesh, with the copies to and from where it works.

        `size`: bytes of the whole tensor, on one rank.
        """
        ranks = self.mesh[line]
        copied = 2 * size * (1 if kind == "all-gather" else 2 if kind == "all-reduce" else 2 / ranks)
        return self._links[line].seconds(kind, size, ranks) + copied / self.prices.model.memory

    def load(self, kind: str, size: float, line: int) -> float:
        """Bytes that a rank sends then."""
        return sum(self._links[line].loads(kind, size, self.mesh[line]).values())

    @cached_property
    def _links(self) -> list[Link]:
        """The link between neighbours of each dimension: the last ones are on one machine first."""
        link, mesh = self.prices.link, self.mesh
        return [
            replace(link, per_host=max(1, link.per_host // math.prod(mesh[line + 1 :]))) for line in range(len(mesh))
        ]

    @cached_property
    def shared(self) -> frozenset[tuple[TreeStep, int]]:
        """Steps of a slice with the operands that are the same in every slice."""
        return frozenset(
            (step, child)
            for step in self.tree.steps if step.node not in self.tree.once
            for child in (step.left, step.right) if child in self.tree.once and child >= self.tree.leaves
        )  # fmt: skip

    def times(self, node: int) -> int:
        """How often a call makes a node."""
        return 1 if node in self.tree.once else self.tree.slices

    @cached_property
    def costs(self) -> dict[int, StepCost]:
        """The cost of each step, with what its operands and its sums take to travel, made once."""
        return {step.node: self._cost(step) for step in self.tree.steps}

    def _cost(self, step: TreeStep) -> StepCost:
        prices, split = self.prices, self.split[step.node]
        compute = prices.model.seconds(self.tree, step, lambda labels: self.size(labels, split))
        travel = sent = 0.0
        for child in (step.left, step.right):
            if child >= self.tree.leaves:
                share = self.times(child) / self.times(step.node)
                seconds, load = self._travel(self.routes[step.node, child], prices.items[child])
                travel, sent = travel + share * seconds, sent + share * load
        size = float(self.size(self.tree.nodes[step.node], self.split[step.node]) * prices.sums[step.node])
        for each in self.sums(step):
            travel += self.message(each.kind, size, each.line)
            sent += self.load(each.kind, size, each.line)
            size /= 1 if each.target is None else self.mesh[each.line]
        return StepCost(compute, travel, sent)

    def _travel(self, route: TensorRoute, item: int) -> tuple[float, float]:
        """Seconds of a way, and the bytes that a rank sends on it."""
        steps = route.steps(item)
        seconds = sum(self.message(move.kind, size, move.line) for move, size, _ in steps)
        return seconds, sum(self.load(move.kind, size, move.line) for move, size, _ in steps)

    @cached_property
    def _gathered(self) -> tuple[float, float]:
        """Seconds and bytes of gathering the result, part by part."""
        seconds, sent = self._travel(self.gathering, self.prices.items[self.tree.root])
        parts = self.tree.slices // self.tree.summed
        return parts * seconds, parts * sent

    @cached_property
    def seconds(self) -> float:
        """Predicted seconds of a call."""
        found = sum(self.times(node) * (cost.compute + cost.travel) for node, cost in self.costs.items())
        return found + self._gathered[0]

    @property
    def sent(self) -> float:
        """Bytes that the rank with the largest parts sends in a call."""
        return sum(self.times(node) * cost.sent for node, cost in self.costs.items()) + self._gathered[1]

    # -- memory --------------------------------------------------------------------------------------------------------

    @cached_property
    def memory(self) -> int:
        """Bytes that a call holds at once on a rank, besides operands: intermediates, what travels, the result.

        It is that of the rank with the largest parts, in the order in which `run` makes and drops tensors.
        """
        tree, live, most = self.tree, dict[int, int](), 0
        result = self.prices.result.bytes(tree)
        if tree.slices > 1:
            result += self._bytes(tree.root, self.held_as(tree.root), self.prices.sums[tree.root])
        order, bringing = tree.ordered, list(self.shared)
        for step in order:
            moving = [(step, child) for child in (step.left, step.right) if (step, child) not in self.shared]
            if step.node not in self.tree.once:
                moving, bringing = bringing + moving, []
            for taker, child in moving:
                if child >= tree.leaves:
                    most = max(most, sum(live.values()) + self._moving(taker, child, live))
            now, made = self._making(step)
            most = max(most, sum(live.values()) + now)
            for child in (step.left, step.right):
                if (step, child) not in self.shared:
                    live.pop(child, None)
            live[step.node] = made
        gathered = [2 * int(size) for _, size, _ in self.gathering.steps(self.prices.items[tree.root])]
        return result + max(most, live[tree.root] + max(gathered, default=0))

    def _moving(self, step: TreeStep, child: int, live: dict[int, int]) -> int:
        """Bytes besides a step's operand while it travels; `live` has what stays of it."""
        extra = now = 0
        for move, size, ranks in self.routes[step.node, child].steps(self.prices.items[child]):
            part = math.ceil(size / ranks)
            after = part if move.kind == "all-to-all" else int(size)
            extra = max(extra, now + after + min(part, 4 * PIECE))  # two pieces, packed and as they come
            now = after
        live[child] = now or live[child]
        return extra

    def _making(self, step: TreeStep) -> tuple[int, int]:
        """Bytes of a step's result until it is summed, at most, and of what stays of it."""
        wide = self.prices.sums[step.node]
        size = most = self._bytes(step.node, self.split[step.node], wide)
        for each in self.sums(step):
            piece = -(-size // self.mesh[each.line])
            most = max(most, size + piece + (2 * size if each.target is None else min(2 * size, 5 * PIECE)))
            size = size if each.target is None else piece
        made = self._bytes(step.node, self.held_as(step.node), self.prices.items[step.node])
        return max(most, made + (size if self.sums(step) else 0)), made

    def _bytes(self, node: int, places: Places, item: int) -> int:
        return self.size(self.tree.nodes[node], places) * item


Values = dict[int, torch.Tensor]  # of nodes, as this rank has them


class ModesRun:
    """A network over ranks as one of them runs it, again and again."""

    def __init__(self, network: NetworkPlan, plan: ModesPlan, ranks: Ranks, lines: Sequence[Ranks]) -> None:
        self.plan, self.ranks = plan, ranks
        self._lines, self._at = lines, coordinates(ranks.rank, plan.mesh)
        self._dtypes = network.dtypes
        self._functions = network.functions
        self._asked, limit = network.asked, network.settings.memory_limit
        if limit is not None:  # kernels pack operands in what it leaves
            room = max(limit - plan.memory, WORKSPACE)
            self._asked = replace(self._asked, options=replace(self._asked.options, workspace_limit=room))
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
        for each in sums:
            dim = None if each.target is None else plan.orders[node].index(each.target)
            what = f"the sum of node {node} over ranks"
            values[node] = reduced(values[node], dim, self._lines[each.line], self._combine, what)
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
